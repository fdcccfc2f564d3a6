"""The pipeline with places for whole batches and rows that never leave the buffer."""

import asyncio

import numpy as np
import pytest

from gnndrive.buffer import place_table
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.place_table import PlaceTable
from gnndrive.common.errors import ClosedError, ReadError
from gnndrive.disk.engines.simulated import Faults
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline import scenarios
from tests.pipeline.scenarios import PLACES, lease_once, run_one
from tests.pipeline.tight import Refusing, buffer_of, ids, in_virtual_loop

RESIDENTS, PLACE_ROWS = 20, 16
NONE = np.empty(0, np.int64)
SCENARIOS = (
    scenarios.epoch_ends_well, scenarios.narrow_queues_end_well, scenarios.failing_epoch_ends,
    scenarios.cancelled_leases_come_back, scenarios.cancelled_leases_among_many_slots,
    scenarios.few_staging_blocks_end_well, scenarios.granted_and_cancelled_in_one_turn,
    scenarios.two_epochs_in_one_task, scenarios.closing_waits_for_the_kernel,
)  # fmt: skip


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


@in_virtual_loop
async def test_a_batch_has_the_errors_of_its_own_rows(rows):
    """A batch without rows of a table has no error of another batch that needs the table."""
    faults = Faults(eio_offsets=((100 * rows.row_bytes, 101 * rows.row_bytes),), delay_turns_max=4)
    simulation = Simulation(Scenario(rows, places=1, faults=faults), 0)
    tables = {
        name: PlaceTable(
            rows.row_count, residents, 2, PLACE_ROWS, rows.row_bytes,
            Host().allocate(RESIDENTS + 2 * PLACE_ROWS, rows.row_bytes), simulation.table.tier,
        )
        for name, residents in (("one", RESIDENTS), ("two", 0))
    }  # fmt: skip
    async with buffer_of(simulation, tables) as buffer:
        buffer.begin_residents()
        wanted = (ids(0, 30), NONE), (ids(40, 50), ids(96, 104)), (ids(60, 70), NONE)
        users = [
            asyncio.ensure_future(lease_once(simulation, {"one": a, "two": b}, buffer=buffer))
            for a, b in wanted
        ]
        await asyncio.wait(users)
        assert isinstance(users[1].exception(), ReadError)
        users[0].result()
        users[2].result()


# ---- residents whose fetch is refused


@pytest.mark.parametrize("passed", [0, 1, 2])
@in_virtual_loop
async def test_residents_whose_fetch_is_refused(rows, passed, monkeypatch):
    """Or that of a batch, which has an error at its turn. The next epoch reads what is missing."""
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", 9)
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


@in_virtual_loop
async def test_a_closed_engine_refuses_residents(rows):
    simulation = Simulation(Scenario(rows, batches=4, **PLACES), 0)
    await simulation.buffer.drain()
    error = ClosedError("the engine was closed")
    simulation.table.tier = Refusing(simulation.table.tier, call=0, error=error)
    simulation.buffer.begin_residents()
    simulation.buffer.raise_if_broken()
    await simulation.close()
