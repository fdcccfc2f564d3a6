"""Read and check a store's files: at opening store.json, headers, index pointers and splits; and
everything (`verify`).

Every value is checked before it is used, because the files may come from a stranger.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import format_size
from gnndrive.common.progress import Progress
from gnndrive.store.checks import check_for, check_permutation, finite_rows_of
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

_STEP = 1 << 20  # values read and checked at once


def info_status(folder: Path) -> FileStatus:
    """The status of a store's store.json; (): there is none."""
    try:
        return file_status(folder / STORE_JSON)
    except OSError:
        return ()


def read_info(folder: Path) -> StoreInfo:
    """Read a store's store.json; a StoreError if it is missing, unreadable or invalid."""
    if not os.path.lexists(folder / STORE_JSON):
        raise StoreError(
            f"{folder / STORE_JSON} is not there: {folder} is not a store; make one with gnndrive "
            "import"
        )
    content = read_plain(folder, STORE_JSON, JSON_BYTES_MAX + 1)
    if len(content) > JSON_BYTES_MAX:
        raise StoreError(
            f"{folder / STORE_JSON} is larger than {JSON_BYTES_MAX:,} bytes: import the store again"
        )
    return parse(content, str(folder / STORE_JSON))


def open_checked(folder: Path, info: ArrayInfo) -> int:
    """Open an array's file and check its size and header against store.json; StoreError: they
    differ. Return a descriptor that the caller closes."""
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
    """Read index pointers or a split into memory and check them; StoreError: a value is wrong.

    The file is read once, so the values returned are the ones that were checked. They have the
    dtype `dtype`, which must hold every value allowed; None: the array's own. `empty` allocates
    them.
    """
    try:
        values = empty(info.shape, dtype or info.storage)
    except MemoryError:
        raise StoreError(
            f"{folder / info.file} needs {format_size(info.nbytes)} of memory, more than there is: "
            "use a machine with more memory, or import the store again if the graph is not that "
            "large"
        ) from None
    start = 0
    for chunk in _checked(folder, info, types):
        values[start : start + len(chunk)] = chunk
        start += len(chunk)
    return values


def check_values(folder: Path, info: ArrayInfo, types: Types) -> None:
    """Read index pointers or a split and check them, as `load_checked`; keeps nothing in memory."""
    for _ in _checked(folder, info, types):
        pass


def _checked(folder: Path, info: ArrayInfo, types: Types) -> Iterator[npt.NDArray[Any]]:
    """`_values`, all of which are checked when the iterator ends."""
    check = check_for(info.name, str(folder / info.file), types)
    assert check is not None
    for chunk in _values(folder, info):
        check.feed(chunk)
        yield chunk
    check.finish()


def _values(folder: Path, info: ArrayInfo) -> Iterator[npt.NDArray[Any]]:
    """The elements of an array, one after the other, in memory that the next step overwrites."""
    count = math.prod(info.shape)
    step = np.empty(min(count, _STEP), info.storage)
    with os.fdopen(open_checked(folder, info), "rb", buffering=0) as file:
        for start in range(0, count, _STEP):
            chunk = step[: count - start]
            _fill(chunk, file, folder / info.file)
            yield chunk


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


def verify(folder: Path, info: StoreInfo, progress: Progress | None = None) -> None:
    """See `Store.verify`. The store is read once, and edge ids once more for every 256 Mi edges;
    memory stays under 300 MB."""
    done = 0

    def tell(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress("verify", done, info.nbytes)

    for array in info.stored.values():
        path = str(folder / array.file)
        check = check_for(array.name, path, info.types)
        finite_rows = finite_rows_of(array, info.types)
        digest = hashlib.sha256(npy_header(array))
        tell(DATA_OFFSET)
        for values in _values(folder, array):
            digest.update(values.data)
            for each in (check, finite_rows):
                if each is not None:
                    each.feed(values)
            tell(values.nbytes)
        if check is not None:
            check.finish()
        if digest.hexdigest() != array.sha256:
            raise StoreError(
                f"{path} has another checksum than store.json says: its content has changed; "
                "copy the store again from where it came, or import it again"
            )
        if finite_rows is not None and finite_rows.remark is not None:
            warnings.warn(f"{finite_rows.remark}; the store is sound", stacklevel=3)
    for array in info.arrays.values():
        place = info.types.place(array.name)
        if (place.group, place.leaf) == ("graph", "edge_id"):
            values_of = partial(_values, folder, array)
            path = str(folder / array.file)
            check_permutation(values_of, array.shape[0], path, "import the store again")
