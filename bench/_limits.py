"""Memory limits and cold caches for benchmarks: a cgroup and drop_caches as root, else as well as
it goes, and said so."""

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
        """Put the calling process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """The most bytes charged so far, page cache counted; starts anew."""
        file = self.folder / "memory.max_usage_in_bytes"
        peak = int(file.read_text())
        file.write_text("0")
        return peak

    def close(self) -> None:
        """Remove the group."""
        self.folder.rmdir()


@contextmanager
def limited(limit: int) -> Iterator[tuple[Cgroup | None, str]]:
    """A group for child processes, or None where there can be none, and words for either."""
    if not may_limit():
        yield None, "no memory limit (not root on cgroup v1), the store's pages dropped"
        return
    group = Cgroup(limit)
    try:
        yield group, f"{format_size(limit)} of memory, page cache counted, all caches dropped"
    finally:
        group.close()


def may_limit() -> bool:
    """Whether memory can be limited and caches dropped here."""
    return os.geteuid() == 0 and os.access(GROUPS / "cgroup.procs", os.W_OK)


def drop_caches(folder: Path, everything: bool) -> None:
    """Make the files below `folder` cold; as root all there are."""
    if everything:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return
    for path in folder.rglob("*.npy"):
        drop_file(path)
