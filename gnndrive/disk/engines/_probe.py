"""Whether io_uring works here, and if not, what would allow it."""

from __future__ import annotations

import errno as errno_names
import os

from gnndrive.common.ffi import lib
from gnndrive.common.limits import refusal

_REMEDIES = {
    errno_names.ENOSYS: "this kernel has no io_uring: use Linux 5.19 or later",
    errno_names.EPERM: (
        "it is forbidden here: in a container allow io_uring_setup, io_uring_enter and "
        "io_uring_register in the seccomp profile (docker: --security-opt seccomp=PROFILE.json); "
        "on the host set `sysctl kernel.io_uring_disabled=0`"
    ),
    errno_names.ENOMEM: "locked memory is used up: raise `ulimit -l` (docker: --ulimit memlock=-1)",
}


def why_not_uring() -> str | None:
    """Return None if io_uring works here, else why it does not and what would allow it.

    Raises:
        ConfigError: this process has too many files open.
    """
    code = -lib.gd_ring_probe()
    if code == 0:
        return None
    if (refused := refusal(code)) is not None:
        raise refused  # not a reason to use threads, which need files too
    name = errno_names.errorcode.get(code, str(code))
    remedy = _REMEDIES.get(code, "see io_uring_setup(2) for what this error means")
    return f"io_uring_setup failed with {name} ({os.strerror(code)}): {remedy}"
