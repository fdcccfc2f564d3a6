"""What a forked child may do with objects whose threads are the parent's.

`os.fork` copies the memory and one thread. Loop threads, worker threads and rings exist in the
parent only, and a lock that another thread held stays locked in the child for ever. So whatever
would wait for such a thread calls `ProcessGuard.check` first, and a lock that a child may need is a
`ForkLock`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from gnndrive.common.errors import ConfigError

FORKED = (
    "this loader was started before the process was forked, and its threads are in the parent "
    "only: make the loader in the child process, or start the process with the method "
    '"spawn" (in a DataLoader multiprocessing_context="spawn")'
)
_keep_for_ever = ctypes.pythonapi.Py_IncRef
_keep_for_ever.argtypes, _keep_for_ever.restype = [ctypes.py_object], None
_process = os.getpid()  # kept, because each batch compares it and a system call costs more


def _note_process() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_process)


class ProcessGuard:
    """Knows the process in which it was made."""

    def __init__(self) -> None:
        self._made_in = _process

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of that process."""
        return _process != self._made_in

    def check(self) -> None:
        """Raise ConfigError in a forked child."""
        if self.forked:
            raise ConfigError(FORKED)


class ForkLock:
    """A re-entrant lock that is free in a forked child, whichever thread held it in the parent."""

    def __init__(self) -> None:
        self._made_in, self._lock = ProcessGuard(), threading.RLock()

    # `with` gets these methods before it calls the first one. So it calls those of the lock itself,
    # in C, and a Ctrl-C cannot arrive while the lock is taken and not yet sure to be released.
    @property
    def __enter__(self) -> Callable[[], object]:
        if self._made_in.forked:  # only the thread that forked is here
            self._made_in, self._lock = ProcessGuard(), threading.RLock()
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__


def keep_until_exit(thing: Any) -> None:
    """Have a forked child never free `thing` and what it refers to, not even when it exits.

    Python frees what is left when it exits. A pending task of the parent's loop would then be
    reported, and the `finally` blocks of its coroutine would run and wait for the parent's threads.
    """
    _keep_for_ever(thing)
