"""The sample stage: tasks draw seeds in order and sample them in worker threads (GNNDrive §4.1).

If samplers read the adjacency from disk on demand, one task draws several samples at once, and
their samplers join one `CombinedFetch`, so that what they need is read in one pass. Otherwise each
sampler is a task of its own. Other feeds (`epoch.Feed`) sample with the same functions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from gnndrive.common.records import Sample, Seeds, Subgraph
from gnndrive.pipeline.batch_times import DRAWN, SAMPLED, SAMPLING, BatchTimes
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch, Failed, Feed, Sampled
from gnndrive.pipeline.workers import carried
from gnndrive.sampling.rounds import CombinedFetch, Participant
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.topologies.base import Topology


class SampledFeed(Feed):
    """Batches are sampled from the whole graph as they are drawn."""

    _topologies: Sequence[Topology] = ()

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`."""
        self._topologies = epoch.topologies
        tasks = epoch.stages.samplers // epoch.combined
        return [sample_stage(epoch) for _ in range(tasks)]

    async def topologies(self, index: int) -> Sequence[Topology]:
        """See `Feed.topologies`."""
        return self._topologies


@dataclass(frozen=True, slots=True)
class Sampling:
    """What sampling a batch takes: among others the combined fetch and its part in that."""

    epoch: Epoch
    seeds: Seeds
    combined: CombinedFetch[Any]
    participant: Participant
    times: BatchTimes


@dataclass(frozen=True, slots=True)
class Drawn:
    """Seeds that were drawn together, of each batch in order; the error that the schedule, or the
    user's sampler, raised for the next batch; and whether the schedule yields no more."""

    seeds: list[Seeds]
    error: Exception | None
    ended: bool


async def sample_stage(epoch: Epoch) -> None:
    """Sample batches, `epoch.combined` at a time, until the schedule ends."""
    while True:
        try:
            await epoch.extracting.reserve(epoch.combined)
        except ChannelEnded:
            return
        # Without an await between the two, so that batches are drawn in the order of their places.
        drawn = draw_seeds(epoch, epoch.combined)
        if drawn.error is not None:
            epoch.extracting.put(epoch.seeds_drawn, Failed(epoch.seeds_drawn, drawn.error))
            epoch.seeds_drawn += 1
        if drawn.ended:
            epoch.extracting.end(epoch.seeds_drawn)
        await sample_together(epoch, drawn.seeds, _sample_and_put)


def draw_seeds(epoch: Epoch, most: int) -> Drawn:
    """Draw the seeds of up to `most` batches."""
    drawn: list[Seeds] = []
    while len(drawn) < most:
        try:
            window, seeds = next(epoch.inputs.batches)
        except StopIteration:
            return Drawn(drawn, None, True)
        except BaseException as raised:
            return Drawn(drawn, carried(raised), True)
        epoch.inputs.feed.drawn(window, seeds)
        epoch.seeds_drawn += 1
        drawn.append(seeds)
    return Drawn(drawn, None, False)


async def sample_together(
    epoch: Epoch, drawn: Sequence[Seeds], each: Callable[[Sampling], Coroutine[Any, Any, None]]
) -> None:
    """Sample batches side by side, in one combined fetch.

    Nothing is awaited while their functions enter the workers' queue, one right behind the other:
    so the participants of the oldest combined fetch, which waits for all, run at the same time.
    `each` samples one in a worker; its first await is that of the worker, or the same for all.
    """
    combined: CombinedFetch[Any] = CombinedFetch()
    participants = [combined.join() for _ in drawn]
    async with asyncio.TaskGroup() as group:
        for seeds, participant in zip(drawn, participants, strict=True):
            times = epoch.times.begin(seeds.index)
            task = group.create_task(each(Sampling(epoch, seeds, combined, participant, times)))
            task.add_done_callback(participant.leave)  # also if the task never began


async def _sample_and_put(sampling: Sampling) -> None:
    """Sample a batch and put it, or its error, into the extracting queue."""
    epoch, seeds = sampling.epoch, sampling.seeds
    try:
        topologies = await epoch.inputs.feed.topologies(seeds.index)
        if topologies is not epoch.topologies:  # they were waited for
            sampling.times.waited_for_disk(sampling.times.marks[DRAWN])
        sampled, seconds = await epoch.workers.run(_sample, sampling, topologies)
        epoch.inputs.feed.sampled(sampled)
    except Exception as error:
        epoch.extracting.put(seeds.index, Failed(seeds.index, error))
    else:
        epoch.counters.samples += 1
        epoch.counters.sample_s += seconds
        epoch.buffer.announce(seeds.index, sampled.rows)
        epoch.extracting.put(seeds.index, sampled)


def _sample(sampling: Sampling, topologies: Sequence[Topology]) -> tuple[Sampled, float]:
    """In a worker thread: return the sampled batch and the seconds that it took."""
    started, seeds, times = perf_counter(), sampling.seeds, sampling.times
    sample = sample_seeds(sampling, topologies)
    seeds = seeds if sample.replayed is None else sample.replayed.seeds
    rows = sampling.epoch.inputs.assembly.rows_of(sample)
    times.mark(SAMPLED, from_disk=sample.replayed is not None)  # a replayed one was read
    return Sampled(seeds, sample, rows, times), perf_counter() - started


def sample_seeds(sampling: Sampling, topologies: Sequence[Topology]) -> Sample | Subgraph:
    """In a worker thread: sample a batch and leave the combined fetch."""
    inputs, seeds = sampling.epoch.inputs, sampling.seeds
    sampling.times.mark(SAMPLING)
    sampling.times.worker = threading.current_thread().name
    key = batch_key(inputs.seed, inputs.number, seeds.number)
    grouped = [topology.in_group(sampling.combined) for topology in topologies]
    try:
        return inputs.sampler.sample(seeds, key, grouped)
    finally:
        sampling.participant.leave()
