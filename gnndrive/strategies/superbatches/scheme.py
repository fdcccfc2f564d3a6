"""`SamplesAhead`: a strategy that samples superbatches; how long they are, and what they take.

With `superbatch="auto"` a superbatch is as long as pays. Near its end it does not know what the
next one needs, which costs the less the longer it is; beyond some times the batches that the
feature buffer holds, that is hardly anything. The disk limits it, too, because two superbatches are
alive at a time. Of each epoch the scheme makes a `LoaderSuperbatches`, which the feed (`feed.py`)
asks for sizes and traces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gnndrive.buffer.items import CODE_BYTES
from gnndrive.common.errors import ConfigError
from gnndrive.common.io.write_errors import free_bytes
from gnndrive.common.items import Item, Life, Part, Shape, Use, if_any
from gnndrive.common.memory import format_size
from gnndrive.common.plugins import find
from gnndrive.common.records import Codes, NodeKey
from gnndrive.loader.arguments import positive
from gnndrive.loader.assembly import Assembly
from gnndrive.pipeline.epoch import Feed
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.schedules.base import InputEdges
from gnndrive.sampling.trace import RecordSize, Trace
from gnndrive.strategies.base import FeedContext, Scheme, Strategy
from gnndrive.strategies.superbatches.feed import ALIVE_MAX, AheadFeed, InspectFeed

SUPERBATCH_MAX = 32_000  # codes of 16 bits tell the batches of two superbatches apart
AUTO_MAX, AUTO_MIN = 1500, 64  # GNNDrive's experiments have 1,500 for Ginex
HELD = 16  # an "auto" superbatch has HELD * slots / (rows that a batch loads) batches
RAMP = (2, 8, 32, 128, 512)  # the first ones are short, because the first batch waits for the first
ID_BYTES = 8
KEPT_SEED_BYTES = 24  # a seed of a batch that is sampled ahead: its id, input_id and position
PHASES = ("overlapped", "apart")


@dataclass(frozen=True, kw_only=True)
class SamplesAhead(Strategy):
    """A strategy that samples ahead.

    Args:
        superbatch: how many batches are sampled before the first of them is extracted. "auto": as
            many as pay for their disk; the first ones are few, so that the first batch comes soon.
            A sampler or batch sampler of yours is drawn ahead by up to two superbatches.
        folder: where sampled batches wait, in files without a name, on a fast disk;
            `plan().disk_bytes` says how much they take. None: the store's folder.
        phases: "overlapped" (a superbatch is sampled while the one before is extracted) or "apart":
            it is sampled first, with the adjacency in the feature buffer's place, and then
            extracted with the adjacency's memory for the buffer. The first batch comes when a whole
            superbatch is sampled, and one iterator can run at a time.
    """

    superbatch: int | str = "auto"
    folder: Any = None
    phases: str = "overlapped"

    disk: ClassVar[str] = "sampled batches"

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        self._check(assembly)
        return AheadScheme(self)

    def _check(self, assembly: Assembly) -> None:
        """Raise ConfigError if an argument cannot work."""
        how = assembly.subgraphs
        if how is not None and (how.gnndrive_sampler is None or how.transform is not None):
            raise ConfigError(
                f"strategy={self.name!r} records samples, and what neighbor_sampler= and "
                "transform_sampler_output= return may hold anything: leave them out, or give "
                "strategy='gnndrive'"
            )
        asked = self.superbatch
        if asked != "auto":
            if isinstance(asked, str | bool):
                raise ConfigError(f"superbatch={asked!r}: give a number of batches, or 'auto'")
            if positive(superbatch=asked) > SUPERBATCH_MAX:
                raise ConfigError(f"superbatch={asked!r}: give at most {SUPERBATCH_MAX:,} batches")
        if self.phases not in PHASES:
            raise ConfigError(f"phases={self.phases!r}: give 'overlapped' or 'apart'")
        path, given = self.folder_in(assembly.store.path), self.folder
        if not path.is_dir():
            raise ConfigError(f"folder={str(path)!r} is no folder: give one that is there")
        if not os.access(path, os.W_OK | os.X_OK):
            which = "the store's folder" if given is None else "folder="
            raise ConfigError(
                f"strategy={self.name!r} keeps sampled batches on disk, and {which} {path} cannot "
                "be written to: give a folder on a fast disk with folder="
            )

    def folder_in(self, store: Path) -> Path:
        """The folder of the traces: the user's, or the store's; ConfigError: it is no path."""
        given = self.folder
        if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
            raise ConfigError(f"folder={given!r}: give the path of a folder")
        return store if given is None else Path(given)


class AheadScheme(Scheme):
    """How a loader samples ahead. Each rank has superbatches of its own."""

    own_buffer = True  # a service's foresees no superbatch, and copies no rows

    def __init__(self, strategy: SamplesAhead) -> None:
        self.strategy = strategy
        self.exchanges = strategy.phases != "apart"
        if strategy.phases == "apart":
            self.not_shared = "with phases='apart' each rank frees the graph between superbatches"

    def ahead(self, assembly: Assembly) -> PlannedSuperbatches:
        """See `Scheme.ahead`."""
        asked, store = self.strategy.superbatch, assembly.store
        # The owner of a row has codes of 16 bits for the batches of all ranks.
        longest = SUPERBATCH_MAX // (assembly.ranks.world if assembly.exchange else 1)
        folder = self.strategy.folder_in(store.path)
        try:
            batches = assembly.steps()
        except TypeError:
            batches = longest
        return PlannedSuperbatches(
            folder, None if asked == "auto" else int(asked), min(batches, longest),
            _record_size(assembly),
            free_bytes(folder) // assembly.ranks.on_host, self.strategy.phases == "apart",
        )  # fmt: skip

    def feed(self, context: FeedContext) -> Feed:
        """See `Scheme.feed`."""
        source = LoaderSuperbatches(context)
        if self.strategy.phases == "apart":
            return InspectFeed(source, context.load_graph, context.free_graph)
        return AheadFeed(source)


def _record_size(assembly: Assembly) -> RecordSize:
    how, inputs, types = assembly.subgraphs, assembly.inputs, assembly.store.info.types
    if how is None:
        return RecordSize(types, "sample", False, assembly.seeds_max, ID_BYTES)
    # Beside what `RecordSize` counts, a record has what PyG's samplers say of the seeds.
    seed_bytes = 4 * ID_BYTES  # its node and input_id, and the latter and the time once more
    if isinstance(inputs, InputEdges):
        more = 0 if how.negatives is None else ceil(float(how.negatives.amount))
        seed_bytes += (1 + more) * (2 * ID_BYTES + inputs.label_bytes)
    form = "heterogeneous" if types.hetero else "homogeneous"
    return RecordSize(types, form, how.disjoint, assembly.seeds_max, seed_bytes)


@dataclass(frozen=True, slots=True)
class PlannedSuperbatches:
    """What is decided of superbatches before the first one; see `plan.request.Ahead`.

    Attributes:
        asked: the user's `superbatch=`; None: "auto".
        batches: those of an epoch.
        records: how large the records of samples are.
        free_bytes: of the disk of the folder where samples wait, for this rank.
    """

    folder: Path
    asked: int | None
    batches: int
    records: RecordSize
    free_bytes: int
    apart: bool = False

    def part(self, size: Bounds, memory: int | None) -> Part:
        """See `plan.request.Ahead`."""
        return AheadPart(self, size)

    def window(self, size: Bounds) -> int:
        """See `plan.request.Ahead`."""
        return ALIVE_MAX * self.most(size)

    def foreseen(self, size: Bounds) -> int | None:
        """See `plan.request.Ahead`."""
        return None if self.asked is None else self.most(size)

    @property
    def alive(self) -> int:
        """How many superbatches are on disk at a time."""
        return 1 if self.apart else ALIVE_MAX

    def record_bytes(self, size: Bounds) -> int:
        """See `plan.request.Ahead`."""
        return self.records.nbytes(size)

    def most(self, size: Bounds) -> int:
        """The most batches of a superbatch."""
        if self.asked is not None:
            return max(min(self.asked, self.batches), 1)
        held = self.free_bytes // (self.alive * self.record_bytes(size))
        return max(min(AUTO_MAX, self.batches, held), 1)

    def waiting(self, size: Bounds) -> int:
        """The most batches that wait on disk at once."""
        return min(self.alive * self.most(size), self.batches)

    def disk_bytes(self, size: Bounds) -> int:
        """See `plan.request.Ahead`."""
        return self.waiting(size) * self.record_bytes(size)

    def said(self, size: Bounds) -> tuple[str, ...]:
        """See `plan.request.Ahead`."""
        most, disk = self.most(size), format_size(self.disk_bytes(size))
        which = "superbatch=" if self.asked is not None else 'superbatch="auto"'
        return (
            f"disk: up to {disk} in {self.folder} while an epoch runs, for {self.alive} "
            f"superbatch{'es' * (self.alive > 1)} of up to {most:,} sampled batches ({which})",
        )


@dataclass(frozen=True, slots=True)
class AheadPart:
    """What samples take that wait on disk, and what is known of them; see `Part`."""

    planned: PlannedSuperbatches
    size: Bounds  # of the largest batch

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        rows, samplers = shape.foreseen_rows, shape.samplers
        codes = CODE_BYTES * shape.nodes * (shape.queued + 1) * (rows > 0)
        why = "when a superbatch needs each row next"
        next_uses = CODE_BYTES * rows + codes
        yield from if_any(Item("next uses", next_uses, why, life=Life.EPOCH, use=Use.FEATURES))
        record, reads = self.planned.record_bytes(self.size), self.planned.records.form != "sample"
        nbytes = (record + shape.sample_bytes) * samplers + record * reads
        nbytes += self.planned.waiting(self.size) * self.planned.records.seeds * KEPT_SEED_BYTES
        why = f"{samplers} samples and their records, and seeds of batches sampled ahead"
        yield Item("records", nbytes, why, life=Life.EPOCH)


class LoaderSuperbatches:
    """Makes the superbatches of one epoch, or of a part of it.

    Attributes:
        end: the index behind the epoch's last batch; None: only the schedule knows it.
        foreseen: the tables of which the policy knows next uses, with the type of their nodes.
    """

    def __init__(self, context: FeedContext) -> None:
        request, policy = context.request, context.policy
        assert isinstance(request.ahead, PlannedSuperbatches)
        self._planned, self._size = request.ahead, request.planned
        self._slots, self._empty, self.end = context.plan.slots, context.empty, context.end
        knows = policy is not None and find("policies", policy).looks_ahead
        self._types = request.store.info.types
        self.foreseen: Mapping[str, NodeKey] = {
            each.name: each.type  # type: ignore[misc]
            for each in request.tables
            if knows and not each.of_edges
        }
        self._uses: dict[NodeKey, Codes] = {}

    def size(self, number: int, first: int, misses: float | None) -> int:
        """How many batches superbatch `number` has, from batch `first` on, if a batch misses about
        `misses` rows."""
        most = self._planned.most(self._size)
        if self._planned.apart:  # the feature buffer begins empty after each, so few are best
            return most
        if number < len(RAMP):
            most = min(most, RAMP[number])
        if self._planned.asked is not None or misses is None:
            return most
        return min(most, max(int(HELD * self._slots / max(misses, 1.0)), AUTO_MIN))

    def open_trace(self) -> Trace:
        """A new trace; blocks. StoreError: no file can be made."""
        return Trace(self._planned.folder, self._types, self._empty)

    def next_uses(self) -> Mapping[NodeKey, Codes]:
        """Node type → the code of the next use of each row of its tables, uint16 [nodes], if one of
        them is `foreseen`; they are made at the first call."""
        for type in set(self.foreseen.values()) - self._uses.keys():
            self._uses[type] = np.empty(self._types.nodes[type].num_nodes, np.uint16)
        return self._uses

    def no_room(self) -> ConfigError:
        """The error for a disk that has room for no record."""
        folder, record = self._planned.folder, self._planned.record_bytes(self._size)
        free = free_bytes(folder)
        return ConfigError(
            f"the disk has no room for a single sampled batch in {folder}: it takes up to "
            f"{format_size(record, free)}, and {format_size(free, record)} are free: free some, "
            "give a folder on another disk with folder=, or strategy='gnndrive', which does not "
            "sample ahead"
        )
