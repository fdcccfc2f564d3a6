"""A simulation whose buffer holds few rows, and what its tests do with leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np

from gnndrive.buffer.lease import Lease
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.testing.simulation import Scenario, Simulation, told_rows

SLOTS = 16


def ids(start: int, stop: int, step: int = 1) -> Int64Array:
    return np.arange(start, stop, step, dtype=np.int64)


@asynccontextmanager
async def closing(simulation: Simulation) -> AsyncIterator[Simulation]:
    """At its end every slot must be free or on standby."""
    yield simulation
    await simulation.close()


def simulation_of(rows: TableFile, part_rows: int = 2) -> AbstractAsyncContextManager[Simulation]:
    return closing(Simulation(Scenario(rows, slots=SLOTS, part_rows=part_rows), seed=0))


async def use(simulation: Simulation, lease: Lease, wanted: Int64Array) -> None:
    """Wait for the lease's rows, compare them, release."""
    await lease.ready()
    row_bytes = simulation.scenario.file.row_bytes
    assert np.array_equal(simulation.gathered(lease), told_rows(wanted, row_bytes))
    lease.release()


def loads(simulation: Simulation) -> int:
    return int(simulation.table.stats()["loads"])
