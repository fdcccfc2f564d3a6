"""An event loop with a virtual clock, in which a deadlock is an exception instead of a hang.

The clock stands still while a callback is ready, and then jumps to the next timer. If there is no
timer, no task can ever wake up, and `run` raises `Deadlock`. Use it only in tests in which all I/O
is simulated.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
UNWIND_TURNS_MAX = 1000
_stuck: list[asyncio.Task[Any]] = []


class Deadlock(AssertionError):
    """Every task waits, and no callback or timer can wake one."""


class _Selector(selectors.DefaultSelector):
    """A selector that never blocks, and moves the loop's clock forward by the timeout instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:  # a callback is ready
            return []
        ready = super().select(0)
        if not ready and timeout is None:
            raise Deadlock(f"{len(asyncio.all_tasks(self.loop))} tasks wait for one another")
        if not ready and timeout is not None and timeout > 0:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector event loop whose clock is `now`, in seconds; make it in the thread it runs in."""

    def __init__(self) -> None:
        self.now = 0.0
        self._thread = threading.get_ident()
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self.now

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call the function soon; the loop is woken only if this is another thread."""
        if threading.get_ident() == self._thread:
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[Unpack[Arguments]], Result],
        *args: *Arguments,
    ) -> asyncio.Future[Result]:
        """Call the function now, in this thread; what waits for a thread would be a deadlock."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in a new `VirtualLoop`.

    Raises:
        Deadlock: every task waits and nothing is scheduled.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        _unwind(loop)
        loop.close()


def _unwind(loop: VirtualLoop) -> None:
    """Cancel the tasks that still run and let them end, so that no finalizer uses freed memory."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    for _ in range(UNWIND_TURNS_MAX):
        if not asyncio.all_tasks(loop):
            break
        loop.call_soon(loop.stop)
        loop.run_forever()
    # Tasks that do not end are kept for ever, because finalizing them could free memory in use.
    _stuck.extend(asyncio.all_tasks(loop))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # asyncio would report an exception that is never retrieved
