"""The neighbour cache (Ginex, VLDB 2022, §3.2): in-neighbour lists kept in memory.

The `direct` topology uses it. It keeps the lists of the nodes with the highest out-degree /
in-degree, because a node is sampled about as often as its out-degree says and its list takes as
many indices as its in-degree says (`native/neighbours.c`). Making the cache takes two passes over
the indices, both in long direct reads: the first counts out-degrees, the second reads the chosen
lists and skips the others. Do not use it if out-degrees say little about which nodes are sampled,
for example because all seeds lie in one part of the graph.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.io.direct_file import STRETCH_BYTES
from gnndrive.common.memory import format_size
from gnndrive.common.progress import report
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.topologies.base import GraphSize, TopologyQuestion

_COUNT_BYTES = 4  # an out-degree
_TABLE_BYTES = 12  # 64 nodes in the address table
_ADDRESS_BYTES = 8  # the address of a list
_FIXED_BYTES = 1024  # everything else, at most


class NeighbourCache:
    """In-neighbour lists in memory.

    Args:
        csc: the graph's `gd_csc *`; must outlive this object.
        reader: reads the graph's indices.
        nbytes: the most memory that lists and their addresses may take.
        bipartite: whether edges come from nodes of another type than they go to. Then the indices
            hold no out-degrees of the nodes with lists, and the shortest lists are kept.
    """

    def __init__(
        self, csc: Any, reader: SequentialReader, nbytes: int, bipartite: bool = False
    ) -> None:
        self._csc = csc
        handle = self._choose_lists(csc, reader, nbytes, bipartite)
        self.handle = ffi.gc(handle, lib.gd_neighbours_free)
        while (at := lib.gd_neighbours_next(self.handle)) >= 0:
            first, indices = reader.stretch(at)
            lib.gd_neighbours_fill(self.handle, ffi.from_buffer(indices), first, indices.size)
            report("reading lists to keep", min(first + indices.size, csc.edges), csc.edges)

    @staticmethod
    def _choose_lists(csc: Any, reader: SequentialReader, nbytes: int, bipartite: bool) -> Any:
        """Return a cache whose lists are chosen and still empty; frees the out-degrees."""
        out_degree = np.full(max(csc.nodes, 1), bipartite, np.uint32)
        counts = ffi.cast("uint32_t *", out_degree.ctypes.data)
        for first, indices in () if bipartite else reader.stretches():
            report("choosing lists to keep", first + indices.size, csc.edges)
            lib.gd_count_out_degrees(
                ffi.from_buffer(indices), csc.index_bytes, indices.size, csc.nodes, counts
            )
        error = ffi.new("int *")
        handle = lib.gd_neighbours_new(csc, counts, nbytes, error)
        if handle == ffi.NULL:
            if error[0] == -errno.ENOMEM:
                raise MemoryError(
                    "no memory for the neighbour cache: give less in "
                    "tuning=Tuning(neighbour_cache=…)"
                )
            check(error[0], "gd_neighbours_new")
        return handle

    @property
    def nodes(self) -> int:
        """The number of nodes whose lists are kept."""
        return int(lib.gd_neighbours_nodes(self.handle, ffi.NULL))

    @property
    def indices(self) -> int:
        """The number of indices in the kept lists."""
        return int(lib.gd_neighbours_indices(self.handle))

    @property
    def nbytes(self) -> int:
        """Bytes of lists and addresses."""
        out = ffi.new("int64_t *")
        lib.gd_neighbours_nodes(self.handle, out)
        return int(out[0])


def least_bytes(size: GraphSize) -> int:
    """Return the bytes that a cache takes before it keeps a list."""
    return -(-size.nodes // 64) * _TABLE_BYTES + _FIXED_BYTES


def most_bytes(size: GraphSize) -> int:
    """Return the most bytes that a cache takes if it keeps every list."""
    lists = min(size.nodes, size.edges)
    return least_bytes(size) + lists * _ADDRESS_BYTES + size.indices_bytes


def build_bytes(size: GraphSize) -> int:
    """Return the bytes that making a cache takes besides the cache itself: the out-degrees, one
    stretch of indices and a histogram."""
    return _COUNT_BYTES * size.nodes + STRETCH_BYTES + (1 << 18)


def cache_bytes(question: TopologyQuestion, room: int) -> int:
    """Return the bytes of the neighbour caches of all edge types together: at most `room`, unless
    the user asked for a size."""
    least, most = sum(map(least_bytes, question.sizes)), sum(map(most_bytes, question.sizes))
    asked = question.cache
    if asked is None:
        return min(room, most) if room > least else 0
    if 0 < asked <= least:
        raise ConfigError(
            f"neighbour_cache={format_size(asked)} holds no list: the address table alone takes "
            f"{format_size(least)}; give more, or 0 for none"
        )
    return min(asked, most)


def divide_cache(cache: int, sizes: Sequence[GraphSize]) -> list[int]:
    """Divide `cache` bytes among the edge types, in proportion to the bytes of their lists."""
    least, most = list(map(least_bytes, sizes)), list(map(most_bytes, sizes))
    left = max(cache - sum(least), 0)
    return [
        low + left * (high - low) // max(sum(most) - sum(least), 1) if cache else 0
        for low, high in zip(least, most, strict=True)
    ]
