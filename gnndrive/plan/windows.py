"""`PlannedWindows`: how large the windows of a partitioned store are, and what they need.

`plan/partitioned.py` plans with it; `loader/megabatches.py` makes it and draws batches for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import TypeVar

import numpy as np

from gnndrive.buffer.items import LEASE_BYTES
from gnndrive.common.items import Item, Life, Phase, Shape, if_any
from gnndrive.common.records import Int64Array
from gnndrive.pipeline.windows import READING_MAX
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.sampling.load_window import loading_bytes
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.schedules.base import WindowSizes
from gnndrive.sampling.window_graph import window_bytes
from gnndrive.store.partitioned.partitioned import Partitioned

K = TypeVar("K")
_MARGIN = 0.1  # by which another window may keep more edges than the one that was drawn
CHUNK_ROWS = 1 << 16  # rows that the keeper leases together
HELD_BYTES = 16  # of a row that the keeper holds: its number, its slot, whether it is there
STATIC_BYTES = 16  # of a static node of the folder: where it is, and where its list begins
GRAPHS = 2  # windows in memory


@dataclass(frozen=True)
class PlannedWindows:
    """The windows of a loader.

    Attributes:
        partitioned: the partitioned store.
        sizes: how many partitions windows have, as their schedule says.
        static: the number of static rows that are held for the whole epoch.
        drawn: what is known of batches that were drawn inside a window; None: nothing.
        drawn_in: the number of partitions of the window that they were drawn in.
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
    def count(self) -> int:
        """The most windows in an epoch."""
        return self.sizes.windows

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
        graphs = min(GRAPHS, self.count)
        return graphs * graph + loading_bytes(self.nodes, partitioned.num_static)

    @property
    def held_bytes(self) -> int:
        """Bytes of what the keeper holds beside the slots."""
        return HELD_BYTES * self.slots + READING_MAX * min(CHUNK_ROWS, self.slots) * LEASE_BYTES

    @property
    def static_bytes(self) -> int:
        """Bytes of the folder's arrays that are read into memory when it is opened."""
        return STATIC_BYTES * self.partitioned.num_static

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        item = partial(Item, life=Life.EPOCH, during=Phase.EXTRACTION)
        which = "two windows" if self.count > 1 else "the window"
        yield item("window graphs", self.graph_bytes, f"adjacency inside {which}")
        yield item("held rows", self.held_bytes, "leases of whole windows")
        why = "where they are, and their lists begin"
        yield from if_any(Item("static nodes", self.static_bytes, why))

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

    def said(self) -> tuple[str, ...]:
        """What `plan()` prints of the windows."""
        if self.drawn is None:
            return ()
        return (
            f"a window keeps {self.kept:.0%} of the edges to its nodes; a batch has about "
            f"{self.drawn.mean_nodes():,.0f} nodes",
        )
