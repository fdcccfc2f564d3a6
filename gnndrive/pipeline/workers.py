"""Where blocking work runs: worker threads, whose end is always waited for."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


def carried(error: BaseException) -> Exception:
    """`error` as what user code raised can travel to the user.

    StopIteration cannot enter a Future, SystemExit would end the event loop that hears of it, and
    a CancelledError would look as if somebody had cancelled: these become a RuntimeError that they
    are the cause of.
    """
    unfit = StopIteration | StopAsyncIteration | CancelledError
    if isinstance(error, Exception) and not isinstance(error, unfit):
        return error
    name = type(error).__name__
    fit = RuntimeError(f"{name} was raised while a batch was made (in a transform or sampler?)")
    fit.__cause__ = error
    return fit


class Workers(ABC):
    """Runs blocking functions for an event loop."""

    @abstractmethod
    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """`function(*arguments)`; when cancelled it still waits for the function's end, then
        raises.

        A thread cannot be cancelled. It may read slots or write memory, so nobody may go on as if
        it had ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait for running functions and end the threads."""


class ThreadWorkers(Workers):
    """A pool of daemon threads.

    concurrent.futures joins its threads before any exit handler runs, so a Ctrl-C would wait for
    samples that nobody told to stop. These threads are ended by `close`, which the loader's exit
    handler calls.

    Functions begin in the order in which they were given, so those that wait for each other come
    to run at once if they were given one right behind the other and are no more than the threads.

    Args:
        count: functions that run at once.
        begin: called with a thread's number in each thread before its first function; an error in
            it is what that function raises.
    """

    def __init__(self, count: int, begin: Callable[[int], object] | None = None) -> None:
        self._begin = begin
        self._work: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._work = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True)
            for number in range(count)
        ]
        for number, thread in enumerate(self._threads):
            thread.name = f"gnndrive-worker-{number}"
            thread.start()

    def _serve(self, number: int) -> None:
        begin = self._begin
        while (item := self._work.get()) is not None:
            future, function, arguments = item
            try:
                if begin is not None:
                    begin(number)
                    begin = None
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(carried(error))
            del item, future, function, arguments  # keep no batch alive while waiting for work

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `Workers.run`."""
        future: Future[Result] = Future()
        self._work.put((future, function, arguments))
        running = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError:
                    continue
            if not running.cancelled():
                running.exception()  # retrieved: nobody else will
            raise

    def close(self) -> None:
        """See `Workers.close`."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
