"""A tier whose fetch raises: the caller gets the error, every slot comes back, and the next lease
works.

Rows that an admission granted but that no fetch was started for must fail at once, or they would
be loading for ever. Batches are admitted from three places: `lease` itself, a release, and a fetch
that lands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive.buffer.fetch_queue
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ReadError
from gnndrive.common.records import TableFile
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, told_rows
from tests.pipeline.tight import Refusing, closing, ids, simulation_of, use


@asynccontextmanager
async def refusing(rows: TableFile, *refused: int) -> AsyncIterator[Simulation]:
    """A simulation of 16 slots whose disk refuses those rows; no batch is admitted in
    parts, and every slot must be back at its end."""
    simulation = Simulation(Scenario(rows, slots=16, part_rows=16), seed=0)
    simulation.table.tier = Refusing(simulation.table.tier, refused)
    yield simulation
    await simulation.close()


def test_a_fetch_refused_in_lease(rows):
    async def main() -> None:
        async with refusing(rows, 20) as simulation:
            with pytest.raises(MemoryError, match="no memory for the reads"):
                await simulation.buffer.lease({"x": ids(16, 32)})
            assert simulation.table.stats()["free"] == 16
            lease = await simulation.buffer.lease({"x": ids(0, 16)})
            await use(simulation, lease, ids(0, 16))

    run(main())


def test_rows_of_another_lease_stay(rows):
    """Half of the rows are being loaded for another lease, which still gets them."""

    async def main() -> None:
        async with refusing(rows, 20) as simulation:
            first = await simulation.buffer.lease({"x": ids(0, 8)})
            with pytest.raises(MemoryError):
                await simulation.buffer.lease({"x": np.concatenate([ids(0, 4), ids(18, 22)])})
            await use(simulation, first, ids(0, 8))

    run(main())


def test_a_fetch_refused_in_a_release(rows):
    """The release succeeds; the waiting batch gets the error, and the next one is admitted."""

    async def main() -> None:
        async with refusing(rows, 20) as simulation:
            first = await simulation.buffer.lease({"x": ids(0, 16)})
            waiting = [
                asyncio.ensure_future(simulation.buffer.lease({"x": asked}))
                for asked in (ids(16, 32), ids(32, 48))
            ]
            await use(simulation, first, ids(0, 16))
            with pytest.raises(MemoryError):
                await waiting[0]
            await use(simulation, await waiting[1], ids(32, 48))

    run(main())


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_batch_leaves_a_waiting_sweep(rows, gone, cancelled):
    """The other batch does not wait for its rows. A cancelled batch is still in the queue when the
    head of its sweep is tried again."""

    async def main() -> None:
        async with simulation_of(rows, part_rows=16) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 12)})
            wanted = [ids(20, 28), ids(28, 36)]
            tickets = buffer.join([(None, {"x": one}) for one in wanted])
            await first.ready()
            if cancelled:
                tickets[gone].granted.cancel()
                first.release()
                buffer.leave(tickets[gone])
            else:
                buffer.leave(tickets[gone])
                first.release()
            await use(simulation, await buffer.granted(tickets[1 - gone]), wanted[1 - gone])
            await use(simulation, await buffer.lease({"x": ids(40, 56)}), ids(40, 56))

    run(main())


@pytest.mark.parametrize("part_rows", [2, 100])
def test_when_a_ticket_leaves_the_next_is_tried_at_once(rows, part_rows):
    """Nothing else happens that would make the gate try again (rule 4)."""

    async def main() -> None:
        async with simulation_of(rows, part_rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 12)})
            (large,) = buffer.join([(None, {"x": ids(20, 36)})])
            (small,) = buffer.join([(None, {"x": ids(40, 44)})])
            await first.ready()
            for _ in range(50):
                await asyncio.sleep(0)
            assert not buffer.loading
            assert buffer.in_parts is (part_rows == 2)
            assert not small.granted.done()
            buffer.leave(large)
            assert small.granted.done()
            await use(simulation, await buffer.granted(small), ids(40, 44))
            first.release()

    run(main())


def test_a_fetch_refused_when_another_lands(rows):
    """Slots of a released lease become free when their reads end; the batch that waits for them
    gets the error, and the fetch that has landed is not affected."""

    async def main() -> None:
        async with refusing(rows, 20) as simulation:
            unwanted = await simulation.buffer.lease({"x": ids(0, 16)})
            unwanted.release()
            with pytest.raises(MemoryError):
                await simulation.buffer.lease({"x": ids(16, 32)})
            lease = await simulation.buffer.lease({"x": ids(32, 48)})
            await use(simulation, lease, ids(32, 48))
            simulation.buffer.raise_if_broken()

    run(main())


@pytest.mark.parametrize("refused", ["one", "two"])
def test_a_fetch_refused_by_one_of_two_tables(rows, refused):
    """The other table's rows are read all the same and can be hit later."""

    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=16), seed=0)
        tables = {}
        for name in ("one", "two"):
            memory = Host().allocate(16, rows.row_bytes)
            tier = Refusing(simulation.table.tier, {20} if name == refused else ())
            tables[name] = SlotTable(rows.row_count, 16, rows.row_bytes, memory, tier, LRU())
        buffer = FeatureBuffer(tables)
        with pytest.raises(MemoryError):
            await buffer.lease({"one": ids(16, 32), "two": ids(16, 32)})
        lease = await buffer.lease({"one": ids(0, 16), "two": ids(0, 16)})
        await lease.ready()
        for name in tables:
            got = lease.gather(name, torch.uint8, (rows.row_bytes,)).numpy()
            assert np.array_equal(got, told_rows(ids(0, 16), rows.row_bytes))
        lease.release()
        await buffer.drain()
        buffer.verify()
        for table in tables.values():
            stats = table.stats()
            assert stats["free"] + stats["standby"] == 16
        await buffer.aclose()
        await simulation.close()

    run(main())


def short_of_memory(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: range) -> None:
    """Make the calls of `owner.name` with these numbers raise MemoryError."""
    made, numbers = getattr(owner, name), count()

    def short(*given: Any) -> Any:
        if next(numbers) in calls:
            raise MemoryError("no memory to land in")
        return made(*given)

    monkeypatch.setattr(owner, name, short)


@pytest.mark.parametrize("part_rows", [4, 100])
@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("what", ["landing", "order"])
def test_no_memory_to_land_in(rows, monkeypatch, device, what, call, part_rows):
    """For the first part, or while others are being read: the caller gets the error, and the next
    batch is admitted."""

    async def main() -> None:
        async with simulation_of(rows, part_rows) as simulation:
            memory: Any = simulation.table.memory
            if device == "simulated-cuda":
                memory.landing_rows_max = 4
            patch: tuple[Any, str] = (memory, "landing") if what == "landing" else (
                gnndrive.buffer.fetch_queue, "_in_file_order")  # fmt: skip
            short_of_memory(monkeypatch, *patch, range(call, call + 1))
            errors = 0
            for start in (0, 16, 32):
                try:
                    lease = await simulation.buffer.lease({"x": ids(start, start + 16)})
                except MemoryError:
                    errors += 1
                else:
                    await use(simulation, lease, ids(start, start + 16))
            assert errors == (device != "host" or what == "landing")

    run(main())


@pytest.mark.parametrize("call", range(8, 14))
@pytest.mark.parametrize("calls", [1, 4])
def test_no_memory_to_land_in_for_rows_that_wait_for_staging(rows, monkeypatch, call, calls):
    """These rows fail; the rows that wait behind them are fetched, and the next lease gets all."""

    async def main() -> None:
        scenario = Scenario(rows, slots=64, device="simulated-cuda", part_rows=100)
        async with closing(Simulation(scenario, seed=0)) as simulation:
            memory: Any = simulation.table.memory
            memory.landing_rows_max = 4
            short_of_memory(monkeypatch, memory, "landing", range(call, call + calls))
            lease = await simulation.buffer.lease({"x": ids(0, 64)})
            with pytest.raises(ReadError, match=r"ENOMEM.*free some memory"):
                await lease.ready()
            lease.release()
            await use(simulation, await simulation.buffer.lease({"x": ids(0, 64)}), ids(0, 64))

    run(main())
