"""Let glibc give large blocks back to the system as soon as they are freed.

By itself it raises its threshold for that to 32 MiB once such a block was freed, and then each
thread that gathers batches keeps some tens of MB for the next one: 290 MB more at the peak in
a run whose batches are 33 MB. It is a setting of the whole process, so the command line makes it
for its own; the library leaves its users' alone.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 4 << 20


def return_large_blocks() -> None:
    """Map blocks of 4 MiB and more one by one; does nothing without glibc."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    except (AttributeError, OSError):
        return
