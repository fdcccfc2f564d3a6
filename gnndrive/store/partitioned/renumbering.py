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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.io.direct_file import PAGE_BYTES
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import ArrayInfo, Progress
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.partitioned.arrays import Ids, map_numbers, numbers, write_array, zeros
from gnndrive.store.reader import Store

ORDER, OUT_EDGES, STATIC = "order", "out-edges", "static nodes"
PART_BYTES = (8 << 20) + 2 * PAGE_BYTES
_STEP = 1 << 20  # nodes in one call of the core
Counts = npt.NDArray[np.uint32]


def checked(code: int, what: Callable[[], str]) -> int:
    """Return a result of the core.

    Raises:
        StoreError: a number was out of range; `what` says what is damaged and what to do.
    """
    if code == -errno.ERANGE:
        raise StoreError(what())
    return check(code, "partitioning")


def no_such_node(store: Store) -> str:
    """What to say if the store's lists have the id of no node."""
    return (
        f"{store.edges().indices_path} has an id of no node: check the store (gnndrive verify), "
        "and import it again"
    )


def write_order(
    root: Path, infos: dict[str, ArrayInfo], store: Store, part: Int32Array, report: Progress
) -> None:
    """Write order, edge_bounds and bounds, the last of them last.

    Args:
        root: the folder.
        infos: its arrays.
        store: the store.
        part: the partition of each node, [N].
        report: called as report("out-edges", edges done, edges), then as report("order", nodes
            done, nodes).

    Raises:
        StoreError: a node is in no partition, the store is damaged, or the disk is full.
        ReadError: the store cannot be read.
    """
    parts, nodes = infos["bounds"].shape[0] - 1, store.num_nodes
    hot = hottest(out_edges(store, report), infos["home"].shape[0])
    pointers = store.index_pointers
    counts, entries = np.zeros((2, parts), np.int64)

    def wrong() -> str:
        return f"a node is in no partition: remove {root}, and partition the store again"

    for start in range(0, nodes, _STEP):
        block = np.ascontiguousarray(part[start : start + _STEP], np.int32)
        rest = numbers(pointers[start:])
        into = pointer(counts), pointer(entries)
        code = lib.gd_partition_count(pointer(block), len(block), parts, rest, *into)
        checked(code, wrong)
        report(ORDER, (start + len(block)) // 2, nodes)
    bounds, edge_bounds = _bounds(counts), _bounds(entries)
    order = np.empty(nodes + len(hot), infos["order"].storage)
    order[nodes:] = hot
    cursor, wide = bounds[:-1].copy(), order.itemsize == 8
    for start in range(0, nodes, _STEP):
        block = np.ascontiguousarray(part[start : start + _STEP], np.int32)
        ends = pointer(bounds[1:]), pointer(cursor), ffi.cast("void *", order.ctypes.data), wide
        code = lib.gd_partition_order(pointer(block), len(block), start, parts, *ends)
        checked(code, wrong)
        report(ORDER, (nodes + start + len(block)) // 2, nodes)
    write_array(root, infos["order"], order)
    write_array(root, infos["edge_bounds"], edge_bounds)
    write_array(root, infos["bounds"], bounds)


def write_static(root: Path, infos: dict[str, ArrayInfo], store: Store, report: Progress) -> None:
    """Write place, static_bounds and home, the last of them last.

    Args:
        root: the folder, with `order`.
        infos: its arrays; the entries of static_indices are not known yet.
        store: the store.
        report: called as report("static nodes", nodes done, nodes).

    Raises:
        StoreError: the disk is full.
    """
    statics = infos["home"].shape[0]
    report(STATIC, 0, store.num_nodes)
    written = map_numbers(root, infos["order"])
    order, hot = written[: store.num_nodes], np.array(written[store.num_nodes :])
    place = zeros(store.num_nodes, infos["place"].storage)
    for start in range(0, len(order), _STEP):
        block = order[start : start + _STEP]
        place[block] = np.arange(statics + start, statics + start + len(block))
    home = place[hot].astype(np.int64) - statics
    place[hot] = np.arange(statics)
    pointers = store.index_pointers
    degrees = pointers[hot + 1].astype(np.int64) - pointers[hot]
    write_array(root, infos["place"], place)
    write_array(root, infos["static_bounds"], _bounds(degrees))
    write_array(root, infos["home"], home)
    report(STATIC, store.num_nodes, store.num_nodes)


def out_edges(store: Store, report: Progress) -> Counts:
    """The number of edges that start at each node, uint32 [N]; from one pass over the lists. An id
    of no node is left out.

    Raises:
        StoreError, ReadError: the lists cannot be read.
    """
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
    found = [np.flatnonzero(block > least) + at for at, block in _blocks(counts)]
    ties = count - sum(map(len, found))
    for at, block in _blocks(counts):
        tied = np.flatnonzero(block == least)[:ties] + at
        found.append(tied)
        ties -= len(tied)
        if not ties:
            break
    nodes = np.sort(np.concatenate(found))
    return nodes[np.argsort(-counts[nodes].astype(np.int64), kind="stable")]


def _blocks(counts: Counts) -> list[tuple[int, Counts]]:
    return [(at, counts[at : at + _STEP]) for at in range(0, len(counts), _STEP)]


def _bounds(counts: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def find(ids: Ids, value: int, side: str = "left") -> int:
    """Where `value` is in ascending ids; numpy would convert all of them to int64 otherwise."""
    if value > np.iinfo(ids.dtype).max:
        return len(ids)
    return int(np.searchsorted(ids, ids.dtype.type(value), side))  # type: ignore[call-overload]
