"""Arrays of an unfinished partitioned folder: written whole, mapped, and handed to C.

`part.npy` is the partition of each node, int32 [nodes]. A method may leave `part.npy.NUMBER` before
it is done, to go on there after a kill. Each of these files exists whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import ffi
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.layout.arrays import Ids, map_array
from gnndrive.store.reader import Store

PART = "part.npy"
_PASS = re.compile(re.escape(PART) + r"\.([0-9]+)")


def numbers(array: npt.NDArray[Any]) -> Any:
    """An array of ids, codes or index pointers for C (`gd_numbers`); the caller keeps it alive."""
    assert array.flags.c_contiguous
    return ffi.new("gd_numbers *", (ffi.cast("void *", array.ctypes.data), array.itemsize == 8))[0]


def zeros(count: int, dtype: npt.DTypeLike) -> Ids:
    """An array of zeros in huge pages, because it is looked up at random; freed with its views."""
    width = np.dtype(dtype).itemsize
    return np.frombuffer(private_map(max(count * width, 1), huge=True), dtype, count)


def write_array(path: Path, info: ArrayInfo, blocks: Iterable[Ids]) -> None:
    """Write an array from blocks of its rows; it exists whole or not at all."""
    rows = 0
    with DirectWriter(path, whole=True) as writer:
        writer.append(npy_header(info))
        for block in blocks:
            assert block.dtype == info.storage
            writer.append(np.ascontiguousarray(block))
            rows += len(block)
        assert rows == info.shape[0]
        writer.finish()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A partitioned folder while it is written: `root` is its hidden folder, `infos` has its arrays
    by name, and `memory` are the bytes that may be used besides the store's index pointers."""

    root: Path
    store: Store
    infos: dict[str, ArrayInfo]
    memory: int
    report: Progress

    def path(self, name: str) -> Path:
        """The file of an array."""
        return self.root / self.infos[name].file

    def write(self, name: str, values: Ids) -> None:
        """Write an array, which exists whole or not at all."""
        write_array(self.path(name), self.infos[name], [values])

    def numbers(self, name: str) -> Ids:
        """Map an array that is written."""
        return map_array(self.path(name), self.infos[name].dtype)

    def small(self, name: str) -> Int64Array:
        """Read an array of int64."""
        return np.array(self.numbers(name), np.int64)


def write_part(path: Path, nodes: int, blocks: Iterable[Int32Array]) -> None:
    """Write the partitions of all nodes; see `write_array`."""
    write_array(path, ArrayInfo("part", "int32", (nodes,), ""), blocks)


def map_part(path: Path, nodes: int) -> Int32Array:
    """Map the partitions of all nodes, read-only; StoreError: the file is not theirs."""
    damaged = StoreError(f"{path} is damaged: remove {path.parent}, and partition again")
    try:
        part: Int32Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise damaged from error
    if part.dtype != np.int32 or part.shape != (nodes,):
        raise damaged
    return part


def last_pass(folder: Path) -> int:
    """The largest number of a `part.npy.NUMBER`; 0: there is none."""
    found = [_PASS.fullmatch(path.name) for path in folder.iterdir()]
    return max((int(each[1]) for each in found if each), default=0)


def remove(path: Path) -> None:
    """Remove a file that is not needed any more."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error
