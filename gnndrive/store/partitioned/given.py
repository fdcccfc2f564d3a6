"""`GivenParts`: partitions that the user has found, in an .npy file.

When not to use it: for partitions that gnndrive finds (assign.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.partitioned import part_file
from gnndrive.store.partitioned.long_writer import LongWriter
from gnndrive.store.partitioned.settings import METHODS, PARTS_MAX

_STEP = 1 << 20


class GivenParts:
    """The partition of each node, from a file.

    Args:
        path: an .npy file of whole numbers [nodes].
        nodes: how many nodes the store has.

    Attributes:
        path: the file.
        parts: the largest number + 1.
        digest: the SHA-256 of the numbers, as int32.

    Raises:
        ConfigError: it is no such file, or no method has that name.
    """

    def __init__(self, path: Path, nodes: int) -> None:
        self.path, self.parts = path, 0
        known = ", ".join(METHODS[:-1])
        try:
            self._numbers: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigError(
                f"method={str(path)!r} is neither one of {known} nor an .npy file that can be read "
                f"({error})"
            ) from None
        found = self._numbers
        if found.shape != (nodes,) or found.dtype.kind not in "iu":
            raise ConfigError(
                f"{path} holds {found.dtype} {list(found.shape)}: give whole numbers [{nodes}], "
                "the partition of each node"
            )
        digest = hashlib.sha256()
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
        with LongWriter(folder / part_file.NAME) as writer:
            writer.append(npy_header(ArrayInfo("part", "int32", self._numbers.shape, "")))
            for block in self._blocks():
                writer.append(block)
            writer.finish()

    def _blocks(self) -> Iterator[npt.NDArray[np.int32]]:
        for start in range(0, len(self._numbers), _STEP):
            block = np.asarray(self._numbers[start : start + _STEP])
            if block.min() < 0 or block.max() >= PARTS_MAX - 1:
                raise ConfigError(
                    f"{self.path} has a number below 0 or above {PARTS_MAX - 2}: give the "
                    "partition of each node, counted from 0"
                )
            yield block.astype(np.int32)
