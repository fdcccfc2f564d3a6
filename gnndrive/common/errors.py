"""The errors that gnndrive raises; each message says what to do about it.

A bad argument or a memory limit that cannot work is a `ConfigError`, a missing or damaged store a
`StoreError`, a row that could not be read a `ReadError`. All are `GNNDriveError`.
"""

from __future__ import annotations

import errno as errno_names
import os
from typing import Any


class GNNDriveError(Exception):
    """The base of all errors that gnndrive raises on purpose."""


class ConfigError(GNNDriveError, ValueError):
    """An argument, or a combination of them, that cannot work. The message names the fix."""


class StoreError(GNNDriveError):
    """A store is missing, damaged or from another version. The message names the file."""


class ReadError(GNNDriveError, OSError):
    """A row could not be read from disk.

    Attributes:
        path: the file.
        offset: where the failing read starts in it, in bytes.
        errno: the operating system's error number (`errno.EIO`, …).
    """

    def __init__(self, path: str | os.PathLike[str], offset: int, errno: int) -> None:
        self.path = os.fspath(path)
        self.offset = offset
        name = errno_names.errorcode.get(errno, str(errno))
        remedy = "check the disk (dmesg) and the store (gnndrive verify)"
        if errno == errno_names.ENOMEM:
            remedy = "free some memory, or have loading use less with memory="
        super().__init__(
            errno,
            f"reading {self.path} at byte {offset} failed: {name} ({os.strerror(errno)}); {remedy}",
        )

    def __str__(self) -> str:
        return str(self.args[1])

    def __reduce__(self) -> tuple[type[ReadError], tuple[str, int, int]]:
        return (type(self), (self.path, self.offset, self.errno or 0))


class BatchTooLarge(GNNDriveError, RuntimeError):
    """A batch is larger than the loader's plan counts; see `loader/iterator.py`, which catches it.

    Attributes:
        size: how many nodes and edges the batch has (`sampling.samplers.base.Bounds`); None:
            unknown, because sampling it was given up at the plan's limit.
    """

    def __init__(self, message: str, size: Any = None) -> None:
        super().__init__(message)
        self.size = size


class LateError(GNNDriveError, RuntimeError):
    """A batch took longer than the loader's `timeout`; the caller may ask the iterator again."""


class PeerError(GNNDriveError, RuntimeError):
    """Another rank of this loader has died, so that the ranks cannot go on together.

    Attributes:
        rank: which one.
        why: what is known of it.
    """

    def __init__(self, rank: int, why: str = "has died or was killed") -> None:
        self.rank, self.why = rank, why
        super().__init__(
            f"rank {rank} {why} (see its output, or dmesg if memory ran out): "
            "start the ranks again, as torchrun's --max-restarts does, and resume with the "
            "loader's state"
        )

    def __reduce__(self) -> tuple[type[PeerError], tuple[int, str]]:
        return (type(self), (self.rank, self.why))


class HostServiceError(GNNDriveError, RuntimeError):
    """The host service, which loads for the ranks of a host, has ended or failed."""


class ClosedError(GNNDriveError, RuntimeError):
    """The loader, iterator or engine was closed before the call on it ended."""
