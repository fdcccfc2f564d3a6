"""The pipeline with places for whole batches and rows that never leave the buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

from gnndrive.buffer import place_table
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.place_table import PlaceTable
from gnndrive.common.errors import ClosedError, ReadError
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, told_rows
from tests.pipeline import scenarios
from tests.pipeline.scenarios import NOISE, PLACES, run_one
from tests.pipeline.tight import Refusing, ids, in_virtual_loop

RESIDENTS, PLACE_ROWS = 20, 16
NONE = np.empty(0, np.int64)
SCENARIOS = (
    scenarios.epoch_ends_well,
    scenarios.narrow_queues_end_well,
    scenarios.failing_epoch_ends,
    scenarios.cancelled_leases_come_back,
    scenarios.cancelled_leases_among_many_slots,
    scenarios.few_staging_blocks_end_well,
    scenarios.granted_and_cancelled_in_one_turn,
    scenarios.two_epochs_in_one_task,
    scenarios.closing_waits_for_the_kernel,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_all_ends_well(rows, seeds, monkeypatch, scenario):
    """Residents are fetched at once, or nine at a time."""
    for seed in seeds(4):
        monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", (1 << 18, 9)[seed // 2 % 2])
        places, residents = 1 + seed % 3, (60, 5, 0)[seed // 3 % 3]
        if scenario is scenarios.granted_and_cancelled_in_one_turn:
            places = 1  # it needs a full buffer
        scenario(rows, seed, places=places, residents=residents)


# ---- two tables with places behind one gate


@asynccontextmanager
async def two_tables(
    rows: TableFile, seed: int = 0, faults: Faults = NOISE
) -> AsyncIterator[FeatureBuffer]:
    simulation = Simulation(Scenario(rows, places=1, faults=faults), seed)
    slots = RESIDENTS + 2 * PLACE_ROWS
    tables = {
        name: PlaceTable(
            rows.row_count, residents, 2, PLACE_ROWS, rows.row_bytes,
            Host().allocate(slots, rows.row_bytes), simulation.table.tier,
        )
        for name, residents in (("one", RESIDENTS), ("two", 0))
    }  # fmt: skip
    buffer = FeatureBuffer(tables)
    buffer.begin_residents()
    yield buffer
    await buffer.drain()
    buffer.verify()
    assert buffer.idle
    assert [table.available for table in tables.values()] == [2 * PLACE_ROWS] * 2
    await buffer.aclose()
    await simulation.close()


async def use(buffer: FeatureBuffer, rows: TableFile, wanted: dict[str, Int64Array]) -> None:
    lease = await buffer.lease(wanted)
    try:
        await lease.ready()
        for name, asked in wanted.items():
            got = lease.gather(name, torch.uint8, (rows.row_bytes,)).numpy()
            assert np.array_equal(got, told_rows(asked, rows.row_bytes))
        await lease.gathered()
    finally:
        lease.release()


def test_batches_of_both(rows, seeds):
    """Some have no rows of one table or of both; one is cancelled."""

    async def main(seed: int) -> None:
        draw = np.random.default_rng(seed)
        async with two_tables(rows, seed) as buffer:
            users = []
            for _ in range(12):
                counts = draw.choice([0, 3, PLACE_ROWS], 2)
                one, two = (draw.integers(0, 200, count) for count in counts)
                users.append(asyncio.ensure_future(use(buffer, rows, {"one": one, "two": two})))
            for _ in range(int(draw.integers(0, 40))):
                await asyncio.sleep(0)
            gone = users[int(draw.integers(0, 12))]
            gone.cancel()
            await asyncio.wait(users)
            for user in users:
                if user is not gone:
                    user.result()

    for seed in seeds(5):
        run(main(seed))


def test_a_batch_has_the_errors_of_its_own_rows(rows):
    """A batch without rows of a table has no error of another batch that needs the table."""
    faults = Faults(eio_offsets=((100 * rows.row_bytes, 101 * rows.row_bytes),), delay_turns_max=4)

    async def main() -> None:
        async with two_tables(rows, faults=faults) as buffer:
            wanted = [
                {"one": ids(0, 30), "two": NONE},
                {"one": ids(40, 50), "two": ids(96, 104)},
                {"one": ids(60, 70), "two": NONE},
            ]
            users = [asyncio.ensure_future(use(buffer, rows, each)) for each in wanted]
            await asyncio.wait(users)
            assert isinstance(users[1].exception(), ReadError)
            users[0].result()
            users[2].result()

    run(main())


@in_virtual_loop
async def test_all_tables_or_none(rows):
    """A batch without a place in one table takes none of the other."""
    async with two_tables(rows) as buffer:
        first = await buffer.lease({"one": NONE, "two": ids(0, 9)})
        second = await buffer.lease({"one": NONE, "two": ids(0, 9)})
        (ticket,) = buffer.join([(None, {"one": ids(0, 30), "two": ids(0, 3)})])
        assert not ticket.granted.done()
        assert buffer.tables["one"].available == 2 * PLACE_ROWS
        await first.ready()
        first.release()
        (await buffer.granted(ticket)).release()
        await second.ready()
        second.release()


# ---- residents whose fetch is refused


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_residents_whose_fetch_is_refused(rows, passed, monkeypatch):
    """Or that of a batch, which has an error at its turn. The next epoch reads what is missing."""
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", 9)

    async def main() -> None:
        simulation = Simulation(Scenario(rows, batches=4, places=1), 0)
        await simulation.buffer.drain()
        table = simulation.table = PlaceTable(
            200, 60, 2, 16, rows.row_bytes, simulation.device.allocate(92, rows.row_bytes),
            Refusing(simulation.table.tier, call=passed),
        )  # fmt: skip
        simulation.buffer = FeatureBuffer({"x": table})
        _, error = await run_one(simulation)
        assert isinstance(error, ReadError | MemoryError)
        assert "memory" in str(error)
        assert len((await run_one(simulation, 1))[0]) == 4
        await simulation.buffer.drain()
        simulation.buffer.verify()
        await simulation.engine.aclose()

    run(main())


@in_virtual_loop
async def test_a_closed_engine_refuses_residents(rows):
    simulation = Simulation(Scenario(rows, batches=4, **PLACES), 0)
    await simulation.buffer.drain()
    error = ClosedError("the engine was closed")
    simulation.table.tier = Refusing(simulation.table.tier, call=0, error=error)
    simulation.buffer.begin_residents()
    simulation.buffer.raise_if_broken()
    await simulation.close()
