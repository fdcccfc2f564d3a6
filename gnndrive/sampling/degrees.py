"""`Degrees`: how many in-neighbours the nodes of a graph have, to bound the size of a sample.

A sample of all neighbours of 1,000 nodes has at most as many edges as the 1,000 longest lists
together. The loader asks for the degrees when it plans within a budget; a pass over the index
pointers, which are in memory then, counts them.
"""

from __future__ import annotations

import weakref

import numpy as np

from gnndrive.common.records import EdgeKey, IndexPointers
from gnndrive.store.reader import Store

_CHUNK = 1 << 22  # nodes whose degrees are counted at once
_of_stores: weakref.WeakKeyDictionary[Store, dict[EdgeKey, Degrees]] = weakref.WeakKeyDictionary()


class Degrees:
    """The in-degrees of one edge type's target nodes."""

    def __init__(self, indptr: IndexPointers) -> None:
        found: dict[int, int] = {}
        for start in range(0, len(indptr) - 1, _CHUNK):
            pointers = indptr[start : start + _CHUNK + 1].astype(np.int64)
            degrees, counts = np.unique(np.diff(pointers), return_counts=True)
            for degree, count in zip(degrees.tolist(), counts.tolist(), strict=True):
                found[degree] = found.get(degree, 0) + count
        order = sorted((degree for degree in found if degree > 0), reverse=True)
        self._degree = np.array(order, np.int64)
        self._count = np.array([found[degree] for degree in order], np.int64)

    def edges_most(self, nodes: int, fanout: int, replace: bool = False) -> int:
        """The most edges that are drawn for `nodes` distinct nodes, `fanout` for each; -1: all."""
        taken = np.minimum(self._count, np.maximum(nodes - (self._count.cumsum() - self._count), 0))
        if fanout < 0:
            each = self._degree
        elif replace:
            return int(taken.sum()) * fanout
        else:
            each = np.minimum(self._degree, fanout)
        return int((taken * each).sum())


def degrees_of(store: Store) -> dict[EdgeKey, Degrees]:
    """The degrees of each edge type of a store; counted once for each store object."""
    if store not in _of_stores:
        _of_stores[store] = {
            type: Degrees(store.edges(type).index_pointers) for type in store.info.types.edges
        }
    return _of_stores[store]
