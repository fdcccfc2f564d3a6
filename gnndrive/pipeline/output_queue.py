"""The output queue: the only way of a batch to the user's thread (GNNDrive §4.1).

The train stage's worker threads put batches, iterators take them. The batches of a group share one
block of memory. One group is ready while the user computes on the one before: two groups are alive,
and the plan counts memory for two. A training loop holds a batch until it has got the next one. So
there is room for a third group only when the user has dropped the batches of the group before the
newest one, and their rows' memory has come back, or when the user asks for a batch and none is
ready. A user who keeps all batches gets them too, but each group is made only when he asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias

from gnndrive.common.errors import LateError
from gnndrive.pipeline.batch_times import PUT, TAKEN, BatchTimes

References: TypeAlias = tuple[weakref.ref[Any], ...]
Ready: TypeAlias = tuple[Any, References, BatchTimes | None, int | None]
"""A batch, see `OutputQueue.put`."""

SIGNAL_S = 1.0  # a signal that arrives just before the thread begins to wait is heard after it
LATE = "DataLoader timed out after {} seconds: give timeout= more, or ask for the batch again"
_libc = ctypes.PyDLL(None)


class OutputEnded(Exception):
    """The epoch is over: no further batch."""


class OutputQueue:
    """Hands finished batches from the pipeline to the user's thread. Any thread may call `put`;
    `room` is awaited in the pipeline's event loop. `taken`: the times of the batch taken last."""

    def __init__(self) -> None:
        # Re-entrant: a garbage collection while it is held may finalize this queue's iterator.
        self._lock = threading.RLock()
        # Users who wait. Not a Condition: Ctrl-C within its `wait` may leave its lock released, and
        # then becomes a RuntimeError.
        self._waiting: set[SimpleQueue[None]] = set()
        # Taken from without the lock.
        self._ready = deque[Ready]()
        self.taken: BatchTimes | None = None
        self._group: int | None = None  # of the newest batch that the user took
        self._newest: list[weakref.ref[Any]] = []  # to that group's batches and their memory
        self._previous: list[weakref.ref[Any]] = []  # to those of the group before it
        self._ended = False
        self._error: BaseException | None = None
        self._listeners: list[asyncio.Future[None]] = []

    # ---- the pipeline's side ----

    async def room(self) -> None:
        """Wait until another group may be made."""
        while True:
            with self._lock:
                ready = tuple(self._ready)  # in C, because the user's thread takes without the lock
                full = any(each[3] is None or each[3] != self._group for each in ready)
                held = [] if full else [each for each in self._previous if each() is not None]
                if not full and not held:
                    return
                listener = self._new_listener()
            if full:
                await listener
            else:
                with on_finalized(held, partial(_wake, listener)):
                    await listener

    def put(
        self, batch: Any, memory: References = (), times: BatchTimes | None = None,
        group: int | None = None,
    ) -> None:  # fmt: skip
        """Add a batch of a group (None: of one batch); after the end it is dropped. `memory` refers
        to what holds its memory, which comes back after the batch is finalized: a moment later,
        because torch releases the GIL while it frees a tensor, or much later, if the user keeps a
        tensor."""
        self.put_all([(batch, memory, times, group)])

    def put_all(self, batches: Sequence[Ready]) -> None:
        """Add batches, see `put`; the user's thread is woken once."""
        with self._lock:
            if not self._ended and batches:
                for _, _, times, _ in batches:
                    if times is not None:
                        times.mark(PUT)
                self._ready.extend(batches)
                self._notify()

    @property
    def ready(self) -> int:
        """How many batches are ready."""
        return len(self._ready)

    @property
    def ended(self) -> bool:
        """Whether `finish` or `abandon` was called: no batch will be added any more."""
        return self._ended

    def finish(self, error: BaseException | None) -> None:
        """After the ready batches the user gets the end, or `error`. Only the first call counts."""
        with self._lock:
            if not self._ended:
                self._ended, self._error = True, error
            self._notify()

    def abandon(self, error: BaseException | None = None) -> bool:
        """Drop the ready batches and end the queue; returns whether it had ended before. The next
        `get` raises `error`, if any, if batches are lost by this."""
        with self._lock:
            before = self._ended
            if error is None or self._ready or not before:
                self._error = error
            self._ready.clear()
            self._ended = True
            self._notify()
            return before

    # ---- the user's side ----

    def get(self, timeout: float | None = None) -> Any:
        """Return the next batch; blocks the calling thread, which still handles signals. LateError
        if none was ready within `timeout` seconds; a later call gets it."""
        with contextlib.suppress(IndexError):  # none is ready, or another thread has taken it
            # A group's first batch is taken under the lock, in one step with what `_took` notes.
            if self._group is not None and self._ready[0][3] == self._group:
                return self._took(self._ready.popleft())
        end = None if timeout is None else monotonic() + timeout
        changed: SimpleQueue[None] = SimpleQueue()
        while True:
            with self._lock:
                if self._has_next():
                    return self._take_next()
                self._waiting.add(changed)
            left = SIGNAL_S if end is None else min(end - monotonic(), SIGNAL_S)
            if left <= 0:
                raise LateError(LATE.format(timeout))
            with contextlib.suppress(Empty):
                changed.get(timeout=left)

    async def aget(self) -> Any:
        """Like `get`, awaited in the caller's own event loop; cancelling it loses no batch."""
        while True:
            with self._lock:
                if self._has_next():
                    return self._take_next()
                listener = self._new_listener()
            await listener

    def _take_next(self) -> Any:
        if self._ready:
            return self._took(self._ready.popleft())
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise OutputEnded

    def _took(self, taken: Ready) -> Any:
        batch, memory, self.taken, group = taken
        if self.taken is not None:
            self.taken.mark(TAKEN)
        if group is None or group != self._group:
            with self._lock:
                self._group = group
                self._previous, self._newest = self._newest, list(memory)
                self._notify()
        newest = self._newest  # not `self._newest +=`: another thread may put a new list there
        newest += _references(batch)
        return batch

    def _has_next(self) -> bool:
        """Whether a batch or the end is there. If not, the user waits, so there is room for a
        batch; if two callers wait and one takes the batch, the other asks again."""
        has_next = bool(self._ready) or self._ended
        if not has_next and self._previous:
            self._previous = []
            self._notify()
        return has_next

    def _new_listener(self) -> asyncio.Future[None]:
        listener: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.append(listener)
        return listener

    def _notify(self) -> None:
        while self._waiting:
            self._waiting.pop().put(None)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            with contextlib.suppress(RuntimeError):  # the listener's loop is closed
                listener.get_loop().call_soon_threadsafe(_wake, listener)


def _references(batch: Any) -> References:
    try:
        return (weakref.ref(batch),)
    except TypeError:  # a tuple, for example, has no weak references: not waited for
        return ()


def _wake(listener: asyncio.Future[None]) -> None:
    if not listener.done():
        listener.set_result(None)


# ---- when the user has dropped a batch


def c_only_call(function: Callable[..., Any], *arguments: Any) -> Callable[[object], object]:
    """A callable that ignores its own argument and calls `function(*arguments)`; runs no Python
    code if `function` is a C function. (`next` takes the argument as its default.)"""
    return partial(next, map(function, *map(repeat, arguments)))


@contextlib.contextmanager
def on_finalized(
    targets: Iterable[weakref.ref[Any]], callback: Callable[[], object]
) -> Iterator[None]:
    """Within the context, `callback` is called in the running event loop when one of the objects of
    `targets` is finalized, or at once if one already was; it may be called more than once.

    The callback of a weak reference runs where the object is finalized, mostly in the user's
    thread, between two lines of the training loop. If it were a Python function, a Ctrl-C that came
    just before would be raised in it, because Python handles signals when a Python function begins;
    an exception in such a callback is printed and dropped, so the training loop would go on. A
    callback in C does not handle signals. So it is C's `eventfd_write`, and the event loop reads
    the event descriptor.

    `ctypes.PyDLL` keeps the GIL, so the descriptor cannot be closed during the write. But when an
    object is finalized, Python first collects all of its weak references and then calls their
    callbacks one after another, and one of these may close the descriptor. A write may therefore
    come after the close; `fd_number` is -1 by then, so the write fails harmlessly.
    """
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
