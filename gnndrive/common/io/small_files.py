"""Small files that exist whole or not at all, and what makes files durable."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gnndrive.common.ffi import check, lib
from gnndrive.common.file_lock import acquire, has_no_locks
from gnndrive.common.io.write_errors import write_failure

PART = ".part"  # ends the name of a file that is not whole yet
REPLACING = ".replacing"  # ends the names of new files that have not got their own yet


def write_all(fd: int, view: memoryview) -> None:
    """Write all of `view`, in as many calls as it takes."""
    while len(view):
        view = view[os.write(fd, view) :]


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_durable(folder: Path) -> None:
    """Make durable all files and names on the file system of `folder`: an fsync of each of many
    files would commit the file system's journal for each, one syncfs commits it once."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check(lib.gd_sync_file_system(fd), "syncfs")
    finally:
        os.close(fd)


def replace_file(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o600) -> None:
    """Write a file beside `path`, fsync it, rename it; an interruption leaves either file whole.

    `write` writes the content into an open file; `mode` are the permissions of the new file. A
    process that is killed may leave `.NAME.replacing`, which the next call takes over. It is locked
    while it is written, so processes that replace the same file do so one after the other.
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
            os.fchmod(fd, mode)
            write(file)
            file.flush()
            os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    fsync_folder(path.parent)


def write_durable(path: Path, content: bytes) -> None:
    """Write a small file that exists whole or not at all; a killed process leaves `PART`."""
    part = path.with_name(path.name + PART)
    try:
        with open(part, "wb", buffering=0) as file:
            write_all(file.fileno(), memoryview(content))
            os.fsync(file.fileno())
        os.rename(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    fsync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """`write_durable`, whose errors say what goes on where it was stopped."""
    try:
        write_durable(path, content)
    except OSError as error:
        raise write_failure(path, error) from error
