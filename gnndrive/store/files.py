"""Reading the files of a store that may come from a stranger: only plain files are opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeAlias

from gnndrive.common.errors import StoreError
from gnndrive.common.limits import refusal

FileStatus: TypeAlias = tuple[int, ...]
"""What differs between two files, or after a file was written: device, inode, size, times."""


def file_status(path: Path) -> FileStatus:
    """The status of a file, which must be there; of a link itself."""
    status = os.lstat(path)
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip


COPY = "copy the store again, with its own files in it, or import it again"


def open_plain(store: Path, file: str, mend: str = COPY) -> int:
    """Open `store/file` for reading: a regular file, reached through no link inside the store.
    Return a descriptor that the caller closes.

    A store from a stranger must not make the process read outside its folder or wait for a pipe.
    `mend` says what to do if it is no plain file, for errors.

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
    """Read at most the first `nbytes` of `store/file`; see `open_plain`.

    Raises:
        OSError: the file cannot be read.
    """
    fd = open_plain(store, file, mend)
    try:
        return read_at_most(fd, nbytes)
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
