"""Worker threads and the loop thread: their ends are waited for, and no result is lost."""

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from gnndrive.common.errors import ClosedError
from gnndrive.common.loop_thread import LoopThread
from gnndrive.pipeline.workers import ThreadWorkers
from tests.interrupted import interrupted

PATIENCE_S = 60  # a limit: only broken code takes that long
LOOKS = 1_000_000  # at the number of threads, which soon is what it was


@pytest.fixture
def workers() -> Iterator[ThreadWorkers]:
    made = ThreadWorkers(2)
    yield made
    made.close()


class Slow:
    """A function that sets `begun` and returns or fails when `may_end` is set."""

    def __init__(self, fails: bool = False) -> None:
        self.begun, self.may_end, self.ended = (threading.Event() for _ in range(3))
        self.fails = fails

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        self.ended.set()
        if self.fails:
            raise LookupError
        return threading.current_thread().name


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


# ---- workers


async def test_errors_come_back(workers):
    """Those that a loop would act on are wrapped."""
    for kind in (KeyError, MemoryError, ClosedError):
        with pytest.raises(kind):
            await workers.run(Mock(side_effect=kind))
    for kind in (
        StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt,
        asyncio.CancelledError, concurrent.futures.CancelledError,
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=kind.__name__) as caught:
            await workers.run(Mock(side_effect=kind))
        assert isinstance(caught.value.__cause__, kind)
    assert await workers.run(divmod, 7, 2) == (3, 1), "the thread lives on"


@pytest.mark.parametrize(("cancels", "fails"), [(1, False), (3, True)])
async def test_cancelling_waits_for_the_functions_end(workers, cancels, fails):
    """And hides its error."""
    slow = Slow(fails)
    running = asyncio.ensure_future(workers.run(slow))
    await until(slow.begun)
    for _ in range(cancels):
        running.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not running.done()
    slow.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert slow.ended.is_set()


async def test_no_more_run_at_once_than_there_are_threads(workers):
    slow = [Slow() for _ in range(3)]
    running = [asyncio.ensure_future(workers.run(each)) for each in slow]
    await until(slow[0].begun)
    await until(slow[1].begun)
    assert not slow[2].begun.is_set()
    slow[1].may_end.set()
    await until(slow[2].begun)
    for each in slow:
        each.may_end.set()
    assert set(await asyncio.gather(*running)) == {"gnndrive-worker-0", "gnndrive-worker-1"}


async def test_a_waiting_thread_keeps_no_result_alive(workers):
    class Batch:
        pass

    batch = await workers.run(Batch)
    both = threading.Barrier(2)  # each thread is at its next function, and so done with its last
    await asyncio.gather(*(workers.run(both.wait, PATIENCE_S) for _ in range(2)))
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None


def test_close_waits_for_running_functions_and_ends_the_threads():
    before = threading.active_count()
    workers, slow = ThreadWorkers(2), Slow()

    async def main() -> None:
        running = asyncio.ensure_future(workers.run(slow))
        await until(slow.begun)
        closing = threading.Thread(target=workers.close)
        closing.start()
        assert closing.is_alive()
        slow.may_end.set()
        closing.join()
        assert slow.ended.is_set()
        await running

    asyncio.run(main())
    workers.close()
    assert threading.active_count() <= before  # an earlier loader may end meanwhile


@pytest.mark.parametrize("make", [partial(ThreadWorkers, 2), LoopThread])
def test_an_interrupt_at_any_point_of_the_start_leaves_no_thread_or_loop(make, monkeypatch):
    before, made = threading.active_count(), list[Any]()
    loops, new_event_loop = list[asyncio.AbstractEventLoop](), asyncio.new_event_loop

    def noted() -> asyncio.AbstractEventLoop:
        loops.append(new_event_loop())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", noted)
    for number in count():
        places = "/workers.py", "/loop_thread.py", "/threading.py"
        if not interrupted(lambda: made.append(make()), number, *places):
            break
        for _ in range(LOOKS):
            if threading.active_count() <= before:
                break
        assert threading.active_count() <= before, number
        assert all(loop.is_closed() for loop in loops), number
    made.pop().close()
    assert not made
    assert number > 20, "both have started threads"


# ---- the loop thread


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


async def echo(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise LookupError


def test_a_coroutine_runs_in_the_loop_thread(loop_thread):
    async def where() -> tuple[str, bool]:
        return threading.current_thread().name, loop_thread.inside

    assert loop_thread.call(where()) == ("gnndrive", True)
    assert not loop_thread.inside
    assert loop_thread.call(echo(5)) == 5
    with pytest.raises(LookupError):
        loop_thread.call(fail())


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_interrupt_at_any_point_of_a_call_leaves_the_loop_free(loop_thread):
    def call() -> None:
        loop_thread.call(echo(1))
        for _ in range(9):  # steps at which the last interrupt may still come
            repr(1)

    places = "/loop_thread.py", "/_base.py", "/threading.py", "/test_workers.py"
    for number in range(20):
        interrupted(call, number, *places)
        assert loop_thread.call(echo(number)) == number


def test_after_close_everything_is_refused(loop_thread):
    loop_thread.close(), loop_thread.close()
    coroutine = echo(1)
    with pytest.raises(ClosedError):
        loop_thread.call(coroutine)
    assert coroutine.cr_frame is None, "it was closed, so that Python does not warn of it"
    loop_thread.call_soon(loop_thread.close)


def test_close_ends_a_call_that_is_under_way(loop_thread):
    begun = threading.Event()

    async def for_ever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    with concurrent.futures.ThreadPoolExecutor() as users:
        user = users.submit(loop_thread.call, for_ever())
        assert begun.wait(PATIENCE_S)
        loop_thread.close()
        assert isinstance(user.exception(), ClosedError)
