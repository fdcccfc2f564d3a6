"""Open the files of a store that may come from a stranger, only plain ones, and tell whether its
folder still holds what was opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from gnndrive.common.errors import StoreError
from gnndrive.common.limits import refusal
from gnndrive.common.records import TableFile

FileStatus: TypeAlias = tuple[int, ...]
"""What differs between two files, or after a file was written: device, inode, size, times."""
COPY = "copy the store again, with its own files in it, or import it again"


def file_status(path: Path) -> FileStatus:
    """The status of a file, which must be there; of a link itself."""
    status = os.lstat(path)
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip


def open_plain(store: Path, file: str, mend: str = COPY) -> int:
    """Open `store/file` for reading: a regular file, reached through no link inside the store.
    Return a descriptor that the caller closes.

    A store from a stranger must not make the process read outside its folder or wait for a pipe.
    `mend` says what to do, for errors.

    Raises:
        StoreError: the file is missing, unreadable or not a plain file.
        ConfigError: too many files are open.
    """
    path = store / file
    try:
        for parent in path.parents[: len(Path(file).parts) - 1]:
            if not stat.S_ISDIR(os.lstat(parent).st_mode):
                raise StoreError(f"{parent} is not a folder: {mend}")
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if (refused := refusal(error.errno or 0)) is not None:
            raise refused from None
        raise StoreError(f"{path} cannot be opened ({error.strerror}): {mend}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError(f"{path} is not a plain file: {mend}")
    return fd


def read_plain(store: Path, file: str, nbytes: int, mend: str = COPY) -> bytes:
    """Read at most the first `nbytes` of `store/file`; errors as for `open_plain`."""
    fd = open_plain(store, file, mend)
    try:
        return read_at_most(fd, nbytes)
    except OSError as error:
        raise StoreError(f"{store / file} cannot be read ({error.strerror}): {mend}") from error
    finally:
        os.close(fd)


def read_at_most(fd: int, nbytes: int) -> bytes:
    """Read the next `nbytes` of a file; returns fewer only at its end."""
    parts = []
    while nbytes > 0:
        part = os.read(fd, min(nbytes, 1 << 24))
        if not part:
            break
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)


class Source(Protocol):
    """A folder that a loader reads the rows of tables from, in place of the store's arrays."""

    @property
    def path(self) -> Path:
        """Where it is."""

    def file(self, table: str) -> TableFile:
        """The file of the rows of a table, by the table's name."""

    def unchanged(self) -> AbstractContextManager[None]:
        """Check after the block, which opens files of the folder by their paths, that they are its.

        Raises:
            StoreError: the folder was removed or replaced.
        """


class OpenedFolder:
    """The folder of an open store or layout.

    It is replaced by putting another folder in its place. Its files are opened by their paths, at
    different times, so each time its record (store.json, pack.json) is compared with the one that
    was read first: by the file's status, and only if that differs by its content.

    Args:
        record: its record, a file that is written anew whenever the folder is.
        is_same: reads the record again, and returns whether it says what it said; may raise
            StoreError.
        changed: the error's message if it does not.
        status: of the record when it was read; None: it is read again at the first check.
    """

    def __init__(
        self, record: Path, is_same: Callable[[], bool], changed: str,
        status: FileStatus | None = None,
    ) -> None:  # fmt: skip
        self._record, self._is_same, self._changed = record, is_same, changed
        self._status = status

    def check_unchanged(self) -> None:
        """Check that the folder holds what was opened, or a copy of it; StoreError: it does not. A
        file of the folder that was opened before this check is of what was opened."""
        status: FileStatus = ()
        with suppress(OSError, StoreError):
            status = file_status(self._record)
            if status != self._status and self._is_same():
                self._status = status
        if status != self._status:
            raise StoreError(self._changed)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """See `Source.unchanged`."""
        try:
            yield
        except StoreError:
            self.check_unchanged()
            raise
        self.check_unchanged()
