"""Files that survive an interruption: write a buffer, sync a folder, replace a file atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gnndrive.common.file_lock import acquire, has_no_locks

REPLACING = ".replacing"  # ends the names of new files that have not got their own yet


def write_all(fd: int, view: memoryview) -> None:
    """Write all of `view`, in as many calls as it takes.

    Raises:
        OSError: the operating system's.
    """
    while len(view):
        view = view[os.write(fd, view) :]


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable.

    Raises:
        OSError: the operating system's.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside `path`, fsync it, rename it; an interruption leaves either file whole.

    A process that is killed may leave `.NAME.replacing`, which the next call takes over. It is
    locked while it is written, so processes that replace the same file do so one after the other.

    Args:
        path: the file, which may exist; only its owner may read the new one, unless `write`
            changes its mode.
        write: writes the content into an open file.

    Raises:
        OSError: the operating system's.
    """
    temporary = str(path.with_name(f".{path.name}{REPLACING}"))
    try:
        fd, _ = acquire(Path(temporary), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if not has_no_locks(error):
            raise
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(fd, "wb") as file:  # others wait until it is closed, and find it renamed
        try:
            os.ftruncate(fd, 0)
            os.fchmod(fd, 0o600)
            write(file)
            file.flush()
            os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    fsync_folder(path.parent)
