"""Windows that are held in the feature buffer: faults, errors, cancellation, too few slots."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.sampling.schedules.base import Window
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_windows import (
    SimulatedWindows,
    WindowedScenario,
    WindowedSimulation,
    WindowRows,
)
from gnndrive.testing.simulation import Delivered
from tests.pipeline.scenarios import windows_end_well
from tests.pipeline.test_cancellation import NOISE
from tests.pipeline.turns import Wait, cancel_after_each_turn

# Slots that are missing: none, one, a part of the younger window, a part of the only window.
FEW = (0, 1, 13, 38, 47, 60)
GIVEN: dict[str, dict[str, Any]] = {
    "even": {},
    "one window": {"in_window": 10, "few_slots": 200},
    "a partition at a time": {"in_window": 1},
    "uneven": {"parts": 8, "in_window": 3, "batches": 23},
    "nothing kept": {"kept": 0},
    "out of order": {"stages": Stages(sweep=1, in_order=False)},
    "narrow queues": {"stages": Stages(1, 1, 1, 1, sweep=1)},
    "parts of a row": {"part_rows": 1},
    "few batches": {"batches": 3},
}


async def one_epoch(simulation: WindowedSimulation) -> tuple[list[Delivered], Exception | None]:
    """The batches of an epoch, and the error that ends it."""
    epoch = simulation.epoch()
    running = asyncio.ensure_future(run_epoch(epoch))
    delivered: list[Delivered] = []
    error: Exception | None = None
    try:
        while batch := await simulation.consume(epoch, 1):
            delivered += batch
    except (ReadError, StoreError) as caught:
        error = caught
    await asyncio.wait([running])
    await simulation.close()
    return delivered, error


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_windows_end_well(rows: TableFile, given: dict[str, Any]) -> None:
    for seed in range(5):
        wanted = sorted if given.get("stages", Stages()).in_order is False else list
        scenario = WindowedScenario(rows, faults=NOISE, **given)

        async def main(scenario: WindowedScenario = scenario, seed: int = seed) -> list[int]:
            delivered, error = await one_epoch(WindowedSimulation(scenario, seed))
            assert error is None
            return [batch.index for batch in delivered]

        assert wanted(run(main())) == list(range(scenario.batches))


@pytest.mark.parametrize("few", FEW)
def test_slots_are_missing(rows: TableFile, few: int) -> None:
    for seed in range(6):
        windows_end_well(rows, seed, few_slots=few)


def test_rows_are_read_once_and_batches_find_them(rows: TableFile) -> None:
    async def main() -> dict[str, int]:
        simulation = WindowedSimulation(WindowedScenario(rows, kept=0), 3)
        await one_epoch(simulation)
        return dict(simulation.table.stats())

    stats = run(main())
    assert stats["loads"] == rows.row_count
    assert stats["evictions"] == rows.row_count - 80


def test_a_graph_that_cannot_be_loaded_fails_its_first_batch(rows: TableFile) -> None:
    for seed in range(3):
        for bad in range(5):

            async def main(bad: int = bad, seed: int = seed) -> None:
                simulation = WindowedSimulation(WindowedScenario(rows, bad_window=bad), seed)
                window = list(simulation.windows.windows())[bad]
                delivered, error = await one_epoch(simulation)
                assert isinstance(error, StoreError)
                assert len(delivered) == window.first

            run(main())


@pytest.mark.parametrize("given", [{}, {"few_slots": 40, "in_chunk": 3}, {"in_chunk": 200}])
def test_a_row_that_cannot_be_read_fails_the_batches_that_need_it(
    rows: TableFile, given: dict[str, Any]
) -> None:
    """And no others: they need the slots of rows that the window could not read."""
    bad, faults = set(range(64, 72)), replace(NOISE, eio_offsets=((4096, 4608),))
    delivered_before: set[int] = set()
    for seed in range(8):

        async def main(seed: int = seed) -> int:
            delivered, error = await one_epoch(
                WindowedSimulation(WindowedScenario(rows, faults=faults, **given), seed)
            )
            assert not any(set(batch.node.tolist()) & bad for batch in delivered)
            assert (error is None) == (len(delivered) == 20)
            return len(delivered)

        delivered_before.add(run(main()))
    assert len(delivered_before) > 3, "batches before the failing one are delivered"


def test_the_seconds_of_windows(rows: TableFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of loading each, and of its batches until the next one's can begin."""
    now = 0.0
    monkeypatch.setattr("gnndrive.pipeline.windows.perf_counter", lambda: now)

    class Slow(SimulatedWindows):
        def graph(self, window: Window) -> WindowRows:
            nonlocal now
            now += 100
            return super().graph(window)

    async def main() -> list[tuple[float, float]]:
        nonlocal now
        simulation = WindowedSimulation(WindowedScenario(rows), 3)
        simulation.windows = Slow(simulation.scenario, 3)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        while await simulation.consume(epoch, 1):
            now += 1
        await asyncio.wait([running])
        await simulation.close()
        return list(epoch.counters.window_seconds)

    seconds = run(main())
    assert len(seconds) == 5
    assert now == 500 + 20
    assert all(100 <= load_s < 100 + 8 for load_s, _ in seconds)
    # Of five windows, the graphs of those behind the first are loaded beside batches.
    assert sum(compute_s for _, compute_s in seconds) <= now - 100
    assert all(compute_s > 0 for _, compute_s in seconds)


@pytest.mark.parametrize("few", FEW[:4:3])
def test_an_epoch_cancelled_after_any_turn(rows: TableFile, few: int) -> None:
    """In the keeper, too: while it leases, reads, loads a graph, or waits."""

    async def main(wait: Wait) -> bool:
        scenario = WindowedScenario(rows, batches=4, parts=6, faults=NOISE, few_slots=few)
        simulation = WindowedSimulation(scenario, few)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        consumer = asyncio.ensure_future(simulation.consume(epoch))
        await wait()
        ended = consumer.done()
        epoch.output.abandon()
        epoch.inputs.stop()
        assert simulation.windows.stopped
        running.cancel()
        await asyncio.wait([running])
        await asyncio.wait([consumer])
        await simulation.close()  # checks that each slot is free or on standby
        return ended

    assert cancel_after_each_turn(main, 2000) > 30


def test_faults_of_many_seeds(rows: TableFile) -> None:
    for seed in range(16):
        faults = Faults(short=0.3, eagain=0.1, eintr=0.1, delay_turns_max=seed % 9)
        windows_end_well(rows, seed, faults=faults, few_slots=5 * seed % 60)
