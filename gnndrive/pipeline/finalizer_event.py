"""A bell: an event loop is told that one of the user's objects is gone, by C alone.

What a weak reference calls runs where the object dies, mostly in the user's thread, between two
lines of the training loop. Were it Python, a Ctrl-C that came just before would be raised in it,
for Python looks at signals when a function of its own begins; and what is raised there is printed
and forgotten, so the loop would go on. Functions of C do not look.

`ctypes.PyDLL` does not let the GIL go either, so nobody closes the bell while it is struck. But all
that watch an object are found when it goes and then called one after another, Python among them, so
a strike may come after the end: by then the number that it is given is no file's.
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
    """What calls `function(*arguments)` whatever it is called with itself, without any Python if
    `function` is C: `next` takes what it is given as its default."""
    return partial(next, map(function, *map(repeat, arguments)))


@contextmanager
def on_finalized(things: Iterable[weakref.ref[Any]], tell: Callable[[], object]) -> Iterator[None]:
    """Meanwhile `tell` is called in the running event loop, maybe more than once, when one of
    `things` is gone, or if one is already."""
    loop = asyncio.get_running_loop()
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    number = ctypes.c_int(bell)
    strike = c_only_call(_libc.eventfd_write, number, ctypes.c_uint64(1))
    watches: list[weakref.ref[Any]] = []
    try:
        loop.add_reader(bell, tell)
        for thing in things:
            watched = thing()
            if watched is None:
                tell()
            else:
                watches.append(weakref.ref(watched, strike))
            del watched
        yield
    finally:
        loop.remove_reader(bell)
        number.value = -1  # before it may be another file's
        os.close(bell)
