"""A lock between processes: a file beside what they share.

The kernel frees the lock when the process that holds it ends, however it ends. A file that such a
process leaves behind is taken over by the next one. When not to use it: between threads that share
an object, a `threading.Lock` is enough.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from gnndrive.common.errors import StoreError
from gnndrive.common.limits import refusal


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], object]) -> Iterator[bool]:
    """Hold the lock of the file `path`, made if it is not there, inside the `with` block; remove
    the file afterwards.

    Threads of one process exclude each other too. A process that is forked inside the block does
    not keep the lock longer than its parent. `on_wait` is called once if the lock is taken, before
    the wait; the block gets whether another process or thread held it.
    """
    try:
        fd, waited = acquire(path, os.O_RDONLY | os.O_CREAT, 0o666, on_wait)
    except OSError as error:
        if (refused := refusal(error.errno or 0)) is not None:
            raise refused from None
        raise StoreError(
            f"no lock file can be made in {path.parent} ({error.strerror}): choose a folder that "
            "you may write to, on a file system with locks"
        ) from error
    try:
        yield waited
    finally:
        # Removed while it is locked: who waits for this file then finds it gone and opens another.
        with contextlib.suppress(OSError):
            os.unlink(path)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def has_no_locks(error: OSError) -> bool:
    """Whether a lock failed because the file system has none, as some network file systems."""
    return error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def try_lock(path: Path, mode: int = 0o666, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Lock a file, made if it is not there, without waiting; the file stays. Return a descriptor,
    which holds the lock until it is closed.

    Raises:
        BlockingIOError: another process or thread holds it.
        FileNotFoundError: the folder is gone, or the last holder has just removed the file.
        OSError: it cannot be made, is no plain file, or its file system `has_no_locks`.
    """
    fd = _open(path, flags, mode)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(fd, path):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open(path: Path, flags: int, mode: int) -> int:
    """Open the file of a lock. A pipe in its place is refused; opening it could wait for ever."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{path.name} is no plain file", str(path))
    return fd


def is_free(path: Path) -> bool:
    """Whether the file of a lock is there and no process holds it."""
    try:
        os.close(try_lock(path, flags=os.O_RDONLY))
    except OSError:
        return False
    return True


def remove_if_free(path: Path) -> None:
    """Remove the file of a lock that no process holds, which a killed process has left behind."""
    with contextlib.suppress(OSError):
        fd = try_lock(path, flags=os.O_RDONLY)
        try:
            os.unlink(path)
        finally:
            os.close(fd)


def acquire(
    path: Path, flags: int, mode: int, on_wait: Callable[[], object] = lambda: None
) -> tuple[int, bool]:
    """Lock the file that is at `path` when the lock is granted, after waiting for it; return its
    descriptor, and whether the lock was taken. Then `on_wait` is called once, before the wait.
    For errors see `try_lock`."""
    waited = False
    while True:
        fd = _open(path, flags, mode)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    on_wait()
                waited = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):
                return fd, waited
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
