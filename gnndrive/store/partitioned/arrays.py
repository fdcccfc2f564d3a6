"""Arrays of an unfinished partitioned folder: written whole, mapped, and handed to C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.ffi import ffi
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.layout.arrays import map_array

Ids = npt.NDArray[Any]
"""Whole numbers, int32 or int64."""


def numbers(array: npt.NDArray[Any]) -> Any:
    """An array of ids, codes or index pointers for C (`gd_numbers`); the caller keeps it alive."""
    assert array.flags.c_contiguous
    return ffi.new("gd_numbers *", (ffi.cast("void *", array.ctypes.data), array.itemsize == 8))[0]


def table(count: int, dtype: npt.DTypeLike) -> Ids:
    """An array of zeros in huge pages, because it is looked up at random."""
    width = np.dtype(dtype).itemsize
    return np.frombuffer(private_map(max(count * width, 1), huge=True), dtype, count)


def write_array(root: Path, info: ArrayInfo, values: Ids) -> None:
    """Write an array, which exists whole or not at all.

    Raises:
        StoreError: the disk is full, or writing failed.
    """
    assert (values.shape, values.dtype) == (info.shape, info.storage)
    with DirectWriter(root / info.file, whole=True) as writer:
        writer.append(npy_header(info))
        writer.append(np.ascontiguousarray(values))
        writer.finish()


def map_numbers(root: Path, info: ArrayInfo) -> Ids:
    """Map an array that this machine has written.

    Raises:
        StoreError: it is missing.
    """
    return map_array(root / info.file, info.dtype)
