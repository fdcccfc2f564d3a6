"""What glibc keeps of the memory that the process has freed, and how it is returned to the system.

By default threads that sample or gather batches each have a heap of their own, and what they free
stays in it: some hundred MB, which no plan counts. Of such a heap glibc keeps the free end, up to
64 MB, whoever asks for it; only the main thread's is returned. Without glibc these functions do
nothing.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """Let threads that start from now on, the user's too, share the heaps that there are: that of
    the main thread, unless other threads have made some. What one thread frees the next one uses.

    Large blocks cost the same as before, and hardly any thread waits for another to allocate. Once
    nine heaps exist glibc ignores it.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Return what is free at this moment in the heap of the main thread, and between blocks in
    those of others. Takes some milliseconds, and memory that is needed again costs page faults:
    call it once a plan is made or a loader is closed, and for each batch only where large
    temporaries would leave ever more holes.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
