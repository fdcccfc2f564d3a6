"""Cancelling at every await: every slot comes back, and every started read is waited for."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from types import CoroutineType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer import place_table
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import TableFile
from gnndrive.pipeline.epoch import EpochInputs
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_windows import WindowedScenario, WindowedSimulation
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline.scenarios import NOISE, PLACES, lease_once, run_one, unreadable
from tests.pipeline.test_simulated import GROUPS
from tests.pipeline.test_simulated import SHAPES as SIMULATED
from tests.pipeline.tight import in_virtual_loop

SHAPES: dict[str, dict[str, Any]] = {
    "paper": {}, "windows": {"parts": 4}, "windows without slots": {"parts": 4, "few_slots": 14},
}  # fmt: skip
SHAPES |= {name: SIMULATED[name] for name in (
    "one place", "two places", "all resident", "three places",
)}  # fmt: skip
SHAPES |= {name: {"slots": 40, **SIMULATED[name]} for name in (
    "sweeps of three", "three together", "superbatches", "one batch ahead",
    "superbatches together", "superbatches in sweeps", "rolling, few blocks",
)}  # fmt: skip
# Of 1, 1, 2 and 3 batches; a row of the last group's second batch cannot be read, or all can.
SHAPES |= {f"groups: {name}": {"batches": 7, "bad": bad, **GROUPS[name]} for name, bad in (
    ("room for one group", -1), ("a slot for each row, any order", -1),
    ("a slot for each row", 5), ("sweeps", 5),
)}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_an_epoch_cancelled_after_any_turn(rows, wide, seeds, shape, monkeypatch):
    """In the keeper of windows, too: while it leases, reads, loads a graph, or waits. Without
    windows, the next epoch of the same buffer is whole."""
    table = wide if "bad" in SHAPES[shape] else rows
    given = {"batches": 3, "faults": NOISE, **SHAPES[shape]}
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", 9)  # not all at once
    for seed in seeds(2):

        async def main(wait: Wait, seed: int = seed) -> bool:
            simulation = simulation_of(table, seed, **given)
            epoch = simulation.epoch()
            running = asyncio.ensure_future(run_epoch(epoch))
            consumer = asyncio.ensure_future(simulation.consume(epoch))
            await wait()
            ended = consumer.done()
            epoch.output.abandon()
            epoch.inputs.stop()
            running.cancel()
            await asyncio.wait([running])
            await asyncio.wait([consumer])
            if isinstance(simulation, WindowedSimulation):
                assert simulation.windows.stopped
            else:
                simulation.engine._faults = NOISE
                await simulation.buffer.drain()  # a task cancelled before its first step did not
                assert len((await run_one(simulation, 1))[0]) == simulation.scenario.batches
            await simulation.close()  # checks that each slot is free or on standby
            return ended

        assert cancel_after_each_turn(main, 2000) > 10
    assert len(os.listdir("/proc/self/fd")) <= before


def simulation_of(rows: TableFile, seed: int, bad: int = -1, **given: Any) -> Simulation:
    if "parts" in given:
        few = replace(rows, row_count=60)
        return WindowedSimulation(WindowedScenario(few, **given), seed)
    scenario = Scenario(rows, **given)
    return Simulation(scenario if bad < 0 else unreadable(scenario, seed, bad)[0], seed)


@pytest.mark.parametrize("given", [{"slots": 24}, {"slots": 16, **PLACES}], ids=["slots", "places"])
def test_a_lease_cancelled_after_any_turn(rows, seeds, given):
    """Three leases over overlapping rows, some of them repeated; the second is cancelled: waiting,
    just granted or loading."""
    for seed in seeds(3):

        async def main(wait: Wait, seed: int = seed) -> bool:
            simulation = Simulation(Scenario(rows, faults=NOISE, **given), seed)

            async def use(start: int) -> None:
                ids = np.arange(start, start + 16, dtype=np.int64)
                ids[:4] = ids[4:8]
                await lease_once(simulation, {"x": ids})

            users = [asyncio.ensure_future(use(start)) for start in (50, 58, 70)]
            await wait()
            ended = users[1].done()
            users[1].cancel()
            await asyncio.wait(users)
            users[0].result(), users[2].result()
            await simulation.close()
            return ended

        assert cancel_after_each_turn(main, 500) >= 4


@in_virtual_loop
async def test_draining_cancels_what_was_not_started(rows):
    """Closing does not read a whole batch first: extents in flight end, the rest is cancelled."""
    simulation = Simulation(Scenario(rows, slots=200, depth=2), 0)
    ids = np.arange(0, 200, 16, dtype=np.int64)
    lease = await simulation.buffer.lease({"x": ids})
    await simulation.buffer.drain()
    assert simulation.engine.stats()["requests"] <= 4
    with pytest.raises(ClosedError):
        await lease.ready()
    lease.release()
    await simulation.close()


NO_FRAME = -2  # -1: it has not begun
Wait = Callable[[], Awaitable[None]]
Place = tuple[tuple[Any, int], ...]


def cancel_after_each_turn(
    main: Callable[[Wait], Coroutine[Any, Any, bool]], turns_max: int
) -> int:
    """Run `main(wait)` once for each turn with a new await; returns how many there are.

    Args:
        main: begins, awaits `wait()` once, cancels, and returns whether all had ended by itself.
        turns_max: more turns than it takes until all has ended.
    """
    first: dict[Place, int] = {}  # the turns after which a task is at this place

    async def watch() -> None:
        for turns in range(turns_max):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                return
            for task in others:
                first.setdefault(place(task), turns)
            await asyncio.sleep(0)
        raise AssertionError(f"still running after {turns_max} turns")

    assert run(main(watch)), "it has not ended by itself"
    cancelled = 0
    for turns in sorted(set(first.values())):

        async def wait(turns: int = turns) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        cancelled += not run(main(wait))
    return cancelled


def place(task: asyncio.Task[Any]) -> Place:
    """The code and the instruction of each frame in a task's chain of awaits; and whether what it
    waits for is there, so that only its turn has not come."""
    coroutine: Any = task.get_coro()
    awaited: asyncio.Future[Any] | None = task._fut_waiter  # type: ignore[attr-defined]
    chain: list[tuple[Any, int]] = [(None, awaited is not None and awaited.done())]
    while isinstance(coroutine, CoroutineType):
        frame = coroutine.cr_frame
        chain.append((coroutine.cr_code, frame.f_lasti if frame else NO_FRAME))
        coroutine = coroutine.cr_await
    return tuple(chain)


def test_stopping_an_epoch_stops_its_sampler_and_its_feed() -> None:
    """Its workers may be sampling, or loading a window."""
    stopped = list[str]()
    parts: Any = {
        name: SimpleNamespace(stop=partial(stopped.append, name)) for name in ("sampler", "feed")
    }
    nothing: Any = None
    EpochInputs(0, 0, iter(()), assembly=nothing, **parts).stop()
    assert stopped == ["sampler", "feed"]
