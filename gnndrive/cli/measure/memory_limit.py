"""A memory limit for child processes that counts the page cache, with control groups as root.

Each run gets a fresh group, so that it starts without charged pages and has a peak of its own; it
gets no swap. `control_groups.py` says where the groups are made. Do not use it to limit this
process: what it has allocated before would not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gnndrive.cli.measure.control_groups import (
    ENTER,
    PROCESSES,
    CannotLimit,
    Kernel,
    Parent,
    memory_groups,
    new_group,
)
from gnndrive.common.memory import format_size

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Run:
    """The group of one run; made by `Cgroup.run`."""

    group: Path
    _peak: Path
    _kernel: Kernel

    def command(self, command: Sequence[str]) -> list[str]:
        """A command that enters the group and then becomes `command`, so that the group counts
        every allocation."""
        enter_and_become = f'{ENTER} && exec "$@"'
        return ["/bin/sh", "-c", enter_and_become, str(self.group / PROCESSES), *command]

    def peak(self) -> int | None:
        """The most bytes that were charged at once, page cache included; None: the kernel does not
        know (version 2 before Linux 5.19)."""
        try:
            return int(self._kernel.read(self._peak))
        except FileNotFoundError:
            return None


class Cgroup:
    """A memory limit for child processes; `close` it at the end.

    Args:
        limit_bytes: the limit of each run.
        proc: the folder of the kernel's tables.
        kernel: carries out what is done to groups.

    Attributes:
        words: what is limited and what is not, for a report.

    Raises:
        CannotLimit: this process may not limit memory.
    """

    def __init__(self, limit_bytes: int, proc: Path = PROC, kernel: Kernel | None = None) -> None:
        self._limit, self._kernel = limit_bytes, kernel or Kernel()
        self._groups = memory_groups(proc)
        self._version = self._groups.version
        self._parent = Parent(self._groups, self._kernel)
        try:
            self.words = self._describe(has_swap(proc))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def run(self) -> Iterator[Run]:
        """A context with a fresh group, for one run; a CannotLimit if it cannot be made."""
        group = new_group(self._parent.folder)
        try:
            self._kernel.make(group)
            try:
                self._kernel.write(group / self._version.limit, str(self._limit))
                swap = self._limit if self._version.swap_counts_memory else 0
                with contextlib.suppress(FileNotFoundError):  # a kernel that does not count swap
                    self._kernel.write(group / self._version.swap, str(swap))
            except BaseException:
                self._kernel.remove(group)
                raise
        except OSError as error:
            raise CannotLimit(
                f"no group of {format_size(self._limit)} can be made in {self._parent.folder} "
                f"({error.strerror or error})"
            ) from error
        try:
            yield Run(group, group / self._version.peak, self._kernel)
        finally:
            self._kernel.remove(group)

    def close(self) -> None:
        """Undo what was changed beside the groups of runs; idempotent."""
        self._parent.close()

    def _describe(self, swap: bool) -> str:
        words = [f"cgroup v{self._version.number}"]
        folder, least = self._least_above()
        if least < self._limit:
            words.append(f"{folder} allows {format_size(least)} in all")
        with self.run() as run:
            if run.peak() is None:
                words.append("a peak is that of the process alone: this kernel has no memory.peak")
            if swap and not (run.group / self._version.swap).exists():
                words.append("swap is not limited")
        return f"{format_size(self._limit)} of memory, page cache counted ({'; '.join(words)})"

    def _least_above(self) -> tuple[Path, int]:
        """The lowest limit of the groups around those of runs, and which group has it."""
        found = [(self._groups.top, 2**63 - 1)]
        for folder in self._groups.up():
            with contextlib.suppress(OSError, ValueError):  # none at the root; "max"
                limit = int(self._kernel.read(folder / self._version.limit))
                if self._parent.folder.is_relative_to(folder):
                    found.append((folder, limit))
        return min(found, key=lambda each: each[1])


def has_swap(proc: Path) -> bool:
    """Whether this machine has swap; the first line of the table is its head."""
    try:
        return len((proc / "swaps").read_text(encoding="utf-8").splitlines()) > 1
    except OSError:
        return False


@contextmanager
def memory_limit(limit_bytes: int, proc: Path = PROC) -> Iterator[tuple[Cgroup | None, str]]:
    """A context with a memory limit for child processes, and what it limits in words; None if there
    can be none, with the reason."""
    try:
        group = Cgroup(limit_bytes, proc)
    except CannotLimit as error:
        yield None, f"no memory limit: {error}"
        return
    try:
        yield group, group.words
    finally:
        group.close()
