"""A table of rows, read once in parts that fit in memory, with long direct reads.

`TableParts` reads a part while the caller works on the one before, so it holds two. When not to use
it: for a few rows of a table, which an engine reads on demand.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, DirectReader, page_buffer
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.common.threads import submit, thread_pool

SUM_MODULUS = 1 << 64
Ids = npt.NDArray[np.integer[Any]]
"""Numbers of rows, int32 or int64."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of a table in memory."""

    first: int  # the number of the first row in the table
    count: int
    rows: Bytes  # [count * row_bytes]


class TableParts:
    """The parts of one table; `part_bytes` are those of each of two buffers, at least one row and
    two pages."""

    def __init__(self, table: TableFile, part_bytes: int) -> None:
        self.table = table
        self.part_rows = max((part_bytes - 2 * PAGE_BYTES) // table.row_bytes, 1)
        self.buffers = [
            page_buffer(self.part_rows * table.row_bytes + 2 * PAGE_BYTES) for _ in range(2)
        ]

    def parts(self, first: int, last: int) -> Generator[Part, None, None]:
        """Yield the rows [first, last) in order; close the iterator if you leave it early. A part
        is valid until the next one is asked for."""
        if first >= last:
            return
        with DirectReader(self.table.path) as reader, thread_pool(1, "gnndrive-read") as thread:
            try:
                ahead = submit(thread, self._read, reader, first, last, 0)
                number = 0
                while first < last:
                    part = ahead.result()
                    first += part.count
                    number += 1
                    if first < last:
                        ahead = submit(thread, self._read, reader, first, last, number % 2)
                    yield part
            finally:
                reader.stop()

    def _read(self, reader: DirectReader, first: int, last: int, number: int) -> Part:
        count = min(self.part_rows, last - first)
        width = self.table.row_bytes
        offset = self.table.data_offset + first * width
        rows = reader.read(offset, count * width, self.buffers[number])
        return Part(first, count, rows)


def gather(
    part: Part, row_bytes: int, ids: Ids, position: int | Int64Array, out: Bytes | None = None
) -> int:
    """Copy the rows `ids`, all in the part, in this order, and return their checksum.

    Args:
        position: of the first row in the output's array, or of each row, int64 [n].
        out: where the rows go, at least n * row_bytes long; None: only the checksum is computed.
    """
    ids = np.ascontiguousarray(ids)
    first, positions = (position, None) if isinstance(position, int) else (0, position)
    packing = ffi.new("gd_packing *")
    packing.rows, packing.ids = _pointer(part.rows, "uint8_t *"), _pointer(ids, "void *")
    packing.first, packing.count, packing.row_bytes = part.first, part.count, row_bytes
    packing.wide, packing.position = ids.dtype.itemsize == 8, first
    packing.positions = ffi.NULL if positions is None else _pointer(positions, "int64_t *")
    assert out is None or out.size >= len(ids) * row_bytes
    total = ffi.new("uint64_t *")
    target = ffi.NULL if out is None else _pointer(out, "uint8_t *")
    check(lib.gd_pack_rows(packing, len(ids), target, total), "packing rows")
    return int(total[0])


def sum_of_rows(rows: Bytes, row_bytes: int, position: int) -> int:
    """The checksum of consecutive rows; `position` is that of the first row in its array."""
    count = rows.size // row_bytes
    return int(lib.gd_pack_sum(_pointer(rows, "uint8_t *"), count, row_bytes, position))


def _pointer(array: npt.NDArray[Any], kind: str) -> Any:
    return ffi.cast(kind, array.ctypes.data)
