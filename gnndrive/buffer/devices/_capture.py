"""Keeps a user's `torch.cuda.graph` working while a loader works in other threads.

In its default mode "global" a capture forbids unsafe calls in every thread of the process: a query
of an event, an allocation, the registering of host memory. One such call fails, and the capture
with it. A thread whose own mode is relaxed may make them
(cuThreadExchangeStreamCaptureMode). `TorchDriver` makes each of its calls in that mode, and gives
the thread its own mode back, because the thread may be the user's.

It cannot help a capture of a stream that the loader works on: take a batch before the capture, copy
it into the graph's own tensors, and make the loader while another stream is current.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_DRIVER = "libcuda.so.1"


class CaptureMode:
    """The calling thread's capture mode. Torch and CuPy have no function for it, so the driver's
    own library is called; where there is none (ROCm), nothing happens."""

    def __init__(self) -> None:
        self._exchange: Any = None
        with contextlib.suppress(OSError, AttributeError):
            # PyDLL keeps the GIL: the call takes nanoseconds, and getting it back may take 5 ms.
            self._exchange = ctypes.PyDLL(_DRIVER).cuThreadExchangeStreamCaptureMode

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """A context in which the thread may make any call during captures of other threads."""
        mode = ctypes.c_int(_RELAXED)
        exchanged = self._exchange is not None and self._exchange(ctypes.byref(mode)) == 0
        try:
            yield
        finally:
            if exchanged:
                self._exchange(ctypes.byref(mode))
