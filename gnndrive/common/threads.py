"""Threads that the system refuses to start, as an error that names the limit and the remedy.

Linux counts threads as processes: a user has a limit (`ulimit -u`, RLIMIT_NPROC), and so has a
container (`pids.max` of its cgroup).
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from gnndrive.common.errors import ConfigError

_REFUSED = "can't start new thread"  # CPython's words
_CGROUP_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")


@contextlib.contextmanager
def named_limit() -> Iterator[None]:
    """A context in which threads are started: if the system refuses one, it raises `limit_error`
    instead of Python's RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        raise limit_error() from None


def limit_error() -> ConfigError:
    """The error for a thread that the system refuses to start."""
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [f"the user's limit (ulimit -u) is {'none' if most < 0 else most}"]
    for path in map(Path, _CGROUP_LIMITS):
        with contextlib.suppress(OSError):
            limits.append(f"the container's (pids.max) is {path.read_text().strip()}")
    return ConfigError(
        f"the system refuses to start another thread beside the {threading.active_count()} of this "
        f"process: {' and '.join(limits)}; raise the limit, or start fewer threads with samplers=1 "
        "(a loader has samplers + 2 and two to four others; the engine 'threads' has io_depth of "
        "them, at most 16, and with topology='direct' 16 more)"
    )
