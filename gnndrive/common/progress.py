"""`report` tells the command that runs of work that takes seconds and has no `progress=`.

Such work lies far below the commands: drawing batches for a plan, comparing strategies, reading the
graph into memory, reading an import's labels and tables. A context variable holds whom to tell; by
default it is a function that does nothing, also in the threads that this work starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Progress = Callable[[str, int, int], object]
"""Called as progress(what, done, total), in bytes or steps; total never changes for one `what`."""

_told: ContextVar[Progress] = ContextVar("told", default=lambda what, done, total: None)


@contextlib.contextmanager
def reporting(told: Progress) -> Iterator[None]:
    """Within this context, this thread's loaders and imports call told(what, done, total)."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Tell that `done` of `total` steps of `what` are done."""
    _told.get()(what, done, total)
