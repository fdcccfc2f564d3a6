"""Sweeps: batches admitted together, and the pipeline with sweeps and look-ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, simulate
from tests.pipeline.scenarios import expected_nodes
from tests.pipeline.tight import closing, ids, use

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=2)
READ_ROWS = 8  # to a sector
PARTS = pytest.mark.parametrize("part_rows", [4, 100])  # many, and none


def simulation_of(
    rows: TableFile, slots: int, part_rows: int = 4
) -> AbstractAsyncContextManager[Simulation]:
    scenario = Scenario(rows, slots=slots, policy=Belady(), part_rows=part_rows)
    return closing(Simulation(scenario, seed=0))


# ---- sweeps


def test_a_sweep_is_one_pass(rows: TableFile) -> None:
    """Two batches need every other row of the same sectors: each sector is read once."""

    async def main() -> None:
        async with simulation_of(rows, 64, part_rows=64) as simulation:
            wanted = [ids(0, 64, 2), ids(1, 64, 2)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            leases = [await simulation.buffer.granted(ticket) for ticket in tickets]
            for one, lease in zip(wanted, leases, strict=True):
                await use(simulation, lease, one)
            assert simulation.engine.stats()["requests"] == 64 / READ_ROWS / 8  # 4,096 bytes each
            assert simulation.table.stats()["admitted"] == 1

    run(main())


@PARTS
@pytest.mark.parametrize("together", [2, 3])
def test_batches_that_do_not_fit_together_are_admitted_one_by_one(
    rows: TableFile, together: int, part_rows: int
) -> None:
    async def main() -> None:
        async with simulation_of(rows, 16 * together - 1, part_rows) as simulation:
            wanted = [ids(16 * n, 16 * n + 16) for n in range(together)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            assert [ticket.granted.done() for ticket in tickets] == [True] * (together - 1) + [
                False
            ]
            for one, ticket in zip(wanted, tickets, strict=True):
                lease = await simulation.buffer.granted(ticket)
                await use(simulation, lease, one)

    run(main())


@PARTS
@pytest.mark.parametrize(
    ("bad", "error"),
    [(ids(190, 210), IndexError), (ids(0, 40), ConfigError)],
    ids=["range", "size"],
)
def test_a_refused_batch_does_not_fail_the_others(
    rows: TableFile, bad: Int64Array, error: type[Exception], part_rows: int
) -> None:
    async def main() -> None:
        async with simulation_of(rows, 32, part_rows) as simulation:
            wanted = [ids(0, 16), bad, ids(16, 32)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            for number, (one, ticket) in enumerate(zip(wanted, tickets, strict=True)):
                if number == 1:
                    with pytest.raises(error):
                        await simulation.buffer.granted(ticket)
                    continue
                lease = await simulation.buffer.granted(ticket)
                await use(simulation, lease, one)

    run(main())


@PARTS
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_one_of_a_waiting_sweep_may_leave(rows: TableFile, gone: int, part_rows: int) -> None:
    async def main() -> None:
        async with simulation_of(rows, 48, part_rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(100, 130)})
            wanted = [ids(16 * n, 16 * n + 16) for n in range(3)]
            tickets = buffer.join([(None, {"x": one}) for one in wanted])
            waiting = [asyncio.ensure_future(buffer.granted(ticket)) for ticket in tickets]
            await asyncio.sleep(0)
            waiting[gone].cancel()
            await asyncio.wait([waiting[gone]])
            await first.ready()
            first.release()
            for number, task in enumerate(waiting):
                if number != gone:
                    lease = await task
                    await lease.ready()
                    lease.release()

    run(main())


@PARTS
def test_the_missing_share(rows: TableFile, part_rows: int) -> None:
    async def main() -> None:
        async with simulation_of(rows, 24, part_rows) as simulation:
            shares = []
            held = await simulation.buffer.lease({"x": ids(100, 102)})
            for wanted in (ids(0, 16), ids(0, 16), ids(8, 24)):
                waiting = asyncio.ensure_future(simulation.buffer.lease({"x": wanted}))
                await asyncio.sleep(0)
                if not held.released:
                    held.release()
                lease = await waiting
                await lease.ready()
                lease.release()
                shares.append(simulation.buffer.missing_share)
            assert shares == [1.0, 0.0, 0.5]

    run(main())


# ---- the pipeline with both


@pytest.fixture(params=[(1, Belady), (2, Belady), (3, LRU), (None, Belady)], ids=str)
def variant(request: pytest.FixtureRequest) -> Callable[[Scenario], Scenario]:
    sweep, policy = request.param

    def of(scenario: Scenario) -> Scenario:
        return replace(
            scenario, stages=replace(scenario.stages, sweep=sweep), policy=policy(), faults=NOISE
        )

    return of


@pytest.mark.parametrize("slots", [0, 20, 40, 200])
def test_batches_are_the_same(
    rows: TableFile, variant: Callable[[Scenario], Scenario], slots: int
) -> None:
    scenario = Scenario(rows, slots=slots, stages=Stages(4, 4, 6, 6))
    for seed in range(20):
        got = simulate(variant(scenario), seed, epochs=1)
        assert [(b.index, b.node.tolist()) for b in got] == expected_nodes(scenario, seed)


@pytest.mark.parametrize("slots", [0, 20, 40, 200])
def test_batches_one_by_one_are_the_same(rows: TableFile, slots: int) -> None:
    scenario = Scenario(rows, slots=slots, stages=Stages(1, 1, 1, 1, sweep=1))
    for seed in range(10):
        got = [(b.index, b.node.tolist()) for b in simulate(scenario, seed)]
        assert got == expected_nodes(scenario, seed)


@pytest.mark.parametrize("queues", [(1, 1), (1, 4), (6, 1), (2, 2), (3, 9)])
@pytest.mark.parametrize("in_order", [True, False])
def test_queues_shorter_than_a_sweep(
    rows: TableFile, queues: tuple[int, int], in_order: bool
) -> None:
    for seed in range(10):
        for sweep in (None, 3):
            stages = Stages(2, 3, *queues, in_order, sweep)
            scenario = Scenario(rows, slots=50, stages=stages, policy=Belady(), faults=NOISE)
            assert sorted(b.index for b in simulate(scenario, seed)) == list(range(20))


def test_epochs_follow_each_other(rows: TableFile, variant: Callable[[Scenario], Scenario]) -> None:
    for seed in range(20):
        assert len(simulate(variant(Scenario(rows, slots=60)), seed, epochs=3)) == 60
