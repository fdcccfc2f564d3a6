"""The neighbour cache (Ginex, VLDB 2022, §4.2): the lists that are wanted most for their length.

Made in two passes over the indices, both in long direct reads. The first counts out-degrees; the
nodes with the highest out-degree / in-degree are kept (`native/neighbours.c`). The second reads
their lists, and skips what lies between them. Do not use it for a graph whose out-degrees say
little of what is sampled, as when all seeds lie in one corner of it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.memory import format_size
from gnndrive.disk.sequential_reader import STRETCH_BYTES, SequentialReader
from gnndrive.sampling.topologies.base import GraphSize, TopologyQuestion

_COUNT_BYTES = 4  # of an out-degree
_TABLE_BYTES = 12  # of the address table, for 64 nodes
_ADDRESS_BYTES = 8  # of a list's address
_FIXED_BYTES = 1024  # the rest


class NeighbourCache:
    """In-neighbour lists in memory.

    Args:
        csc: the graph's `gd_csc *`; must outlive this object.
        stream: its indices.
        nbytes: the most memory that lists and their addresses may take.
        bipartite: edges come from other nodes than they go to: nobody's out-degree is known, and
            the shortest lists are kept.

    Raises:
        ReadError: the disk failed.
        StoreError: the file is too short.
        MemoryError: there is not so much memory.
    """

    def __init__(
        self, csc: Any, stream: SequentialReader, nbytes: int, bipartite: bool = False
    ) -> None:
        self._csc = csc
        handle = self._choose(csc, stream, nbytes, bipartite)
        self.handle = ffi.gc(handle, lib.gd_neighbours_free)
        while (at := lib.gd_neighbours_next(self.handle)) >= 0:
            first, indices = stream.stretch(at)
            address = ffi.cast("void *", indices.ctypes.data)
            lib.gd_neighbours_fill(self.handle, address, first, indices.size)

    @staticmethod
    def _choose(csc: Any, stream: SequentialReader, nbytes: int, bipartite: bool) -> Any:
        """The cache with nothing filled in; out-degrees are forgotten on return."""
        out_degree = np.full(max(csc.nodes, 1), bipartite, np.uint32)
        counts = ffi.cast("uint32_t *", out_degree.ctypes.data)
        for _, indices in () if bipartite else stream.stretches():
            address = ffi.cast("void *", indices.ctypes.data)
            lib.gd_count_out_degrees(address, csc.index_bytes, indices.size, csc.nodes, counts)
        error = ffi.new("int *")
        handle = lib.gd_neighbours_new(csc, counts, nbytes, error)
        if handle == ffi.NULL:
            if error[0] == -errno.ENOMEM:
                raise MemoryError("no memory for the neighbour cache: lower neighbour_cache=")
            check(error[0], "gd_neighbours_new")
        return handle

    @property
    def nodes(self) -> int:
        """Nodes whose lists are kept."""
        return int(lib.gd_neighbours_nodes(self.handle, ffi.NULL))

    @property
    def indices(self) -> int:
        """Indices in their lists."""
        return int(lib.gd_neighbours_indices(self.handle))

    @property
    def nbytes(self) -> int:
        """Bytes of lists and addresses."""
        out = ffi.new("int64_t *")
        lib.gd_neighbours_nodes(self.handle, out)
        return int(out[0])


def least_bytes(size: GraphSize) -> int:
    """What the address table of a cache takes before it keeps one list."""
    return -(-size.nodes // 64) * _TABLE_BYTES + _FIXED_BYTES


def most_bytes(size: GraphSize) -> int:
    """What a cache that keeps every list takes, at most."""
    lists = min(size.nodes, size.edges)
    return least_bytes(size) + lists * _ADDRESS_BYTES + size.indices_bytes


def build_bytes(size: GraphSize) -> int:
    """What making a cache takes beside it: out-degrees, a stretch of indices, a histogram."""
    return _COUNT_BYTES * size.nodes + STRETCH_BYTES + (1 << 18)


def cache_bytes(question: TopologyQuestion, room: int) -> int:
    """The size of the neighbour caches of all edge types: what was asked for, or up to `room`.

    Raises:
        ConfigError: what was asked for holds no list.
    """
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


def divided(cache: int, sizes: Sequence[GraphSize]) -> list[int]:
    """A neighbour cache for each edge type, by what its lists would take."""
    least, most = list(map(least_bytes, sizes)), list(map(most_bytes, sizes))
    left = max(cache - sum(least), 0)
    return [
        low + left * (high - low) // max(sum(most) - sum(least), 1) if cache else 0
        for low, high in zip(least, most, strict=True)
    ]
