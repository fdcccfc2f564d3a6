"""Arrays of a derived layout: what its json says of them, their checksums, and maps of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import Bytes, hash_file
from gnndrive.common.io.small_files import write_whole
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.limits import refusal
from gnndrive.common.records import TableFile
from gnndrive.store.files import open_plain
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.parsing import parse_kind

_CHECKSUM = re.compile("sha256:[0-9a-f]{64}|sum64:[0-9a-f]{16}")
_NAME = re.compile(r"[\w.\-]+(/[\w.\-]+)*")
Ids: TypeAlias = "npt.NDArray[Any]"
"""Whole numbers, int32 or int64."""
_OPEN_MAX = 4  # files whose maps are kept, each with a descriptor


@dataclass(frozen=True, slots=True)
class LayoutArray:
    """One array of a layout. Its checksum is "sha256:" and 64 digits, of the whole file; or
    "sum64:" and 16 digits, the sum of its rows', which are added up while they are written."""

    name: str  # its file without ".npy", relative to the folder, such as "samples/000"
    dtype: str  # a numpy name or "bfloat16"
    shape: tuple[int, ...]  # rows first; at least one dimension
    checksum: str

    @property
    def info(self) -> ArrayInfo:
        """The array without its checksum."""
        return ArrayInfo(self.name, self.dtype, self.shape, "")

    @property
    def file(self) -> str:
        """The file, relative to the layout's folder."""
        return self.info.file

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        return self.info.nbytes

    def as_dict(self) -> dict[str, Any]:
        """The array's record in the layout's json."""
        return {"dtype": self.dtype, "shape": list(self.shape), "checksum": self.checksum}


def parse_arrays(top: Record, groups: Sequence[str]) -> dict[str, LayoutArray]:
    """The arrays that a layout's json lists, which may come from a stranger; the first part of each
    name is one of `groups`."""
    found: dict[str, LayoutArray] = {}
    for name, record in top.each("arrays", dict).items():
        parts = name.split("/")
        if not _NAME.fullmatch(name) or {".", ".."} & set(parts) or parts[0] not in groups:
            raise record.error(f"is none of {', '.join(groups)}")
        dtype, shape = parse_kind(record)
        checksum = record.text("checksum")
        if not _CHECKSUM.fullmatch(checksum):
            raise record.error("has a 'checksum' that is none")
        found[name] = LayoutArray(name, dtype, shape, checksum)
    return found


def checksums(
    root: Path,
    arrays: Iterable[LayoutArray | ArrayInfo],
    mend: str,
    progress: Callable[[int, int], object],
    each: Callable[[str, int, Bytes], object] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield the name of each array in the folder `root` and the SHA-256 of its file, as the json
    has it.

    Args:
        mend: what to do if a file is damaged, for errors.
        progress: called as progress(bytes done, bytes in all).
        each: called as each(array's name, offset, content) with the stretches of the files, in
            order; the first of a file is its header.

    Raises:
        StoreError: a file is missing, or of another size.
        ReadError: it cannot be read.
    """
    arrays = list(arrays)
    done, total = 0, sum(array.nbytes for array in arrays)
    for array in arrays:

        def stretch(offset: int, content: Bytes, name: str = array.name, done: int = done) -> None:
            if each is not None:
                each(name, offset, content)
            progress(done + offset + content.size, total)

        path = root / array.file
        fd = open_plain(root, array.file, mend)
        try:
            if os.fstat(fd).st_size != array.nbytes:
                raise StoreError(f"{path} does not have {array.nbytes:,} bytes: {mend}")
        finally:
            os.close(fd)
        yield array.name, hash_file(path, array.nbytes, stretch)
        done += array.nbytes


def write_small(root: Path, name: str, array: npt.NDArray[Any]) -> None:
    """Write an array that is small, whole or not at all, and durably."""
    info = ArrayInfo(name, array.dtype.name, array.shape, "")
    path = root / info.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error
    write_whole(path, npy_header(info) + np.ascontiguousarray(array).tobytes())


def table_file(root: Path, info: ArrayInfo) -> TableFile:
    """Where the rows of an array lie."""
    path, rows = str(root / info.file), info.shape[0]
    return TableFile(path, DATA_OFFSET, rows, info.row_bytes, info.dtype, info.shape[1:])


class Maps:
    """Memory maps of the files that were used last; nothing grows with the number of files."""

    def __init__(self) -> None:
        self._map = lru_cache(_OPEN_MAX)(partial(map_array, dtype="uint8"))

    def data(self, path: Path) -> npt.NDArray[np.uint8]:
        """The bytes of a store's .npy file without the header; see `map_array`."""
        return self._map(path)


@dataclass(frozen=True, slots=True, eq=False)
class StoredIds:
    """`count` numbers, int32 or int64, in a file, which is mapped while they are looked at:
    `np.asarray` maps it. `start` is the first byte, counted from the end of the header."""

    maps: Maps
    path: Path
    start: int
    count: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.count

    def part(self, start: int, stop: int) -> StoredIds:
        """Those at the places from `start` to `stop`."""
        assert 0 <= start <= stop <= self.count
        first = self.start + start * self.dtype.itemsize
        return replace(self, start=first, count=stop - start)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        end = self.start + self.count * self.dtype.itemsize
        found = self.maps.data(self.path)[self.start : end]
        if found.nbytes != end - self.start:
            raise StoreError(f"{self.path} became shorter: remove the folder, and make it again")
        return np.asarray(found.view(self.dtype), dtype)


def map_array(path: Path, dtype: str) -> Ids:
    """The numbers in an .npy file in the form of a store's, memory-mapped; [n]."""
    try:
        if path.stat().st_size <= DATA_OFFSET:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(path, dtype, "r", DATA_OFFSET))
    except OSError as error:
        raise refusal(error.errno or 0) or StoreError(
            f"{path} cannot be opened ({error.strerror}): remove the folder, and make it again"
        ) from error
