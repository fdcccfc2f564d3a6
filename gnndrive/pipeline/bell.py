"""A bell: an event loop is told that an object of the user's is gone, by C alone.

What a weak reference calls runs where the object dies, mostly in the user's thread, between two
lines of the training loop. Were it Python, a Ctrl-C that came just before would be raised in it,
for Python looks at signals when a function of its own begins; and what is raised there is printed
and forgotten, so the loop would go on. Functions of C do not look.

Nor may it let the GIL go: what the object holds is freed after whoever watches it has been called,
and the event loop would find the object gone and its memory still taken. `ctypes.PyDLL` keeps it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

_libc = ctypes.PyDLL(None)


def called_in_c(function: Callable[..., Any], *arguments: Any) -> Callable[[object], object]:
    """What calls `function(*arguments)` whatever it is called with itself, without any Python if
    `function` is C: `next` takes what it is given as its default."""
    return partial(next, map(function, *map(repeat, arguments)))


@contextmanager
def told_when_gone(thing: weakref.ref[Any], tell: Callable[[], object]) -> Iterator[None]:
    """Meanwhile `tell` is called in the running event loop, maybe more than once, when `thing` is
    gone, or if it is already."""
    loop = asyncio.get_running_loop()
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    watched = thing()
    strike = called_in_c(_libc.eventfd_write, bell, 1)
    watch = None if watched is None else weakref.ref(watched, strike)
    try:
        loop.add_reader(bell, tell)
        if watched is None:
            tell()
        del watched
        yield
    finally:
        del watch  # before the number may be another file's
        loop.remove_reader(bell)
        os.close(bell)
