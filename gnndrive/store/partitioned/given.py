"""Partitions that the user has found: numbers in a .npy file, in a text, or in an array."""

from __future__ import annotations

import os
import warnings
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array

_NPY = b"\x93NUMPY"


def given_parts(source: Any, nodes: int, parts: int | None = None) -> tuple[Int32Array, int]:
    """Read and check the partition of each node.

    Args:
        source: an array of whole numbers [nodes], or the path of a .npy file of one, or of a text
            with a number on each line, as METIS's programs write it.
        nodes: how many nodes there are.
        parts: how many partitions; None: one more than the largest number.

    Returns:
        The partition of each node, int32 [nodes], and the number of partitions. Empty partitions
        are allowed; a warning counts them.

    Raises:
        ConfigError: they are not partitions of so many nodes.
    """
    is_path = isinstance(source, str | os.PathLike)
    name = os.fspath(source) if is_path else "the array of partitions"
    found = _read(os.fspath(source), nodes) if is_path else np.asarray(source)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(
            f"{name} is {found.dtype} of shape {list(found.shape)}: give a whole number for each "
            f"of {nodes:,} nodes, the number of its partition"
        )
    if len(found) != nodes:
        count = f"more than {nodes:,}" if is_path and len(found) > nodes else f"{len(found):,}"
        raise ConfigError(
            f"{name} has {count} numbers and the store has {nodes:,} nodes: give the partition of "
            "each node, in the order of their ids"
        )
    least, most = (int(found.min()), int(found.max())) if nodes else (0, 0)
    end = min(nodes if parts is None else parts, 1 << 31)
    if least < 0 or most >= max(end, 1):
        at = int(np.argmin(found) if least < 0 else np.argmax(found))
        raise ConfigError(
            f"{name} puts node {at} into partition {least if least < 0 else most}: number the "
            f"partitions from 0 to {end - 1}" + ("" if parts is None else ", or give more parts")
        )
    parts = most + 1 if parts is None else parts
    part = np.ascontiguousarray(found, np.int32)
    empty = parts - int(np.count_nonzero(np.bincount(part, minlength=parts)))
    if empty:
        warnings.warn(
            f"{empty:,} of {parts:,} partitions in {name} are empty; give fewer parts, or number "
            "those that are not empty from 0, if that was not meant",
            stacklevel=2,
        )
    return part, parts


def memory_of(nodes: int) -> int:
    """Bytes that `given_parts` uses at most."""
    return 24 * nodes  # a text is read as int64 into memory that grows


def digest(part: Int32Array) -> str:
    """The SHA-256 of the partitions of all nodes, however they were given: 64 digits."""
    return sha256(np.ascontiguousarray(part, "<i4").data).hexdigest()


def _read(path: str, nodes: int) -> npt.NDArray[Any]:
    try:
        with open(path, "rb") as file:
            is_npy = file.read(len(_NPY)) == _NPY
        if is_npy:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        return np.loadtxt(path, np.int64, ndmin=1, max_rows=nodes + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as partitions ({error}): give a .npy file of whole numbers, or "
            "a text with one number on each line"
        ) from error
