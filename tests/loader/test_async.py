"""`async for` over a loader: in any loop, beside other tasks, cancelled at any point."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import ClosedError, NeighborLoader
from tests.loader.batches import assert_same
from tests.loader.conftest import NODES, Make

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


def test_async_for_gives_the_same_batches_as_for(make: Make) -> None:
    for one, other in zip(make(seed=1), collect(make(seed=1)), strict=True):
        assert_same(one, other)


def test_one_loader_works_with_for_and_in_several_event_loops(make: Make) -> None:
    loader = make()
    assert len(collect(loader)) == len(list(loader)) == len(collect(loader)) == len(loader)


def test_an_iterator_may_move_between_loops_and_threads(make: Make) -> None:
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


def test_other_tasks_go_on_while_a_batch_is_awaited(make: Make) -> None:
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


def test_two_loops_beside_each_other(make: Make) -> None:
    loader = make()

    async def consume() -> int:
        return sum([batch.batch_size async for batch in loader])

    async def main() -> list[int]:
        return await asyncio.gather(consume(), consume())

    assert asyncio.run(main()) == [NODES, NODES]


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("ready", [False, True])
def test_cancelling_anext_loses_no_batch(make: Make, turns: int, ready: bool) -> None:
    gate = Gate()
    loader = make(transform=gate)

    async def main() -> list[Data]:
        iterator, got = aiter(loader), []
        for number in range(len(loader)):
            if ready or number == 0:
                gate.open(1)
            waiting = asyncio.ensure_future(anext(iterator))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            gate.open(1)
            try:
                got.append(await waiting)
            except asyncio.CancelledError:
                continue
        gate.open(len(loader))
        return got + [batch async for batch in iterator]

    input_id = torch.cat([batch.input_id for batch in asyncio.run(main())])
    assert torch.equal(input_id, torch.arange(NODES))


def test_a_time_out_loses_no_batch(make: Make) -> None:
    gate = Gate()
    loader = make(transform=gate)

    async def main() -> int:
        iterator = aiter(loader)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), 0)
        gate.open(len(loader))
        return sum([batch.batch_size async for batch in iterator])

    assert asyncio.run(main()) == NODES


def test_breaking_off_and_starting_again(make: Make) -> None:
    plan = make(buffer="40KB").plan()
    loader = make(buffer="40KB", memory=plan.total_bytes)  # enough for one iterator

    async def main() -> None:
        for _ in range(10):
            async for _ in loader:
                break
        assert len([batch async for batch in loader]) == len(loader)

    asyncio.run(main())


def test_a_loader_as_an_asynchronous_context(make: Make) -> None:
    loader = make()

    async def main() -> None:
        async with loader as same:
            assert same is loader
            await anext(aiter(loader))
        with pytest.raises(ClosedError):
            aiter(loader)

    asyncio.run(main())


def test_closing_the_loader_in_the_middle_raises(make: Make) -> None:
    loader = make()

    async def main() -> None:
        iterator = aiter(loader)
        await anext(iterator)
        loader.close()
        with pytest.raises(ClosedError, match="in the middle of this epoch"):
            await anext(iterator)
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)

    asyncio.run(main())


def test_closing_an_iterator_wakes_the_task_that_awaits_it(make: Make) -> None:
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


def test_a_closed_event_loop_does_not_disturb_the_iterator(make: Make) -> None:
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
