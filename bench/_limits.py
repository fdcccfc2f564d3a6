"""Memory limits and cold caches for benchmarks.

Where this process may, each run is in a control group, and the whole page cache is dropped before
it. Otherwise there is no limit, or only the store's pages are dropped, and the output says so.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from gnndrive.cli.measure.control_groups import CannotLimit
from gnndrive.cli.measure.memory_limit import Cgroup, memory_limit
from gnndrive.cli.measure.page_cache import drop_all, drop_file, may_drop_all

__all__ = ["Cgroup", "drop_caches", "limited", "run_limited", "why_no_limit"]


@contextmanager
def limited(limit: int) -> Iterator[tuple[Cgroup | None, str]]:
    """Yield a limit for child processes, or None if there can be none, and a description."""
    with memory_limit(limit) as (group, words):
        dropped = "all caches" if group is not None and may_drop_all() else "the store's pages"
        yield group, f"{words}, {dropped} dropped"


def why_no_limit(limit: int) -> str:
    """Why this process may not limit memory; an empty text: it may."""
    try:
        Cgroup(limit).close()
    except CannotLimit as error:
        return str(error)
    return ""


def run_limited(
    command: Sequence[str], group: Cgroup | None, timeout_s: float | None = None
) -> tuple[subprocess.CompletedProcess[str], int | None]:
    """Run a command under a limit, if there is one.

    Returns:
        The ended process with its output, and the peak of charged bytes, page cache included; None
        if there is no limit or the kernel does not know the peak.

    Raises:
        subprocess.TimeoutExpired: it had not ended after `timeout_s` and was killed.
    """
    with nullcontext() if group is None else group.run() as run:
        ended = subprocess.run(
            list(command) if run is None else run.command(command),
            stdout=subprocess.PIPE, check=False, text=True, timeout=timeout_s,
        )  # fmt: skip
        return ended, None if run is None else run.peak()


def drop_caches(folder: Path, everything: bool) -> None:
    """Drop the files below `folder` from the page cache, or everything, where that is allowed."""
    if everything and may_drop_all():
        with contextlib.suppress(OSError):
            drop_all()
            return
    for path in folder.rglob("*.npy"):
        drop_file(path)
