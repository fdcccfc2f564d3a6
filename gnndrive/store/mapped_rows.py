"""Rows of memory-mapped arrays, picked by number.

The kernel reports a page of a mapped file that it cannot read by a signal that ends the process
(SIGBUS): the file has become shorter, or the disk fails. C catches it here (`native/guard.c`), so
that it becomes the `ReadError` that a direct read would give. Do not read a mapping that is not
wholly in memory with numpy or torch where a damaged store must not end the process.
"""

from __future__ import annotations

import errno
import os
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.records import Int64Array, TableFile

_Out = TypeVar("_Out", "torch.Tensor", "npt.NDArray[Any]")  # torch is imported when it is used


def pick_rows(
    file: TableFile, mapped: torch.Tensor | npt.NDArray[Any], rows: Int64Array, out: _Out
) -> _Out:
    """Copy rows of a mapped array into `out`, and return it; blocks.

    Args:
        file, mapped: the array's file, and all of its rows, contiguous.
        rows: row numbers, int64 [n], in any order, duplicates allowed.
        out: contiguous [n, *row], in the array's dtype.

    Raises:
        ReadError: the file has become shorter, or the disk failed.
        StoreError: there is no such row.
    """
    rows = np.ascontiguousarray(rows, np.int64)
    to, nbytes = _memory(out)
    assert nbytes == len(rows) * file.row_bytes
    address, _ = _memory(mapped)
    culprit = ffi.new("int64_t *")
    code = lib.gd_pick(
        ffi.cast("void *", address), file.row_bytes, file.row_count, pointer(rows), len(rows),
        ffi.cast("void *", to), culprit,
    )  # fmt: skip
    if code == -errno.ERANGE:
        raise StoreError(
            f"{file.path} has no row {culprit[0]}, but {file.row_count} rows: the store is "
            "damaged; run `gnndrive verify` and import it again"
        )
    if code == -errno.EIO:
        raise unreadable(file.path, file.data_offset + culprit[0])
    check(code, "gd_pick")
    return out


def _memory(array: torch.Tensor | npt.NDArray[Any]) -> tuple[int, int]:
    """Where a contiguous array is, and its bytes."""
    if isinstance(array, np.ndarray):
        assert array.flags.c_contiguous
        return array.ctypes.data, array.nbytes
    assert array.is_contiguous()
    return array.data_ptr(), array.numel() * array.element_size()


def unreadable(path: str, offset: int) -> ReadError:
    """The error for the byte `offset` of a mapped file: that of a direct read there."""
    try:
        ends_before = os.stat(path).st_size <= offset
    except OSError:
        ends_before = False
    return ReadError(path, offset, errno.ENODATA if ends_before else errno.EIO)
