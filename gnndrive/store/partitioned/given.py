"""`GivenParts`: partitions that the user has found, in a .npy file, in a text or in an array.

When not to use it: for partitions that gnndrive finds (assign.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.records import Int32Array
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.partitioned import part_file

PARTS_MAX = 1 << 31
_METHODS = "auto, metis, ldg, random"  # what a name that is no file may have been meant as
_NPY = b"\x93NUMPY"
_STEP = 1 << 20


class GivenParts:
    """The partition of each node, from the user.

    Args:
        source: an array of whole numbers [nodes], or the path of a .npy file of one, or of a text
            with one number on each line, as METIS's programs write it. A text is read into memory.
        nodes: how many nodes the store has.

    Attributes:
        path: the file, or what stands for it in errors.
        parts: the largest number + 1.
        digest: the SHA-256 of the numbers, as int32, whatever they came in.

    Raises:
        ConfigError: these are not partitions of so many nodes.
    """

    def __init__(self, source: Any, nodes: int) -> None:
        is_path = isinstance(source, str | os.PathLike)
        self.path = Path(source) if is_path else "the array of partitions"
        self._numbers = _read(Path(source), nodes) if is_path else np.asarray(source)
        found = self._numbers
        if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != nodes:
            raise ConfigError(
                f"{self.path} holds {found.dtype} {list(found.shape)}: give whole numbers "
                f"[{nodes}], the partition of each node in the order of their ids"
            )
        self.parts, digest = 0, sha256()
        for block in self._blocks():
            self.parts = max(self.parts, int(block.max()) + 1)
            digest.update(block.data)
        self.digest = digest.hexdigest()

    def write(self, folder: Path) -> None:
        """Write them where `assign` looks for the partitions of an earlier call.

        Raises:
            StoreError: the disk is full, or writing failed.
            ConfigError: the file has changed.
        """
        if (folder / part_file.NAME).exists():
            return
        with DirectWriter(folder / part_file.NAME, whole=True) as writer:
            writer.append(npy_header(ArrayInfo("part", "int32", self._numbers.shape, "")))
            for block in self._blocks():
                writer.append(block)
            writer.finish()

    def _blocks(self) -> Iterator[Int32Array]:
        for start in range(0, len(self._numbers), _STEP):
            block = np.asarray(self._numbers[start : start + _STEP])
            least, most = int(block.min()), int(block.max())
            if least < 0 or most >= PARTS_MAX - 1:
                at = start + int(np.argmin(block) if least < 0 else np.argmax(block))
                raise ConfigError(
                    f"{self.path} has a number below 0 or above {PARTS_MAX - 2}, "
                    f"{least if least < 0 else most} of node {at}: give the partition of each "
                    "node, counted from 0"
                )
            yield block.astype("<i4")


def _read(path: Path, nodes: int) -> npt.NDArray[Any]:
    try:
        with open(path, "rb") as file:
            is_npy = file.read(len(_NPY)) == _NPY
        if is_npy:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        return np.loadtxt(path, np.int64, ndmin=1, max_rows=nodes + 1)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"method={str(path)!r} is neither one of {_METHODS} nor a file of partitions that can "
            f"be read ({error}): give a .npy file of whole numbers, or a text with one number on "
            "each line"
        ) from None
