"""`PlannedSuperbatches`: how many batches are sampled ahead, and what memory and disk that takes.

With `superbatch="auto"` a superbatch is as long as pays. Near its end it does not know what the
next one needs, which costs the less the longer it is; beyond some times the batches that the
feature buffer holds, that is hardly anything. The disk limits it, too, because two superbatches are
alive at a time.

`AheadScheme` (`scheme.py`) makes one, and asks it for sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gnndrive.buffer.items import CODE_BYTES
from gnndrive.common.items import Item, Life, Shape, if_any
from gnndrive.common.memory import format_size
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.trace import record_bytes
from gnndrive.strategies.superbatches.feed import ALIVE_MAX

SUPERBATCH_MAX = 32_000  # codes of 16 bits tell the batches of two superbatches apart
AUTO_MAX, AUTO_MIN = 1500, 64  # GNNDrive's experiments have 1,500 for Ginex
HELD = 16  # an "auto" superbatch has HELD * slots / (rows that a batch loads) batches
RAMP = (2, 8, 32, 128, 512)  # the first ones are short, because the first batch waits for the first
KEPT_SEED_BYTES = 24  # a seed of a batch that is sampled ahead: its id, input_id and position


@dataclass(frozen=True, slots=True)
class PlannedSuperbatches:
    """What is decided of superbatches before the first one; see `plan.request.Ahead`.

    Attributes:
        folder: where their samples wait.
        asked: the user's `superbatch=`; None: "auto".
        batches: batches of an epoch.
        seeds: the most seeds of a batch.
        position_bytes: bytes of an edge's position in the graph.
        free_bytes: what was free on the folder's disk.
        apart: whether a superbatch is sampled before the feature buffer is made.
    """

    folder: Path
    asked: int | None
    batches: int
    seeds: int
    position_bytes: int
    free_bytes: int
    apart: bool = False

    def part(self, size: Bounds) -> SampledAhead:
        """See `Ahead.part`."""
        return SampledAhead(self, size)

    def window(self, size: Bounds) -> int:
        """See `Ahead.window`."""
        return ALIVE_MAX * self.most(size)

    def foreseen(self, size: Bounds) -> int | None:
        """See `Ahead.foreseen`."""
        return None if self.asked is None else self.most(size)

    @property
    def alive(self) -> int:
        """How many superbatches are on disk at a time."""
        return 1 if self.apart else ALIVE_MAX

    def record_bytes(self, size: Bounds) -> int:
        """The most bytes of a batch's record, for batches of at most `size`."""
        nodes, edges = sum(size.entries.values()), sum(size.edges.values())
        expanded = nodes if size.expanded is None else size.expanded
        return record_bytes(nodes, expanded, edges, self.seeds, self.position_bytes)

    def most(self, size: Bounds) -> int:
        """The most batches of a superbatch."""
        if self.asked is not None:
            return max(min(self.asked, self.batches), 1)
        held = self.free_bytes // (self.alive * self.record_bytes(size))
        return max(min(AUTO_MAX, self.batches, held), 1)

    def disk_bytes(self, size: Bounds) -> int:
        """The most bytes of disk that superbatches take at once."""
        return min(self.alive * self.most(size), self.batches) * self.record_bytes(size)

    def size(self, number: int, slots: int, misses: float | None, most: int) -> int:
        """How many batches a superbatch has.

        Args:
            number: its number in the epoch.
            slots: rows that the feature buffer holds.
            misses: rows that a batch loads; None: it is not known yet.
            most: see `most`.
        """
        if self.apart:  # the feature buffer begins empty after each, so few are best
            return most
        if number < len(RAMP):
            most = min(most, RAMP[number])
        if self.asked is not None or misses is None:
            return most
        return min(most, max(int(HELD * slots / max(misses, 1.0)), AUTO_MIN))

    def kept_bytes(self, size: Bounds) -> int:
        """Bytes of the seeds that are kept of batches sampled ahead."""
        return min(self.alive * self.most(size), self.batches) * self.seeds * KEPT_SEED_BYTES

    def said(self, size: Bounds) -> tuple[str, ...]:
        """What `plan()` prints of them."""
        most, disk = self.most(size), format_size(self.disk_bytes(size))
        which = "superbatch=" if self.asked is not None else 'superbatch="auto"'
        return (
            f"disk: up to {disk} in {self.folder} while an epoch runs, for {self.alive} "
            f"superbatch{'es' * (self.alive > 1)} of up to {most:,} sampled batches ({which})",
        )


@dataclass(frozen=True, slots=True)
class SampledAhead:
    """What samples take that wait on disk, and what is known of them.

    Attributes:
        planned: the superbatches.
        size: that of the largest batch.
    """

    planned: PlannedSuperbatches
    size: Bounds

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        rows, samplers = shape.foreseen_rows, shape.samplers
        codes = CODE_BYTES * shape.nodes * (shape.queued + 1) * (rows > 0)
        why = "of each row, in a superbatch"
        yield from if_any(Item("next uses", CODE_BYTES * rows + codes, why, life=Life.EPOCH))
        nbytes = (self.planned.record_bytes(self.size) + shape.sample_bytes) * samplers
        nbytes += self.planned.kept_bytes(self.size)
        why = f"{samplers} samples and their records, and seeds of batches sampled ahead"
        yield Item("records", nbytes, why, life=Life.EPOCH)
