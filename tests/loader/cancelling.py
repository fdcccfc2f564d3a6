"""Asynchronous iteration that is cancelled at random awaits: no batch is lost, none is wrong.

`run(store, data, seed, count)` is one campaign; `test_cancelling.py` runs a short one.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import torch
from torch_geometric.data import Data

from gnndrive import NeighborLoader, Store
from tests.loader.batches import check

TURNS_MAX = 60


async def take(iterator: Any, count: int, got: list[Any]) -> None:
    for _ in range(count):
        got.append(await anext(iterator))


async def run(
    store: Store, data: Data, seed: int, count: int, pauses: bool = False, **given: Any
) -> int:
    """Cancel `count` times; returns how many of the tasks were still waiting then.

    Args:
        store, data: the graph.
        seed: determines all random choices.
        count: how often.
        pauses: whether a task may also wait some time before it is cancelled, not only turns.
        given: arguments of the loader.
    """
    rng, waiting = random.Random(seed), 0
    arguments = {"batch_size": 16, "buffer": "40KB", "io_depth": 16, "seed": seed} | given
    loader = NeighborLoader(store, [4, 3], **arguments)
    with NeighborLoader(store, [4, 3], **arguments) as plain:
        wanted = [batch.n_id for batch in plain]
    iterator, place = aiter(loader), 0
    loader.set_epoch(0)
    for _ in range(count):
        got: list[Any] = []

        task = asyncio.ensure_future(take(iterator, rng.choice([1, 1, 3]), got))
        for _ in range(rng.randrange(TURNS_MAX)):
            await asyncio.sleep(0)
        if pauses and rng.random() < 0.3:
            await asyncio.wait([task], timeout=rng.choice([0, 0.0005, 0.002]))
        waiting += not task.done()
        task.cancel()
        ended = False
        try:
            await task
        except asyncio.CancelledError:
            pass
        except StopAsyncIteration:
            ended = True
        for batch in got:
            check(batch, data)
            assert torch.equal(batch.n_id, wanted[place])
            place += 1
        if ended:
            assert place == len(wanted)
        if ended or rng.random() < 0.05:
            if rng.random() < 0.5:
                iterator.close()
            loader.set_epoch(0)
            iterator, place = aiter(loader), 0
    loader.close()
    return waiting
