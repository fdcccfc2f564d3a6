"""Arrays of an unfinished partitioned folder: written whole, mapped, and handed to C.

`part.npy` is the partition of each node, int32 [nodes]. A method may leave `part.npy.NUMBER` before
it is done, to go on there after a kill. Each of these files exists whole or not at all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import ffi
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import Int32Array
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.layout.arrays import map_array

Ids = npt.NDArray[Any]
"""Whole numbers, int32 or int64."""


def numbers(array: npt.NDArray[Any]) -> Any:
    """An array of ids, codes or index pointers for C (`gd_numbers`); the caller keeps it alive."""
    assert array.flags.c_contiguous
    return ffi.new("gd_numbers *", (ffi.cast("void *", array.ctypes.data), array.itemsize == 8))[0]


def zeros(count: int, dtype: npt.DTypeLike) -> Ids:
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


PART = "part.npy"
_PASS = re.compile(re.escape(PART) + r"\.([0-9]+)")


def write_part(path: Path, part: Int32Array) -> None:
    """Write the partitions of all nodes, durably.

    Raises:
        StoreError: the disk is full, or writing failed.
        ConfigError: the system refuses another thread.
    """
    with DirectWriter(path, whole=True) as writer:
        writer.append(npy_header(ArrayInfo("part", "int32", (len(part),), "")))
        writer.append(part)
        writer.finish()


def map_part(path: Path, nodes: int) -> np.memmap[Any, np.dtype[np.int32]] | Int32Array:
    """Map the partitions of all nodes, read-only.

    Raises:
        StoreError: the file is not theirs.
    """
    try:
        part = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if part.dtype != np.int32 or part.shape != (nodes,):
        raise _damaged(path)
    found: np.memmap[Any, np.dtype[np.int32]] = part
    return found


def last_pass(folder: Path) -> int:
    """The largest number of a `part.npy.NUMBER`; 0: there is none."""
    numbers = [_PASS.fullmatch(path.name) for path in folder.iterdir()]
    return max((int(found[1]) for found in numbers if found), default=0)


def remove(path: Path) -> None:
    """Remove a file that is not needed any more.

    Raises:
        StoreError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error


def remove_beginning(folder: Path, *names: str) -> None:
    """Remove all files whose names begin with one of `names`.

    Raises:
        StoreError: one cannot be removed.
    """
    for path in list(folder.iterdir()):
        if path.name.startswith(names):
            remove(path)


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged: remove {path.parent}, and partition again")
