"""Read and check what opening a store needs: store.json, headers, index pointers and splits.

Every value is checked before it is used, because the files may come from a stranger.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import StoreError
from gnndrive.store.checks import check_for
from gnndrive.store.files import FileStatus, file_status, open_plain, read_at_most, read_plain
from gnndrive.store.format import (
    DATA_OFFSET,
    JSON_BYTES_MAX,
    STORE_JSON,
    ArrayInfo,
    StoreInfo,
    npy_header,
)
from gnndrive.store.parsing import parse
from gnndrive.store.types import Types

_STEP = 1 << 20  # values checked at once


def info_status(folder: Path) -> FileStatus:
    """The status of a store's store.json.

    Raises:
        StoreError: it is missing.
    """
    try:
        return file_status(folder / STORE_JSON)
    except OSError as error:
        raise _unreadable(folder / STORE_JSON, error) from error


def read_info(folder: Path) -> StoreInfo:
    """Read a store's store.json.

    Raises:
        StoreError: it is missing, unreadable or invalid.
    """
    if not os.path.lexists(folder / STORE_JSON):
        raise StoreError(
            f"{folder / STORE_JSON} is not there: {folder} is not a store; make one with gnndrive "
            "import"
        )
    try:
        content = read_plain(folder, STORE_JSON, JSON_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(folder / STORE_JSON, error) from error
    if len(content) > JSON_BYTES_MAX:
        raise StoreError(
            f"{folder / STORE_JSON} is larger than {JSON_BYTES_MAX:,} bytes: import the store again"
        )
    return parse(content, str(folder / STORE_JSON))


def open_checked(folder: Path, info: ArrayInfo) -> int:
    """Open an array's file and check its size and header against store.json.

    Returns:
        A descriptor that the caller closes.

    Raises:
        StoreError: the file is missing or unreadable, or its size or header differs.
    """
    path = folder / info.file
    fd = open_plain(folder, info.file)
    try:
        size = os.fstat(fd).st_size
        if size != info.nbytes:
            state = "truncated" if size < info.nbytes else "too long"
            raise StoreError(
                f"{path} is {state}: {size} bytes instead of {info.nbytes}; copy or import the "
                "store again"
            )
        # The format has exactly one header for a dtype and shape, so the bytes can be compared.
        if read_at_most(fd, DATA_OFFSET) != npy_header(info):
            raise StoreError(
                f"{path} does not have the header of {info.dtype} {list(info.shape)} in C order, "
                "which store.json says; copy or import the store again"
            )
    except OSError as error:
        os.close(fd)
        raise _unreadable(path, error) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def load_checked(
    folder: Path,
    info: ArrayInfo,
    types: Types,
    dtype: type | None = None,
    empty: Allocate = np.empty,
) -> npt.NDArray[Any]:
    """Read index pointers or a split into memory and check them.

    The file is read once, so the values returned are the ones that were checked.

    Args:
        folder: the store's folder.
        info: the array.
        types: the store's types, which say what values are allowed.
        dtype: dtype of the result, which must hold every value allowed; None: the array's own.
        empty: allocates the result.

    Raises:
        StoreError: the array cannot be read, or a value is not allowed.
    """
    try:
        values = empty(info.shape, dtype or info.storage)
    except MemoryError:
        raise StoreError(
            f"{folder / info.file} needs {info.nbytes:,} bytes of memory, more than there are: use "
            "a machine with more memory, or import the store again if the graph is not that large"
        ) from None
    start = 0
    for chunk in _checked(folder, info, types):
        values[start : start + len(chunk)] = chunk
        start += len(chunk)
    return values


def check_values(folder: Path, info: ArrayInfo, types: Types) -> None:
    """Read index pointers or a split and check them; keeps nothing in memory.

    Args:
        folder, info, types: as for `load_checked`.

    Raises:
        StoreError: as `load_checked`.
    """
    for _ in _checked(folder, info, types):
        pass


def _checked(folder: Path, info: ArrayInfo, types: Types) -> Iterator[npt.NDArray[Any]]:
    """Read an array; each of its values was checked when the iterator ends.

    Yields:
        Its next values, in memory that the next step overwrites.
    """
    path, (count, *_) = folder / info.file, info.shape
    check = check_for(info.name, str(path), types)
    assert check is not None
    step = np.empty(min(count, _STEP), info.storage)
    with os.fdopen(open_checked(folder, info), "rb", buffering=0) as file:
        for start in range(0, count, _STEP):
            chunk = step[: count - start]
            _fill(chunk, file, path)
            check.feed(chunk)
            yield chunk
    check.finish()


def _fill(array: npt.NDArray[Any], file: io.RawIOBase, path: Path) -> None:
    """Read the file's next bytes into `array`."""
    view = array.view(np.uint8).data
    done = 0
    try:
        while done < len(view) and (got := file.readinto(view[done:])):
            done += got
    except OSError as error:
        raise _unreadable(path, error) from error
    if done < len(view):
        raise StoreError(f"{path} became shorter while it was read: copy or import the store again")


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"reading {path} failed ({error.strerror}): check the disk, or copy the store again"
    )
