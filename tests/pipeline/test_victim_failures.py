"""Copies out of slots that are refused, fail, or are cancelled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices._staged import StagedVictims
from gnndrive.buffer.devices.simulated_cuda import SimulatedDriver
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import TableFile
from gnndrive.disk.tiers._victims import Victims
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline.victims import SEEDS, count_stats, given, small_buffer

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def device() -> None:
    """Overrides the folder's fixture: the scenarios name the device."""


@pytest.fixture
def counted(monkeypatch: Patch) -> Counter[str]:
    """The counters of all simulations of a test."""
    return count_stats(monkeypatch)


def test_without_memory_for_a_copy_rows_are_read_again(
    rows: TableFile, monkeypatch: Patch, counted: Counter[str]
) -> None:
    """Every second copy is refused, and its places are free again."""
    copy_out, calls = SimulatedDriver.copy_out, iter(range(1 << 30))

    def refusing(driver: SimulatedDriver, *given: Any) -> Any:
        if next(calls) % 2:
            raise MemoryError("none is left")
        return copy_out(driver, *given)

    monkeypatch.setattr(SimulatedDriver, "copy_out", refusing)
    for seed in range(SEEDS):
        small_buffer(rows, seed)
    assert counted["served"] > 0


@pytest.mark.parametrize("late", [False, True], ids=["at once", "behind it"])
def test_a_copy_that_fails_breaks_the_batches_that_need_its_rows(
    rows: TableFile, monkeypatch: Patch, late: bool
) -> None:
    """Whether it fails when it is begun or later: its places are never used, and slots come
    back."""

    async def gone() -> None:
        raise RuntimeError("the device is gone")

    def failing(memory: Any, slots: Any, places: Any) -> Any:
        if late:
            return gone
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(StagedVictims, "copy_out", failing)

    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=16, part_rows=100, **given()), 1)
        buffer = simulation.buffer
        first, other = ({"x": part} for part in np.split(np.arange(32), 2))
        lease = await buffer.lease(first)
        await lease.ready()
        lease.release()
        buffer.announce(3, first)
        outcome = []
        for wanted in (other, first):
            try:
                lease = await buffer.lease(wanted)
                try:
                    await lease.ready()
                finally:
                    lease.release()
                outcome.append("served")
            except RuntimeError as error:
                outcome.append(str(error))
        # Without a copy the first lease is refused, and the rows of the second are read.
        assert outcome == (["served", "the device is gone"] if late else ["the device is gone"] * 2)
        buffer.withdraw(3, first)
        tier = simulation.table.tier
        assert isinstance(tier, Victims)
        await buffer.drain()
        await tier.aclose()
        assert not tier._copies_out
        assert not tier._copies_back

    run(main())


def test_a_copy_that_is_cancelled_from_outside_counts_as_failed(rows: TableFile) -> None:
    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=16, part_rows=100, **given()), 1)
        buffer, tier = simulation.buffer, simulation.table.tier
        assert isinstance(tier, Victims)
        first, other = ({"x": part} for part in np.split(np.arange(32), 2))
        lease = await buffer.lease(first)
        await lease.ready()
        lease.release()
        buffer.announce(3, first)
        lease = await buffer.lease(other)
        for task in tier._copies_out:
            task.cancel()
        await lease.ready()
        lease.release()
        lease = await buffer.lease(first)
        with pytest.raises(ClosedError, match="a copy was cancelled"):
            await lease.ready()
        await buffer.drain()
        await tier.aclose()

    run(main())
