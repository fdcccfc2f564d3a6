"""`async for` over a loader: in any loop, beside other tasks, cancelled at any point."""

import asyncio
import random
import threading
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import ClosedError
from tests.loader.batches import assert_all_same, check
from tests.soak import product


async def test_async_for_gives_the_same_batches_as_for(make):
    async with make(seed=1) as loader:
        found = [batch async for batch in loader]
    assert_all_same(make(seed=1), found)
    with pytest.raises(ClosedError):
        aiter(loader)


async def test_closing_an_iterator_wakes_the_task_that_awaits_it(make):
    passes = threading.Semaphore(1)

    def transform(batch: Data) -> Data:
        passes.acquire()
        return batch

    iterator = aiter(make(transform=transform))
    waiting = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0)
    passes.release()  # a transform that has begun is waited for
    await asyncio.to_thread(iterator.close)
    (result,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(result, StopAsyncIteration | Data)
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


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
