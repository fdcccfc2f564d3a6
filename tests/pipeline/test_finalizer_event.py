"""Whoever waits is told that a batch is gone, and no Ctrl-C is lost there."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from contextlib import ExitStack
from typing import Any

from gnndrive.pipeline.finalizer_event import on_finalized
from gnndrive.pipeline.output_queue import OutputQueue
from gnndrive.testing.loop import run
from tests.interrupted import drop_and_interrupt


class Batch:
    """Something that the user holds, or lets go."""


def test_who_waits_is_told_in_his_loop() -> None:
    async def main() -> None:
        told, kept, only = asyncio.Event(), Batch(), [Batch()]
        with on_finalized([weakref.ref(kept), weakref.ref(only[0])], told.set):
            await asyncio.sleep(0)
            assert not told.is_set()
            await asyncio.to_thread(only.clear)
            await told.wait()

    asyncio.run(main())


def test_a_batch_is_gone_when_its_memory_is() -> None:
    async def main() -> None:
        output, memory = OutputQueue(), [Batch()]
        output.put(Batch(), (weakref.ref(memory[0]),))
        output.get()  # and is dropped
        output.put(Batch())
        second = output.get()
        waiting = asyncio.ensure_future(output.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        memory.clear()
        await waiting
        assert isinstance(second, Batch)

    run(main())


def test_what_is_gone_already() -> None:
    async def main() -> None:
        gone, told = weakref.ref(Batch()), list[bool]()
        with on_finalized([gone], lambda: told.append(True)):
            assert told == [True]

    run(main())


def test_a_cycle_is_gone_at_its_collection() -> None:
    async def main() -> None:
        told, cycle = asyncio.Event(), list[Any]([Batch()])
        cycle.append(cycle)
        with on_finalized([weakref.ref(cycle[0])], told.set):
            del cycle
            gc.collect()
            await told.wait()

    run(main())


def another_file() -> int:
    """Its number is the lowest that is free."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def was_struck(file: int) -> bool:
    """Whether anything was written into it; closes it."""
    try:
        return os.eventfd_read(file) > 0
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def test_nobody_is_told_afterwards() -> None:
    """Nor is written into the file that has the bell's number by then."""

    async def main() -> None:
        told, batch, bell = list[bool](), Batch(), another_file()
        os.close(bell)
        with on_finalized([weakref.ref(batch)], lambda: told.append(True)):
            pass
        other = another_file()
        assert other == bell
        del batch
        assert not was_struck(other)
        assert told == []

    run(main())


def test_a_strike_that_comes_after_the_end_hits_nothing() -> None:
    """All that watch an object are found when it goes, then called one after another."""

    async def main() -> None:
        only, bell, others = [Batch()], another_file(), list[int]()
        os.close(bell)
        with ExitStack() as waiting:
            waiting.enter_context(on_finalized([weakref.ref(only[0])], lambda: None))

            def end(_: object) -> None:
                waiting.close()
                others.append(another_file())

            watch = weakref.ref(only[0], end)  # made last, called first
            only.clear()
            assert watch() is None
        assert others == [bell]
        assert not was_struck(bell)

    run(main())


def test_a_batch_that_goes_away_swallows_no_ctrl_c() -> None:
    async def main() -> None:
        output, only = OutputQueue(), [Batch()]
        output.put(only.pop())
        only.append(output.get())
        output.put(Batch())
        second = output.get()
        waiting = asyncio.ensure_future(output.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        drop_and_interrupt(only)
        await waiting
        assert isinstance(second, Batch)

    run(main())
