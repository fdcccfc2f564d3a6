"""`async for` over a loader: in any loop, beside other tasks, cancelled at any point."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import ClosedError, NeighborLoader
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES
from tests.soak import product

PATIENCE_S = 60  # a guard: nothing here takes that long unless it is broken


def collect(loader: NeighborLoader) -> list[Data]:
    async def main() -> list[Data]:
        return [batch async for batch in loader]

    return asyncio.run(main())


class Gate:
    """A transform that lets a batch through for each `open`, from any thread."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)

    def __call__(self, batch: Data) -> Data:
        assert self._passes.acquire(timeout=PATIENCE_S), "the test let no batch through"
        return batch

    def open(self, batches: int) -> None:
        self._passes.release(batches)


def test_async_for_gives_the_same_batches_as_for(make):
    for one, other in zip(make(seed=1), collect(make(seed=1)), strict=True):
        assert_same(one, other)


def test_an_iterator_may_move_between_loops_and_threads(make):
    iterator = iter(make())

    async def some(count: int) -> list[Data]:
        return [await anext(iterator) for _ in range(count)]

    got = asyncio.run(some(3))
    got.append(next(iterator))
    elsewhere = threading.Thread(target=lambda: got.extend(asyncio.run(some(4))))
    elsewhere.start()
    elsewhere.join()
    got.extend(iterator)
    input_id = torch.cat([batch.input_id for batch in got])
    assert torch.equal(input_id, torch.arange(NODES))


def test_other_tasks_go_on_while_a_batch_is_awaited(make):
    """Only a task of the same event loop lets batches through."""
    gate = Gate()
    loader = make(transform=gate)

    async def opener() -> None:
        for _ in range(len(loader)):
            gate.open(1)
            await asyncio.sleep(0)

    async def main() -> int:
        number = 0
        async with asyncio.TaskGroup() as group:
            iterator = aiter(loader)
            first = group.create_task(anext(iterator))
            group.create_task(opener())
            number += (await first).batch_size
            async for batch in iterator:
                number += batch.batch_size
        return number

    assert asyncio.run(main()) == NODES


def test_a_loader_as_an_asynchronous_context(make):
    loader = make()

    async def main() -> None:
        async with loader as same:
            assert same is loader
            await anext(aiter(loader))
        with pytest.raises(ClosedError):
            aiter(loader)

    asyncio.run(main())


def test_closing_an_iterator_wakes_the_task_that_awaits_it(make):
    gate = Gate()
    loader = make(transform=gate)

    async def main() -> None:
        iterator = aiter(loader)
        waiting = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        gate.open(1)  # a transform that has begun is waited for
        await asyncio.to_thread(iterator.close)
        result = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(result[0], StopAsyncIteration | Data)
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)

    gate.open(1)
    asyncio.run(main())


def test_a_closed_event_loop_does_not_disturb_the_iterator(make):
    """A task awaited a batch in an event loop that was closed before the batch came."""
    gate = Gate()
    loader = make(transform=gate)
    iterator = iter(loader)

    def begin(coroutine: Coroutine[Any, Any, Any]) -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(coroutine)
        loop.call_soon(loop.stop)
        loop.run_forever()
        task.cancel()
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()

    async def once() -> Data:
        return await anext(iterator)

    begin(once())
    gate.open(len(loader))
    assert sum(batch.batch_size for batch in iterator) == NODES


TURNS_MAX = 60


async def take(iterator: Any, count: int, got: list[Any]) -> None:
    for _ in range(count):
        got.append(await anext(iterator))


@product("engine,topology", ["uring", "threads"], ["mmap", "direct"])
async def test_random_cancellations_lose_no_batch(store, data, make, engine, topology, seeds):
    """Cancel tasks that await one batch or three, at random turns of the event loop."""
    (seed,) = seeds(1)
    rng, waiting = random.Random(seed), 0
    given = {"seed": seed, "engine": engine, "topology": topology}
    wanted = [batch.n_id for batch in make(**given)]
    loader = make(**given)
    iterator, place = aiter(loader), 0
    for _ in range(40):
        got: list[Any] = []
        task = asyncio.ensure_future(take(iterator, rng.choice([1, 1, 3]), got))
        for _ in range(rng.randrange(TURNS_MAX)):
            await asyncio.sleep(0)
        waiting += not task.done()
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        for batch in got:
            check(batch, data)
            assert torch.equal(batch.n_id, wanted[place])
            place += 1
        if isinstance(ended, StopAsyncIteration):
            assert place == len(wanted)
        else:
            assert ended is None or isinstance(ended, asyncio.CancelledError)
        if isinstance(ended, StopAsyncIteration) or rng.random() < 0.05:
            if rng.random() < 0.5:
                iterator.close()
            loader.set_epoch(0)
            iterator, place = aiter(loader), 0
    assert waiting
