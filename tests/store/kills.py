"""Ends of a process, and failures of its disk, at any call that changes the disk.

`tree` is what is there.
"""

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gnndrive.common.errors import StoreError

CALLS = (
    "write", "pwrite", "posix_fallocate", "ftruncate", "rename", "replace", "fsync", "unlink",
    "mkdir", "rmdir",
)  # fmt: skip
"""Calls of the operating system that change the disk."""
CREATING = (*CALLS, "open", "link", "fdatasync")
"""And those that create files, or also only open them."""
SPACE = ("write", "pwrite", "posix_fallocate", "fsync", "fdatasync", "mkdir", "rename", "replace")
"""Calls that a full disk refuses."""


def tree(folder: Path) -> dict[str, bytes | None]:
    """The files below a folder with their content, and the folders."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def counting(
    setattr: Callable[..., object], before: Callable[[], object], calls: Sequence[str] = CALLS
) -> None:
    """Have `before` called before each of `calls`."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **given: Any) -> Any:
            before()
            return function(*arguments, **given)

        return call

    for name in calls:
        setattr(os, name, wrapped(getattr(os, name)))


def calls_of(run: Callable[[], object], calls: Sequence[str] = CALLS) -> int:
    """Run something; returns how many of `calls` it has made."""
    made = 0

    def count() -> None:
        nonlocal made
        made += 1

    with pytest.MonkeyPatch.context() as patch:
        counting(patch.setattr, count, calls)
        run()
    return made


def killed_at(run: Callable[[], object], at: int, calls: Sequence[str] = CALLS) -> bool:
    """Run something in a child that kills itself before call `at`; returns whether it did."""
    child = os.fork()
    if not child:
        left = [at]

        def kill() -> None:
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            counting(setattr, kill, calls)
            run()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def refuse_direct(patch: pytest.MonkeyPatch, *calls: str) -> set[str]:
    """Have calls fail on files that are open for direct access, as on some file systems; returns
    the names of those that have failed."""
    refused = set[str]()

    def refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, *arguments: Any) -> Any:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                refused.add(name)
                raise OSError(errno.EINVAL, "simulated")
            return function(fd, *arguments)

        return call

    for name in calls:
        patch.setattr(os, name, refusing(name, getattr(os, name)))
    return refused


def fails_at(
    run: Callable[[], object], monkeypatch: pytest.MonkeyPatch, at: int, error: OSError,
    calls: Sequence[str] = CALLS, lasting: bool = False,
) -> StoreError | None:  # fmt: skip
    """Run something with an error of call `at`, and of all behind it if `lasting`; returns what was
    raised."""
    left = at

    def fail() -> None:
        nonlocal left
        left -= 1
        if left == 0 or (lasting and left < 0):
            raise error

    with monkeypatch.context() as patch:
        counting(patch.setattr, fail, calls)
        try:
            run()
        except StoreError as raised:
            return raised
    return None
