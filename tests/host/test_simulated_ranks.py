"""Ranks that share a feature buffer get one process's batches, whatever the seed decides."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import Barrier, Rank, SimulatedRanks, simulate_ranks
from gnndrive.testing.simulation import Scenario, simulate
from tests.host.expected import check_all, expected, got
from tests.host.spoken import some_turns

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=4)
SEEDS = 50


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


def run_whole_epochs(rows: TableFile, seed: int) -> None:
    """One to three epochs with any scenario; some users stop before the end of one."""
    scenario, given = any_scenario(rows, seed)
    draw = random.Random(f"epochs {seed}")

    async def main() -> None:
        simulated = SimulatedRanks(scenario, seed, **given)
        for epoch in range(draw.randint(1, 3)):
            whole = expected(scenario, seed, given["count"], epoch)
            stop = {rank.number for rank in simulated.ranks if draw.random() < 0.3}
            limits = {number: draw.randint(0, len(whole[0])) for number in stop}
            simulated.begin(epoch, limits)
            await simulated.end()
            for rank in simulated.ranks:
                limit = limits.get(rank.number)
                assert rank.error is None
                assert got(rank.delivered) == whole[rank.number][:limit]
        await simulated.close()

    run(main())


def test_whatever_the_seed_decides(rows: TableFile) -> None:
    for seed in range(SEEDS):
        run_whole_epochs(rows, seed)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_get_what_one_process_gets(rows: TableFile, ranks: int) -> None:
    scenario = Scenario(rows, batches=6 * ranks, faults=NOISE)
    for seed in range(4):
        one = simulate(replace(scenario, faults=Faults()), seed)
        by_rank = simulate_ranks(scenario, seed, ranks)
        dealt = [by_rank[number % ranks][number // ranks] for number in range(len(one))]
        assert [each.node.tolist() for each in dealt] == [each.node.tolist() for each in one]


def test_queues_that_hold_a_whole_epoch(rows: TableFile) -> None:
    """A rank may have joined with its last batch before the other one has with its first."""
    scenario = Scenario(rows, batches=24, stages=Stages(4, 4, 12, 12), consumer_turns_max=0)
    for seed in range(6):
        assert [len(each) for each in simulate_ranks(scenario, seed)] == [12, 12]


def test_a_rank_without_batches(rows: TableFile) -> None:
    """Three ranks and two batches: the third one's turns are void when its epoch ends."""
    scenario = Scenario(rows, batches=2)

    async def main() -> None:
        simulated = SimulatedRanks(scenario, 0, 3)
        for epoch in range(3):
            simulated.begin(epoch)
            await simulated.end()
            check_all(simulated.ranks, expected(scenario, 0, 3, epoch))
        await simulated.close()

    run(main())


@pytest.mark.parametrize("places", [0, 2])
def test_ranks_that_are_in_different_epochs(rows: TableFile, places: int) -> None:
    """One rank ends its epochs early. Its batches are given up while they wait, are read or are
    ready; it begins the next epoch at once, and waits there until the others end this one."""
    scenario = Scenario(rows, batches=18, faults=NOISE)

    async def main(seed: int) -> int:
        simulated = SimulatedRanks(scenario, seed, 3, places)
        barriers = [Barrier(set(range(3))) for _ in range(3)]
        early, limit, apart = seed % 3, seed // 3 % 4, 0
        at = [0, 0, 0]

        async def epochs(rank: Rank) -> None:
            nonlocal apart
            for epoch, barrier in enumerate(barriers):
                at[rank.number] = epoch
                apart = max(apart, max(at) - min(at))
                await rank.begin(epoch, barrier, limit if rank.number == early else None)
                whole = expected(scenario, seed, 3, epoch)
                assert rank.error is None
                length = limit if rank.number == early else 6
                assert got(rank.delivered) == whole[rank.number][:length]

        await asyncio.gather(*map(epochs, simulated.ranks))
        await simulated.close()
        return apart

    assert max(run(main(seed)) for seed in range(9)) == 2


def test_an_epoch_that_begins_while_the_last_ones_batches_are_read(rows: TableFile) -> None:
    """The disk is slow, so that the batches that were given up keep all places for long, and
    batches of the next epoch that were sampled out of order get theirs one by one."""
    faults, stages = Faults(delay_turns_max=80), Stages(samplers=4, extractors=4)
    scenario = Scenario(rows, batches=24, slots=100, faults=faults, depth=1, stages=stages)

    async def main(seed: int) -> None:
        simulated = SimulatedRanks(scenario, seed)
        for epoch, limit in enumerate((1, None)):
            simulated.begin(epoch, {0: limit, 1: limit})
            await simulated.end()
            for rank, whole in zip(
                simulated.ranks, expected(scenario, seed, 2, epoch), strict=True
            ):
                assert rank.error is None
                assert got(rank.delivered) == whole[:limit]
        await simulated.close()

    for seed in range(4):
        run(main(seed))


def test_a_rank_that_never_begins_is_named(rows: TableFile) -> None:
    """A user who has waited too long asks; until the other rank begins there is no batch."""

    async def main(late: int) -> None:
        simulated = SimulatedRanks(Scenario(rows, batches=8), 0, 2)
        rank, other = simulated.ranks[1 - late], simulated.ranks[late]
        barrier = Barrier({0, 1})
        epoch = rank.begin(0, barrier)
        await some_turns()
        assert len(rank.delivered) == late, "one of rank 0 comes before rank 1's first turn"
        assert await rank.buffer.awaited() == late
        await asyncio.gather(epoch, other.begin(0, barrier))
        check_all(simulated.ranks, expected(simulated.shared.scenario, 0, 2))
        await simulated.close()

    for late in range(2):
        run(main(late))
