"""What an error says of a file that cannot be written."""

from __future__ import annotations

import errno
import os
import shutil

from gnndrive.common.errors import StoreError
from gnndrive.common.limits import refusal
from gnndrive.common.memory import format_size

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_WRITABLE = "make the folder writable, or write to another one where the call has out="


def write_failure(path: str | os.PathLike[str], error: OSError, nbytes: int = 0) -> Exception:
    """The error for a write to `path` that failed, by what goes on where it was stopped; `nbytes`
    are what the file needs in all, 0: it is not said."""
    if (refused := refusal(error.errno or 0)) is not None:
        return refused
    path, said = os.fspath(path), error.strerror or error
    if error.errno in FULL:
        needs = f", which needs {format_size(nbytes)}" if nbytes else ""
        return StoreError(
            f"the disk is too full for {path}{needs} ({said}): free some and run the same again, "
            "which goes on where it stopped, or choose another disk"
        )
    remedy = "check the disk, and run the same again; it goes on where it stopped"
    if error.errno in _REFUSED:
        remedy = _WRITABLE
    return StoreError(f"writing {path} failed ({said}): {remedy}")


def disk_full(folder: str | os.PathLike[str], needed: int, instead: str = "") -> StoreError:
    """The error for a disk that lacks room for `needed` more bytes in `folder`; `instead` says what
    else to do than to free some."""
    instead = f", or {instead}" if instead else ""
    return StoreError(
        f"the disk is too full for {os.fspath(folder)}: it needs {needed:,} more bytes "
        f"({format_size(needed)}) and {free_bytes(folder):,} are free; free some and run the same "
        f"again{instead}"
    )


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Bytes that are free on the disk of `folder`."""
    return shutil.disk_usage(folder).free
