"""`part.npy`: the partition of each node, int32 [nodes], in an unfinished partitioning's folder.

A method may leave `part.npy.NUMBER` before it is done, to go on there after a kill. Each of these
files exists whole or not at all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import Int32Array
from gnndrive.store.format import ArrayInfo, npy_header

NAME = "part.npy"
_PASS = re.compile(re.escape(NAME) + r"\.([0-9]+)")


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
