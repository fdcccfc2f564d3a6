"""The record of what a computation has done, in its working folder: how it resumes after a kill.

The record counts only rows that are durable, and is itself replaced atomically. The working folder
is named after everything that the result depends on (`run_key`), so a record is found only by the
same computation. A lock keeps a second process out.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.file_lock import has_no_locks, try_lock
from gnndrive.common.io.small_files import replace_file
from gnndrive.common.io.write_errors import FULL, write_failure
from gnndrive.common.limits import refusal
from gnndrive.common.records import NodeKey
from gnndrive.store.format import ArrayInfo
from gnndrive.store.types import array_name

RECORD = "progress.json"
LOCK = ".lock"  # see `sole_use`
_VERSION = 1


@dataclass
class Done:
    """What is known of one type's rows in one layer.

    Attributes:
        dtype, shape: of one row; dtype None: the layer makes no rows of this type.
        rows: rows that are durable.
        finished: whether all are.
        sha256: the checksum of the finished file of the last layer, else "".
    """

    dtype: str | None
    shape: tuple[int, ...] = ()
    rows: int = 0
    finished: bool = False
    sha256: str = ""

    def info(self, count: int, type: NodeKey, name: str, folder: str) -> ArrayInfo:
        """The array, of `count` rows in `folder`."""
        assert self.dtype is not None
        full = array_name("nodes", type, name)
        return ArrayInfo(full, self.dtype, (count, *self.shape), self.sha256, folder)


@dataclass
class Record:
    """What is done of a computation: for each layer that was begun, by node type."""

    path: Path
    layers: list[dict[NodeKey, Done]] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> Record:
        """Read the record of a working folder; a new one if there is none that can be used."""
        path = folder / RECORD
        try:
            document = json.loads(path.read_bytes())
            if document["version"] != _VERSION:
                raise ValueError(document["version"])
            layers = [
                {
                    name or None: Done(**each | {"shape": tuple(each["shape"])})
                    for name, each in layer.items()
                }
                for layer in document["layers"]
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)
        return cls(path, layers)

    def save(self) -> None:
        """Write the record, atomically and durably."""
        layers = [{type or "": vars(done) for type, done in layer.items()} for layer in self.layers]
        content = json.dumps({"version": _VERSION, "layers": layers}, indent=1).encode()
        try:
            replace_file(self.path, lambda file: file.write(content))
        except OSError as error:
            raise write_failure(self.path, error) from error


def run_key(*parts: Any) -> str:
    """A checksum of all that a result depends on, as 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextmanager
def sole_use(folder: Path, other: str = "give another name= or out=") -> Iterator[None]:
    """Make a folder and keep other processes and threads out of it; the lock's file stays.
    ConfigError: that cannot be done; `other` says what the user may do instead of waiting.
    StoreError: the disk is full."""
    try:
        fd = _lock(folder)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process or thread computes in {folder} now: wait until it ends, or {other}"
        ) from error
    except OSError as error:
        if (refused := refusal(error.errno or 0)) is not None:
            raise refused from None
        if error.errno in FULL:
            raise write_failure(folder, error) from error
        if has_no_locks(error):
            raise ConfigError(
                f"the file system of {folder} has no locks: use a local disk, or {other}"
            ) from error
        raise ConfigError(
            f"{folder} cannot be written to ({error.strerror}): make it writable, or {other}"
        ) from error
    try:
        yield
    finally:
        os.close(fd)


def _lock(folder: Path) -> int:
    """See `try_lock`. Another process may remove the folder, in which nothing is, and its lock."""
    for _ in range(100):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return try_lock(folder / LOCK, 0o644)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
