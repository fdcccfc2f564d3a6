"""Partitions of nodes drawn at random, of equal size up to one node (MariusGNN, EuroSys 2023, §5).

The order of the nodes is drawn with the counter-based shuffle of native/shuffle.c, so it depends on
the seed and the number of nodes only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import Progress
from gnndrive.store.partitioned.budget import zeros

RANDOM = "random"  # the phase, for progress
_CHUNK = 1 << 16


def memory_of(nodes: int) -> int:
    """Bytes that `assign_random` uses beside the buffers."""
    width = 4 if nodes < 1 << 31 else 8
    return (width + 4 + 1) * nodes + 64 * _CHUNK


def assign_random(
    nodes: int, parts: int, seed: int, report: Progress, first: Int64Array | None = None
) -> Int32Array:
    """Assign each node to a random partition.

    Args:
        nodes: how many nodes there are.
        parts: how many partitions.
        seed: decides.
        report: called as report("random", nodes done, nodes).
        first: distinct nodes that fill the first partitions, in random order; None: no such nodes.

    Returns:
        The partition of each node, int32 [nodes].
    """
    part = np.empty(nodes, np.int32)
    is_first = np.zeros(nodes, np.bool_)
    if first is not None:
        is_first[first] = True
    at, others_at = 0, int(np.count_nonzero(is_first))
    done = 0
    for drawn in _shuffled(nodes, seed):
        mine = is_first[drawn]
        for chosen, start in ((drawn[mine], at), (drawn[~mine], others_at)):
            part[chosen] = (start + np.arange(len(chosen))) * parts // nodes
        ahead = int(np.count_nonzero(mine))
        at, others_at, done = at + ahead, others_at + len(drawn) - ahead, done + len(drawn)
        report(RANDOM, done, nodes)
    return part


def _shuffled(nodes: int, seed: int) -> Iterator[Int64Array]:
    """All nodes in random order, in chunks."""
    width = 4 if nodes < 1 << 31 else 8
    moved = zeros(nodes, f"int{8 * width}")
    key = ffi.cast("int64_t", seed & (1 << 64) - 1)
    for start in range(0, nodes, _CHUNK):
        drawn = np.empty(min(_CHUNK, nodes - start), np.int64)
        moving = ffi.cast("void *", moved.ctypes.data)
        lib.gd_shuffle(moving, width, nodes, key, start, len(drawn), pointer(drawn))
        yield drawn
