"""Arrays of an unfinished partitioned folder: written whole, mapped, and handed to C."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.direct_file import PAGE_BYTES, STRETCH_BYTES
from gnndrive.common.ffi import ffi
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.packed.mapped_samples import map_array
from gnndrive.store.packed.table_parts import Bytes, DirectReader, page_buffer
from gnndrive.store.partitioned.long_writer import LongWriter

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
    with LongWriter(root / info.file) as writer:
        writer.append(npy_header(info))
        writer.append(np.ascontiguousarray(values))
        writer.finish()


def map_numbers(root: Path, info: ArrayInfo) -> Ids:
    """Map an array that this machine has written.

    Raises:
        StoreError: it is missing.
    """
    return map_array(root / info.file, info.dtype)


def hash_file(path: Path, nbytes: int, each: Callable[[int, Bytes], None] | None = None) -> str:
    """The SHA-256 of a file of an array, as partition.json has it, read past the page cache.

    Args:
        path: the file.
        nbytes: its bytes.
        each: called as each(offset, content) with stretches of the data, in order; an offset counts
            from the end of the header.

    Raises:
        ReadError: the disk failed.
        StoreError: the file is missing or too short.
    """
    digest, buffer = hashlib.sha256(), page_buffer(STRETCH_BYTES + 2 * PAGE_BYTES)
    with DirectReader(path) as reader:
        digest.update(reader.read(0, DATA_OFFSET, buffer).data)
        for at in range(DATA_OFFSET, nbytes, STRETCH_BYTES):
            content = reader.read(at, min(STRETCH_BYTES, nbytes - at), buffer)
            digest.update(content.data)
            if each is not None:
                each(at - DATA_OFFSET, content)
    return f"sha256:{digest.hexdigest()}"
