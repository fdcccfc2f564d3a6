"""New ids and codes for the nodes of a store, from the partition of each node.

`write_order` gives the nodes of a partition consecutive new ids. It also chooses the static nodes,
those with the most out-edges, because sampling in-neighbours uses the edges that start at them.
`write_static` gives each node its code. Each leaves durable files, the last of which says that it
is done.

Memory: 8 bytes a node and 48 bytes a static node, besides the store's index pointers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.io.direct_file import PAGE_BYTES
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.partitioned.arrays import Unfinished, numbers, zeros
from gnndrive.store.reader import Store

ORDER, OUT_EDGES, STATIC = "numbering nodes", "counting out-edges", "choosing static nodes"
PART_BYTES = (8 << 20) + 2 * PAGE_BYTES
_STEP = 1 << 20  # nodes in one call of the core
Counts = npt.NDArray[np.uint32]


def checked(code: int, what: Callable[[], str]) -> int:
    """Return a result of the core; StoreError: a number was out of range, and `what` says what is
    damaged and what to do."""
    if code == -errno.ERANGE:
        raise StoreError(what())
    return check(code, "partitioning")


def no_such_node(store: Store) -> str:
    """What to say if the store's lists have the id of no node."""
    return (
        f"{store.edges().indices_path} has an id of no node: check the store (gnndrive verify), "
        "and import or copy it again"
    )


def write_order(folder: Unfinished, part: Int32Array) -> None:
    """Write order, edge_bounds and last bounds, from the partition of each node."""
    store, infos = folder.store, folder.infos
    parts, nodes = infos["bounds"].shape[0] - 1, store.num_nodes
    hot = hottest(out_edges(store, folder.report), infos["home"].shape[0])
    pointers = store.index_pointers
    counts, entries = np.zeros((2, parts), np.int64)

    def wrong() -> str:
        return f"a node is in no partition: remove {folder.root}, and partition the store again"

    for start in range(0, nodes, _STEP):
        block = np.ascontiguousarray(part[start : start + _STEP], np.int32)
        rest = numbers(pointers[start:])
        into = pointer(counts), pointer(entries)
        code = lib.gd_partition_count(pointer(block), len(block), parts, rest, *into)
        checked(code, wrong)
        folder.report(ORDER, (start + len(block)) // 2, nodes)
    bounds, edge_bounds = _bounds(counts), _bounds(entries)
    order = np.empty(nodes + len(hot), infos["order"].storage)
    order[nodes:] = hot
    cursor, wide = bounds[:-1].copy(), order.itemsize == 8
    for start in range(0, nodes, _STEP):
        block = np.ascontiguousarray(part[start : start + _STEP], np.int32)
        ends = pointer(bounds[1:]), pointer(cursor), ffi.cast("void *", order.ctypes.data), wide
        code = lib.gd_partition_order(pointer(block), len(block), start, parts, *ends)
        checked(code, wrong)
        folder.report(ORDER, (nodes + start + len(block)) // 2, nodes)
    folder.write("order", order)
    folder.write("edge_bounds", edge_bounds)
    folder.write("bounds", bounds)


def write_static(folder: Unfinished) -> None:
    """Write place, static_bounds and home, the last of them last, from `order`."""
    store, statics = folder.store, folder.infos["home"].shape[0]
    folder.report(STATIC, 0, store.num_nodes)
    written = folder.numbers("order")
    order, hot = written[: store.num_nodes], np.array(written[store.num_nodes :])
    place = zeros(store.num_nodes, folder.infos["place"].storage)
    for start in range(0, len(order), _STEP):
        block = order[start : start + _STEP]
        place[block] = np.arange(statics + start, statics + start + len(block))
    home = place[hot].astype(np.int64) - statics
    place[hot] = np.arange(statics)
    pointers = store.index_pointers
    degrees = pointers[hot + 1].astype(np.int64) - pointers[hot]
    folder.write("place", place)
    folder.write("static_bounds", _bounds(degrees))
    folder.write("home", home)
    folder.report(STATIC, store.num_nodes, store.num_nodes)


def out_edges(store: Store, report: Progress) -> Counts:
    """The number of edges that start at each node, uint32 [N]; from one pass over the lists. An id
    of no node is left out."""
    file, nodes = store.edges().indices_file, store.num_nodes
    counts = zeros(nodes, np.uint32)
    with closing(TableParts(file, PART_BYTES).parts(0, file.row_count)) as parts:
        for part in parts:
            ids = ffi.cast("void *", part.rows.ctypes.data)
            into = ffi.cast("uint32_t *", counts.ctypes.data)
            lib.gd_count_out_degrees(ids, file.row_bytes, part.count, nodes, into)
            report(OUT_EDGES, part.first + part.count, file.row_count)
    return counts


def hottest(counts: Counts, count: int) -> Int64Array:
    """The nodes with the most out-edges, by falling number and then by id; int64 [count]."""
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(counts, len(counts) - count)[len(counts) - count]
    blocks = [(at, counts[at : at + _STEP]) for at in range(0, len(counts), _STEP)]
    found = [np.flatnonzero(block > least) + at for at, block in blocks]
    ties = count - sum(map(len, found))
    for at, block in blocks:
        tied = np.flatnonzero(block == least)[:ties] + at
        found.append(tied)
        ties -= len(tied)
        if not ties:
            break
    nodes = np.sort(np.concatenate(found))
    return nodes[np.argsort(-counts[nodes].astype(np.int64), kind="stable")]


def _bounds(counts: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
