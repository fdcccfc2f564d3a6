"""A memory limit for child processes that counts the page cache, with control groups as root.

Each run gets a fresh group, so that it starts without charged pages and has a peak of its own; it
gets no swap. Do not use it to limit this process: what it has allocated before would not count.

Groups are made where this process may make some with a limit. In version 2 a group's children may
have a memory limit only if `memory` is in its `cgroup.subtree_control`. Such a group may have no
processes of its own, unless it is the machine's root. In a container with a cgroup namespace all
processes are in the only group that there is to see: they move into a group below it, and back at
the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.errors import GNNDriveError
from gnndrive.common.memory import format_size

PROC = Path("/proc")
ENTER = 'echo $$ >"$0"'  # a shell's command; $0 is the file of a group's processes
PROCESSES, CONTROLLERS = "cgroup.procs", "cgroup.controllers"
FOR_CHILDREN = "cgroup.subtree_control"
BUSY_WAITS_S = (0.0, 0.05, 0.1, 0.2, 0.4)  # a group may be busy for a moment after its last exit
MOVES = 10  # passes over a group's processes, which may fork meanwhile


class CannotLimit(GNNDriveError):
    """No memory limit can be set; the message says why."""


@dataclass(frozen=True, slots=True)
class Version:
    """The names of a version's files; `swap_counts_memory`: whether the limit of swap is one of
    memory and swap together."""

    number: int
    limit: str
    swap: str
    peak: str
    swap_counts_memory: bool


V1 = Version(
    1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes", True
)
V2 = Version(2, "memory.max", "memory.swap.max", "memory.peak", False)


@dataclass(frozen=True, slots=True)
class MemoryGroups:
    """The groups that are to be seen here, from the uppermost one to this process's own."""

    version: Version
    top: Path
    own: Path

    def up(self) -> list[Path]:
        """The folders from `own` to `top`."""
        folders = [self.own, *self.own.parents]
        return folders[: folders.index(self.top) + 1]


class Kernel:
    """Carries out what is done to groups; tests have one that works on any folder."""

    def read(self, path: Path) -> str:
        """The content of a file."""
        return path.read_text(encoding="ascii")

    def write(self, path: Path, text: str) -> None:
        """Write to a file that exists."""
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)

    def make(self, group: Path) -> None:
        """Make a group."""
        group.mkdir()

    def remove(self, group: Path) -> None:
        """Remove a group; while a process runs in it, it stays, which does no harm."""
        for seconds in BUSY_WAITS_S:
            try:
                group.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(seconds)
            else:
                return

    def try_to_enter(self, group: Path) -> str:
        """Have a process enter a group and end; returns its complaint, or an empty text."""
        command = ["/bin/sh", "-c", ENTER, str(group / PROCESSES)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return (ended.stderr.strip() or "no reason given") if ended.returncode else ""


class Parent:
    """The group below which limited groups are made: the own one, or the nearest above it that
    allows that. `close` it at the end."""

    def __init__(self, groups: MemoryGroups, kernel: Kernel) -> None:
        self._groups, self._kernel = groups, kernel
        self._enabled: list[Path] = []
        self._rest: Path | None = None  # the group of the processes that were moved
        try:
            self.folder = self._find()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Undo what was changed; idempotent."""
        while self._enabled:
            with contextlib.suppress(OSError):  # others use the controller by now
                self._kernel.write(self._enabled.pop() / FOR_CHILDREN, "-memory")
        rest, self._rest = self._rest, None
        if rest is not None:
            with contextlib.suppress(OSError):
                self._move(rest, rest.parent)
            self._kernel.remove(rest)

    def _find(self) -> Path:
        version, up, own = self._groups.version, self._groups.up(), self._groups.own
        able = [each for each in up if version is V1 or self._has_memory(each, CONTROLLERS)]
        if not able:
            raise CannotLimit(
                f"the memory controller is not in {self._groups.top / CONTROLLERS}: it belongs to "
                "cgroup v1, is off on this machine, or is not given to this container"
            )
        ready = [each for each in able if version is V1 or self._has_memory(each, FOR_CHILDREN)]
        complaints: list[str] = []
        for folder in ready:
            with _noted(complaints):
                return self._tried(folder)
        for folder in able:
            with _noted(complaints):
                if folder not in ready:
                    self._enable(folder)
                    return self._tried(folder)
        with _noted(complaints):
            if own == self._groups.top and own not in ready:
                self._clear(own)
                self._enable(own)
                return self._tried(own)
        raise CannotLimit("; ".join(dict.fromkeys((complaints[0], complaints[-1]))))

    def _tried(self, folder: Path) -> Path:
        """Make a group in `folder`, enter and remove it; returns `folder` or raises CannotLimit."""
        group = new_group(folder)
        try:
            self._kernel.make(group)
        except OSError as error:
            raise CannotLimit(f"no group can be made in {folder} ({_why(error)})") from error
        try:
            self._kernel.read(group / self._groups.version.limit)
            if complaint := self._kernel.try_to_enter(group):
                raise CannotLimit(f"no process can enter a group in {folder} ({complaint})")
        except OSError as error:
            raise CannotLimit(f"a group in {folder} has no memory limit ({_why(error)})") from error
        finally:
            self._kernel.remove(group)
        return folder

    def _has_memory(self, folder: Path, name: str) -> bool:
        try:
            return "memory" in self._kernel.read(folder / name).split()
        except OSError:
            return False

    def _enable(self, folder: Path) -> None:
        """Let groups below `folder` have a memory limit."""
        try:
            self._kernel.write(folder / FOR_CHILDREN, "+memory")
        except OSError as error:
            why = "it has processes of its own" if error.errno == errno.EBUSY else _why(error)
            raise CannotLimit(f"{folder / FOR_CHILDREN} does not take +memory ({why})") from error
        self._enabled.append(folder)

    def _clear(self, folder: Path) -> None:
        """Move the processes of `folder` into a group below it, or raise CannotLimit."""
        rest = new_group(folder)
        try:
            self._kernel.make(rest)
            self._rest = rest
            self._move(folder, rest)
        except OSError as error:
            raise CannotLimit(
                f"the processes in {folder} cannot be moved to a group below it ({_why(error)})"
            ) from error

    def _move(self, source: Path, target: Path) -> None:
        """Move the processes of a group; an OSError if one cannot be moved."""
        for _ in range(MOVES):
            # 0 stands for a process of another PID namespace; written, it would mean this one.
            found = [pid for pid in self._kernel.read(source / PROCESSES).split() if pid != "0"]
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    self._kernel.write(target / PROCESSES, pid)


def new_group(folder: Path) -> Path:
    """A path for a new group in `folder`."""
    return folder / f"gnndrive-{os.getpid()}-{secrets.token_hex(3)}"


@contextmanager
def _noted(complaints: list[str]) -> Iterator[None]:
    """A context whose `CannotLimit` is noted and ends there."""
    try:
        yield
    except CannotLimit as error:
        complaints.append(str(error))


def _why(error: OSError) -> str:
    """What the system says, and what to do if this user lacks the right."""
    refused = error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0
    return f"{error.strerror or error}{': start this as root' if refused else ''}"


# ---- the kernel's tables


def memory_groups(proc: Path) -> MemoryGroups:
    """The memory groups that are to be seen here; a CannotLimit if none are mounted."""
    try:
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines()
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CannotLimit(f"{proc} does not list control groups ({_why(error)})") from error
    unified: MemoryGroups | None = None
    for line in mounts:
        fields, _, kind = line.partition(" - ")
        root, top = map(_unescaped, fields.split(" ")[3:5])
        filesystem, options = kind.split(" ")[0], kind.split(" ")[-1].split(",")
        if filesystem == "cgroup" and "memory" in options:
            return MemoryGroups(V1, Path(top), _own_group(lines, "memory", root, Path(top)))
        if filesystem == "cgroup2":
            unified = MemoryGroups(V2, Path(top), _own_group(lines, "", root, Path(top)))
    if unified is None:
        raise CannotLimit("no control groups with a memory controller are mounted (/sys/fs/cgroup)")
    return unified


def _own_group(lines: Sequence[str], controller: str, root: str, top: Path) -> Path:
    """The folder of this process's group; `top` if it is not below the mount's root."""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and not path.startswith("/.."):
            inside = os.path.relpath(path, root)
            return top if inside.startswith("..") else top / inside
    return top


def _unescaped(text: str) -> str:
    r"""A path of mountinfo, in which a space is \040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


# ---- the limit


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
    """A memory limit for child processes; `close` it at the end. CannotLimit: this process may set
    none.

    Args:
        proc: the folder of the kernel's tables.

    Attributes:
        words: what is limited and what is not, for a report.
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
    with contextlib.closing(group):
        yield group, group.words
