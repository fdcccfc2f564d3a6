"""A rank dies, ends its epoch or fails, at any turn of the loop: the others get an error that names
it, or go on. None waits for ever, no row is wrong, and every slot and place is free at the end."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gnndrive.common.errors import PeerError, ReadError
from gnndrive.common.records import Sample, Seeds, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.sampling.samplers.base import Sampler
from gnndrive.sampling.topologies.base import Topology
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import Rank, SimulatedRanks
from gnndrive.testing.simulation import RandomSampler, Scenario
from tests.host.expected import check_all, check_first, expected
from tests.host.spoken import some_turns
from tests.host.test_simulated_ranks import any_scenario

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=4)
TURNS_MAX = 5000
BAD_BYTES, BAD_ROWS = ((4096, 4608),), set(range(64, 72))


def check_peers(ranks: Sequence[Rank], dead: int, whole: list[list[tuple[int, list[int]]]]) -> None:
    """Each rank got all of its batches, or its first ones and then the error that names `dead`."""
    for rank in ranks:
        if rank.error is None:
            check_all([rank], whole)
        else:
            assert isinstance(rank.error, PeerError)
            assert rank.error.rank == dead
            check_first(rank, whole)


def after_each_turn(scenario: Scenario, seed: int, step: int, what: Callable[[Rank], None]) -> int:
    """Run an epoch of two ranks and after 0, 1, 2, … turns do `what` with one of them; then another
    epoch. Returns how many turns the first one has.

    Args:
        scenario, seed: of the simulation; the seed also says which rank it is.
        step: try every `step`-th turn; the seed says which.
        what: `Rank.die` or `Rank.close`.
    """

    async def main(turns: int) -> bool:
        simulated = SimulatedRanks(scenario, seed, 2)
        rank, other = simulated.ranks[:: (1, -1)[seed % 2]]
        simulated.begin(0)
        await some_turns(turns)
        ended = simulated.ended
        what(rank)
        await simulated.end()
        whole = expected(scenario, seed, 2)
        check_first(rank, whole)
        check_peers([other], rank.number, whole)
        assert rank.alive <= (other.error is None)
        simulated.begin(1)
        await simulated.end()
        if rank.alive:
            check_all(simulated.ranks, expected(scenario, seed, 2, 1))
        else:
            assert isinstance(other.error, PeerError)
        await simulated.close()
        return ended

    return next(turns for turns in range(seed % step, TURNS_MAX, step) if run(main(turns)))


SMALL = {
    "one batch in the buffer": {},
    "sweeps": {"slots": 100, "stages": Stages(2, 2, 3, 2)},
}


@pytest.mark.parametrize("what", [Rank.die, Rank.close])
@pytest.mark.parametrize("given", SMALL.values(), ids=SMALL)
def test_after_any_turn(
    rows: TableFile, given: dict[str, object], what: Callable[[Rank], None]
) -> None:
    scenario = Scenario(rows, batches=6, faults=NOISE, **given)  # type: ignore[arg-type]
    for seed in range(4):
        assert after_each_turn(scenario, seed, 12, what) > 50


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


def test_a_batch_that_cannot_be_sampled_fails_its_rank_alone(rows: TableFile) -> None:
    scenario = Scenario(rows, batches=12, faults=NOISE)

    async def main(seed: int) -> None:
        simulated = SimulatedRanks(scenario, seed, 2, sampler=failing_at(seed))
        for epoch in range(2):
            simulated.begin(epoch)
            await simulated.end()
            whole = expected(scenario, seed, 2, epoch)
            step, failing = divmod(seed, 2)
            assert isinstance(simulated.ranks[failing].error, BrokenOnPurpose)
            assert len(simulated.ranks[failing].delivered) == step
            check_first(simulated.ranks[failing], whole)
            check_all([simulated.ranks[1 - failing]], whole)
        await simulated.close()

    for seed in range(12):
        run(main(seed))


def test_a_bad_sector_fails_the_batches_that_need_it(rows: TableFile) -> None:
    scenario = Scenario(rows, batches=12, faults=replace(NOISE, eio_offsets=BAD_BYTES))

    async def main(seed: int) -> int:
        simulated = SimulatedRanks(scenario, seed, 3)
        simulated.begin(0)
        await simulated.end()
        whole = expected(scenario, seed, 3)
        for rank in simulated.ranks:
            check_first(rank, whole)
            check_failure(rank, whole)
        await simulated.close()
        return sum(rank.error is not None for rank in simulated.ranks)

    assert {run(main(seed)) for seed in range(20)} >= {1, 2, 3}


def check_failure(rank: Rank, whole: list[list[tuple[int, list[int]]]]) -> None:
    """Check that a rank's epoch ended at its first batch with a row of the bad sector."""
    bad = [step for step, nodes in whole[rank.number] if BAD_ROWS & set(nodes)]
    assert len(rank.delivered) == (bad or [len(whole[rank.number])])[0]
    if bad:
        assert isinstance(rank.error, ReadError)
        assert rank.error.errno == errno.EIO


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
        simulated = SimulatedRanks(scenario, seed, **given)
        dead: set[int] = set()
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
                    check_end(rank, whole, stops, dead)
        await simulated.close()

    def check_end(
        rank: Rank, whole: list[list[tuple[int, list[int]]]], stops: list[int], dead: set[int]
    ) -> None:
        """Check that a rank's epoch ended where it should, with the right error."""
        own, count = whole[rank.number], len(rank.delivered)
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


def test_whatever_befalls_the_ranks(rows: TableFile) -> None:
    for seed in range(60):
        run_with_mishaps(rows, seed)
