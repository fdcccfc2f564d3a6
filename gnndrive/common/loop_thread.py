"""The loop thread: a thread with an event loop, in which engines, feature buffers and epochs live.

A loader keeps its loop thread until it is closed, so rings are not made again for every epoch. The
loop always runs beside the user's thread: a training step of seconds delays neither reads nor
sampling. `for` and `async for` only wait for the output queue. Where the adjacency is read from
disk on demand, the engine for it runs in a second loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.forks import ProcessGuard, keep_until_exit
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.limits import named_limit, require_files
from gnndrive.common.threads import Outcome

Result = TypeVar("Result")
Begun = TypeVar("Begun")
CLOSED = "this loader was closed; make a new one"
INSIDE = (
    "this was called in one of the loader's own threads, for example in a transform, a sampler or "
    "worker_init_fn, and would wait for that thread for ever: call it in the thread that iterates, "
    "or give the transform a loader of its own"
)

_open: weakref.WeakSet[LoopThread] = weakref.WeakSet()


class LoopThread:
    """An event loop in a daemon thread; `close` ends both.

    Attributes:
        thread: runs the loop.
        guard: refuses forked children, in which the thread does not exist.
    """

    def __init__(self, name: str = "gnndrive") -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closing = threading.Lock()
        self._closed = False
        self.guard = ProcessGuard()
        loop = None
        try:
            with named_limit(), deferred_interrupts():
                require_files(3)  # because a loop that gets one or two complains when it is deleted
                self._loop = loop = asyncio.new_event_loop()
                _open.add(self)
                self.thread.start()
        except BaseException:
            if self.thread.is_alive():
                self.close()
            elif loop is not None:
                loop.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._end_tasks()
            self._loop.close()

    def _end_tasks(self) -> None:
        """Cancel tasks that were started during `close`, so that no thread waits for ever."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(_settle(tasks))

    @property
    def inside(self) -> bool:
        """Whether the calling thread is the loop thread (a finalizer may run in any thread)."""
        return threading.current_thread() is self.thread

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the loop. ClosedError after `close`, ConfigError in a forked child."""
        run = partial(asyncio.run_coroutine_threadsafe, coroutine, self._loop)
        return self._begin(coroutine, run)

    def _begin(self, coroutine: Coroutine[Any, Any, Any], begin: Callable[[], Begun]) -> Begun:
        """Call `begin`, which has the loop run a coroutine, unless it cannot; for the errors see
        `start`."""
        if self.guard.forked:
            coroutine.close()
            self.guard.check()
        with self._closing:
            if not self._closed:
                return begin()
        coroutine.close()
        raise ClosedError(CLOSED)

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop, as `begin`, and wait for its result. ConfigError in the loop
        thread, which would wait for itself."""
        if self.inside:
            coroutine.close()
            raise ConfigError(INSIDE)
        return self.begin(coroutine).result()

    def begin(self, coroutine: Coroutine[Any, Any, Result]) -> Outcome[Result]:
        """Run a coroutine in the loop, for a thread that may be interrupted (Ctrl-C) while it waits
        for the result; it runs to its end also then. For the errors see `start`."""
        # The task is freed in the loop thread, because what a signal raises is lost while a
        # weak reference to it is removed.
        ended: Outcome[Result] = Outcome()

        def deliver(task: asyncio.Task[Result]) -> None:
            error = ClosedError(CLOSED) if task.cancelled() else task.exception()
            ended.put(None if error else task.result(), error)

        def run() -> None:
            self._loop.create_task(coroutine).add_done_callback(deliver)

        self._begin(coroutine, partial(self._loop.call_soon_threadsafe, run))
        return ended

    def call_soon(self, function: Callable[[], object]) -> None:
        """Have the loop, unless it is closed, call a function soon. Takes no lock and never waits,
        so a finalizer may call it in any thread at any moment."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop and wait for the thread. After a KeyboardInterrupt, call it again. The
        caller must end what runs in the loop before."""
        self.guard.check()
        with deferred_interrupts(), self._closing:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.inside:
            self.thread.join()


def in_loop_thread(make: Callable[[], Result], name: str = "gnndrive") -> tuple[LoopThread, Result]:
    """Start a loop thread, call `make` in its loop, and return both; the loop thread is closed if
    `make` raises. Call it within `deferred_interrupts`, until something owns both."""

    async def made() -> Result:
        return make()

    loop_thread = LoopThread(name)
    try:
        return loop_thread, loop_thread.call(made())
    except BaseException:
        loop_thread.close()
        raise


def close_from_finalizer(close: Callable[[], object], guard: ProcessGuard) -> None:
    """Call `close` from a finalizer.

    In a child that was forked since `guard` was made it does nothing, because the threads to wait
    for are the parent's. Outside the main thread it calls `close` in a new thread, because the
    finalizer may run in a thread that `close` waits for.
    """
    if guard.forked:
        return
    if threading.current_thread() is threading.main_thread():
        # Python drops what a finalizer raises, and does not call it again.
        with deferred_interrupts():
            close()
    else:
        threading.Thread(target=close, name="gnndrive-close").start()


async def _settle(tasks: set[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
    # A task that ended in the loop's last turn tells the waiting thread one or two turns later.
    for _ in range(2):
        await asyncio.sleep(0)


def _keep_those_of_the_parent() -> None:
    """In a forked child: keep the parent's loops and tasks, so that they are not reported."""
    for loop_thread in list(_open):
        keep_until_exit(loop_thread)
        for task in asyncio.all_tasks(loop_thread._loop):
            keep_until_exit(task)


os.register_at_fork(after_in_child=_keep_those_of_the_parent)
