"""Ranks that share a buffer read hardly more rows than one process with that buffer would.

Turns keep the ranks' steps together, so a row that several of them need is read once. What ranks
have beside one process is a training queue each, whose batches hold slots.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import SimulatedRanks
from gnndrive.testing.simulation import Scenario, Simulation

SEEDS = 2
SLOW = Faults(delay_turns_max=30)


def loads_of_one(scenario: Scenario, seed: int) -> int:
    """Rows that one process reads in an epoch."""

    async def main() -> int:
        simulation = Simulation(scenario, seed)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        await simulation.consume(epoch)
        await running
        await simulation.close()
        return int(simulation.table.stats()["loads"])

    return run(main())


def loads_of_ranks(scenario: Scenario, seed: int, count: int) -> int:
    """Rows that are read for ranks, to which the same batches are dealt."""

    async def main() -> int:
        simulated = SimulatedRanks(scenario, seed, count)
        simulated.begin(0)
        await simulated.end()
        assert all(rank.error is None for rank in simulated.ranks)
        await simulated.close()
        return int(simulated.shared.table.stats()["loads"])

    return run(main())


def more(scenario: Scenario, count: int, stages: Stages) -> float:
    """How many times as many rows ranks with `stages` read as one process with the scenario's."""
    one = sum(loads_of_one(scenario, seed) for seed in range(SEEDS))
    whole = scenario.batches * SEEDS * (scenario.batch_size + scenario.extra_max // 2)
    assert one < 0.8 * whole, "the buffer saves nothing, so there is nothing to compare"
    of_ranks = replace(scenario, stages=stages)
    return sum(loads_of_ranks(of_ranks, seed, count) for seed in range(SEEDS)) / one


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("policy", [LRU(), Belady()], ids=["lru", "belady"])
def test_ranks_read_hardly_more_rows_than_one_process(
    rows: TableFile, policy: Policy, ranks: int
) -> None:
    for slots in (48, 100):
        scenario = Scenario(rows, batches=48, slots=slots, policy=policy, faults=SLOW)
        assert more(scenario, ranks, scenario.stages) < 1.1


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_sweeps_a_share_of_the_training_queue_is_enough(
    rows: TableFile, ranks: int
) -> None:
    """The batches of four whole training queues leave the buffer too little room for other rows."""
    stages = Stages(sweep=1)
    scenario = Scenario(rows, batches=48, slots=64, policy=Belady(), faults=SLOW, stages=stages)
    own = replace(stages, training_queue=stages.training_queue // ranks)
    assert more(scenario, ranks, own) < 1 < more(scenario, ranks, stages)
