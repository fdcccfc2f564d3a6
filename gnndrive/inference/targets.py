"""Targets: the nodes whose new rows are computed, in batches of consecutive nodes.

Consecutive targets have consecutive indices on disk and consecutive rows in the result, so the
adjacency is read, and the result written, in one sequential pass. Where a batch ends depends on the
graph and on two limits only, never on memory or on time, because a matrix product may round
differently in a batch of another size: a computation that is resumed gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnndrive.common.records import EdgeKey, IndexPointers, NodeKey, ends_of
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges

BATCH_ENTRIES = 1 << 17
"""The most in-edges and targets of a batch, unless one target has more: enough that the work for
each batch is not that of Python, and little beside the rows that a block of batches needs."""
BATCH_TARGETS = 1 << 15


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """Targets that are computed at once.

    Attributes:
        first, last: the targets are the nodes [first, last) of their type.
        edges: for each edge type into them, the CSC positions [first, last) of their in-edges.
    """

    first: int
    last: int
    edges: Mapping[EdgeKey, tuple[int, int]]

    @property
    def entries(self) -> int:
        """Targets and in-edges, the unit in which progress is counted."""
        return self.last - self.first + sum(last - first for first, last in self.edges.values())


class Targets:
    """The targets of one node type, with those of `edges` that end at it. A batch has at most
    `batch_size`."""

    def __init__(
        self, store: Store, type: NodeKey, edges: Sequence[StoredEdges], batch_size: int
    ) -> None:
        self.type, self.count = type, store.nodes(type).num_nodes
        self.edges = {each.type: each for each in edges if ends_of(each.type)[1] == type}
        self._pointers: dict[EdgeKey, IndexPointers] = {
            key: each.index_pointers for key, each in self.edges.items()
        }
        self._batch_size = batch_size

    @property
    def sources(self) -> tuple[NodeKey, ...]:
        """The node types whose rows the targets need: their own, and those of their in-edges."""
        return tuple(dict.fromkeys([self.type, *(ends_of(key)[0] for key in self.edges)]))

    @property
    def entries(self) -> int:
        """Targets and in-edges, over all batches."""
        return self.count + sum(int(pointers[-1]) for pointers in self._pointers.values())

    def batches(self, first: int = 0) -> Iterator[TargetBatch]:
        """Yield the batches from target `first` on, which must be the first of a batch."""
        while first < self.count:
            until = min(first + self._batch_size, self.count)
            entries = np.arange(1, until - first + 1)
            for pointers in self._pointers.values():
                entries += pointers[first + 1 : until + 1].astype(np.int64) - int(pointers[first])
            last = first + max(int(np.searchsorted(entries, BATCH_ENTRIES, "right")), 1)
            edges = {
                key: (int(pointers[first]), int(pointers[last]))
                for key, pointers in self._pointers.items()
            }
            yield TargetBatch(first, last, edges)
            first = last

    def largest(self) -> dict[NodeKey, int]:
        """For each of `sources`, the most rows that a batch can need, duplicates counted."""
        most = dict.fromkeys(self.sources, 0)
        for batch in self.batches():
            rows = dict.fromkeys(most, 0)
            rows[self.type] = batch.last - batch.first
            for key, (first, last) in batch.edges.items():
                rows[ends_of(key)[0]] += last - first
            most = {type: max(count, rows[type]) for type, count in most.items()}
        return most

    def largest_edges(self) -> int:
        """The most in-edges of a batch, of all types."""
        return max((each.entries - each.last + each.first for each in self.batches()), default=0)
