"""Superbatches on a simulated disk: same batches, few loads, errors at their turn, full disks."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.records import Sample, Seeds, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Epoch, Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.trace import Trace
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Delivered, RandomSampler, Scenario, Simulation, simulate
from tests.pipeline.scenarios import expected_nodes
from tests.pipeline.test_cancellation import cancelled_epochs

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=2)
AHEAD: dict[str, Any] = {"policy": Belady(), "superbatch": 7, "slots": 48, "faults": NOISE}
SWEEPS = Stages(4, 2, 6, 6, sweep=3)
SHAPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "sweeps": {"stages": SWEEPS},
    "one by one": {"superbatch": 1, "stages": Stages(1, 1, 1, 1)},
    "long": {"superbatch": 60},
    "combined fetches": {"together": 3, "stages": Stages(3, 2, 4, 4)},
}


def held(batches: Sequence[Delivered]) -> list[tuple[int, list[int]]]:
    return [(batch.index, batch.node.tolist()) for batch in batches]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_batches_are_those_of_the_sample_stage(rows: TableFile, shape: str) -> None:
    for seed in range(8):
        ahead = Scenario(rows, batches=16, **{**AHEAD, **SHAPES[shape]})
        wanted = expected_nodes(ahead, seed) + expected_nodes(ahead, seed, 1)
        assert held(simulate(ahead, seed, epochs=2)) == wanted


def test_batches_in_any_order_come_once(rows: TableFile) -> None:
    for seed in range(8):
        scenario = Scenario(rows, **{**AHEAD, "stages": Stages(in_order=False)})
        assert sorted(batch.index for batch in simulate(scenario, seed)) == list(range(20))


def loads_of(scenario: Scenario, seed: int) -> int:
    async def main() -> int:
        simulation = Simulation(scenario, seed)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        await simulation.consume(epoch)
        await running
        await simulation.close()
        return simulation.table.stats()["loads"]

    return run(main())


def test_a_superbatch_loads_fewer_rows_than_the_queued_samples(rows: TableFile) -> None:
    one = Stages(2, 1, 4, 1, sweep=1)
    scenario = Scenario(rows, batches=60, policy=Belady(), slots=60, stages=one)
    ahead = [loads_of(replace(scenario, superbatch=60), seed) for seed in range(4)]
    window = [loads_of(scenario, seed) for seed in range(4)]
    halves = [loads_of(replace(scenario, superbatch=20), seed) for seed in range(4)]
    assert sum(ahead) <= sum(halves) < 1.05 * sum(ahead)
    assert sum(ahead) < 0.97 * sum(window)


@pytest.mark.parametrize(
    ("shape", "seed"), [("paper", 0), ("one by one", 1), ("combined fetches", 2), ("sweeps", 3)]
)
def test_an_epoch_cancelled_after_any_turn(rows: TableFile, seed: int, shape: str) -> None:
    scenario = Scenario(rows, batches=3, **{**AHEAD, **SHAPES[shape]})
    before = open_files()
    assert cancelled_epochs(scenario, seed) > 20
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def delivered_until(
    scenario: Scenario, seed: int, error: type[Exception], change: Any = lambda epoch: epoch
) -> int:
    """How many batches come before the error."""

    async def main() -> int:
        simulation = Simulation(scenario, seed)
        epoch = change(simulation.epoch())
        running = asyncio.ensure_future(run_epoch(epoch))
        count = 0
        try:
            while await simulation.consume(epoch, limit=1):
                count += 1
            raise AssertionError("the epoch ended without the error")
        except error:
            return count
        finally:
            await running
            await simulation.close()

    return run(main())


class FailingSampler(RandomSampler):
    """Fails at the batch whose first seed is the given node."""

    failing = -1

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology] = ()) -> Sample:
        if seeds.node[0] == self.failing:
            raise ReadError("graph", 0, errno.EIO)
        return super().sample(seeds, key)


@pytest.mark.parametrize("at", [0, 3, 4, 11, 19])
def test_an_error_of_the_sampler_comes_at_its_turn(rows: TableFile, at: int) -> None:
    for seed in range(5):
        scenario = Scenario(rows, **AHEAD)
        sampler = FailingSampler(rows.row_count, scenario.extra_max)
        sampler.failing = int(list(scenario.seeds(seed))[at].node[0])
        wanted = next(
            index for index, seeds in enumerate(scenario.seeds(seed))
            if seeds.node[0] == sampler.failing
        )  # fmt: skip

        def change(epoch: Epoch, sampler: FailingSampler = sampler) -> Epoch:
            epoch.inputs = replace(epoch.inputs, sampler=sampler)
            return epoch

        assert delivered_until(scenario, seed, ReadError, change) == wanted


@pytest.mark.parametrize("at", [0, 4, 5, 13])
def test_an_error_of_the_schedule_comes_at_its_turn(rows: TableFile, at: int) -> None:
    def failing(batches: Iterator[tuple[Window, Seeds]]) -> Iterator[tuple[Window, Seeds]]:
        for index, each in enumerate(batches):
            if index == at:
                raise StoreError("no more seeds")
            yield each

    def change(epoch: Epoch) -> Epoch:
        epoch.inputs = replace(epoch.inputs, batches=failing(epoch.inputs.batches))
        return epoch

    for seed in range(5):
        assert delivered_until(Scenario(rows, **AHEAD), seed, StoreError, change) == at


@pytest.mark.parametrize("call", ["take", "add_next_uses"])
@pytest.mark.parametrize("at", [0, 3, 4, 12])
def test_a_record_that_cannot_be_read_is_an_error_at_its_turn(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch, call: str, at: int
) -> None:
    working = getattr(Trace, call)

    def fail(trace: Trace, index: int, *more: Any) -> Any:
        if index == at:
            raise ReadError("trace", 0, errno.EIO)
        return working(trace, index, *more)

    monkeypatch.setattr(Trace, call, fail)
    for seed in range(5):
        assert delivered_until(Scenario(rows, **AHEAD), seed, ReadError) == at


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_trace_that_cannot_be_made_is_an_error_at_its_turn(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    make, made = Trace.__init__, []

    def fail(*arguments: Any) -> None:
        if len(made) == at:
            raise StoreError("no file can be made")
        made.append(at)
        make(*arguments)

    for seed in range(5):
        monkeypatch.setattr(Trace, "__init__", fail)
        made.clear()
        turns = (0, 4, 11)  # the first superbatch has four batches, the others seven
        assert delivered_until(Scenario(rows, **AHEAD), seed, StoreError) == turns[at]


@pytest.mark.parametrize("room", [1, 2, 5, 9, 30])
@pytest.mark.parametrize("shape", ["paper", "sweeps", "combined fetches"])
def test_a_full_disk_ends_superbatches_early(rows: TableFile, shape: str, room: int) -> None:
    for seed in range(8):
        ahead = Scenario(rows, batches=16, **{**AHEAD, **SHAPES[shape]}, records_max=room)
        assert held(simulate(ahead, seed)) == expected_nodes(ahead, seed)


def test_no_room_at_all_is_an_error(rows: TableFile) -> None:
    for seed in range(5):
        scenario = Scenario(rows, **AHEAD, records_max=0)
        assert delivered_until(scenario, seed, ConfigError) == 0
