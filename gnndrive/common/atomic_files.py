"""Files that survive an interruption: write a buffer, sync a folder, replace a file atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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

    Args:
        path: the file, which may exist; only its owner may read the new one, unless `write`
            changes its mode.
        write: writes the content into an open file.

    Raises:
        OSError: the operating system's.
    """
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_folder(path.parent)
