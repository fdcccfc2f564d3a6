"""The sample stage: tasks draw seeds in order and sample them in worker threads (GNNDrive §4.1).

Where samplers read the adjacency as they go one task draws all of them at once, a round, and they
read together. Else each sampler is a task of its own.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from gnndrive.common.records import Seeds
from gnndrive.pipeline.batch import Failed, Sampled
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.workers import carried
from gnndrive.sampling.rounds import CombinedFetch, Participant
from gnndrive.sampling.samplers.base import batch_key


async def sample_stage(epoch: Epoch, together: int) -> None:
    """Sample round after round until the schedule ends.

    Args:
        epoch: whose.
        together: the samples of a round, at most the channel's bound.
    """
    while True:
        try:
            await epoch.extracting.reserve(together)
        except ChannelEnded:
            return
        # No wait between places and seeds: batch indices are drawn in the order of places.
        await _round(epoch, _drawn(epoch, together))


def _drawn(epoch: Epoch, most: int) -> list[Seeds]:
    """The next seeds; where there are fewer, the channel hears of its end."""
    drawn: list[Seeds] = []
    while len(drawn) < most:
        try:
            _, seeds = next(epoch.inputs.batches, (None, None))
        except BaseException as error:  # the user's own sampler, for instance
            epoch.extracting.put(epoch.seeds_drawn, Failed(epoch.seeds_drawn, carried(error)))
            epoch.seeds_drawn += 1
            seeds = None
        if seeds is None:
            epoch.extracting.end(epoch.seeds_drawn)
            break
        epoch.seeds_drawn += 1
        drawn.append(seeds)
    return drawn


async def _round(epoch: Epoch, drawn: list[Seeds]) -> None:
    """Sample batches side by side.

    Their functions enter the workers' queue one right behind the other, for nothing is awaited in
    between: so of several rounds, each of which waits for all of its own, the oldest is always at
    work as a whole.
    """
    round: CombinedFetch[Any] = CombinedFetch()
    members = [round.join() for _ in drawn]
    async with asyncio.TaskGroup() as group:
        for seeds, member in zip(drawn, members, strict=True):
            task = group.create_task(_one(epoch, seeds, round, member))
            task.add_done_callback(member.leave)  # if it never began


async def _one(epoch: Epoch, seeds: Seeds, round: CombinedFetch[Any], member: Participant) -> None:
    """Sample a batch and put it, or its error, into its place."""
    try:
        sampled, seconds = await epoch.workers.run(_sample, epoch, seeds, round, member)
    except Exception as error:
        epoch.extracting.put(seeds.index, Failed(seeds.index, error))
    else:
        epoch.counters.samples += 1
        epoch.counters.sample_s += seconds
        epoch.buffer.announce(seeds.index, sampled.rows)
        epoch.extracting.put(seeds.index, sampled)


def _sample(
    epoch: Epoch, seeds: Seeds, round: CombinedFetch[Any], member: Participant
) -> tuple[Sampled, float]:
    """In a worker thread: the sample, and how many seconds it took."""
    started = perf_counter()
    inputs = epoch.inputs
    key = batch_key(inputs.seed, inputs.number, seeds.index)
    topologies = [topology.in_group(round) for topology in epoch.topologies]
    try:
        sample = inputs.sampler.sample(seeds, key, topologies)
    finally:
        member.leave()
    return Sampled(seeds, sample, inputs.assembly.rows_of(sample)), perf_counter() - started
