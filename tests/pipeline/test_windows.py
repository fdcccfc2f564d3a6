"""Windows that are held in the feature buffer: faults, errors, too few slots, seconds."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gnndrive.buffer.held_windows import HeldWindows
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.disk.engines.simulated import Faults
from gnndrive.host.remote_buffer import SharedGraph
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules.base import Window
from gnndrive.testing.simulated_windows import (
    SimulatedWindows,
    WindowedScenario,
    WindowedSimulation,
    WindowRows,
    WindowSampler,
)  # fmt: skip
from gnndrive.testing.simulation import InlineWorkers
from tests.pipeline.scenarios import NOISE, run_one, windows_end_well
from tests.pipeline.tight import in_virtual_loop
from tests.soak import product

SHAPES: dict[str, dict[str, Any]] = {
    "even": {},
    "one window": {"in_window": 10, "few_slots": 100},
    "a partition at a time": {"in_window": 1},
    "uneven": {"parts": 8, "in_window": 3, "batches": 23},
    "nothing kept": {"kept": 0},
    "out of order": {"stages": Stages(sweep=1, in_order=False)},
    "narrow queues": {"stages": Stages(1, 1, 1, 1, sweep=1)},
    "parts of a row": {"part_rows": 1},
    "few batches": {"batches": 3},
}
LEAST = 6 + 16  # slots for what is kept and one batch


@product("shape,few", list(SHAPES), (0, 1, 7, 13, 18, 20))
def test_windows_end_well(rows, seeds, shape, few):
    """With so few slots that windows give chunks up, too."""
    rows = replace(rows, row_count=100)
    most = WindowedScenario(rows, **SHAPES[shape]).with_slots().slots - LEAST
    given = {"batches": 10, "few_slots": min(few, most), **SHAPES[shape]}
    for seed in seeds(2):
        faults = Faults(short=0.3, eagain=0.1, eintr=0.1, delay_turns_max=seed % 9)
        windows_end_well(rows, seed, **given, faults=faults)


@in_virtual_loop
async def test_rows_are_read_once_and_batches_find_them(rows):
    simulation = WindowedSimulation(WindowedScenario(rows, kept=0), 3)
    await run_one(simulation)
    await simulation.close()
    stats = simulation.table.stats()
    assert stats["loads"] == rows.row_count
    assert stats["evictions"] == rows.row_count - 80


@pytest.mark.parametrize("bad", range(5))
@in_virtual_loop
async def test_a_graph_that_cannot_be_loaded_fails_its_first_batch(rows, seeds, bad):
    for seed in seeds(2):
        simulation = WindowedSimulation(WindowedScenario(rows, bad_window=bad), seed + bad)
        window = list(simulation.windows.windows())[bad]
        delivered, error = await run_one(simulation)
        assert isinstance(error, StoreError)
        assert len(delivered) == window.first
        await simulation.close()


@pytest.mark.parametrize("given", [{}, {"few_slots": 40, "in_chunk": 3}, {"in_chunk": 200}])
@in_virtual_loop
async def test_a_row_that_cannot_be_read_fails_the_batches_that_need_it(rows, seeds, given):
    """And no others: they need the slots of rows that the window could not read."""
    bad, faults = set(range(64, 72)), replace(NOISE, eio_offsets=((4096, 4608),))
    for seed in seeds(2):
        simulation = WindowedSimulation(WindowedScenario(rows, faults=faults, **given), seed)
        delivered, error = await run_one(simulation)
        assert [batch.index for batch in delivered] == list(range(len(delivered)))
        assert isinstance(error, ReadError) is (len(delivered) < 20)
        sampler, needed = WindowSampler(rows.row_count, simulation.scenario.extra_max), []
        for window, drawn in simulation.windows.batches():
            graph, key = simulation.windows.graph(window), batch_key(seed, 0, drawn.index)
            needed.append(set(sampler.sample(drawn, key, [graph]).node.tolist()))
        assert len(delivered) == next((i for i, nodes in enumerate(needed) if nodes & bad), 20)
        await simulation.close()


@in_virtual_loop
async def test_an_epoch_that_is_closed_ends_its_windows_after_the_samples(rows, monkeypatch):
    """A thread that samples goes on, and the host service may fill a graph's place again."""
    sampling, go, ended = asyncio.Event(), asyncio.Event(), list[Any]()

    class Busy(InlineWorkers):
        async def run(self, function: Any, *arguments: Any) -> Any:
            result, cancelled = await super().run(function, *arguments), False
            if function.__name__ == "_sample":
                sampling.set()
                while not go.is_set():
                    try:
                        await go.wait()
                    except asyncio.CancelledError:
                        cancelled = True
            if cancelled:
                raise asyncio.CancelledError
            return result

    real = HeldWindows.end
    monkeypatch.setattr(HeldWindows, "end", lambda *given: (ended.append(given[1]), real(*given)))
    simulation = WindowedSimulation(WindowedScenario(rows), 3)
    running = asyncio.ensure_future(run_epoch(replace(simulation.epoch(), workers=Busy())))
    await sampling.wait()
    running.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not ended
    go.set()
    await asyncio.wait([running])
    assert ended[0] == (0,)
    await simulation.close()


@in_virtual_loop
async def test_the_seconds_of_windows(rows, monkeypatch):
    """Of loading each, and of its batches until the next one's can begin."""
    now = 0.0
    monkeypatch.setattr("gnndrive.strategies.windows.feed.perf_counter", lambda: now)

    class Slow(SimulatedWindows):
        def graph(self, window: Window, shared: SharedGraph | None = None) -> WindowRows:
            nonlocal now
            now += 100
            return super().graph(window, shared)

    simulation = WindowedSimulation(WindowedScenario(rows), 3)
    simulation.windows = Slow(simulation.scenario, 3)
    epoch = simulation.epoch()
    running = asyncio.ensure_future(run_epoch(epoch))
    while await simulation.consume(epoch, 1):
        now += 1
    await asyncio.wait([running])
    await simulation.close()
    seconds = list(epoch.counters.window_seconds)
    assert len(seconds) == 5
    assert now == 500 + 20
    assert all(100 <= load_s < 100 + 8 for load_s, _ in seconds)
    # Of five windows, the graphs of those behind the first are loaded beside batches.
    assert sum(compute_s for _, compute_s in seconds) <= now - 100
    assert all(compute_s > 0 for _, compute_s in seconds)
