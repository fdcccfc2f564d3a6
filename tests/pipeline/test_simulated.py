"""The pipeline on a simulated disk: bytes, order, determinism, faults, tight buffers."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive.buffer import place_table
from gnndrive.buffer.feature_buffer import Lease
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.records import Sample, Seeds
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.batch_times import TAKEN, EpochTimes, StageTimes
from gnndrive.pipeline.epoch import Epoch, Extracted, Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.trace import Trace
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import RandomSampler, Scenario, Simulation, simulate
from tests.pipeline.scenarios import (
    NOISE,
    PLACES,
    ROLLING,
    SLOW,
    expected_nodes,
    held,
    run_one,
    unreadable,
)  # fmt: skip
from tests.pipeline.tight import in_virtual_loop, short_of_memory
from tests.second import Keeping
from tests.soak import product

SWEEPS: dict[str, Any] = {"slots": 64, "policy": Belady(), "stages": Stages(4, 2, 6, 6, sweep=3)}
ANY_ORDER = Stages(in_order=False)
SHAPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "quiet": {"faults": Faults(reorder=False)},
    "one by one": {"stages": Stages(1, 1, 1, 1, sweep=1)},
    "many samplers": {"stages": Stages(4, 4, 9, 2)},
    "many extractors": {"stages": Stages(2, 7, 3, 8)},
    "any order": {"stages": ANY_ORDER},
    "queues of one": {"policy": Belady(), "stages": Stages(2, 3, 1, 1, True, 3)},
    "a short queue": {"policy": Belady(), "stages": Stages(2, 3, 6, 1, False, None)},
    "queues shorter than a sweep": {"policy": Belady(), "stages": Stages(2, 3, 2, 2, True, 9)},
    "sweeps of one": {"policy": Belady(), "stages": Stages(4, 4, 6, 6, sweep=1)},
    "sweeps of two": {"policy": Belady(), "stages": Stages(4, 4, 6, 6, sweep=2)},
    "sweeps of three": {"policy": LRU(), "stages": Stages(4, 4, 6, 6, sweep=3)},
    "two together": {"together": 2, "stages": Stages(4, 2, 4, 3)},
    "three together": {"together": 3, "stages": Stages(4, 2, 4, 3)},
    "four together": {"together": 4, "stages": Stages(4, 2, 4, 3)},
    "groups": {"policy": Belady(), "stages": Stages(group=3)},
    "groups in any order": {"stages": Stages(in_order=False, group=2)},
    "one group": {"stages": Stages(1, 1, 1, 1, sweep=1, group=4)},
    "one place": {"places": 1},
    "two places": PLACES,
    "all resident": {"places": 2, "residents": 200},
    "three places": {"places": 3, "residents": 7, "stages": Stages(4, 4, 4, 3)},
    "places in any order": {**PLACES, "stages": ANY_ORDER},
    "superbatches": {"policy": Belady(), "superbatch": 7},
    "one batch ahead": {"policy": Belady(), "superbatch": 1, "stages": Stages(1, 1, 1, 1)},
    "an epoch ahead": {"policy": Belady(), "superbatch": 60},
    "superbatches in any order": {"policy": Belady(), "superbatch": 7, "stages": ANY_ORDER},
    "superbatches together": {
        "policy": Belady(), "superbatch": 7, "together": 3, "stages": Stages(3, 2, 4, 4),
    },
    "superbatches in sweeps": {**SWEEPS, "superbatch": 7},
    "rolling": {**ROLLING, "superbatch": 1},
    "rolling, few blocks": {**ROLLING, "superbatch": 2, "blocks": 2, "stages": Stages(sweep=1)},
    "rolling in any order": {**ROLLING, "superbatch": 2, "stages": ANY_ORDER},
    "rolling above two tiers": {
        **ROLLING, "superbatch": 2, "blocks": 3, "tiers": ("rolled", Keeping, "disk"),
    },
    "rolling again": {**ROLLING, "superbatch": 4, "reuse": 3, "together": 2},
    "rolling again, few blocks": {
        **ROLLING, "superbatch": 4, "reuse": 3, "blocks": 2, "stages": Stages(sweep=1),
    },
    "rolling again in any order": {
        **ROLLING, "superbatch": 3, "reuse": 4, "blocks": 3, "stages": ANY_ORDER,
    },
}  # fmt: skip


@product("shape,slots", list(SHAPES), (0, 20, 40, 200))
def test_the_batches_are_those_of_the_sample_stage(rows, seeds, shape, slots):
    """Noise, stages and few slots change no batch: each row is right, and they come in order."""
    scenario = Scenario(rows, **{"batches": 7, "faults": NOISE, "slots": slots, **SHAPES[shape]})
    if scenario.stages.group > 1:  # a group that does not fit is none, see `Runtime.begin`
        scenario = replace(scenario, slots=slots and max(slots, scenario.group_rows_max))
    order = list if scenario.stages.in_order else sorted
    for seed in seeds(2):
        expected = expected_nodes(scenario, seed) + expected_nodes(scenario, seed, 1)
        found, half = held(simulate(scenario, seed, epochs=2)), len(expected) // 2
        assert order(found[:half]) + order(found[half:]) == expected


@product(
    "shape,room",
    ["superbatches", "superbatches in sweeps", "superbatches together", "rolling again"],
    [1, 2, 5, 9, 30],
)  # fmt: skip
def test_a_full_disk_ends_superbatches_early(rows, seeds, shape, room):
    ahead = Scenario(rows, batches=16, faults=NOISE, **SHAPES[shape], records_max=room)
    for seed in seeds(2):
        assert held(simulate(ahead, seed)) == expected_nodes(ahead, seed)


@pytest.mark.parametrize("scenario", [{}, {"extra_max": 60}])
@in_virtual_loop
async def test_no_row_is_read_twice_while_it_is_there(rows, seeds, scenario):
    """Several extractors share rows in flight; a later epoch finds the rows of an earlier one."""
    for seed in seeds(2):
        simulation = Simulation(Scenario(rows, slots=200, batches=8, **scenario), seed)
        batches = [*(await run_one(simulation))[0], *(await run_one(simulation, 1))[0]]
        wanted = {node for batch in batches for node in batch.node.tolist()}
        stats = simulation.table.stats()
        assert (stats["loads"], stats["evictions"]) == (len(wanted), 0)
        await simulation.close()


@pytest.mark.parametrize("residents_at_once", [1 << 18, 9])
@in_virtual_loop
async def test_residents_are_read_once(rows, seeds, monkeypatch, residents_at_once):
    """Also if the first epochs are left while they are being read."""
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", residents_at_once)
    for seed in seeds(2):
        scenario = Scenario(rows, batches=6, places=2, residents=200, faults=NOISE)
        simulation = Simulation(scenario, seed)
        for number, limit in enumerate((0, 1, None, None)):
            delivered, _ = await run_one(simulation, number, limit)
            assert len(delivered) in (limit, 6)
            if number == 2:
                whole = simulation.engine.stats()["requests"]
        assert simulation.engine.stats()["requests"] == whole, "a resident is read again"
        assert simulation.table.stats()["loads"] == 0
        await simulation.close()


@in_virtual_loop
async def test_a_batch_larger_than_planned_is_an_error_at_its_turn(rows, seeds):
    scenario = Scenario(rows, batches=6, slots=6, **PLACES)
    for seed in seeds(3):
        reference = expected_nodes(scenario, seed)
        turn = next((i for i, nodes in reference if sum(node >= 60 for node in nodes) > 6), None)
        simulation = Simulation(scenario, seed)
        delivered, error = await run_one(simulation)
        assert held(delivered) == reference[:turn]
        assert turn is None or "the pack is damaged" in str(error)
        assert isinstance(error, StoreError) is (turn is not None)
        await simulation.close()


def test_too_small_a_buffer_names_the_least_that_works(rows):
    scenario = Scenario(rows, slots=5, batch_size=8, extra_max=0, batches=1)
    with pytest.raises(ConfigError, match=r"holds 5 rows .* needs 8"):
        simulate(scenario, 0)
    assert len(simulate(replace(scenario, slots=8), 0)) == 1


@pytest.mark.parametrize("who", ["look-ahead", "device"])
@in_virtual_loop
async def test_an_error_of_another_part_reaches_the_user(rows, monkeypatch, who):
    """Every slot is back. A buffer whose device has failed refuses further batches."""
    scenario = Scenario(rows, batches=7, faults=SLOW, together=3, device="simulated-cuda")
    simulation = Simulation(scenario, 0)
    part = (Lease, "gathered") if who == "device" else (simulation.buffer, "announce")
    short_of_memory(monkeypatch, *part, range(3, 100))
    _, error = await run_one(simulation)
    assert isinstance(error, MemoryError)
    with pytest.raises(MemoryError) if who == "device" else nullcontext():
        simulation.buffer.raise_if_broken()
    await simulation.close()


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


GROUPS: dict[str, dict[str, Any]] = {  # their sizes are 1, 1, 2, 3 and 3; or 1, together
    "sweeps": {"slots": 150, "policy": Belady(), "stages": Stages(group=3, sweep=3)},
    "three together": SHAPES["three together"],
    "one by one, any order": {"stages": Stages(1, 1, in_order=False, sweep=1, group=3)},
    "a slot for each row, any order": {"slots": 200, "stages": Stages(in_order=False, group=3)},
    "a slot for each row": {"slots": 200, "ahead": (3, 9), "stages": Stages(group=3)},
    "room for one group": {"stages": Stages(group=3)},
}
ERRORS = ("read", "sampler", "read before sampler", "rows", "transform", "schedule")


def with_error(epoch: Epoch, what: str, at: int, error: Exception) -> None:
    """Have a part of an epoch raise `error` for batch `at`, or for the one behind it."""
    inputs, sampler = epoch.inputs, epoch.inputs.sampler
    sample, failing = sampler.sample, set[int]()

    def raise_if(part: str, index: int) -> None:
        if (what, index) in ((part, at), (f"read before {part}", at + 1)):
            raise error

    def batches() -> Iterator[tuple[Window, Seeds]]:
        for index, each in enumerate(inputs.batches):
            raise_if("schedule", index)
            yield each

    def sampled(seeds: Seeds, *more: Any) -> Sample:
        raise_if("sampler", seeds.index)
        found = sample(seeds, *more)
        failing.update([id(found)] if (what, seeds.index) == ("rows", at) else [])
        return found

    def rows_of(sample: Sample) -> Any:
        raise_if("rows", at if id(sample) in failing else -1)
        return inputs.assembly.rows_of(sample)

    def make(item: Extracted, gathered: Callable[[], object]) -> Iterator[Any]:
        for batch, references in inputs.assembly.make(item, gathered):
            raise_if("transform", batch.index)
            yield batch, references

    sampler.sample = sampled  # type: ignore[method-assign]
    assembly: Any = SimpleNamespace(prepare=inputs.assembly.prepare, rows_of=rows_of, make=make)
    epoch.inputs = replace(inputs, batches=batches(), assembly=assembly)


@pytest.mark.parametrize("what", ERRORS)
@product("shape,at", list(GROUPS), [0, 2, 3, 4, 5, 6, 9])
@in_virtual_loop
async def test_an_error_of_a_groups_batch_comes_at_its_turn(wide, seeds, what, shape, at):
    """The batches of its group that come before it are delivered, and the next epoch is whole."""
    for seed in seeds(2):
        scenario = Scenario(wide, batches=10, faults=NOISE, **GROUPS[shape])
        expected, turn, error = expected_nodes(scenario, seed), at, LookupError(what)
        if "read" in what:
            scenario, turn = unreadable(scenario, seed, at)
        simulation = Simulation(scenario, seed)
        change = partial(with_error, what=what, at=turn, error=error)
        delivered, raised = await run_one(simulation, change=change)
        if scenario.stages.in_order or scenario.stages.samplers == 1:
            assert held(delivered) == expected[:turn]
            assert isinstance(raised, ReadError) if "read" in what else raised is error
        else:  # either of two errors may come first
            left = [each for each in expected if each[0] != turn]
            assert all(each in left for each in held(delivered))
            assert raised is error or isinstance(raised, ReadError)
        simulation.engine._faults = NOISE
        again, raised = await run_one(simulation, 1)
        assert sorted(held(again)) == expected_nodes(scenario, seed, 1)
        assert raised is None
        await simulation.close()


@in_virtual_loop
async def test_two_groups_are_alive(rows):
    """As long as the user holds a batch of the last group but one, the next one is not made."""
    simulation = Simulation(Scenario(rows, batches=10, **GROUPS["room for one group"]), 0)
    epoch = simulation.epoch()
    running = asyncio.ensure_future(run_epoch(epoch))

    held = [await epoch.output.aget() for _ in range(5)]
    assert [batch.index for batch in held] == [0, 1, 2, 3, 4]
    for kept in ([2, 4], [4], []):  # of the groups 2, 3 and 4, 5, 6 and 7, 8, 9
        held = [batch for batch in held if batch.index in kept]
        await asyncio.wait([running], timeout=1)  # of virtual time: until all tasks wait
        assert epoch.output.ready == (2 if 2 in kept else 5)
    assert len(await simulation.consume(epoch)) == 5
    await running
    await simulation.close()


@in_virtual_loop
async def test_each_batch_of_a_group_has_times_of_its_own(rows):
    simulation = Simulation(Scenario(rows, batches=7, **GROUPS["room for one group"]), 0)
    simulation.counters.times, times = StageTimes(count().__next__), list[EpochTimes]()
    assert len((await run_one(simulation, change=lambda epoch: times.append(epoch.times)))[0]) == 7
    for index in range(7):
        record = times[0].of(index)
        assert record is not None
        assert len(record.marks) == TAKEN + 1
        assert all(before < after for before, after in pairwise(record.marks)), "made with the next"
    await simulation.close()


@pytest.mark.parametrize("first", [0, 9])
@in_virtual_loop
async def test_the_first_groups_of_a_part_are_small(rows, first):
    simulation = Simulation(Scenario(rows, stages=Stages(group=5)), 0)
    epoch, sizes = simulation.epoch(), list[int]()
    epoch = replace(epoch, inputs=replace(epoch.inputs, first=first))
    while len(sizes) < 6:
        sizes.append(epoch.group_size)
        epoch.seeds_drawn += sizes[-1]
    assert sizes == [1, 1, 2, 4, 5, 5]
    await simulation.close()
