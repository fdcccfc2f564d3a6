"""Functions that run in a pool's threads, and whose results the user's thread waits for.

Ctrl-C may be raised at any point of Python code, so also within `Executor.submit`, `Future.result`
and `Future.cancel`. There it may leave a lock held that the pool's thread takes when its function
ends; then the thread waits for ever, and so does whatever joins it. Here submitting defers Ctrl-C,
and results come through a SimpleQueue, whose `get` is one call in C.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.limits import named_limit

Result = TypeVar("Result")


class Outcome(Generic[Result]):
    """What work in another thread ends with. One thread at a time may wait for it."""

    def __init__(self) -> None:
        # What was put is no item of the queue: Ctrl-C behind `get` would lose it.
        self._put: tuple[Result | None, BaseException | None] | None = None
        self._ended: SimpleQueue[None] = SimpleQueue()

    def put(self, result: Result | None, error: BaseException | None = None) -> None:
        """The work has ended with a result or an error; the other thread calls this once."""
        self._put = result, error
        self._ended.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the work has ended, or for so many seconds; returns whether it has."""
        if self._put is None:
            with contextlib.suppress(Empty):
                self._ended.get(timeout=timeout_s)
        return self._put is not None

    def result(self) -> Result:
        """Wait for the work, and return its result or raise its error."""
        self.wait()
        assert self._put is not None
        result, error = self._put
        try:
            if error is not None:
                raise error
            return cast(Result, result)
        finally:
            del error, self  # the traceback refers to this frame


def submit(
    pool: ThreadPoolExecutor, function: Callable[..., Result], *arguments: Any
) -> Outcome[Result]:
    """Call a function in a thread of a pool; ConfigError: the system refuses to start a thread."""
    outcome: Outcome[Result] = Outcome()
    with named_limit(), deferred_interrupts():
        pool.submit(_run, [outcome], function, arguments)
    return outcome


def _run(
    only: list[Outcome[Result]], function: Callable[..., Result], arguments: tuple[Any, ...]
) -> None:
    outcome = only.pop()  # the frames of an error's traceback refer to all arguments
    try:
        outcome.put(function(*arguments))
    except BaseException as error:
        outcome.put(None, error)
    del outcome


@contextlib.contextmanager
def thread_pool(threads: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool, at whose end its functions are waited for, also after Ctrl-C."""
    pool = ThreadPoolExecutor(threads, name)
    try:
        yield pool
    finally:
        with deferred_interrupts():
            pool.shutdown()


def in_turn(
    pool: ThreadPoolExecutor, groups: Iterable[Sequence[Callable[[], Result]]], ahead: int
) -> Iterator[Result]:
    """Call functions in a pool's threads, and yield their results in order.

    A group is taken from `groups` once at most `ahead` results have not been yielded; its functions
    are queued one right behind the other. If this is left early, functions are still called until
    the pool is shut down: it waits for them.
    """
    begun = deque[Outcome[Result]]()
    for group in groups:
        begun.extend(submit(pool, function) for function in group)
        while len(begun) > ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()
