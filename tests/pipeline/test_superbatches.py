"""Superbatches on a simulated disk: few loads, errors at their turn."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.records import Sample, Seeds
from gnndrive.pipeline.epoch import Epoch, Stages
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.trace import Trace
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import RandomSampler, Scenario, Simulation
from tests.pipeline.scenarios import NOISE, run_one
from tests.soak import product

AHEAD: dict[str, Any] = {"policy": Belady(), "superbatch": 7, "slots": 48, "faults": NOISE}


def outcome(
    scenario: Scenario, seed: int, change: Callable[[Epoch], object] = lambda epoch: None
) -> tuple[int, type | None, int]:
    """How many batches an epoch delivers, its error, and how many rows it loads."""

    async def main() -> tuple[int, type | None, int]:
        simulation = Simulation(scenario, seed)
        delivered, error = await run_one(simulation, change=change)
        await simulation.close()
        return len(delivered), error and type(error), int(simulation.table.stats()["loads"])

    return run(main())


def test_a_superbatch_loads_fewer_rows_than_the_queued_samples(rows):
    one = Stages(2, 1, 4, 1, sweep=1)
    scenario = Scenario(rows, batches=36, policy=Belady(), slots=60, stages=one)
    ahead, thirds, window = (
        outcome(replace(scenario, superbatch=count), 0)[2] for count in (36, 12, 0)
    )
    assert ahead <= thirds < 1.06 * ahead
    assert ahead < 0.97 * window


# The first superbatch has four batches, the others seven.
@product(
    "what,at", ["sampler", "schedule", "take", "add_next_uses", "trace"], [0, 3, 4, 5, 11, 13, 19]
)
def test_an_error_comes_at_its_turn(rows, monkeypatch, seeds, what, at):
    """Of the sampler, of the schedule, of a record that cannot be read, and of a trace that cannot
    be made, which is the error of its superbatch's first batch."""
    scenario = Scenario(rows, **AHEAD)
    make, made = Trace.__init__, list[int]()
    working, sample = getattr(Trace, what, None), RandomSampler.sample

    def change(epoch: Epoch) -> None:
        if what == "schedule":
            epoch.inputs = replace(epoch.inputs, batches=ending(epoch.inputs.batches))

    def unsampled(sampler: RandomSampler, seeds: Seeds, *more: Any) -> Sample:
        if seeds.node[0] == failing:
            raise ReadError("graph", 0, errno.EIO)
        return sample(sampler, seeds, *more)

    def ending(batches: Iterator[tuple[Window, Seeds]]) -> Iterator[tuple[Window, Seeds]]:
        for index, each in enumerate(batches):
            if index == at:
                raise StoreError("no more seeds")
            yield each

    def unread(trace: Trace, index: int, *more: Any) -> Any:
        if index == at:
            raise ReadError("trace", 0, errno.EIO)
        assert working is not None
        return working(trace, index, *more)

    def unmade(*arguments: Any) -> None:
        if len(made) == at % 3:
            raise StoreError("no file can be made")
        made.append(at)
        make(*arguments)

    if what == "trace":
        monkeypatch.setattr(Trace, "__init__", unmade)
    elif what == "sampler":
        monkeypatch.setattr(RandomSampler, "sample", unsampled)
    elif working:
        monkeypatch.setattr(Trace, what, unread)
    for seed in seeds(2):
        made.clear()
        first = [int(each.node[0]) for each in scenario.seeds(seed)]
        failing = first[at]
        turn = {"sampler": first.index(failing), "trace": (0, 4, 11)[at % 3]}.get(what, at)
        delivered, error, _ = outcome(scenario, seed, change)
        kind = StoreError if what in ("schedule", "trace") else ReadError
        assert (delivered, error) == (turn, kind)


def test_no_room_at_all_is_an_error(rows, seeds):
    for seed in seeds(2):
        assert outcome(Scenario(rows, **AHEAD, records_max=0), seed)[:2] == (0, ConfigError)
