"""What the windows of a partitioned store need.

The feature buffer of a loader that samples inside windows holds the static rows and those of two
windows (HierBatching section 3): one is trained on while the next one is loaded. Rows that both
have are there once. `partitioned_planner` makes the plan for windows of one size; the scheme
(`scheme.py`) tries several. The slots must hold two windows, or batches would load rows one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import TypeVar

import numpy as np

from gnndrive.buffer.items import LEASE_BYTES
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Life, Phase, Shape, if_any
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.records import NO_TOPOLOGY, Int64Array, TopologyChoice
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import Budget, Plan, Planner, Slots, StageCounts, TablePlan, default_bytes
from gnndrive.plan.request import PlanRequest, planner_of
from gnndrive.sampling.load_window import loading_bytes
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.schedules.base import WindowSizes
from gnndrive.sampling.window_graph import window_bytes
from gnndrive.store.partitioned.partitioned import Partitioned
from gnndrive.strategies.base import stages_for
from gnndrive.strategies.windows.feed import CHUNK_ROWS, READING_MAX

K = TypeVar("K")
STAGES = StageCounts(2, 4, 3)
FREE = "the part of the device's free memory that loading may use, "
QUARTER = "a quarter of the memory that is left, "
TOPOLOGY = TopologyChoice(NO_TOPOLOGY, "none, because each window has a graph of its own", 0)
_MARGIN = 0.1  # by which another window may keep more edges than the one that was drawn
HELD_BYTES = 16  # of a row that `WindowFeed` holds: its number, its slot, whether it is there
STATIC_BYTES = 16  # of a static node of the folder: where it is, and where its list begins
GRAPHS = 2  # windows in memory


@dataclass(frozen=True)
class PlannedWindows(Slots):
    """The windows of a loader. As a part it states what they need beside slots, and it decides how
    many slots the feature buffer has; see `common.items.Part` and `plan.plan.Slots`.

    Attributes:
        sizes: how many partitions windows have, as their schedule says.
        static: the number of static rows that are held for the whole epoch.
        drawn, drawn_in: what is known of batches that were drawn inside a window, and the number of
            its partitions.
        kept: the share of the edges to that window's nodes that begin in it.
        chosen: whether they fitted into the memory that was free when a loader chose them. A plan
            does not ask how much is free again, because that changes all the time.
    """

    partitioned: Partitioned
    sizes: WindowSizes
    static: int
    drawn: DrawnBatches | None = None
    drawn_in: int = 0
    kept: float = 1.0
    chosen: bool = False

    @cached_property
    def _sizes(self) -> tuple[Int64Array, Int64Array]:
        """Nodes and edges of so many of the largest partitions, int64 [P + 1] each."""
        found = []
        for bounds in (self.partitioned.bounds, self.partitioned.edge_bounds):
            sizes = np.sort(np.diff(bounds))[::-1]
            found.append(np.append(0, np.cumsum(sizes)).astype(np.int64))
        return found[0], found[1]

    @property
    def megabatch(self) -> int:
        """The number that `megabatch=` takes to have these windows."""
        return self.sizes.megabatch

    @property
    def nodes(self) -> int:
        """The most nodes of a window's graph, static ones included; static ones that lie in its
        partitions count twice."""
        return int(self._sizes[0][self.sizes.one]) + self.static

    @property
    def rows(self) -> int:
        """The rows of x that may be loaded: those of all partitions, and the static ones."""
        return self.partitioned.num_nodes + self.static

    @property
    def slots(self) -> int:
        """Slots for the static rows and those of two windows."""
        return int(self._sizes[0][self.sizes.two]) + self.static

    @property
    def graph_bytes(self) -> int:
        """Bytes of two windows' graphs, one of which is being loaded."""
        partitioned = self.partitioned
        edges = int(self._sizes[1][self.sizes.one])
        edges += int(partitioned.static_bounds[self.static])
        kept = min(ceil(edges * self.kept_in_window), partitioned.num_edges)
        rows = partitioned.num_nodes + partitioned.num_static
        graph = window_bytes(self.nodes, kept, rows, partitioned.num_edges)
        graphs = min(GRAPHS, self.sizes.windows)
        return graphs * graph + loading_bytes(self.nodes, partitioned.num_static)

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        item = partial(Item, life=Life.EPOCH, during=Phase.EXTRACTION)
        which = "two windows" if self.sizes.windows > 1 else "the window"
        yield item("window graphs", self.graph_bytes, f"adjacency inside {which}")
        held = HELD_BYTES * self.slots + READING_MAX * min(CHUNK_ROWS, self.slots) * LEASE_BYTES
        yield item("held rows", held, "leases of whole windows")
        static, why = STATIC_BYTES * self.partitioned.num_static, "where they are, and their lists"
        yield from if_any(Item("static nodes", static, f"{why} begin"))

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """See `Slots.fit`."""
        (table,), slots, several = shape.tables, self.slots, self.sizes.windows > 1
        tables = (replace(TablePlan.of(table, slots), batch_rows_max=self.nodes),)
        count = f"{self.sizes.windows} windows" if several else "one window"
        in_common = 2 * self.sizes.one - self.sizes.two
        common = f", {in_common:,} of them in both" if in_common and several else ""
        why = (
            f"{slots:,} rows: {self.static:,} static ones and "
            f"{'two' if several else 'one'} of {count}, each of "
            f"{self.sizes.one:,} of {self.partitioned.num_parts:,} partitions{common}"
        )
        return tables, why

    def said(self, plan: Plan) -> tuple[str, ...]:
        """See `Slots.said`."""
        if self.drawn is None:
            return ()
        return (
            f"a window keeps {self.kept:.0%} of the edges to its nodes; a batch has about "
            f"{self.drawn.mean_nodes():,.0f} nodes",
        )

    def check(self, plan: Plan, budget: Budget) -> None:
        """See `Slots.check`."""
        ranks, slots = plan.ranks, plan.buffer_bytes
        limits = [("memory", "memory=", budget.memory, plan.host_bytes)]
        limits.append(("buffer", "buffer=", budget.buffer, slots * ranks))
        device, given = budget.device_memory, budget.device_given
        if given or (device is not None and not self.chosen):
            said = "device_memory=" if given else FREE
            limits.append(("device_memory", said, device, plan.device_bytes))
        if not self.chosen and (budget.memory, budget.buffer, device) == (None, None, None):
            limits.append(("buffer", QUARTER, default_bytes(ranks), slots * ranks))
        for name, said, limit, needed in limits:
            if limit is not None and needed > limit:
                raise ConfigError(
                    f"{said}{format_size(limit)} is too little for windows of "
                    f"{self.megabatch:,} of {self.partitioned.num_parts:,} partitions, which "
                    f'need {format_size(needed)}: give {name}="{least_text(needed)}", or '
                    f"{self.smaller}\n{plan}"
                )

    @property
    def smaller(self) -> str:
        """What makes the loader need less memory, for error messages."""
        if self.megabatch > 1:
            return "a smaller megabatch=, static= or batch_size="
        return (
            "a smaller static= or batch_size=, or partition the store into more parts (gnndrive "
            "partition)"
        )

    @property
    def kept_in_window(self) -> float:
        """The share of the edges to a window's nodes that begin in it, at most."""
        if self.drawn is None:
            return 1.0
        return min(self.kept * (1 + _MARGIN) * self._growth, 1.0)

    @property
    def _growth(self) -> float:
        """How many times larger a window is than the one that batches were drawn in, at least 1."""
        return max(self.sizes.one / self.drawn_in, 1)

    def within(self, bounds: Bounds) -> Bounds:
        """The most that a batch can have: no more nodes than a window."""
        nodes = {type: min(count, self.nodes) for type, count in bounds.nodes.items()}
        entries = {type: min(count, self.nodes) for type, count in bounds.entries.items()}
        return replace(bounds, nodes=nodes, entries=entries)

    def planned(self, bounds: Bounds) -> Bounds:
        """The size that a plan counts for the largest batch, at most `bounds`. In a larger window
        than the one that batches were drawn in, they are expected to be larger in proportion."""
        if self.drawn is None:
            return bounds
        found, growth = self.drawn.planned(bounds), self._growth

        def grown(counts: Mapping[K, int], most: Mapping[K, int]) -> dict[K, int]:
            return {type: min(ceil(growth * n), most[type]) for type, n in counts.items()}

        nodes, edges = grown(found.nodes, bounds.nodes), grown(found.edges, bounds.edges)
        entries = grown(found.entries, bounds.entries)
        expanded = found.expanded
        if expanded is not None:
            expanded = min(ceil(growth * expanded), sum(entries.values()))
        return Bounds(nodes, edges, entries, expanded)


def partitioned_planner(request: PlanRequest, windows: PlannedWindows) -> Planner:
    """The planner of a loader that samples inside windows."""
    bounds = windows.within(request.bounds)
    file = replace(windows.partitioned.x, row_count=windows.rows)
    request = replace(
        request, tables=tuple(replace(table, file=file) for table in request.tables),
        bounds=bounds, seed_bounds=bounds, planned=windows.planned(bounds), drawn=windows.drawn,
        shared=False, shared_graph=False,
    )  # fmt: skip
    planner = planner_of(request, stages_for(request, STAGES))
    shape = replace(planner.shape, looks_ahead=False)  # whole windows are loaded
    return replace(
        planner, shape=shape, parts=(windows, *planner.parts), slots=windows, topology=TOPOLOGY,
        elastic=None, limits=None,
    )  # fmt: skip
