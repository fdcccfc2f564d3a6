"""A Ctrl-C at the worst moments: between any two steps of a call, and while Python frees an object
whose finalizers have not run yet."""

import ctypes
import dis
import gc
import signal
import sys
import weakref
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from gnndrive.pipeline.output_queue import c_only_call

_raise = ctypes.CDLL(None)["raise"]
# Python handles signals at the end of these.
HANDLING = "CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"


def interrupted(call: Callable[[], object], number: int, *places: str) -> bool:
    """Whether `call` has a point number `number`, from 0, at which Python handles signals; it is
    called, and a KeyboardInterrupt there has to reach this function.

    Args:
        call: what to call.
        number: which of the points in code of `places`, as many as there were in the same run.
        places: ends of the names of source files.
    """
    left, before = number, signal.getsignal(signal.SIGINT)

    def handle(_: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        while frame is not None:
            frame.f_trace, frame = None, frame.f_back
        raise KeyboardInterrupt

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if left < 0 or not frame.f_code.co_filename.endswith(places):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event != "opcode" or left < 0:
            return step
        code, at = frame.f_code.co_code, frame.f_lasti + 2
        while at < len(code) and dis.opname[code[at]] == "CACHE":
            at += 2
        left -= at < len(code) and dis.opname[code[at]] in HANDLING
        if left >= 0:
            return step
        # A signal that a Python function raises is handled in it. So from the next step on, the
        # trace function is `print`, with six calls in C, of which the last one raises it.
        calls = chain(repeat(None, 5), map(_raise, [int(signal.SIGINT)]), repeat(None))
        return partial(print, file=SimpleNamespace(write=partial(next, calls)))

    signal.signal(signal.SIGINT, handle)
    gc.disable()  # a library's callback of a collection would swallow the interrupt
    sys.settrace(enter)
    try:
        kept = call()  # what a finalizer raises is lost, so nothing is dropped here
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
        signal.signal(signal.SIGINT, before)
    del kept
    assert left >= 0, "the interrupt was lost"
    return False


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
