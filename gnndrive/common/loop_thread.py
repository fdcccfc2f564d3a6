"""The service: a thread with an event loop of its own, in which engines, feature buffers and epochs
live.

It lives as long as its loader, so rings are not made anew for every epoch, and it always runs
beside the user's thread: a training step of seconds stops neither reads nor sampling. `for` and
`async for` only await the hand-over. Where the adjacency is read as it is wanted, its engine has
one too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from gnndrive.common.errors import ClosedError

Result = TypeVar("Result")
CLOSED = "this loader was closed; make a new one"


class LoopThread:
    """An event loop in a daemon thread; `close` ends both."""

    def __init__(self, name: str = "gnndrive") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closing = threading.Lock()
        self._closed = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._end_tasks()
            self._loop.close()

    def _end_tasks(self) -> None:
        """Cancel what was started in the last moment, so that nobody waits for it for ever."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(_settle(tasks))

    @property
    def inside(self) -> bool:
        """Whether the calling thread is the service's own (a finalizer may run anywhere)."""
        return threading.current_thread() is self._thread

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the service's loop.

        Raises:
            ClosedError: the service was closed.
        """
        with self._closing:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise ClosedError(CLOSED)

    def call(
        self,
        coroutine: Coroutine[Any, Any, Result],
        discard: Callable[[Result], object] | None = None,
    ) -> Result:
        """Run a coroutine in the service's loop and wait for its result.

        Args:
            coroutine: what to run.
            unwanted: gets the result when the calling thread was interrupted (Ctrl-C) before it
                had it.

        Raises:
            ClosedError: the service was closed.
        """
        future = self.start(coroutine)

        def pass_on(ended: Future[Result]) -> None:
            if discard and not ended.cancelled() and ended.exception() is None:
                discard(ended.result())

        try:
            return future.result()
        except CancelledError:
            raise ClosedError(CLOSED) from None
        except BaseException:
            future.add_done_callback(pass_on)
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run a function in the service's loop, soon; nothing if it is closed.

        Takes no lock and never waits: a finalizer may call it, in any thread, in the middle of
        anything.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop and wait for the thread. What runs in it must have been ended before."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.inside:
            self._thread.join()


def in_loop_thread(make: Callable[[], Result], name: str = "gnndrive") -> tuple[LoopThread, Result]:
    """A service, and what `make` made in its loop; if that raises, the service is ended."""

    async def made() -> Result:
        return make()

    loop_thread = LoopThread(name)
    try:
        return loop_thread, loop_thread.call(made())
    except BaseException:
        loop_thread.close()
        raise


def close_from_finalizer(close: Callable[[], object], process: int) -> None:
    """`close`, for a finalizer, which may run in a forked child of `process`, where the threads are
    the parent's, or in a thread that `close` waits for, where waiting would never end."""
    if os.getpid() != process:
        return
    if threading.current_thread() is threading.main_thread():
        close()
    else:
        threading.Thread(target=close, name="gnndrive-close").start()


async def _settle(tasks: set[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
    # A task that ended in the loop's last turn has yet to tell the thread that waits for it.
    for _ in range(2):
        await asyncio.sleep(0)
