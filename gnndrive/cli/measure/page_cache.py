"""Drop files from the page cache, so that a measurement starts cold."""

from __future__ import annotations

import os
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def drop_file(path: str | os.PathLike[str]) -> None:
    """Drop a file from the page cache; needs no privileges.

    Pages that a process still maps stay cached, so the caller must not map the file.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # dirty pages are not dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def may_drop_all() -> bool:
    """Whether this process may drop the machine's whole page cache: root may, except in a container
    whose /proc/sys is read-only."""
    return os.access(DROP_CACHES, os.W_OK)


def drop_all() -> None:
    """Drop the machine's whole page cache, and the kernel's directory entries and inodes."""
    os.sync()
    DROP_CACHES.write_text("3", encoding="ascii")
