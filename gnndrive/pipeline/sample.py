"""The sample stage: tasks draw seeds in order and sample them in worker threads (GNNDrive §4.1).

`run_epoch` starts the tasks; the samples go to the extract stage. If samplers read the adjacency
from disk on demand, one task draws `together` samples at once, and their samplers join one
`CombinedFetch`, so that what they need is read in one pass. Otherwise each sampler is a task of its
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from gnndrive.common.records import Seeds
from gnndrive.pipeline.batch import Failed, Sampled
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.workers import carried
from gnndrive.sampling.rounds import CombinedFetch, Participant
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.topologies.base import Topology


async def sample_stage(epoch: Epoch, together: int) -> None:
    """Sample batches until the schedule ends.

    Args:
        epoch: the epoch to sample for.
        together: samples of one combined fetch, at most the extracting queue's bound.
    """
    while True:
        try:
            await epoch.extracting.reserve(together)
        except ChannelEnded:
            return
        # Without an await between the two, so that batches are drawn in the order of their places.
        await _sample_together(epoch, _draw_seeds(epoch, together))


def _draw_seeds(epoch: Epoch, most: int) -> list[Seeds]:
    """Draw the seeds of up to `most` batches; if there are fewer, end the extracting queue."""
    drawn: list[Seeds] = []
    while len(drawn) < most:
        try:
            window, seeds = next(epoch.inputs.batches, (None, None))
        except BaseException as error:  # for example, of a sampler that the user wrote
            epoch.extracting.put(epoch.seeds_drawn, Failed(epoch.seeds_drawn, carried(error)))
            epoch.seeds_drawn += 1
            window = seeds = None
        if window is None or seeds is None:
            epoch.extracting.end(epoch.seeds_drawn)
            break
        if epoch.keeper is not None:
            epoch.keeper.drawn(window, seeds)
        epoch.seeds_drawn += 1
        drawn.append(seeds)
    return drawn


async def _sample_together(epoch: Epoch, drawn: list[Seeds]) -> None:
    """Sample batches side by side, in one combined fetch.

    Nothing is awaited while their functions enter the workers' queue, so they stand there one right
    behind the other. A combined fetch waits for all of its participants; in this order the
    participants of the oldest one always run at the same time.
    """
    combined: CombinedFetch[Any] = CombinedFetch()
    participants = [combined.join() for _ in drawn]
    async with asyncio.TaskGroup() as group:
        for seeds, participant in zip(drawn, participants, strict=True):
            task = group.create_task(_sample_and_put(epoch, seeds, combined, participant))
            task.add_done_callback(participant.leave)  # also if the task never began


async def _sample_and_put(
    epoch: Epoch, seeds: Seeds, combined: CombinedFetch[Any], participant: Participant
) -> None:
    """Sample a batch and put it, or its error, into the extracting queue."""
    try:
        topologies = epoch.topologies
        if epoch.keeper is not None:
            topologies = [await epoch.keeper.graph_for(seeds.index)]
        sampling = epoch, topologies, seeds, combined, participant
        sampled, seconds = await epoch.workers.run(_sample, *sampling)
    except Exception as error:
        epoch.extracting.put(seeds.index, Failed(seeds.index, error))
    else:
        epoch.counters.samples += 1
        epoch.counters.sample_s += seconds
        epoch.buffer.announce(seeds.index, sampled.rows)
        epoch.extracting.put(seeds.index, sampled)


def _sample(
    epoch: Epoch, topologies: Sequence[Topology], seeds: Seeds, combined: CombinedFetch[Any],
    participant: Participant,
) -> tuple[Sampled, float]:  # fmt: skip
    """In a worker thread: return the sampled batch and the seconds that it took."""
    started = perf_counter()
    inputs = epoch.inputs
    key = batch_key(inputs.seed, inputs.number, seeds.number)
    grouped = [topology.in_group(combined) for topology in topologies]
    try:
        sample = inputs.sampler.sample(seeds, key, grouped)
    finally:
        participant.leave()
    seeds = seeds if sample.replayed is None else sample.replayed.seeds
    return Sampled(seeds, sample, inputs.assembly.rows_of(sample)), perf_counter() - started
