"""Worker threads, in which blocking work runs: samples, gathers, and making batches. The end of a
function is always waited for, also when its caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.limits import named_limit

Result = TypeVar("Result")


def carried(error: BaseException) -> Exception:
    """Return `error`, which user code raised, in a form that can be passed to the user.

    A Future refuses StopIteration, SystemExit would end the event loop, and a CancelledError would
    look like a cancelled task: these become the cause of a RuntimeError.
    """
    unsuitable = StopIteration | StopAsyncIteration | CancelledError
    if isinstance(error, Exception) and not isinstance(error, unsuitable):
        return error
    name = type(error).__name__
    wrapped = RuntimeError(f"{name} was raised while a batch was made (in a transform or sampler?)")
    wrapped.__cause__ = error
    return wrapped


class Workers(Protocol):
    """Runs blocking functions for an event loop; in simulations there are no threads."""

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call `function(*arguments)` and return its result. When cancelled, it raises
        CancelledError once the function, which may use slots or memory, has returned."""


class ThreadWorkers:
    """A pool of daemon threads.

    concurrent.futures joins its threads before any exit handler runs, so a Ctrl-C would wait for
    samplers that were not told to stop. These threads are ended by `close`, which the loader's exit
    handler calls.

    Functions begin in the order of the calls of `run`. Functions that wait for each other run at
    the same time if they are queued one right behind the other and are no more than the threads.
    Each thread calls `begin` with its number before its first function, whose caller gets what it
    raises. ConfigError if the system refuses to start a thread. `threads`: all of them.
    """

    def __init__(self, count: int, begin: Callable[[int], object] | None = None) -> None:
        self._begin = begin
        self._work: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._work = SimpleQueue()
        self.threads: list[threading.Thread] = []
        try:
            with named_limit(), deferred_interrupts():
                for number in range(count):
                    thread = threading.Thread(
                        target=self._run_functions, args=(number,), daemon=True,
                        name=f"gnndrive-worker-{number}",
                    )  # fmt: skip
                    thread.start()
                    self.threads.append(thread)
        except BaseException:
            self.close()
            raise

    def _run_functions(self, number: int) -> None:
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
                running.exception()  # retrieved, or asyncio would report it
            raise

    def close(self) -> None:
        """Wait for the functions that run and end the threads."""
        for _ in self.threads:
            self._work.put(None)
        for thread in self.threads:
            thread.join()
