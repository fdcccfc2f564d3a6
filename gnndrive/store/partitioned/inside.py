"""How many in-edges sampling inside of partitions keeps: `share_inside` (HierBatching).

An edge is kept if its source is in a partition of the window that its target is in, or if it is
held in memory with the hottest nodes. So what a partitioning loses can be told before training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array
from gnndrive.store.format import Progress
from gnndrive.store.partitioned.budget import FIXED_BYTES, pointer_bytes, require, zeros
from gnndrive.store.partitioned.edge_stream import EdgeStream
from gnndrive.store.reader import Store

OUT_EDGES, INSIDE = "out-edges", "edges inside"  # phases, for progress
STATIC_SHARES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class InsideShare:
    """Which in-edges stay within partitions.

    Attributes:
        parts: how many partitions there are.
        inside: the share of the in-edges whose source is in the target's partition.
        static: for each of `STATIC_SHARES` of the nodes, those with the most out-edges: the share
            of the in-edges that come from such a node in another partition.
    """

    parts: int
    inside: float
    static: Mapping[float, float]

    def kept(self, window: int, static: float = 0.01) -> float:
        """The share of in-edges that sampling keeps, on average over random windows.

        Args:
            window: how many partitions a window has, at least 1.
            static: the share of the nodes that is held besides, one of `STATIC_SHARES`.
        """
        near = self.inside + self.static[static]
        others = max(self.parts - 1, 1)
        return near + (1 - near) * min(window - 1, others) / others


def memory_of(nodes: int) -> int:
    """Bytes that `share_inside` uses beside the index pointers and the buffers."""
    return (4 + 4 + 4 + 1) * nodes + 16 * _CHUNK


def share_inside(
    store: Store, part: Int32Array, parts: int, memory: int, report: Progress
) -> InsideShare:
    """Count the in-edges that stay within partitions; reads all edges twice.

    Args:
        store: a homogeneous store.
        part: the partition of each node, int32 [nodes], from 0 to `parts` - 1.
        parts: how many partitions there are.
        memory: bytes that may be used, see `budget`.
        report: called as report(phase, edges done, edges).

    Raises:
        ConfigError: the memory is too little, or `part` is not of this store.
        StoreError, ReadError: the store is damaged or cannot be read.
    """
    nodes, edges = store.num_nodes, store.num_edges
    if part.shape != (nodes,) or part.dtype != np.int32:
        raise ConfigError(
            f"part is {part.dtype} of shape {list(part.shape)}: give int32 [{nodes}], the "
            f"partition of each node of {store.path}"
        )
    least = FIXED_BYTES + pointer_bytes(store) + memory_of(nodes)
    require(memory, least, f"to count the edges inside of partitions of {nodes:,} nodes")
    stream = EdgeStream(store)
    level = _levels(stream, report)
    held = zeros(nodes, np.int32)
    held[:] = part
    found = np.zeros(1 + lib.GD_LEVELS, np.int64)
    with store.unchanged():
        stream.each(
            lambda each: int(
                lib.gd_edges_inside(each, pointer(held), pointer(level), pointer(found))
            ),
            lambda done: report(INSIDE, done, edges),
        )
    outside = np.cumsum(found[1:])
    static = {
        share: 0.0 if number == 0 else float(outside[number - 1] / max(edges, 1))
        for number, share in enumerate(STATIC_SHARES)
    }
    return InsideShare(parts, float(found[0] / max(edges, 1)), static)


def _levels(stream: EdgeStream, report: Progress) -> npt.NDArray[np.uint8]:
    """The level of each node, uint8 [nodes]: i if it is one of `STATIC_SHARES[i + 1]` of the nodes
    with the most out-edges, lower ids first, and not of a smaller share; else the number of shares.
    """
    nodes, edges = stream.nodes, stream.edges
    degrees = zeros(nodes, np.uint32)
    into = ffi.cast("uint32_t *", degrees.ctypes.data)

    def count(each: Any) -> int:
        lib.gd_count_out_degrees(each.sources, stream.index_bytes, each.count, nodes, into)
        return 0

    stream.each(count, lambda done: report(OUT_EDGES, done, edges))
    falling = degrees.copy()
    falling.sort()
    level = np.full(nodes, len(STATIC_SHARES), np.uint8)
    for number in range(len(STATIC_SHARES) - 1, 0, -1):
        many = int(nodes * STATIC_SHARES[number])
        if many:
            least = falling[nodes - many]
            equal = many - (nodes - int(np.searchsorted(falling, least, "right")))
            _mark(level, degrees, least, equal, number - 1)
    return level


def _mark(
    level: npt.NDArray[np.uint8], degrees: npt.NDArray[np.uint32], least: np.uint32, equal: int,
    number: int,
) -> None:  # fmt: skip
    """Set the level of the nodes with more than `least` edges and of the first `equal` with just
    as many."""
    for start in range(0, len(level), _CHUNK):
        these, here = degrees[start : start + _CHUNK], level[start : start + _CHUNK]
        here[these > least] = number
        with_least = np.flatnonzero(these == least)[:equal]
        here[with_least] = number
        equal -= len(with_least)
