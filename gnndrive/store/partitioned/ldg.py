"""Streaming partitioning: linear deterministic greedy (LDG, Stanton and Kliot, KDD 2012), repeated.

Each node in turn, in file order, goes to the partition in which it has the most neighbours, weighed
by the room left there. Repeated until fewer than a hundredth of the nodes move, at most ten times,
it finds nearly the partitions that METIS does, in the memory of one number for each node. The loop
is C (native/ldg.c). Each pass leaves a durable file, so a process that was killed repeats one pass.

When not to use it: for a graph that fits in memory many times over; METIS cuts a little less.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int32Array
from gnndrive.store.partitioned.arrays import PART, last_pass, map_part, remove, write_part, zeros
from gnndrive.store.partitioned.symmetric import SymmetricLists

PASSES = 10
BYTES_A_PART = 32  # native/ldg.c: a size, two places of the tournament, a count, a number
_STILL = 100  # the passes end when fewer than a hundredth of the nodes move
_SLACK_PERCENT = 5


def largest_part(nodes: int, parts: int) -> int:
    """How many nodes a partition may have: 1.05 nodes / parts, but no fewer than fit all nodes."""
    return max(nodes * (100 + _SLACK_PERCENT) // (100 * parts), -(-nodes // parts))


def memory_of(nodes: int, parts: int) -> int:
    """Bytes that the passes use beside the lists and the buffers."""
    return 4 * nodes + BYTES_A_PART * parts


def assign_ldg(
    lists: SymmetricLists, folder: Path, nodes: int, parts: int, report: Progress
) -> None:
    """Assign all nodes, or go on behind the last pass of an earlier call; writes `part.npy`.
    `folder` also has a file of the last pass, `part.npy.NUMBER`."""
    part = zeros(nodes, np.int32)
    last = last_pass(folder)
    before = folder / f"{PART}.{last}"
    part[:] = map_part(before, nodes) if last else -1
    for number in range(last + 1, PASSES + 1):
        moved = _run_pass(lists, part, parts, number, report)
        if number == PASSES or moved * _STILL < nodes:
            break
        after = folder / f"{PART}.{number}"
        write_part(after, nodes, [part])
        remove(before)
        before = after
    write_part(folder / PART, nodes, [part])


def _run_pass(
    lists: SymmetricLists, part: Int32Array, parts: int, number: int, report: Progress
) -> int:
    """Go through all nodes once; returns how many have moved."""
    nodes, error = len(part), ffi.new("int *")
    state = lib.gd_ldg_new(pointer(part), nodes, parts, largest_part(nodes, parts), error)
    if state == ffi.NULL:
        check(error[0], "gd_ldg_new")
    try:
        done = 0
        with closing(lists.chunks()) as chunks:
            for chunk in chunks:
                numbers = ffi.cast("void *", chunk.ctypes.data)
                done = lib.gd_ldg_feed(state, numbers, len(chunk), lists.index_bytes)
                if done < 0:
                    break
                report(f"dividing nodes, pass {number}", done, nodes)
        if done != nodes:
            raise StoreError(
                f"{lists.path} is damaged: remove {lists.path and lists.path.parent}, and "
                "partition again"
            )
        return int(lib.gd_ldg_moved(state))
    finally:
        lib.gd_ldg_free(state)
