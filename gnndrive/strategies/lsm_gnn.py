"""LSM-GNN (2024) and GIDS (VLDB 2024): next uses and reverse PageRank, and a victim buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gnndrive.common.memory import size_or_none
from gnndrive.loader.assembly import Assembly
from gnndrive.plan.host_level import HostLevel
from gnndrive.strategies.base import Scheme
from gnndrive.strategies.superbatches.scheme import AheadScheme, SamplesAhead


@dataclass(frozen=True, kw_only=True)
class LSMGNN(SamplesAhead):
    """LSM-GNN, "Large-scale Storage-based Multi-GPU GNN Training by Optimizing Data Transfer
    Scheme", and its predecessor GIDS.

    The cache on the GPU knows the next uses of rows in the batches that are sampled ahead; rows
    without one are kept by their reverse PageRank, which says how likely they are to be sampled (a
    hybrid policy, section 4.2). Rows that leave the GPU go into a victim buffer in host memory,
    from which they come back without a read (section 4.3): the host level, which other strategies
    have too.

    Where this differs: batches that are sampled ahead wait on disk in superbatches, as with
    `Ginex`, so that the policy looks 128 batches ahead. GPUs of one host exchange rows
    (section 4.1) in stretches, with `Tuning(exchange="stride")` as there in single ones; an owner
    knows the next uses by the batches of all ranks. Levels do not swap with a victim buffer: one
    order says which rows are on the GPU, which in host memory and which nowhere.

    Args:
        victim_buffer: the pinned host memory for rows that leave a GPU, in bytes or as text.
            "auto": what `memory` leaves, or without it a quarter of the available host memory.
        superbatch, folder, phases: see `SamplesAhead`.
    """

    name: str = "lsm-gnn"
    published: str = "LSM-GNN (2024), GIDS (VLDB 2024)"
    policy: Any = "hybrid"
    superbatch: int | str = 128
    victim_buffer: str | int = "auto"

    exchange: ClassVar[bool] = True
    does: ClassVar[str] = "samples ahead, keeps evicted rows"
    pays: ClassVar[str] = "a GPU's memory is short; not measured yet"

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        self._check(assembly)
        scheme = _VictimScheme(self)
        scheme.elastic(assembly)  # so that a wrong size is an error here
        return scheme


class _VictimScheme(AheadScheme):
    """How a loader keeps victims, beside sampling ahead."""

    strategy: LSMGNN

    def elastic(self, assembly: Assembly) -> HostLevel | None:
        """See `Scheme.elastic`."""
        given = self.strategy.victim_buffer
        nbytes = None if given == "auto" else size_or_none(given, "victim_buffer")
        return None if nbytes == 0 else HostLevel.below(assembly.device[0], nbytes)
