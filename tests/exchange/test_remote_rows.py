"""A rank's cache of rows that other ranks own."""

import asyncio
import weakref
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest
import torch

from gnndrive.common.owners import Owners
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.exchange.remote_rows import RemoteRows
from gnndrive.host.arena import ArenaShape
from gnndrive.loader.exchanging import ExchangeBuffers
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import InlineWorkers

PLACES = np.arange(4, dtype=np.int32)
NONE = np.empty(0, np.int32)


def test_rows_on_their_way_are_here_when_a_batch_copies_them_out(seeds):
    async def main(seed):
        cache = RemoteRows(100, 0, slots=8, row_bytes=1, workers=InlineWorkers(seed, 9))
        needed, arrived = np.arange(50, 54), torch.arange(1, 5, dtype=torch.uint8)[:, None]
        arriving = asyncio.create_task(cache.copy_in(needed, [NONE, PLACES], arrived))
        await asyncio.sleep(0)
        split = [(NONE, np.empty(0, np.int64)), (PLACES, needed)]
        held, rows = cache.hold(needed, split), torch.zeros(4, 1, dtype=torch.uint8)
        assert not len(split[1][0]), "they are asked for again"
        await cache.copy_out(held, rows)
        assert torch.equal(rows, arrived)
        await arriving

    for seed in seeds(10):
        run(main(seed))


def test_rows_whose_copy_into_the_cache_has_failed_are_not_copied_out():
    async def main():
        workers = Mock(run=AsyncMock(side_effect=[MemoryError("no memory"), None]))
        cache, needed = RemoteRows(100, 0, slots=8, row_bytes=1, workers=workers), np.arange(4)
        rows = torch.ones(4, 1, dtype=torch.uint8)
        arriving = asyncio.create_task(cache.copy_in(needed, [NONE, PLACES], rows))
        split = [(NONE, np.empty(0, np.int64)), (PLACES, needed)]
        await asyncio.sleep(0)
        held = cache.hold(needed, split)
        for copying in (arriving, cache.copy_out(held, rows)):
            with pytest.raises(MemoryError, match="no memory"):
                await copying

    run(main())


def test_a_batch_for_which_there_is_no_memory_holds_no_rows():
    async def main():
        cache = RemoteRows(4, 0, slots=2, row_bytes=1, workers=InlineWorkers())
        await cache.copy_in(np.arange(2, 4), [NONE, PLACES[:2]], torch.ones(2, 1).byte())
        given = {"empty": Mock(side_effect=MemoryError("no memory")), "kept": {"x": cache}}
        sends, owners = [lambda *sent: None] * 2, {"x": Owners(4, 2, 1)}
        buffer = ExchangedBuffer(owners, {"x": 1}, ArenaShape(1, (4,)), sends, **given)
        buffer.begin_epoch()
        buffer.announce(0, {"x": np.arange(2, 4)})
        assert cache.table.available == 0
        (ticket,) = buffer.join([(0, {})])
        with pytest.raises(MemoryError, match="no memory"):
            await buffer.granted(ticket)
        assert cache.table.available == 2

    run(main())


def test_a_closed_loader_keeps_no_memory():
    kept = {"x": RemoteRows(100, 0, slots=8, row_bytes=1, workers=InlineWorkers())}
    memory = weakref.ref(kept["x"]._memory)
    buffer = ExchangedBuffer({}, {}, ArenaShape(1, ()), [print] * 2, kept=kept)
    kept.clear()
    assert memory() is not None
    pool = SimpleNamespace(close=AsyncMock())
    threads = {"_copiers": Mock(), "_allocating": Mock()}
    closed = SimpleNamespace(buffer=buffer, drain=AsyncMock(), _pool=pool, **threads)
    run(ExchangeBuffers.close(closed))
    assert memory() is None
