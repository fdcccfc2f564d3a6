"""A waiting loop is called that an object was finalized, and no Ctrl-C is lost there."""

from __future__ import annotations

import asyncio
import os
import weakref
from contextlib import ExitStack

import pytest

from gnndrive.pipeline.finalizer_event import on_finalized
from gnndrive.pipeline.output_queue import OutputQueue
from tests.interrupted import drop_and_interrupt
from tests.pipeline.tight import in_virtual_loop


class Batch:
    """An object that the user holds or drops."""


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


def check_unwritten(file: int) -> None:
    with pytest.raises(BlockingIOError):
        os.eventfd_read(file)
    os.close(file)


@in_virtual_loop
async def test_no_callback_after_the_context():
    """Nor is the file written that has got the event descriptor's number since."""
    called, batch, event_fd = list[bool](), Batch(), another_file()
    os.close(event_fd)
    with on_finalized([weakref.ref(batch)], lambda: called.append(True)):
        pass
    assert another_file() == event_fd
    del batch
    check_unwritten(event_fd)
    assert called == []


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
    check_unwritten(event_fd)
