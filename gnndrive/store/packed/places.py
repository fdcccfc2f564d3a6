"""Decide where each row of a batch lies: memory, the segment's shared file, or the batch's chunk
(DiskGNN §4.2), and arrange the batch so that reads land in long stretches of x.

`NodePlaces` has one number a node. It holds the hot nodes' slots all the time and, while a segment
is packed, what the segment's batches use:

    places = NodePlaces(num_nodes, hot.node)
    for each segment:
        shared = places.begin(cold ids of each batch)
        members = [places.members(cold) for each batch]
        places.set_order(order_rows("sets", members, len(shared), batches))
        for each batch:
            arranged = places.arrange(node, num_sampled_nodes)
            row, colptr, edge = renumber(row, colptr, edge, arranged, arranged)

The seeds' rows (hop 0) are all in the chunk, whether they are hot or used by others; so seeds are
neither cold ids nor uses. In a batch of disjoint trees a node may stand several times. Each stands
for one use, so such a row is in the shared file, unless it is hot, and is read once.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.packed.sections import levels_by_stretch

Ids = npt.NDArray[Any]

IN_CHUNK, IN_SHARED, IN_HOT = 0, 1, 2
"""The columns of `Arrangement.counts`."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """The nodes of a batch in the order of x.

    Hop 0 lies in its own order. Then an odd hop lies as chunk | shared | hot and an even one as
    hot | shared | chunk; rows of the chunk by id, shared rows by their row in the file, hot rows by
    slot. So the chunk's rows of hops 0 and 1 are one stretch of x, those of hops 2 and 3 another.

    Attributes:
        node: node ids [nodes].
        order: where the node at each new position was [nodes].
        rank: the new position of each node [nodes].
        counts: nodes by hop and class (`IN_CHUNK`, `IN_SHARED`, `IN_HOT`) [hops + 1, 3].
        chunk, shared, hot: the nodes of the chunk, the rows in the shared file, and the slots of
            the hot nodes, in the order of x.
    """

    node: Int64Array
    order: Int32Array
    rank: Int32Array
    counts: Int64Array
    chunk: Int64Array
    shared: Int32Array
    hot: Int32Array


class TooManyShared(Exception):
    """A segment's batches share more rows than may be held; its argument is how many."""


class NodePlaces:
    """Where the row of each node of a type lies, while one segment after the other is packed.

    Takes 4 bytes a node. `hot` are the hot nodes in the order of their slots.
    """

    def __init__(self, num_nodes: int, hot: Ids | None = None) -> None:
        self._place = np.full(num_nodes, lib.GD_PLACE_COLD, np.int32)
        if hot is not None:
            self._place[hot] = np.arange(len(hot), dtype=np.int32)
        self._shared = np.empty(0, np.int64)

    def cold(self, node: Ids, seeds: int) -> Ids:
        """Return those nodes of a batch that are not hot, its first nodes, the seeds, left out."""
        later = node[seeds:]
        return later[self._place[later] < 0]

    def begin(self, batches: Iterable[Ids], rows_max: int | None = None) -> Int64Array:
        """Begin a segment, whose batches have these cold ids, and forget the one before.

        Returns:
            The nodes that are used more than once, by id. They are rows 0, 1, ... of the shared
            file until `set_order` is called. TooManyShared: there are more than `rows_max`.
        """
        np.maximum(self._place, lib.GD_PLACE_COLD, out=self._place)
        self._shared = np.empty(0, np.int64)
        found, total = [], 0
        for batch, ids in enumerate(batches):
            ids = np.ascontiguousarray(ids, np.int64)
            shared = np.empty(len(ids), np.int64)
            count = lib.gd_uses_mark(
                pointer(self._place), len(self._place), pointer(ids), len(ids), pointer(shared)
            )
            if count < 0:
                raise ValueError(
                    f"batch {batch} of the segment has ids outside 0 to {len(self._place) - 1}"
                )
            total += count
            if rows_max is None or total <= rows_max:
                found.append(shared[:count].copy())
            else:
                found.clear()  # the rest is only counted
        if rows_max is not None and total > rows_max:
            raise TooManyShared(total)
        self._shared = np.sort(np.concatenate(found)) if found else self._shared
        self._enter(self._shared)
        return self._shared

    def set_order(self, order: Int64Array) -> Int64Array:
        """Set the order of the shared file: the row, as `begin` numbered it, at each position.
        Returns the node at each position of the file, int64."""
        inside = self._shared[order]
        self._enter(inside)
        return inside

    def set_shared(self, node: Ids) -> None:
        """Set the node at each position of the shared file of a segment that was begun and ordered
        before; forget the segment before."""
        self._place[self._shared] = lib.GD_PLACE_COLD
        self._shared = np.sort(node).astype(np.int64)
        self._enter(node)

    def _enter(self, inside: Ids) -> None:
        positions = np.arange(len(inside), dtype=np.int32)
        self._place[inside] = np.int32(lib.GD_PLACE_SHARED) - positions

    def members(self, ids: Ids) -> Int32Array:
        """Return the rows in the shared file of those ids that are there, int32."""
        place = self._place[ids]
        rows: Int32Array = np.int32(lib.GD_PLACE_SHARED) - place[place <= lib.GD_PLACE_SHARED]
        return rows

    def arrange(self, node: Ids, per_hop: Sequence[int]) -> Arrangement:
        """Return the order in which a batch of the segment lies in x; O(nodes). `node` has the ids
        hop after hop, the seeds first, and `per_hop` how many each hop has."""
        ids = np.ascontiguousarray(node, np.int64)
        order, rank, row = np.empty((3, len(ids)), np.int32)
        inside = np.empty(len(ids), np.int64)
        counts = np.empty((len(per_hop), lib.GD_CLASSES), np.int64)
        hops = np.array(per_hop, np.int64)
        code = lib.gd_arrange(
            pointer(self._place), len(self._place), pointer(ids), len(ids), pointer(hops),
            len(hops), pointer(order), pointer(rank), pointer(counts), pointer(inside),
            pointer(row),
        )  # fmt: skip
        _check(code, "arrange", f"{len(ids)} nodes below {len(self._place)}, {list(per_hop)} a hop")
        chunk, shared, hot = _stretches(counts)
        return Arrangement(
            inside, order, rank, counts, np.concatenate([inside[each] for each in chunk]),
            np.concatenate([row[each] for each in shared]),
            np.concatenate([row[each] for each in hot]),
        )  # fmt: skip


def _stretches(counts: Int64Array) -> list[list[slice]]:
    """Where the nodes of each class lie in x."""
    found: list[list[slice]] = [[slice(0)], [slice(0)], [slice(0)]]
    at = 0
    for level, count in levels_by_stretch(counts):
        found[level].append(slice(at, at + count))
        at += count
    return found


def _check(code: int, what: str, wanted: str) -> None:
    """Raise ValueError for arguments that C refused, OSError if memory ran out."""
    if code in (-errno.ERANGE, -errno.EINVAL):
        raise ValueError(f"{what}: the arguments are not {wanted}")
    check(code, what)


def renumber(
    row: Int32Array,
    colptr: Int32Array,
    edge: Int32Array | Int64Array,
    source: Arrangement,
    target: Arrangement,
) -> tuple[Int32Array, Int32Array, Int32Array | Int64Array]:
    """Return the edges of a sample whose nodes were arranged: `row`, `colptr`, `edge`; O(edges).

    Target nodes come in their new order; the edges of one target keep theirs. `source` and `target`
    say how the nodes of the edges' source and target type were arranged.
    """
    if not len(row) == len(edge) or not 1 <= len(colptr) <= len(target.order) + 1:
        raise ValueError(
            f"renumber: {len(row)} rows, {len(edge)} edges and {len(colptr)} pointers do not fit "
            f"{len(target.order)} target nodes"
        )
    out = np.empty_like(row), np.empty_like(colptr), np.empty_like(edge)
    code = lib.gd_renumber(
        pointer(row), pointer(colptr), ffi.cast("void *", edge.ctypes.data), edge.itemsize,
        len(row), len(colptr) - 1, pointer(source.rank), len(source.rank), pointer(target.order),
        pointer(out[0]), pointer(out[1]), ffi.cast("void *", out[2].ctypes.data),
    )  # fmt: skip
    _check(code, "renumber", f"edges of {len(source.rank)} nodes in whole hops")
    return out
