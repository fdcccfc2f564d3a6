"""Sweeps and look-ahead: batches admitted together, and rows kept for batches that are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from gnndrive.engines.simulated import Faults
from gnndrive.errors import ConfigError
from gnndrive.pipeline.epoch import Stages
from gnndrive.policies.base import NO_USE
from gnndrive.policies.belady import Belady
from gnndrive.policies.lru import LRU
from gnndrive.records import Int64Array, TableFile
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, simulate, told_rows

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=2)
READ_ROWS = 8  # to a sector
PARTS = pytest.mark.parametrize("part_rows", [4, 100])  # many, and none


@asynccontextmanager
async def simulation_of(
    rows: TableFile, slots: int, part_rows: int = 4
) -> AsyncIterator[Simulation]:
    scenario = Scenario(rows, slots=slots, policy=Belady(), part_rows=part_rows)
    simulation = Simulation(scenario, seed=0)
    yield simulation
    await simulation.close()


def ids(start: int, stop: int, step: int = 1) -> Int64Array:
    return np.arange(start, stop, step, dtype=np.int64)


# ---- sweeps


def test_a_sweep_is_one_pass(rows: TableFile) -> None:
    """Two batches that want every other row of the same sectors: each sector is read once."""

    async def main() -> None:
        async with simulation_of(rows, 64, part_rows=64) as simulation:
            wanted = [ids(0, 64, 2), ids(1, 64, 2)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            leases = [await simulation.buffer.granted(ticket) for ticket in tickets]
            for one, lease in zip(wanted, leases, strict=True):
                await lease.ready()
                assert np.array_equal(simulation.gathered(lease), told_rows(one, rows.row_bytes))
                lease.release()
            assert simulation.engine.stats()["requests"] == 64 / READ_ROWS / 8  # 4,096 bytes each
            assert simulation.table.stats()["admitted"] == 1

    run(main())


@PARTS
@pytest.mark.parametrize("together", [2, 3])
def test_what_does_not_fit_together_comes_one_after_the_other(
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
                await lease.ready()
                assert np.array_equal(simulation.gathered(lease), told_rows(one, rows.row_bytes))
                lease.release()

    run(main())


@PARTS
@pytest.mark.parametrize(
    ("bad", "error"),
    [(ids(190, 210), IndexError), (ids(0, 40), ConfigError)],
    ids=["range", "size"],
)
def test_a_batch_at_fault_does_not_take_the_others_along(
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
                await lease.ready()
                assert np.array_equal(simulation.gathered(lease), told_rows(one, rows.row_bytes))
                lease.release()

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
def test_how_much_was_missing(rows: TableFile, part_rows: int) -> None:
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


# ---- look-ahead


async def visit(simulation: Simulation, index: int | None, wanted: Int64Array) -> int:
    """Lease, wait and release; how many rows had to be read."""
    before = simulation.table.stats()["loads"]
    (ticket,) = simulation.buffer.join([(index, {"x": wanted})])
    lease = await simulation.buffer.granted(ticket)
    await lease.ready()
    lease.release()
    return simulation.table.stats()["loads"] - before


def test_what_a_known_batch_wants_stays(rows: TableFile) -> None:
    """With room for two batches of three: LRU would give up the very rows that come next."""

    async def main() -> None:
        async with simulation_of(rows, 16) as simulation:
            parts = {0: ids(0, 8), 1: ids(8, 16), 2: ids(16, 24), 3: ids(0, 8)}
            for index, wanted in parts.items():
                simulation.buffer.foresee(index, {"x": wanted})
            loads = [await visit(simulation, index, wanted) for index, wanted in parts.items()]
            assert loads == [8, 8, 8, 0]

    run(main())


def test_a_batch_known_late_keeps_what_is_there(rows: TableFile) -> None:
    """The sample comes after the rows were retired: their keys are raised on standby."""

    async def main() -> None:
        async with simulation_of(rows, 16) as simulation:
            for index, wanted in enumerate((ids(0, 8), ids(8, 16))):
                simulation.buffer.foresee(index, {"x": wanted})
                await visit(simulation, index, wanted)
            simulation.buffer.foresee(3, {"x": ids(0, 8)})
            simulation.buffer.foresee(2, {"x": ids(16, 24)})
            assert await visit(simulation, 2, ids(16, 24)) == 8
            assert await visit(simulation, 3, ids(0, 8)) == 0

    run(main())


def test_a_batch_that_will_not_come_keeps_nothing(rows: TableFile) -> None:
    async def main() -> None:
        async with simulation_of(rows, 16) as simulation:
            await visit(simulation, None, ids(0, 8))
            await visit(simulation, None, ids(8, 16))
            simulation.buffer.foresee(7, {"x": ids(0, 8)})
            simulation.buffer.forget(7, {"x": ids(0, 8)})
            await visit(simulation, None, ids(16, 24))
            await visit(simulation, None, ids(24, 32))
            assert await visit(simulation, None, ids(16, 24)) == 0, "LRU order again"

    run(main())


class Asked(Belady):
    """Notes which next uses it is asked the keys of."""

    def keys(self, next_use: Int64Array) -> Int64Array:
        self.known = set(next_use.tolist())
        return super().keys(next_use)


def test_a_policy_is_asked_anew_when_what_is_known_changes(rows: TableFile) -> None:
    async def main() -> None:
        policy = Asked()
        simulation = Simulation(Scenario(rows, slots=16, policy=policy), seed=0)
        buffer, wanted = simulation.buffer, {"x": ids(0, 8)}
        assert policy.known == {NO_USE}
        for index in (5, 7, 6):
            buffer.foresee(index, wanted)
        assert policy.known == {5, 6, 7, NO_USE}
        buffer.forget(6, wanted)
        assert policy.known == {5, 7, NO_USE}
        await visit(simulation, 5, wanted["x"])
        assert policy.known == {7, NO_USE}
        buffer.forget(7, wanted)
        await simulation.close()

    run(main())


@pytest.mark.parametrize("early", [False, True], ids=["at the gate", "in line"])
def test_a_batch_that_leaves_the_gate_keeps_nothing(rows: TableFile, early: bool) -> None:
    """It waited for slots when its epoch was broken off; the next epoch's indices start at 0."""

    async def main() -> None:
        async with simulation_of(rows, 16, part_rows=100) as simulation:  # nothing by parts
            buffer = simulation.buffer
            await visit(simulation, None, ids(0, 8))
            held = await buffer.lease({"x": ids(8, 16)})
            await held.ready()
            wanted = [ids(32, 48)] * early + [np.concatenate([ids(0, 8), ids(16, 20)])]
            for index, one in enumerate(wanted):
                buffer.foresee(index, {"x": one})
            tickets = [buffer.join([(i, {"x": one})])[0] for i, one in enumerate(wanted)]
            for ticket in reversed(tickets):
                assert not ticket.granted.done()
                buffer.leave(ticket)
            held.release()
            await visit(simulation, None, ids(16, 24))
            assert await visit(simulation, None, ids(8, 16)) == 0

    run(main())


def test_more_batches_than_the_window_holds(rows: TableFile) -> None:
    """Those beyond it come in as places come free, the nearest first."""

    async def main() -> None:
        async with simulation_of(rows, 16) as simulation:
            parts = {index: ids(8 * (index % 3), 8 * (index % 3) + 8) for index in range(20)}
            for index, wanted in parts.items():
                simulation.buffer.foresee(index, {"x": wanted})
            assert simulation.table.foreseen == 20
            loads = [await visit(simulation, index, wanted) for index, wanted in parts.items()]
            assert sum(loads) == 8 * optimum([[index % 3] for index in parts], 2)

    run(main())


def optimum(batches: list[list[int]], slots: int) -> int:
    """Loads of Belady's rule when every batch is known from the start, one after the other."""
    held: set[int] = set()
    loads = 0
    for index, wanted in enumerate(batches):
        missing = set(wanted) - held
        loads += len(missing)

        def next_use(row: int, index: int = index) -> int:
            return next((k for k in range(index + 1, len(batches)) if row in batches[k]), 10**6)

        evictable = sorted(held - set(wanted), key=next_use)
        while len(held) + len(missing) > slots:
            held.discard(evictable.pop())
        held |= missing
    return loads


def test_with_all_batches_known_it_is_the_optimum(rows: TableFile) -> None:
    draw = np.random.default_rng(3)
    better = 0
    for _ in range(40):
        batches = [draw.choice(30, 6, replace=False).astype(np.int64) for _ in range(8)]

        async def main(batches: list[Int64Array] = batches) -> list[int]:
            loads = []
            for policy in (Belady(), LRU()):
                simulation = Simulation(Scenario(rows, slots=14, policy=policy), seed=0)
                for index, wanted in enumerate(batches):
                    simulation.buffer.foresee(index, {"x": wanted})
                for index, wanted in enumerate(batches):
                    await visit(simulation, index, wanted)
                loads.append(simulation.table.stats()["loads"])
                await simulation.close()
            return loads

        belady, lru = run(main())
        assert belady == optimum([wanted.tolist() for wanted in batches], 14)
        better += belady < lru
    assert better > 20


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
    for seed in range(40):
        expected = simulate(replace(scenario, stages=Stages(1, 1, 1, 1, sweep=1)), seed)
        got = simulate(variant(scenario), seed, epochs=1)
        assert [(b.index, b.node.tolist()) for b in got] == [
            (b.index, b.node.tolist()) for b in expected
        ]


@pytest.mark.parametrize("queues", [(1, 1), (1, 4), (6, 1), (2, 2), (3, 9)])
@pytest.mark.parametrize("in_order", [True, False])
def test_queues_shorter_than_a_sweep(
    rows: TableFile, queues: tuple[int, int], in_order: bool
) -> None:
    for seed in range(20):
        for sweep in (None, 3):
            stages = Stages(2, 3, *queues, in_order, sweep)
            scenario = Scenario(rows, slots=50, stages=stages, policy=Belady(), faults=NOISE)
            assert sorted(b.index for b in simulate(scenario, seed)) == list(range(20))


def test_epochs_follow_each_other(rows: TableFile, variant: Callable[[Scenario], Scenario]) -> None:
    for seed in range(20):
        assert len(simulate(variant(Scenario(rows, slots=60)), seed, epochs=3)) == 60
