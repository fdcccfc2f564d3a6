"""Making what was written durable: one call for all files of a file system.

A part of a table is written to many volumes. One syncfs commits the file system's journal once,
where an fsync of each volume would commit it for each.
"""

from __future__ import annotations

import os
from pathlib import Path

from gnndrive.common.ffi import check, lib


def sync_file_system(fd: int) -> None:
    """Make durable all that was written to the file system of an open file or folder.

    Raises:
        OSError: the operating system's.
    """
    check(lib.gd_sync_file_system(fd), "syncfs")


def make_durable(folder: Path) -> None:
    """Make durable all files and names on the file system of `folder`.

    Raises:
        OSError: the operating system's.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)
