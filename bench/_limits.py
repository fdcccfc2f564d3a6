"""Memory limits and cold caches for benchmarks.

As root they use a cgroup and drop_caches. Otherwise there is no limit, only the store's pages are
dropped, and the output says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnndrive.cli.commands.compare import drop_file
from gnndrive.common.memory import format_size

GROUPS = Path("/sys/fs/cgroup/memory")


class Cgroup:
    """A cgroup v1 memory group for child processes."""

    def __init__(self, limit: int) -> None:
        self.folder = GROUPS / f"gnndrive{os.getpid()}"
        self.folder.mkdir()
        (self.folder / "memory.limit_in_bytes").write_text(str(limit))

    def enter(self) -> None:
        """Move the calling process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """The peak of charged bytes since the last call, page cache included; resets the peak."""
        file = self.folder / "memory.max_usage_in_bytes"
        peak = int(file.read_text())
        file.write_text("0")
        return peak

    def close(self) -> None:
        """Remove the group."""
        self.folder.rmdir()


@contextmanager
def limited(limit: int) -> Iterator[tuple[Cgroup | None, str]]:
    """Yield a group for child processes, or None if none can be made, and a description."""
    if not may_limit():
        yield None, "no memory limit (not root on cgroup v1), the store's pages dropped"
        return
    group = Cgroup(limit)
    try:
        yield group, f"{format_size(limit)} of memory, page cache counted, all caches dropped"
    finally:
        group.close()


def may_limit() -> bool:
    """Whether this process may limit memory and drop caches."""
    return os.geteuid() == 0 and os.access(GROUPS / "cgroup.procs", os.W_OK)


def drop_caches(folder: Path, everything: bool) -> None:
    """Drop the files below `folder` from the page cache, or, as root, everything."""
    if everything:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return
    for path in folder.rglob("*.npy"):
        drop_file(path)
