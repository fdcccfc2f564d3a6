"""Threads and files that the system refuses, as errors that name the limit and the remedy.

Linux counts threads as processes: a user has a limit (`ulimit -u`, RLIMIT_NPROC), and so has a
container (`pids.max` of its cgroup). Open files are limited for each process (`ulimit -n`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from gnndrive.common.errors import ConfigError

_NO_THREAD = "can't start new thread"  # CPython's words
_CGROUP_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
_NO_FILE = (errno.EMFILE, errno.ENFILE)


class LimitError(ConfigError):
    """The system refuses a thread or a file because of a limit of this process or its user."""


@contextlib.contextmanager
def named_limit() -> Iterator[None]:
    """A context in which threads are started and files opened: if the system refuses one, it raises
    the error of `refusal` instead of Python's RuntimeError or OSError."""
    try:
        yield
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        raise _thread_refused() from None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise _file_refused() from None


def refusal(code: int) -> LimitError | None:
    """The error for an error number of pthread_create or open; None if it tells of no limit."""
    if code == errno.EAGAIN:
        return _thread_refused()
    return _file_refused() if code in _NO_FILE else None


def require_files(count: int) -> None:
    """Raise OSError unless `count` more files can be opened now."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    finally:
        for fd in opened:
            os.close(fd)


def _thread_refused() -> LimitError:
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [f"the user's limit (ulimit -u) is {'none' if most < 0 else most}"]
    for path in map(Path, _CGROUP_LIMITS):
        with contextlib.suppress(OSError):
            limits.append(f"the container's (pids.max) is {path.read_text().strip()}")
    return LimitError(
        f"the system refuses to start another thread beside the {threading.active_count()} of this "
        f"process: {' and '.join(limits)}; raise the limit, or start fewer threads with samplers=1 "
        "(a loader has samplers + 2 and two to four others; the engine 'threads' has io_depth of "
        "them, at most 16, and with topology='direct' 16 more)"
    )


def _file_refused() -> LimitError:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LimitError(
        f"the system refuses to open another file: this process may have {most} open (ulimit -n), "
        "and a loader needs some ten and one for each array that it reads; raise the limit, or "
        "close loaders that are not used"
    )
