"""Distribute the rows of a table to the batches that need them, in one pass over the table.

`cold_rows` says which rows a batch has to read, as deltas that take little more than a byte a row,
so that the rows of a hundred batches fit into memory. `Distribution` copies each row of a part of
the table to the blocks of all batches that need it; a batch's blocks have its rows by id.

    distribution = Distribution(row_bytes, block_rows, [cold_rows(...) for each batch])
    for each part of the table, in order:
        done = False
        while not done:
            spare = numbers of buffers that are not in use
            full, taken, done = distribution.copy(part, first, count, memory, spare)
            # spare[:taken] are in use now; write the buffers of `full`, then they are spare again
    last = distribution.flush()

All of it runs in C without the GIL. One thread at a time may use a distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array

Bytes: TypeAlias = npt.NDArray[np.uint8]
Deltas: TypeAlias = tuple[Bytes, int]
"""A batch's rows: the bytes that encode them, and how many they are."""

BLOCK = np.dtype([("batch", "i4"), ("buffer", "i4"), ("ordinal", "i8"), ("rows", "i8")])
"""A buffer with rows of a batch: the block's number in its batch, and how many rows it has."""


def cold_rows(node: Int64Array, classes: Bytes, threshold: int, seen: Bytes) -> Deltas:
    """Return the rows of a batch that are not in memory yet.

    Args:
        node: the rows that the batch needs, in any order [n].
        classes: the class of each row of the table [rows].
        threshold: rows of lower classes are never kept in memory.
        seen: one bit for each row, the lowest first [ceil(rows / 8)]. A row of another class is
            returned if its bit is not set, and is set then. Threads may share it; each row is
            returned to one of them.
    """
    rows, n = len(classes), len(node)
    if len(seen) * 8 < rows:
        raise ValueError(f"seen has {len(seen) * 8} bits for {rows} rows")
    deltas = np.empty(n + min(8 * n, rows >> 7), np.uint8)
    count = ffi.new("int64_t *")
    used = lib.gd_cold_rows(
        pointer(node), n, pointer(classes), rows, threshold, pointer(seen), pointer(deltas), count
    )
    return deltas[: check(used, "cold rows")].copy(), count[0]


def decode_rows(deltas: Deltas) -> Int64Array:
    """Return the rows of a batch, by id."""
    encoded, count = deltas
    rows = np.empty(count, np.int64)
    check(lib.gd_rows_decode(pointer(encoded), len(encoded), count, pointer(rows)), "decode rows")
    return rows


def find_rows(ids: Int64Array, rows: Int64Array) -> Int64Array:
    """Return the place of each of `rows`, which are in any order, among `ids`, which rise; -1: it
    is none of them."""
    found = np.empty(len(rows), np.int64)
    code = lib.gd_rows_find(pointer(ids), len(ids), pointer(rows), len(rows), pointer(found))
    check(code, "find rows")
    return found


class Distribution:
    """Copies the rows of a table to the blocks of batches.

    Args:
        row_bytes: the size of a row.
        block_rows: how many rows a full block has.
        batches: the rows of each batch.
    """

    def __init__(self, row_bytes: int, block_rows: int, batches: Sequence[Deltas]) -> None:
        self._row_bytes, self._block_bytes = row_bytes, row_bytes * block_rows
        self._batches = [encoded for encoded, _ in batches]  # C has pointers to them
        self._open = 0
        deltas = ffi.new("gd_deltas[]", len(batches))
        for each, (encoded, count) in zip(deltas, batches, strict=True):
            each.deltas, each.bytes, each.count = pointer(encoded), len(encoded), count
        handle = lib.gd_distribution_new(row_bytes, block_rows, len(batches), deltas)
        if handle == ffi.NULL:
            check(-ffi.errno, "distribution")
        self._handle = ffi.gc(handle, lib.gd_distribution_free)

    def copy(
        self, part: Bytes, first: int, count: int, memory: Bytes, spare: Int32Array
    ) -> tuple[npt.NDArray[Any], int, bool]:
        """Copy the rows of a part of the table to the batches' blocks.

        Args:
            part: memory that begins with the rows of the part.
            first: the number of its first row. Parts rise, and have all rows that a batch needs.
            count: how many rows it has.
            memory: the buffers for blocks [buffers, bytes].
            spare: numbers of buffers that may be used; the first ones are used first.

        Returns:
            The blocks that are full (`BLOCK`), how many of `spare` are in use, and whether all rows
            of the part are copied. If not, call again with the same part and other spare buffers.
        """
        if part.nbytes < count * self._row_bytes or memory.shape[1] < self._block_bytes:
            raise ValueError("the part is shorter than its rows, or a buffer than a block")
        full = np.empty(self._open + len(spare), BLOCK)
        buffers = ffi.new("gd_buffers *")
        buffers.memory, buffers.count, buffers.stride = pointer(memory), *memory.shape
        buffers.spare, buffers.spares = pointer(spare), len(spare)
        counts = ffi.new("int64_t[2]")
        code = lib.gd_distribution_copy(
            self._handle, pointer(part), first, count, buffers, _blocks(full), counts, counts + 1
        )
        handed, taken = counts
        self._open += taken - handed
        check(code, "distribute rows")
        return full[:handed], taken, code == 0

    def flush(self) -> npt.NDArray[Any]:
        """Return the blocks that are not full, with at least one row each (`BLOCK`). What their
        buffers have behind the rows is not changed."""
        last = np.empty(self._open, BLOCK)
        handed = check(lib.gd_distribution_flush(self._handle, _blocks(last)), "last blocks")
        self._open = 0
        return last[:handed]


def _blocks(array: npt.NDArray[Any]) -> Any:
    return ffi.cast("gd_block *", ffi.from_buffer(array))
