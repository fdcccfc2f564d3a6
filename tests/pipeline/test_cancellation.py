"""Cancelling at every await: every slot comes back, and every started read is waited for."""

import asyncio
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline.turns import Wait, cancel_after_each_turn

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=2)
SWEEPS = {"slots": 40, "policy": Belady(), "stages": Stages(4, 2, 6, 6, sweep=3)}
COMBINED = {"slots": 40, "together": 3, "stages": Stages(3, 2, 4, 4)}


def cancelled_epochs(scenario: Scenario, seed: int) -> int:
    """How many epochs were cancelled, each at other awaits (see `turns`); they leave nothing."""

    async def main(wait: Wait) -> bool:
        simulation = Simulation(scenario, seed)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        consumer = asyncio.ensure_future(simulation.consume(epoch))
        await wait()
        ended = consumer.done()
        epoch.output.abandon()
        running.cancel()
        await asyncio.wait([running])
        await asyncio.wait([consumer])
        await simulation.close()  # checks that each slot is free or on standby
        return ended

    return cancel_after_each_turn(main, 2000)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "given", [{}, SWEEPS, COMBINED], ids=["paper", "sweeps", "combined fetches"]
)
def test_an_epoch_cancelled_after_any_turn(
    rows: TableFile, seed: int, given: dict[str, Any]
) -> None:
    scenario = Scenario(rows, batches=6, faults=NOISE, **given)

    assert cancelled_epochs(scenario, seed) > 30


@pytest.mark.parametrize("seed", range(5))
def test_a_lease_cancelled_after_any_turn(rows: TableFile, seed: int) -> None:
    """Three leases over overlapping rows; the second is cancelled: waiting, just granted or
    loading.
    """

    async def main(wait: Wait) -> bool:
        simulation = Simulation(Scenario(rows, slots=24, faults=NOISE), seed)
        buffer = simulation.buffer

        async def use(start: int) -> None:
            ids = np.arange(start, start + 16, dtype=np.int64)
            lease = await buffer.lease({"x": ids})
            try:
                await lease.ready()
                await asyncio.sleep(0)
            finally:
                lease.release()

        users = [asyncio.ensure_future(use(start)) for start in (0, 8, 20)]
        await wait()
        ended = users[1].done()
        users[1].cancel()
        await asyncio.wait(users)
        assert users[0].exception() is None
        assert users[2].exception() is None
        await simulation.close()
        return ended

    assert cancel_after_each_turn(main, 500) > 5


def test_a_fetch_of_a_released_lease_keeps_its_slots_until_it_ends(rows: TableFile) -> None:
    """Rule 6: with every slot still loading for a cancelled lease, the next waits for the
    completions.
    """

    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=16), 0)
        engine, buffer = simulation.engine, simulation.buffer
        engine.paused = True
        lease = await buffer.lease({"x": np.arange(16)})
        lease.release()
        other = asyncio.ensure_future(buffer.lease({"x": np.arange(100, 116)}))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not other.done()
        assert simulation.table.available == 0
        engine.paused = False
        granted = await other
        await granted.ready()
        granted.release()
        await simulation.close()

    run(main())


def test_draining_cancels_what_was_not_started(rows: TableFile) -> None:
    """Closing does not read a whole batch first: extents in flight end, the rest is cancelled."""

    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=200, depth=2), 0)
        ids = np.arange(0, 200, 16, dtype=np.int64)
        lease = await simulation.buffer.lease({"x": ids})
        await simulation.buffer.drain()
        assert simulation.engine.stats()["requests"] <= 4
        with pytest.raises(ClosedError):
            await lease.ready()
        lease.release()
        await simulation.close()

    run(main())
