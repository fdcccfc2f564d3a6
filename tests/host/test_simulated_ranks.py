"""Ranks that share a feature buffer get one process's batches, whatever the seed decides.

If one dies, ends its epoch or fails, at any turn of the loop, the others get an error that names
it, or go on. None waits for ever, no row is wrong, and every slot and place is free at the end.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.errors import PeerError, ReadError
from gnndrive.common.records import Sample, Seeds, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.sampling.samplers.base import Sampler, batch_key
from gnndrive.sampling.topologies.base import Topology
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import Barrier, Rank, SimulatedRanks
from gnndrive.testing.simulation import Delivered, RandomSampler, Scenario, Simulation
from tests.host.spoken import in_loop, some_turns
from tests.soak import product

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=4)
SLOW = Faults(delay_turns_max=30)
TURNS_MAX = 5000
BAD_BYTES, BAD_ROWS = ((4096, 4608),), set(range(64, 72))
Batches: TypeAlias = list[tuple[int, list[int]]]
"""Of each batch its step and its nodes."""


def expected(scenario: Scenario, seed: int, ranks: int, epoch: int = 0) -> list[Batches]:
    """The batches of each rank in an epoch, computed without a pipeline."""
    sampler = RandomSampler(scenario.file.row_count, scenario.extra_max)
    batches: list[Batches] = [[] for _ in range(ranks)]
    for seeds in scenario.seeds(seed):
        step, rank = divmod(seeds.index, ranks)
        sample = sampler.sample(seeds, batch_key(seed, epoch, seeds.index))
        batches[rank].append((step, sample.node.tolist()))
    return batches


def got(batches: Iterable[Delivered]) -> Batches:
    """The same of batches that were delivered; the simulation has checked their rows."""
    return [(batch.index, batch.node.tolist()) for batch in batches]


def check_all(ranks: Iterable[Rank], whole: list[Batches]) -> None:
    """Check that each rank got all of its batches, and no error."""
    for rank in ranks:
        assert rank.error is None, rank.number
        assert got(rank.delivered) == whole[rank.number]


def check_first(rank: Rank, whole: list[Batches]) -> None:
    """Check that what a rank got are its first batches."""
    delivered = got(rank.delivered)
    assert delivered == whole[rank.number][: len(delivered)]


@asynccontextmanager
async def simulated_ranks(
    scenario: Scenario, seed: int, count: int = 2, *rest: Any, **given: Any
) -> AsyncIterator[SimulatedRanks]:
    simulated = SimulatedRanks(scenario, seed, count, *rest, **given)
    yield simulated
    await simulated.close()


def any_scenario(rows: TableFile, seed: int) -> tuple[Scenario, dict[str, Any]]:
    """A scenario, and arguments of `SimulatedRanks`; the seed decides everything."""
    draw = random.Random(f"scenario {seed}")
    ranks = draw.choice([1, 2, 2, 3, 4])
    stages = Stages(
        samplers=draw.choice([1, 2, 4]), extractors=draw.choice([1, 2, 4]),
        extracting_queue=draw.choice([1, 3, 6]), training_queue=draw.choice([1, 2, 4]),
        sweep=draw.choice([None, 1, 2]),
    )  # fmt: skip
    scenario = Scenario(
        rows, slots=draw.choice([0, 0, 24, 40, 100]), batches=ranks * draw.randint(1, 6),
        stages=stages, faults=draw.choice([NOISE, Faults(), Faults(reorder=False)]),
        policy=draw.choice([Belady(), LRU()]), depth=draw.choice([2, 8]),
        consumer_turns_max=draw.choice([0, 3, 20]),
    )  # fmt: skip
    return scenario, {"count": ranks, "places": draw.choice([0, 0, 1, 2, 5])}


# ---- whole epochs


def run_epochs(scenario: Scenario, seed: int, limits: Sequence[dict[int, int]], **given: Any):
    """Epochs of ranks, of which those in `limits` stop after so many batches."""

    async def main() -> None:
        async with simulated_ranks(scenario, seed, **given) as simulated:
            for epoch, stops in enumerate(limits):
                simulated.begin(epoch, stops)
                await simulated.end()
                whole = expected(scenario, seed, len(simulated.ranks), epoch)
                for rank in simulated.ranks:
                    assert rank.error is None
                    assert got(rank.delivered) == whole[rank.number][: stops.get(rank.number)]

    run(main())


def test_whatever_the_seed_decides(rows, seeds):
    """One to three epochs with any scenario; some users stop before the end of one."""
    for seed in seeds(4):
        scenario, given = any_scenario(rows, seed)
        draw, count = random.Random(f"epochs {seed}"), given["count"]
        length = scenario.batches // count
        limits = [
            {rank: draw.randint(0, length) for rank in range(count) if draw.random() < 0.3}
            for _ in range(draw.randint(1, 3))
        ]
        run_epochs(scenario, seed, limits, **given)


CORNERS: dict[str, tuple[dict[str, Any], list[dict[int, int]], int]] = {
    # A rank may have joined with its last batch before the other one has with its first.
    "queues hold an epoch": (
        {"batches": 24, "stages": Stages(4, 4, 12, 12), "consumer_turns_max": 0}, [{}], 2,
    ),
    # The third rank's turns are void when its epoch ends.
    "a rank without batches": ({"batches": 2}, [{}, {}, {}], 3),
    # The disk is slow, so that the batches that were given up keep all places for long, and
    # batches of the next epoch that were sampled out of order get theirs one by one.
    "an epoch begins while the last one's batches are read": (
        {"batches": 24, "slots": 100, "faults": Faults(delay_turns_max=80), "depth": 1,
         "stages": Stages(samplers=4, extractors=4)}, [{0: 1, 1: 1}, {}], 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "limits", "count"), CORNERS.values(), ids=CORNERS)
def test_epochs_at_the_edge(rows, seeds, given, limits, count):
    for seed in seeds(1):
        run_epochs(Scenario(rows, **given), seed, limits, count=count)


@pytest.mark.parametrize("places", [0, 2])
def test_ranks_that_are_in_different_epochs(rows, seeds, places):
    """One rank ends its epochs early. Its batches are given up while they wait, are read or are
    ready; it begins the next epoch at once, and waits there until the others end this one."""
    scenario = Scenario(rows, batches=18, faults=NOISE)

    async def main(seed):
        early, limit, apart = seed % 3, seed // 3 % 4, 0
        at = [0, 0, 0]

        async def epochs(rank):
            nonlocal apart
            for epoch, barrier in enumerate(barriers):
                at[rank.number] = epoch
                apart = max(apart, max(at) - min(at))
                length = limit if rank.number == early else 6
                await rank.begin(epoch, barrier, limit if rank.number == early else None)
                assert rank.error is None
                assert (
                    got(rank.delivered) == expected(scenario, seed, 3, epoch)[rank.number][:length]
                )

        async with simulated_ranks(scenario, seed, 3, places) as simulated:
            barriers = [Barrier(set(range(3))) for _ in range(3)]
            await asyncio.gather(*map(epochs, simulated.ranks))
        return apart

    assert run(main(1)) == 2
    for seed in seeds(1):
        run(main(seed + 10))


@pytest.mark.parametrize("late", [0, 1])
@in_loop
async def test_a_rank_that_never_begins_is_named(rows, late):
    """A user who has waited too long asks; until the other rank begins there is no batch."""
    scenario, barrier = Scenario(rows, batches=8), Barrier({0, 1})
    async with simulated_ranks(scenario, 0) as simulated:
        rank, other = simulated.ranks[1 - late], simulated.ranks[late]
        epoch = rank.begin(0, barrier)
        await some_turns()
        assert len(rank.delivered) == late, "one of rank 0 comes before rank 1's first turn"
        assert await rank.buffer.awaited() == late
        await asyncio.gather(epoch, other.begin(0, barrier))
        check_all(simulated.ranks, expected(scenario, 0, 2))


# ---- deaths and failures


def after_each_turn(scenario: Scenario, seed: int, step: int, what: Callable[[Rank], None]) -> int:
    """Run an epoch of two ranks, after every `step`-th number of turns do `what` with one of them,
    then run another epoch; returns how many turns the first one has. The seed says which turns
    and which rank."""

    async def main(turns: int) -> bool:
        async with simulated_ranks(scenario, seed) as simulated:
            rank, other = simulated.ranks[:: (1, -1)[seed % 2]]
            simulated.begin(0)
            await some_turns(turns)
            ended = simulated.ended
            what(rank)
            await simulated.end()
            whole = expected(scenario, seed, 2)
            check_first(rank, whole)
            if other.error is None:
                check_all([other], whole)
            else:
                assert isinstance(other.error, PeerError)
                assert other.error.rank == rank.number
                check_first(other, whole)
            assert rank.alive <= (other.error is None)
            simulated.begin(1)
            await simulated.end()
            if rank.alive:
                check_all(simulated.ranks, expected(scenario, seed, 2, 1))
            else:
                assert isinstance(other.error, PeerError)
        return ended

    return next(turns for turns in range(seed // 2 % step, TURNS_MAX, step) if run(main(turns)))


@product(
    "what,given",
    [Rank.die, Rank.close],
    [{}, {"slots": 100, "stages": Stages(2, 2, 3, 2)}],  # one batch in the buffer; sweeps
)
def test_after_any_turn(rows, seeds, given, what):
    scenario = Scenario(rows, batches=6, faults=NOISE, **given)
    for seed in seeds(2):
        assert after_each_turn(scenario, seed, 36, what) > 40


class BrokenOnPurpose(Exception):
    """Raised by a sampler."""


class FailingSampler(RandomSampler):
    """Fails at one batch, by its number among all ranks'."""

    fails_at: int

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology] = ()) -> Sample:
        if seeds.number == self.fails_at:
            raise BrokenOnPurpose
        return super().sample(seeds, key, topologies)


def failing_at(number: int) -> Callable[[int, int], Sampler]:
    def make(num_nodes: int, extra_max: int) -> Sampler:
        sampler = FailingSampler(num_nodes, extra_max)
        sampler.fails_at = number
        return sampler

    return make


def test_a_batch_that_cannot_be_sampled_fails_its_rank_alone(rows, seeds):
    scenario = Scenario(rows, batches=12, faults=NOISE)

    async def main(seed):
        step, failing = divmod(seed % 12, 2)
        async with simulated_ranks(scenario, seed, sampler=failing_at(seed % 12)) as simulated:
            for epoch in range(2):
                simulated.begin(epoch)
                await simulated.end()
                whole = expected(scenario, seed, 2, epoch)
                assert isinstance(simulated.ranks[failing].error, BrokenOnPurpose)
                assert len(simulated.ranks[failing].delivered) == step
                check_first(simulated.ranks[failing], whole)
                check_all([simulated.ranks[1 - failing]], whole)

    for seed in (5, *seeds(1)):
        run(main(seed))


def test_a_bad_sector_fails_the_batches_that_need_it(rows, seeds):
    scenario = Scenario(rows, batches=12, faults=replace(NOISE, eio_offsets=BAD_BYTES))

    async def main(seed):
        async with simulated_ranks(scenario, seed, 3) as simulated:
            simulated.begin(0)
            await simulated.end()
            whole = expected(scenario, seed, 3)
            for rank in simulated.ranks:
                check_first(rank, whole)
                bad = [step for step, nodes in whole[rank.number] if BAD_ROWS & set(nodes)]
                assert len(rank.delivered) == (bad or [len(whole[rank.number])])[0]
                assert bool(bad) == isinstance(rank.error, ReadError)
                assert not bad or rank.error.errno == errno.EIO
        return sum(rank.error is not None for rank in simulated.ranks)

    assert {run(main(seed)) for seed in (0, 1, 3)} == {1, 2, 3}
    for seed in seeds(1):
        run(main(seed + 4))


def run_with_mishaps(rows: TableFile, seed: int) -> None:
    """Epochs in which ranks die or close their iterators at any turn, batches cannot be read or
    sampled, and users stop early; the seed decides all of it."""
    scenario, given = any_scenario(rows, seed)
    draw = random.Random(f"mishaps {seed}")
    if draw.random() < 0.3:
        scenario = replace(scenario, faults=replace(scenario.faults, eio_offsets=BAD_BYTES))
    if draw.random() < 0.3:
        given["sampler"] = failing_at(draw.randrange(scenario.batches))

    async def main() -> None:
        dead: set[int] = set()
        async with simulated_ranks(scenario, seed, **given) as simulated:
            for epoch in range(draw.randint(1, 3)):
                stops = [rank.number for rank in simulated.ranks if draw.random() < 0.2]
                simulated.begin(epoch, {number: draw.randint(0, 3) for number in stops})
                for _ in range(draw.randint(0, 2)):
                    await some_turns(draw.randint(0, 200))
                    rank = draw.choice(simulated.ranks)
                    if draw.random() < 0.3:
                        rank.die()
                        dead.add(rank.number)
                    else:
                        rank.close()
                        stops.append(rank.number)
                await simulated.end()
                whole = expected(scenario, seed, given["count"], epoch)
                for rank in simulated.ranks:
                    if rank.alive:
                        check_first(rank, whole)
                        check_end(rank, whole[rank.number], stops, dead)

    def check_end(rank: Rank, own: Batches, stops: list[int], dead: set[int]) -> None:
        """Check that a rank's epoch ended where it should, with the right error."""
        count = len(rank.delivered)
        if isinstance(rank.error, PeerError):
            assert rank.error.rank in dead
        elif isinstance(rank.error, ReadError):
            assert BAD_ROWS & set(own[count][1])
        elif isinstance(rank.error, BrokenOnPurpose):
            assert count * given["count"] + rank.number == given["sampler"](1, 1).fails_at
        else:
            assert rank.error is None
            assert rank.number in stops or count == len(own)

    run(main())


def test_whatever_befalls_the_ranks(rows, seeds):
    for seed in seeds(6):
        run_with_mishaps(rows, seed)


# ---- ranks read hardly more rows than one process: turns keep their steps together, so that a row
# that several need is read once. Beside one process they have a training queue each, whose batches
# hold slots.


def loads_of_one(scenario: Scenario) -> int:
    """Rows that one process reads in an epoch."""

    async def main() -> int:
        simulation = Simulation(scenario, 0)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        await simulation.consume(epoch)
        await running
        await simulation.close()
        return int(simulation.table.stats()["loads"])

    return run(main())


def loads_of_ranks(scenario: Scenario, count: int) -> int:
    """Rows that are read for ranks, to which the same batches are dealt."""

    async def main() -> int:
        async with simulated_ranks(scenario, 0, count) as simulated:
            simulated.begin(0)
            await simulated.end()
            assert all(rank.error is None for rank in simulated.ranks)
        return int(simulated.shared.table.stats()["loads"])

    return run(main())


def more(scenario: Scenario, count: int, stages: Stages) -> float:
    """How many times as many rows ranks with `stages` read as one process with the scenario's."""
    one = loads_of_one(scenario)
    whole = scenario.batches * (scenario.batch_size + scenario.extra_max // 2)
    assert one < 0.8 * whole, "the buffer saves nothing, so there is nothing to compare"
    return loads_of_ranks(replace(scenario, stages=stages), count) / one


@pytest.mark.parametrize(("policy", "ranks", "slots"), [(LRU(), 4, 48), (Belady(), 2, 100)])
def test_ranks_read_hardly_more_rows_than_one_process(rows, policy, ranks, slots):
    scenario = Scenario(rows, batches=32, slots=slots, policy=policy, faults=SLOW)
    assert more(scenario, ranks, scenario.stages) < 1.1


def test_without_sweeps_a_share_of_the_training_queue_is_enough(rows):
    """The batches of four whole training queues leave the buffer too little room for other rows."""
    stages = Stages(sweep=1)
    scenario = Scenario(rows, batches=32, slots=64, policy=Belady(), faults=SLOW, stages=stages)
    own = replace(stages, training_queue=stages.training_queue // 4)
    assert more(scenario, 4, own) < 1 < more(scenario, 4, stages)
