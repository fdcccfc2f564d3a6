"""The hand-over: the only place where the pipeline's threads and the user's meet (GNNDrive §4.1).

One batch waits ready while the user computes on the one before: two are alive, and memory is
counted for two. A loop holds the batch before until it has been given the next, so there is room
for a third only when that one is gone, its rows' memory too, or when the user comes back and
nothing is ready: whoever keeps batches gets them all the same, each made while he waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from functools import partial
from typing import Any, TypeAlias

from gnndrive.common.errors import LateError
from gnndrive.pipeline.finalizer_event import on_finalized

References: TypeAlias = tuple[weakref.ref[Any], ...]

LATE = "DataLoader timed out after {} seconds: give timeout= more, or ask for the batch again"


class OutputEnded(Exception):
    """The epoch is over: no further batch."""


class OutputQueue:
    """Finished batches on their way from the pipeline to the user's thread. Any thread may put
    them; who waits for room is in the pipeline's event loop.

    Args:
        capacity: batches that may wait ready.
    """

    def __init__(self, capacity: int = 1) -> None:
        self._capacity = capacity
        # Re-entrant: a garbage collection while it is held may end the very iterator it belongs to.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._ready: deque[tuple[Any, References]] = deque()
        self._given: References = ()  # to the newest batch that the user got
        self._before: References = ()  # to the one before it, until the user lets go
        self._ended = False
        self._error: BaseException | None = None
        self._listeners: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    # ---- the pipeline's side ----

    async def room(self) -> None:
        """Wait until a batch may be made ready."""
        while True:
            with self._lock:
                full = len(self._ready) >= self._capacity
                held = [] if full else [each for each in self._before if each() is not None]
                if not full and not held:
                    return
                listener = self._listen()
            if full:
                await listener
            else:
                with on_finalized(held, partial(_wake, listener)):
                    await listener

    def put(self, batch: Any, memory: References = ()) -> None:
        """Make a batch ready; after the end it is dropped, for nobody will take it.

        Args:
            batch: anything.
            memory: what holds its memory, which comes back a moment after the batch is gone (torch
                lets the GIL go when it frees a tensor), or much later if the user keeps a tensor.
        """
        with self._lock:
            if not self._ended:
                self._ready.append((batch, memory))
                self._tell()

    @property
    def ended(self) -> bool:
        """Whether no further batch will be made ready."""
        return self._ended

    def finish(self, error: BaseException | None) -> None:
        """After the batches that are ready comes the end, or `error`; the first call counts."""
        with self._lock:
            if not self._ended:
                self._ended, self._error = True, error
            self._tell()

    def abandon(self, error: BaseException | None = None) -> bool:
        """Drop what is ready and end; returns whether it had ended before.

        Args:
            error: what whoever still asks gets if batches are lost to them; None: just the end.
        """
        with self._lock:
            before = self._ended
            if error is None:
                self._error = None
            elif self._ready or not before:
                self._error = error
            self._ready.clear()
            self._ended = True
            self._tell()
            return before

    # ---- the user's side ----

    def get(self, timeout: float | None = None) -> Any:
        """The next batch; blocks the calling thread, which signals still reach.

        Raises:
            HandoverEnded: there is none.
            LateError: it took longer than `timeout` seconds; nothing is lost.
        """
        with self._lock:
            if not self._arrived.wait_for(self._is_there, timeout):
                raise LateError(LATE.format(timeout))
            return self._next()

    async def aget(self) -> Any:
        """The same, awaited in the caller's own event loop; cancelling it loses nothing."""
        while True:
            with self._lock:
                if self._is_there():
                    return self._next()
                listener = self._listen()
            await listener

    def _next(self) -> Any:
        if self._ready:
            batch, memory = self._ready.popleft()
            self._before, self._given = self._given, (*_references(batch), *memory)
            self._tell()
            return batch
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise OutputEnded

    def _is_there(self) -> bool:
        """Whether a batch or the end is; if not, whoever asks has come back with nothing ready. He
        asks again whenever another user has taken the batch that he waited for."""
        there = bool(self._ready) or self._ended
        if not there and self._before:
            self._before = ()
            self._tell()
        return there

    def _listen(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        listener: asyncio.Future[None] = loop.create_future()
        self._listeners.append((loop, listener))
        return listener

    def _tell(self) -> None:
        self._arrived.notify_all()
        listeners, self._listeners = self._listeners, []
        for loop, listener in listeners:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(_wake, listener)


def _references(batch: Any) -> References:
    try:
        return (weakref.ref(batch),)
    except TypeError:  # a tuple, say: nobody can tell how long the user holds it
        return ()


def _wake(listener: asyncio.Future[None]) -> None:
    if not listener.done():
        listener.set_result(None)
