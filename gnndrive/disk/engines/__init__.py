"""Engines carry reads out: `uring`, `threads` where io_uring is refused, `simulated` for tests.

`choose` is how the loader comes by one: io_uring if the kernel lets us, else threads and one
warning that says how to allow it.
"""

from __future__ import annotations

import errno as errno_names
import os
import warnings

from gnndrive.common import plugins
from gnndrive.common.ffi import lib
from gnndrive.disk.engines.base import Engine

__all__ = ["choose", "why_not_uring"]

_REMEDIES = {
    errno_names.ENOSYS: "this kernel has no io_uring: Linux 5.19 or later has all that is used",
    errno_names.EPERM: (
        "it is forbidden here: in a container allow io_uring_setup, io_uring_enter and "
        "io_uring_register in the seccomp profile (docker: --security-opt seccomp=PROFILE.json); "
        "on the host set `sysctl kernel.io_uring_disabled=0`"
    ),
    errno_names.ENOMEM: "locked memory is used up: raise `ulimit -l` (docker: --ulimit memlock=-1)",
}
_warned = False


def why_not_uring() -> str | None:
    """None if io_uring can be used here, else why not and what would allow it."""
    code = -lib.gd_ring_probe()
    if code == 0:
        return None
    name = errno_names.errorcode.get(code, str(code))
    remedy = _REMEDIES.get(code, "see io_uring_setup(2) for what this error means")
    return f"io_uring_setup failed with {name} ({os.strerror(code)}): {remedy}"


def choose(name: str | None = None) -> type[Engine]:
    """The engine called `name`; None or "auto": uring if it works here, else threads.

    The fall back warns once a process (RuntimeWarning) and says how to allow io_uring.

    Raises:
        ConfigError: there is no engine of that name.
    """
    global _warned
    if name is not None and name != "auto":
        found: type[Engine] = plugins.find("engines", name)
        return found
    reason = why_not_uring()
    if reason is not None and not _warned:
        _warned = True
        warnings.warn(
            f"reading with threads, which is slower than io_uring. {reason}. "
            'Say engine="threads" to choose it without this warning.',
            RuntimeWarning,
            stacklevel=2,
        )
    chosen: type[Engine] = plugins.find("engines", "uring" if reason is None else "threads")
    return chosen
