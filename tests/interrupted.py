"""A Ctrl-C at the worst moment: while an object of the user's goes away."""

from __future__ import annotations

import ctypes
import signal
import weakref
from typing import Any

import pytest

from gnndrive.pipeline.finalizer_event import c_only_call

_raise = ctypes.CDLL(None)["raise"]


def drop_and_interrupt(only: list[Any]) -> None:
    """What `only` holds, and nobody else does, goes away; the signal comes before anybody hears of
    it who watches it already, and is an exception here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The reference made last is called first.
    watch = weakref.ref(only[0], c_only_call(_raise, int(signal.SIGINT)))

    def drop() -> None:
        only.clear()
        for _ in range(10):  # a loop looks at signals
            pass

    try:
        with pytest.raises(KeyboardInterrupt):
            drop()
        assert watch() is None
    finally:
        signal.signal(signal.SIGINT, before)
