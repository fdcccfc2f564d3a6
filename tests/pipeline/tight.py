"""Tests in a virtual loop, with a buffer of few slots, leases, and a tier that refuses."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, told_rows

SLOTS = 16


def in_virtual_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate a test that runs in a `VirtualLoop`, where a deadlock is an error."""

    @functools.wraps(test)
    def in_loop(*given: Any, **fixtures: Any) -> None:
        run(test(*given, **fixtures))

    return in_loop


def ids(start: int, stop: int, step: int = 1) -> Int64Array:
    return np.arange(start, stop, step, dtype=np.int64)


@asynccontextmanager
async def closing(simulation: Simulation) -> AsyncIterator[Simulation]:
    """At its end every slot must be free or on standby."""
    yield simulation
    await simulation.close()


def simulation_of(
    rows: TableFile, part_rows: int = 2, slots: int = SLOTS, policy: Policy | None = None
) -> AbstractAsyncContextManager[Simulation]:
    scenario = Scenario(rows, slots=slots, part_rows=part_rows, policy=policy or LRU())
    return closing(Simulation(scenario, seed=0))


@asynccontextmanager
async def buffer_of(
    simulation: Simulation, tables: dict[str, Any], *part_rows: int
) -> AsyncIterator[FeatureBuffer]:
    """A buffer of other tables on the simulation's disk; at its end every slot must be there."""
    buffer = FeatureBuffer(tables, *part_rows)
    slots = [table.available for table in tables.values()]
    yield buffer
    await buffer.drain()
    buffer.verify()
    assert buffer.idle
    assert [table.available for table in tables.values()] == slots
    await buffer.aclose()
    await simulation.close()


async def use(simulation: Simulation, lease: Lease, wanted: Int64Array) -> None:
    """Wait for the lease's rows, compare them, release."""
    await lease.ready()
    row_bytes = simulation.scenario.file.row_bytes
    assert np.array_equal(simulation.gathered(lease), told_rows(wanted, row_bytes))
    lease.release()


def short_of_memory(patch: pytest.MonkeyPatch, owner: Any, name: str, calls: range) -> None:
    """Make the calls of `owner.name` with these numbers raise MemoryError."""
    made, numbers = getattr(owner, name), count()

    def short(*given: Any) -> Any:
        if next(numbers) in calls:
            raise MemoryError("no memory")
        return made(*given)

    patch.setattr(owner, name, short)


def loads(simulation: Simulation) -> int:
    return int(simulation.table.stats()["loads"])


class Refusing(Tier):
    """Passes fetches on to `below`, except those of a row in `rows` and the one with number
    `call`."""

    name = "refusing"

    def __init__(
        self, below: Tier, rows: Collection[int] = (), call: int = -1, error: Any = None
    ) -> None:
        self.below, self.path, self.left = below, below.path, call
        self.refused, self.error = set(rows), error or MemoryError("no memory for the reads")

    @classmethod
    def make(cls, context: TierContext) -> Refusing:
        raise NotImplementedError("made by hand")

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        self.left -= 1
        if self.left == -1 or self.refused & set(rows.tolist()):
            raise self.error
        return self.below.fetch(rows, places, landing)
