"""The output queue: the one place where the pipeline's thread and the user's thread meet."""

import asyncio
import os
import threading
import weakref
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from gnndrive.common.errors import LateError
from gnndrive.pipeline import output_queue
from gnndrive.pipeline.output_queue import SIGNAL_S, OutputEnded, OutputQueue, on_finalized
from tests.interrupted import drop_and_interrupt, interrupted
from tests.pipeline.tight import in_virtual_loop


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- in one loop


@in_virtual_loop
async def test_there_is_room_for_one_batch():
    """A wait for room that is cancelled loses none."""
    output = OutputQueue()
    await output.room()
    output.put(0)
    cancelled, waiting = (asyncio.ensure_future(output.room()) for _ in range(2))
    await turns()
    assert not waiting.done()
    cancelled.cancel()
    assert await output.aget() == 0
    await waiting


@in_virtual_loop
async def test_two_waiting_users_get_one_batch_each():
    output = OutputQueue()
    waiting = [asyncio.ensure_future(output.aget()) for _ in range(3)]
    await turns()
    output.put(0)
    output.put(1)
    await turns()
    assert sorted(each.result() for each in waiting if each.done()) == [0, 1]
    output.finish(None)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(result, OutputEnded) for result in results) == 1


@pytest.mark.parametrize("when", ["before", "after"])
@in_virtual_loop
async def test_cancelling_a_waiting_user_loses_no_batch(when):
    output = OutputQueue()
    waiting = asyncio.ensure_future(output.aget())
    await turns()
    if when == "after":
        output.put("batch")
    waiting.cancel()
    if when == "before":
        output.put("batch")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await output.aget() == "batch"


# ---- two batches are alive, not three


class Batch:
    """An object that the user holds or drops."""


@pytest.mark.parametrize("how", ["get", "aget"])
async def test_a_user_who_keeps_batches_gets_the_next_when_he_asks(how):
    """When he drops the first, there is room too."""
    output, kept = OutputQueue(), []
    for _ in range(2):
        await output.room()  # one batch is held: there is room for the second
        output.put(Batch())
        kept.append(output.get())
    waiting = asyncio.ensure_future(output.room())
    await turns()
    assert not waiting.done()
    asked = output.aget() if how == "aget" else asyncio.to_thread(output.get)
    coming = asyncio.ensure_future(asked)
    await waiting
    third = Batch()
    output.put(third)
    assert await coming is third


async def test_there_is_room_for_one_group_beside_that_which_the_user_has():
    """The batches of a group are dropped one by one; all of them must be."""
    output, held = OutputQueue(), []
    output.put_all([(Batch(), (), None, 0), (Batch(), (), None, 0)])
    held.append(output.get())
    await output.room()
    output.put_all([(Batch(), (), None, 1)])
    waiting = asyncio.ensure_future(output.room())
    for _ in range(2):
        await turns()
        assert not waiting.done()
        held.append(output.get())
    while len(held) > 1:
        await turns()
        assert not waiting.done()
        del held[0]
    await waiting


def test_a_groups_first_batch_is_taken_under_the_lock(monkeypatch):
    """Between a take and what it notes, `room` would see room for a third group."""
    output, took, locked = OutputQueue(), OutputQueue._took, list[bool]()

    def noting(queue: OutputQueue, taken: output_queue.Ready) -> Batch:
        locked.append(queue._lock._is_owned())
        return took(queue, taken)

    monkeypatch.setattr(OutputQueue, "_took", noting)
    output.put_all([(Batch(), (), None, group) for group in (0, 0, 1, None, None)])
    for _ in range(5):
        output.get()
    assert locked == [True, False, True, True, True]


def test_a_waiting_user_gets_a_batch_when_another_user_took_the_last():
    output, waits = OutputQueue(), threading.Event()

    def second_user() -> list[Batch]:
        held = [output.get()]
        waits.set()
        return [*held, output.get()]

    async def main() -> None:
        output.put(Batch())
        first = output.get()
        output.put(Batch())
        second = asyncio.ensure_future(asyncio.to_thread(second_user))
        await asyncio.to_thread(waits.wait)
        await output.room()  # the second user waits, so there is room
        with output._lock:  # the first user takes it and asks for no more
            output.put(Batch())
            third = output.get()
        await output.room()
        output.put(Batch())
        assert len({first, third, *await second}) == 4

    asyncio.run(main())


@in_virtual_loop
async def test_batches_without_weak_references_are_not_waited_for():
    output = OutputQueue()
    for number in range(3):
        await output.room()
        output.put((number,))
        assert output.get() == (number,)


def test_no_wait_is_without_end(monkeypatch):
    """Ctrl-C that comes just before a wait does not end it; what runs behind it hears of it."""
    output, waits = OutputQueue(), []

    class Interrupted:
        def get(self, timeout: float | None = None) -> None:
            waits.append(timeout)
            raise KeyboardInterrupt

    monkeypatch.setattr(output_queue, "SimpleQueue", Interrupted)
    for timeout in (None, 300):
        with pytest.raises(KeyboardInterrupt):
            output.get(timeout)
    assert waits == [SIGNAL_S, SIGNAL_S]


def test_a_wait_may_be_interrupted_at_any_point():
    output = OutputQueue()

    def ask() -> None:
        with suppress(LateError):
            output.get(0.01)

    places = "/output_queue.py", "/threading.py"
    assert next(number for number in count() if not interrupted(ask, number, *places)) > 5
    assert not output._lock._is_owned()


@in_virtual_loop
async def test_after_a_timeout_a_user_may_ask_again():
    output = OutputQueue()
    with pytest.raises(LateError, match=r"timed out after 0\.001 seconds"):
        output.get(timeout=0.001)
    output.put("batch")
    assert output.get(timeout=300) == "batch"


# ---- the end


@in_virtual_loop
async def test_an_error_comes_after_the_ready_batches_and_once():
    output, error = OutputQueue(), OSError("bad sector")
    output.put(0)
    assert not output.ended
    output.finish(error)
    output.finish(ValueError("too late"))
    assert output.ended
    assert await output.aget() == 0
    with pytest.raises(OSError, match="bad sector") as caught:
        await output.aget()
    assert caught.value is error
    for _ in range(2):
        with pytest.raises(OutputEnded):
            await output.aget()


@in_virtual_loop
async def test_the_end_wakes_a_waiting_user():
    for end in (OutputQueue.finish, OutputQueue.abandon):
        output = OutputQueue()
        waiting = asyncio.ensure_future(output.aget())
        await turns()
        end(output, KeyError("the end"))
        with pytest.raises(KeyError, match="the end"):
            await waiting


@in_virtual_loop
async def test_abandoning_drops_ready_and_later_batches():
    output = OutputQueue()
    output.put(0)
    producer = asyncio.ensure_future(output.room())
    await turns()
    assert output.abandon() is False
    await producer  # it is woken and finds out that the queue has ended
    output.put(1)
    with pytest.raises(OutputEnded):
        await output.aget()
    assert output.abandon() is True


# ---- threads and loops


@pytest.mark.parametrize(("threads", "loops"), [(1, 0), (0, 1), (2, 2)])
def test_threads_and_loops_get_every_batch_once(threads, loops):
    """A single user gets them in order."""
    output, count = OutputQueue(), 300
    got: list[int] = []

    def take() -> None:
        with suppress(OutputEnded):
            while True:
                got.append(output.get())

    async def atake() -> None:
        with suppress(OutputEnded):
            while True:
                got.append(await output.aget())

    async def feed() -> None:
        for number in range(count):
            await output.room()
            output.put(number)
        output.finish(None)

    users = [threading.Thread(target=take) for _ in range(threads)]
    users += [threading.Thread(target=lambda: asyncio.run(atake())) for _ in range(loops)]
    for user in users:
        user.start()
    asyncio.run(feed())
    for user in users:
        user.join()
    assert (got if len(users) == 1 else sorted(got)) == list(range(count))


def test_a_waiting_task_of_a_closed_loop_takes_no_batch():
    output = OutputQueue()

    loop = asyncio.new_event_loop()
    gone = loop.create_task(output.aget())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    gone._log_destroy_pending = False  # type: ignore[attr-defined]
    output.put("batch")
    assert output.get() == "batch"
    assert not gone.done()


async def test_the_callback_runs_in_the_waiting_loop():
    called, kept, only = asyncio.Event(), Batch(), [Batch()]
    with on_finalized([weakref.ref(kept), weakref.ref(only[0])], called.set):
        await asyncio.sleep(0)
        assert not called.is_set()
        await asyncio.to_thread(only.clear)
        await called.wait()


@pytest.mark.parametrize("interrupted", [False, True])
@in_virtual_loop
async def test_there_is_room_when_a_batch_and_its_memory_are_gone(interrupted):
    """A Ctrl-C that comes meanwhile is not lost."""
    output, memory = OutputQueue(), [Batch()]
    output.put(Batch(), (weakref.ref(memory[0]),))
    output.get()  # and drop it
    output.put(Batch())
    second = output.get()
    waiting = asyncio.ensure_future(output.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    drop_and_interrupt(memory) if interrupted else memory.clear()
    await waiting
    assert isinstance(second, Batch)


@in_virtual_loop
async def test_an_object_that_was_finalized_before():
    gone, called = weakref.ref(Batch()), list[bool]()
    with on_finalized([gone], lambda: called.append(True)):
        assert called == [True]


def another_file() -> int:
    """A new file; it gets the lowest free number."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


@in_virtual_loop
async def test_a_write_after_the_end_reaches_no_file():
    """Python collects an object's weak references, then calls their callbacks one by one."""
    only, event_fd, others = [Batch()], another_file(), list[int]()
    os.close(event_fd)
    with ExitStack() as waiting:
        waiting.enter_context(on_finalized([weakref.ref(only[0])], lambda: None))

        def end(_: object) -> None:
            waiting.close()
            others.append(another_file())

        watch = weakref.ref(only[0], end)  # made last, called first
        only.clear()
        assert watch() is None
    assert others == [event_fd]
    with pytest.raises(BlockingIOError):
        os.eventfd_read(event_fd)
    os.close(event_fd)
