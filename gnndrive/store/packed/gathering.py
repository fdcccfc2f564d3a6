"""Rows of a part of a table, gathered in C with their checksum (native/pack.c)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.records import Int64Array
from gnndrive.store.packed.table_parts import Part

SUM_MODULUS = 1 << 64
Ids = npt.NDArray[np.integer[Any]]
"""Numbers of rows, int32 or int64."""


def gather(
    part: Part,
    row_bytes: int,
    ids: Ids,
    position: int | Int64Array,
    out: Bytes | None = None,
) -> int:
    """Copy rows out of a part, and return their checksum.

    Args:
        part: the part.
        row_bytes: bytes of one row.
        ids: numbers of rows of the table, all in the part, in the order of the output; [n].
        position: of the first row in the output's array, or of each row, int64 [n].
        out: where the rows go, at least n * row_bytes long; None: only the checksum is computed.

    Raises:
        OSError: an id is not in the part.
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
    """The checksum of consecutive rows.

    Args:
        rows: their bytes, uint8 [n * row_bytes].
        row_bytes: bytes of one row.
        position: the position of the first row in its array.
    """
    count = rows.size // row_bytes
    return int(lib.gd_pack_sum(_pointer(rows, "uint8_t *"), count, row_bytes, position))


def _pointer(array: npt.NDArray[Any], kind: str) -> Any:
    return ffi.cast(kind, array.ctypes.data)
