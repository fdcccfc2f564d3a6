"""Ranks that draw from the same windows, whatever the seed decides: no rank waits for ever, no row
is wrong, and nothing is held at the end."""

import asyncio
import random

from gnndrive.common.errors import PeerError
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import simulate_ranks
from gnndrive.testing.simulated_windows import WindowedRanks, WindowedScenario

NOISE = Faults(short=0.2, eagain=0.1, delay_turns_max=4)


def any_scenario(rows: TableFile, seed: int) -> tuple[WindowedScenario, int]:
    """A scenario, whose buffer may lack slots for two windows, and a number of ranks."""
    draw = random.Random(f"windows {seed}")
    stages = Stages(
        samplers=draw.choice([1, 2, 4]), extractors=draw.choice([1, 4]), sweep=1,
        extracting_queue=draw.choice([1, 3, 6]), training_queue=draw.choice([1, 2, 4]),
    )  # fmt: skip
    scenario = WindowedScenario(
        rows, stages=stages, few_slots=draw.choice([0, 0, 7, 20, 33, 47]),
        batches=draw.randint(1, 40), consumer_turns_max=draw.choice([0, 3, 20]),
        faults=draw.choice([Faults(), NOISE, Faults(delay_turns_max=30)]),
    )  # fmt: skip
    return scenario, draw.choice([2, 2, 3, 4])


def whole_epochs(rows: TableFile, seed: int) -> None:
    scenario, ranks = any_scenario(rows, seed)
    steps = -(-scenario.batches // ranks)
    for delivered in simulate_ranks(scenario, seed, ranks, 2, kind=WindowedRanks):
        assert [batch.index for batch in delivered] == 2 * list(range(steps))


def epochs_with_mishaps(rows: TableFile, seed: int) -> int:
    """Users stop early, and a rank dies or closes its iterator at any turn; returns how many ranks
    got a PeerError."""
    scenario, ranks = any_scenario(rows, seed)
    draw, errors = random.Random(f"mishaps {seed}"), 0

    async def main() -> None:
        nonlocal errors
        simulated = WindowedRanks(scenario, seed, ranks)
        for epoch in range(2):
            limits = {rank: draw.choice([None, None, draw.randint(0, 5)]) for rank in range(ranks)}
            simulated.begin(epoch, limits)
            for _ in range(draw.randint(0, 3_000)):
                if not simulated.ended:
                    await asyncio.sleep(0)
            victim = draw.choice(simulated.ranks)
            if draw.random() < 0.6:
                victim.die()
            else:
                victim.close()
            await simulated.end()
            found = [rank.error for rank in simulated.ranks if rank.alive and rank.error]
            assert all(isinstance(error, PeerError) for error in found)
            errors += len(found)
        await simulated.close()
        assert not simulated.group._users
        assert not any(rank.member.windows for rank in simulated.ranks)

    run(main())
    return errors


def test_whole_epochs(rows, seeds):
    for seed in seeds(8):
        whole_epochs(rows, seed)


def test_mishaps(rows, seeds):
    assert sum(epochs_with_mishaps(rows, seed) for seed in range(8)) > 0
    for seed in seeds(2):
        epochs_with_mishaps(rows, seed + 8)
