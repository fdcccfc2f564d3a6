"""Control groups as plain folders: a fake of the kernel's rules for versions 1 and 2."""

import errno
import os
from pathlib import Path

from gnndrive.cli.measure.memory_limit import (
    CONTROLLERS,
    FOR_CHILDREN,
    PROCESSES,
    V1,
    Kernel,
    Version,
)

GONE = 1 << 23  # a process that ends before it is moved; no kernel gives so large a number
NONE = {1: "9223372036854771712", 2: "max"}


class FakeKernel(Kernel):
    """Groups below a folder, which becomes the uppermost group. If it is the machine's root, it may
    have both processes and groups with controllers below it. `lacking`: files that are not there.
    """

    def __init__(
        self, folder: Path, version: Version, *, is_root: bool = False,
        lacking: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.top, self.version, self.lacking = folder, version, lacking
        self._root = folder if is_root else None
        self.pids: dict[Path, list[str]] = {}  # the processes of each group
        self.refused: dict[Path, int] = {}  # folders where no group can be made, and errno
        self.closed: set[Path] = set()  # groups which no process can enter
        self.made: list[Path] = []
        self._fill(folder, "cpu memory")
        if version is not V1 and is_root:
            self._forget_memory(folder)

    def add(self, *names: str, pids: tuple[int, ...] = (), on: bool = True) -> Path:
        """Make a group below the uppermost one; `on`: those above it allow it a memory limit."""
        group = self.top
        for name in names:
            if self.version is not V1 and on:
                (group / FOR_CHILDREN).write_text("memory")
            group = group / name
            if not group.exists():
                self.make(group)
        self.put(group, *pids)
        self.made.clear()
        return group

    def put(self, group: Path, *pids: int) -> None:
        self.pids[group] = [str(pid) for pid in pids]
        (group / PROCESSES).write_text("".join(f"{pid}\n" for pid in pids))

    def make(self, group: Path) -> None:
        if group.parent in self.refused:
            raise _error(self.refused[group.parent])
        group.mkdir()
        self.made.append(group)
        is_v1 = self.version is V1
        self._fill(group, "" if is_v1 else (group.parent / FOR_CHILDREN).read_text())

    def remove(self, group: Path) -> None:
        assert not self.pids.pop(group)
        for file in group.iterdir():
            file.unlink()
        group.rmdir()

    def write(self, path: Path, text: str) -> None:
        group = path.parent
        if group in self.refused:
            raise _error(self.refused[group])
        if path.name == PROCESSES:
            self._enter(group, text)
        elif path.name == FOR_CHILDREN:
            self._switch(group, text)
        else:
            super().write(path, "")
            path.write_text(text)

    def try_to_enter(self, group: Path) -> str:
        return "Permission denied" if group.parent in self.closed else ""

    def _enter(self, group: Path, pid: str) -> None:
        if pid == str(GONE):
            for each in self.pids:
                self.put(each, *(int(one) for one in self.pids[each] if one != pid))
            raise ProcessLookupError
        if self.version is not V1 and group != self._root and (group / FOR_CHILDREN).read_text():
            raise _error(errno.EBUSY)
        (source,) = (each for each, pids in self.pids.items() if pid in pids)
        self.put(source, *(int(each) for each in self.pids[source] if each != pid))
        self.put(group, *map(int, self.pids[group]), int(pid))

    def _switch(self, group: Path, text: str) -> None:
        if "memory" not in (group / CONTROLLERS).read_text():
            raise _error(errno.ENOENT)
        on = text == "+memory"
        if on and self.pids[group] and group != self._root:
            raise _error(errno.EBUSY)
        (group / FOR_CHILDREN).write_text("memory" if on else "")
        for child in group.iterdir():
            if child.is_dir():
                self._forget_memory(child)
                self._fill(child, "memory" if on else "", self.pids[child])

    def _fill(self, group: Path, controllers: str, pids: list[str] | None = None) -> None:
        self.put(group, *map(int, pids or ()))
        if self.version is not V1:
            (group / CONTROLLERS).write_text(controllers)
            (group / FOR_CHILDREN).write_text("")
            if "memory" not in controllers:
                return
        none = NONE[self.version.number]
        content = {self.version.limit: none, self.version.swap: none, self.version.peak: "4096"}
        for name in content.keys() - set(self.lacking):
            (group / name).write_text(content[name])

    def _forget_memory(self, group: Path) -> None:
        for file in group.glob("memory.*"):
            file.unlink()


def tables(
    folder: Path, fake: FakeKernel, own: str, *, root: str = "/", swap: bool = False
) -> Path:
    """Write the tables of /proc: where the fake's groups are mounted, and the own group's path."""
    number, top = fake.version.number, str(fake.top).replace(" ", "\\040")
    kind = "cgroup2 cgroup2 rw" if number == 2 else "cgroup cgroup rw,memory"
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "mountinfo").write_text(
        "23 1 0:1 / / rw - ext4 /dev/sda rw\n"
        "40 30 0:35 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        f"36 31 0:32 {root} {top} rw,relatime - {kind}\n"
    )
    controllers = "0::" if number == 2 else "5:pids:/elsewhere\n4:cpuacct,memory:"
    (folder / "self" / "cgroup").write_text(f"{controllers}{own}\n")
    lines = ["Filename\tType\tSize\tUsed\tPriority", *(["/dev/sdb\tpartition"] if swap else [])]
    (folder / "swaps").write_text("\n".join(lines))
    return folder


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
