"""Tells an event loop that one of the user's objects was finalized, without running Python code.

`OutputQueue.room` uses it to wait until the user drops a batch. The callback of a weak reference
runs where the object is finalized, mostly in the user's thread, between two lines of the training
loop. If it were a Python function, a Ctrl-C that came just before would be raised in it, because
Python handles signals when a Python function begins; an exception in such a callback is printed and
dropped, so the training loop would go on. A callback in C does not handle signals. So the callback
here is C's `eventfd_write`, and the event loop reads the event descriptor.

`ctypes.PyDLL` keeps the GIL, so the descriptor cannot be closed during the write. But when an
object is finalized, Python first collects all of its weak references and then calls their callbacks
one after another, and one of these may close the descriptor. A write may therefore come after the
close; `fd_number` is -1 by then, so the write fails harmlessly.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

_libc = ctypes.PyDLL(None)


def c_only_call(function: Callable[..., Any], *arguments: Any) -> Callable[[object], object]:
    """A callable that ignores its own argument and calls `function(*arguments)`; runs no Python
    code if `function` is a C function. (`next` takes the argument as its default.)"""
    return partial(next, map(function, *map(repeat, arguments)))


@contextmanager
def on_finalized(
    targets: Iterable[weakref.ref[Any]], callback: Callable[[], object]
) -> Iterator[None]:
    """Within the context, `callback` is called in the running event loop when one of the objects of
    `targets` is finalized, or at once if one already was; it may be called more than once."""
    loop = asyncio.get_running_loop()
    event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    fd_number = ctypes.c_int(event_fd)
    write_event = c_only_call(_libc.eventfd_write, fd_number, ctypes.c_uint64(1))
    references: list[weakref.ref[Any]] = []
    try:
        loop.add_reader(event_fd, callback)
        for reference in targets:
            target = reference()
            if target is None:
                callback()
            else:
                references.append(weakref.ref(target, write_event))
            del target
        yield
    finally:
        loop.remove_reader(event_fd)
        fd_number.value = -1  # before another file may get this number
        os.close(event_fd)
