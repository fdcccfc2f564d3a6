"""GNNDrive (ICPP 2024): the default strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gnndrive.common.items import Item, Shape
from gnndrive.loader.arguments import preset
from gnndrive.loader.assembly import Assembly
from gnndrive.plan.choice import fitting, with_chosen_topology
from gnndrive.plan.plan import Budget, Planner, TablePlan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.slots import RowSlots
from gnndrive.strategies.base import PLAIN, Scheme, Strategy

QUEUES = 6, 4  # its extracting and training queue
WORKERS = 4  # its samplers, and its extractors


@dataclass(frozen=True, kw_only=True)
class GNNDrive(Strategy):
    """GNNDrive, "Reducing Memory Contention and I/O Congestion for Disk-based GNN Training".

    Samplers, extractors, the trainer and releasers are workers with bounded queues between them
    (section 4.1). Rows are read with io_uring past the page cache, which would evict the adjacency
    (section 3), into staging memory and from there into a feature buffer of fixed size, on the GPU
    if there is one. The buffer has a mapping table, a reverse map, ref counts and a standby list of
    slots that no batch uses, from which the least recently used one is taken (section 4.2).
    Batches may be trained on in another order than they were sampled (section 4.3).

    Where this differs: rows leave by Belady's rule over the queued samples instead of LRU; several
    batches are read in one sorted pass with gaps bridged; the adjacency is in memory or read with
    direct I/O instead of memory-mapped; numbers of workers and queued batches follow from the
    memory; the buffer has all memory that is left; batches come in order unless in_order=False.

    Args:
        paper: whether to run as published: LRU, a batch a pass, no gap bridged, indices
            memory-mapped, batches in any order (in_order=True does not change that), 4 samplers and
            extractors, queues of 6 and 4, and a feature buffer of as many largest batches as the
            training queue has. What you give as `tuning=` or `buffer=` counts all the same.
    """

    name: str = "gnndrive"
    published: str = "GNNDrive (ICPP 2024)"
    paper: bool = False

    does: ClassVar[str] = "reads ahead for queued samples"
    pays: ClassVar[str] = "features do not fit in memory; the default"

    def preset(self, assembly: Assembly) -> Assembly:
        """See `Strategy.preset`."""
        if not self.paper:
            return assembly
        own = preset(
            assembly.own, policy="lru", sweep=1, gap=0, topology="mmap", samplers=WORKERS,
            extractors=WORKERS, extracting_queue=QUEUES[0], training_queue=QUEUES[1],
        )  # fmt: skip
        strategy = replace(self, tiers=("disk",))
        return replace(assembly, own=own, in_order=False, strategy=strategy)

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        return _AsPublished() if self.paper else PLAIN


class _AsPublished(Scheme):
    """How a loader loads as the paper does: its feature buffer has a fixed size."""

    def planner(self, request: PlanRequest) -> Planner:
        if request.buffer is not None:
            return super().planner(request)
        return fitting(request, _planner)


def _planner(request: PlanRequest) -> Planner:
    planner = with_chosen_topology(request)
    return replace(planner, slots=_QueuedBatches(batches=planner.stages.training_queue))


@dataclass(frozen=True, slots=True)
class _QueuedBatches(RowSlots):
    """A feature buffer with room for the largest batches of the training queue (section 4.2)."""

    batches: int = QUEUES[1]

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        tables = tuple(
            TablePlan.of(each, min(self.batches * each.batch_rows_max, each.rows))
            for each in shape.tables
        )
        slots = sum(each.slots for each in tables)
        return tables, f"{slots:,} rows: {self.batches} largest batches, as in the paper"
