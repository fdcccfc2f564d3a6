"""How loaders are measured: each in a process of its own, with a memory limit and cold caches,
beside the disk's speed.

Where this process may, each run is in a control group, and the whole page cache is dropped before
it. Otherwise there is no limit, or only the store's pages are dropped, and the output says so.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import gnndrive
from gnndrive.cli.measure.calibrate import calibrate, cost_of
from gnndrive.cli.measure.memory_limit import CannotLimit, Cgroup, memory_limit
from gnndrive.cli.measure.page_cache import drop_all, drop_file, may_drop_all
from gnndrive.common.memory import format_size
from gnndrive.common.records import DiskCost

STORE = "the store's pages"
TRIED_LIMIT, TRIED_BYTES = 64 << 20, 256 << 20
TRIAL_S = 20.0


class Failed(SystemExit):
    """A worker failed; `killed` is one that exceeds its memory limit."""

    def __init__(self, name: str, code: int) -> None:
        self.killed = code == -signal.SIGKILL
        super().__init__(
            f"{name} ended with {code}{' (killed: out of memory?)' if self.killed else ''}"
        )


@contextmanager
def limited(limit: int, everything: bool = True) -> Iterator[tuple[Cgroup | None, str]]:
    """Yield a limit in bytes for child processes, or None if there can be none, and a description.
    With `everything` all caches are dropped before a run, where that is allowed."""
    with memory_limit(limit) as (group, words):
        everything = everything and group is not None and may_drop_all()
        yield group, f"{words}, {'all caches' if everything else STORE} dropped"


@contextmanager
def tried_limit(limit: int, everything: bool = True) -> Iterator[tuple[Cgroup | None, str]]:
    """`limited`, but a limit that the kernel accepts and does not enforce counts as none."""
    if problem := why_not_enforced():
        yield None, f"no memory limit: {problem}, {STORE} dropped"
        return
    with limited(limit, everything) as made:
        yield made


def why_not_enforced() -> str:
    """Why a process that exceeds its limit would not be killed; an empty text: it is.

    Sandboxes such as gVisor accept limits that they do not enforce.
    """
    command = [sys.executable, "-I", "-S", "-c", f"b'x' * {TRIED_BYTES}"]
    try:
        with contextlib.closing(Cgroup(TRIED_LIMIT)) as group:
            ended, _ = run_limited(command, group, TRIAL_S)
    except CannotLimit as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"a trial of it had not ended after {TRIAL_S:.0f} s"
    if ended.returncode == -signal.SIGKILL:
        return ""
    return (
        f"a limit is accepted, but not enforced: a process that may have "
        f"{format_size(TRIED_LIMIT)} took {format_size(TRIED_BYTES)} and ended with "
        f"{ended.returncode}"
    )


def run_limited(
    command: Sequence[str], group: Cgroup | None, timeout_s: float | None = None
) -> tuple[subprocess.CompletedProcess[str], int | None]:
    """Run a command under a limit, if there is one; returns the ended process with its output, and
    the peak of charged bytes, page cache included; None without a limit, or where the kernel does
    not know it.

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


def spawn(
    name: str, command: Sequence[str], group: Cgroup | None, folders: Sequence[str | Path],
    timeout_s: float | None = None, everything: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Run a Python script as a worker with cold caches, and return the JSON that it prints, with
    the peak of its memory group. It reads `folders`; with a limit and `everything` all caches are
    dropped before, not only those of `folders`.

    Raises:
        Failed: it failed.
        subprocess.TimeoutExpired: it had not ended after `timeout_s` and was killed.
    """
    for folder in folders:
        drop_caches(Path(folder), everything and group is not None)
    child, peak = run_limited([sys.executable, *command], group, timeout_s)
    if child.returncode:
        raise Failed(name, child.returncode)
    result: dict[str, Any] = json.loads(child.stdout)
    return result if peak is None else result | {"peak_bytes": peak}


def beside_disk(
    store: gnndrive.Store, run: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], DiskCost]:
    """What `run` returns, and what reading costs by measurements just before and just after it."""
    before = calibrate(store)
    result = run()
    after = calibrate(store)
    return result, cost_of(before.points + after.points, store, after.depth, after.engine)
