"""A bell: an event loop is told that an object of the user's is gone, by C alone.

What a weak reference calls runs where the object dies, mostly in the user's thread, between two
lines of the training loop. Were it Python, a Ctrl-C that came just before would be raised in it,
for Python looks at signals when a function of its own begins; and what is raised there is printed
and forgotten, so the loop would go on. Functions of C do not look.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any


def call_in_c(function: Callable[[Any], Any], argument: Any) -> Callable[[object], object]:
    """What calls `function(argument)` whatever it is called with itself, without any Python if
    `function` is C: `next` takes what it is given as its default."""
    return partial(next, map(function, repeat(argument)))


@contextmanager
def told_when_gone(thing: weakref.ref[Any], tell: Callable[[], object]) -> Iterator[None]:
    """Meanwhile `tell` is called in the running event loop, maybe more than once, when `thing` is
    gone, or if it is already."""
    loop = asyncio.get_running_loop()
    heard, struck = socket.socketpair()
    with heard, struck:
        struck.setblocking(False)
        loop.add_reader(heard, tell)
        try:
            watched = thing()
            if watched is None:
                tell()
                yield
            else:
                watch = weakref.ref(watched, call_in_c(struck.send, b"!"))
                del watched
                yield
                del watch
        finally:
            loop.remove_reader(heard)
