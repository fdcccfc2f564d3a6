"""A Ctrl-C at the worst moment: while Python frees an object whose finalizers have not run yet."""

import ctypes
import signal
import weakref
from typing import Any

import pytest

from gnndrive.pipeline.finalizer_event import c_only_call

_raise = ctypes.CDLL(None)["raise"]


def drop_and_interrupt(only: list[Any]) -> None:
    """Free the object in `only`, and interrupt before callbacks that watch it already are called.

    The list must hold the only reference to the object. The signal raises KeyboardInterrupt here.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python calls the callback of the newest weak reference first.
    watch = weakref.ref(only[0], c_only_call(_raise, int(signal.SIGINT)))

    def drop() -> None:
        only.clear()
        for _ in range(10):  # Python checks for signals in a loop
            pass

    try:
        with pytest.raises(KeyboardInterrupt):
            drop()
        assert watch() is None
    finally:
        signal.signal(signal.SIGINT, before)
