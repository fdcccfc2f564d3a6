"""Ctrl-C that waits until what was taken has an owner.

Python may raise KeyboardInterrupt in the main thread between any two instructions, so also when a
thread has just been started, or a file opened, and no variable refers to it yet: then nothing would
end it. Code that takes such resources runs within `deferred_interrupts` until an object that will
be closed owns them. Parts of it that may take long, and free what they took if an exception ends
them, run within `interruptible`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class _Deferral:
    """A handler of SIGINT that only notes the signal, for `handler` to get it later."""

    def __init__(self, handler: Any) -> None:
        self._handler, self._came = handler, False

    def __call__(self, number: int, frame: object) -> None:
        self._came = True

    def end(self) -> None:
        """Put the handler back, and raise the signal that came."""
        signal.signal(signal.SIGINT, self._handler)
        if self._came:
            self._came = False
            signal.raise_signal(signal.SIGINT)


def _handler() -> Any:
    """The handler of SIGINT; None in threads that get no signal."""
    main = threading.current_thread() is threading.main_thread()
    return signal.getsignal(signal.SIGINT) if main else None


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A context in which Ctrl-C (SIGINT) waits until its end; nested ones are one."""
    handler = _handler()
    if not callable(handler) or isinstance(handler, _Deferral):
        yield
        return
    deferral = _Deferral(handler)
    signal.signal(signal.SIGINT, deferral)
    try:
        yield
    finally:
        deferral.end()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A context within `deferred_interrupts` in which Ctrl-C does not wait."""
    deferral = _handler()
    if not isinstance(deferral, _Deferral):
        yield
        return
    deferral.end()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, deferral)
