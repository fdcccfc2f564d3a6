"""Have glibc return large blocks to the system as soon as they are freed.

By default, glibc raises its threshold for that up to 32 MiB once a block of that size was freed.
Each thread that gathers batches then keeps some tens of MB for the next batch: 290 MB more at the
peak of a run whose batches take 33 MB. The setting is of the whole process, so the command line
changes it in its own process, and the library does not change it in its users'.
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
