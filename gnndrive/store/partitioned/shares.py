"""`Shares`: how many in-edges sampling inside a window keeps, counted from the lists of codes.

A window keeps all edges inside its partitions, those from static nodes in memory, and of the others
as many as chance puts both ends into the window: `PartitionInfo.share_kept`.
"""

from __future__ import annotations

import numpy as np

from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Int64Array
from gnndrive.store.partitioned.arrays import Ids, numbers
from gnndrive.store.partitioned.format import HOT_SHARE
from gnndrive.store.partitioned.renumbering import checked


class Shares:
    """See the module.

    Args:
        home, bounds, edge_bounds: the arrays of a partitioned folder.
        nodes: how many nodes there are.
    """

    def __init__(
        self, home: Int64Array, bounds: Int64Array, edge_bounds: Int64Array, nodes: int
    ) -> None:
        self._home, self._bounds, self._edge_bounds, self._nodes = home, bounds, edge_bounds, nodes
        self._hot = min(round(HOT_SHARE * nodes), len(home))
        self._found, self._edges = np.zeros(2, np.int64), 0

    def add(self, codes: Ids) -> None:
        """Count the next codes of `indices`.

        Raises:
            StoreError: a code is out of range.
        """
        first, last = self._edges, self._edges + len(codes)
        part = int(np.searchsorted(self._edge_bounds, first, "right")) - 1
        while first < last:
            end = min(int(self._edge_bounds[part + 1]), last)
            if end > first:
                low, high = self._bounds[part : part + 2].tolist()
                taken, codes = codes[: end - first], codes[end - first :]
                given = numbers(taken), len(taken), pointer(self._home), len(self._home)
                counted = lib.gd_count_inside(
                    *given, self._nodes, self._hot, low, high, pointer(self._found)
                )
                checked(counted, lambda: "indices.npy has a code out of range: partition again")
            first, part = end, part + 1
        self._edges = last

    @property
    def inside(self) -> float:
        """The share of in-edges that come from the partition of their target."""
        return int(self._found[0]) / max(self._edges, 1)

    @property
    def hot(self) -> float:
        """See `PartitionInfo.share_hot`."""
        return int(self._found[1]) / max(self._edges, 1)
