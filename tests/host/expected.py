"""What each rank of a simulation should get, computed without a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from gnndrive.sampling.samplers.base import batch_key
from gnndrive.testing.simulated_ranks import Rank
from gnndrive.testing.simulation import Delivered, RandomSampler, Scenario

Batches: TypeAlias = list[tuple[int, list[int]]]
"""Of each batch its step and its nodes."""


def expected(scenario: Scenario, seed: int, ranks: int, epoch: int = 0) -> list[Batches]:
    """The batches of each rank in an epoch."""
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
