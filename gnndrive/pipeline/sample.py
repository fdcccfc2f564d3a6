"""The sample stage: tasks draw seeds in order and sample them in worker threads (GNNDrive §4.1).

A task draws the seeds of a group of batches, and one call of a worker samples all of them. If
samplers read the adjacency from disk on demand, one task draws several samples at once, and
their samplers join one `CombinedFetch`, so that what they need is read in one pass. Otherwise each
sampler is a task of its own. Other feeds (`epoch.Feed`) sample with the same functions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from gnndrive.common.records import Sample, Seeds, Subgraph
from gnndrive.pipeline.batch_times import DRAWN, SAMPLED, SAMPLING, BatchTimes
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch, Failed, Feed, Sampled, SampledBatch
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
    """What sampling a group takes: its index, the seeds and records of its batches, the error of
    the batch behind them, the combined fetch and its part in that."""

    epoch: Epoch
    index: int
    seeds: Sequence[Seeds]
    times: Sequence[BatchTimes]
    error: Exception | None
    combined: CombinedFetch[Any]
    participant: Participant


@dataclass(frozen=True, slots=True)
class Drawn:
    """Seeds that were drawn together, of each batch in order; the error that the schedule, or the
    user's sampler, raised for the next batch; and whether the schedule yields no more."""

    seeds: list[Seeds]
    error: Exception | None
    ended: bool


async def sample_stage(epoch: Epoch) -> None:
    """Sample a group, or `epoch.combined` of them at a time, until the schedule ends."""
    while True:
        try:
            await epoch.extracting.reserve(epoch.combined)
        except ChannelEnded:
            return
        # Without an await between the two, so that batches are drawn in the order of their places.
        size, first = epoch.group_size, epoch.groups_drawn
        drawn = draw_seeds(epoch, size * epoch.combined)
        groups = [drawn.seeds[begin : begin + size] for begin in range(0, len(drawn.seeds), size)]
        epoch.groups_drawn += len(groups)
        if drawn.error is not None and not groups:
            epoch.extracting.put(first, Failed(first, drawn.error))
            epoch.groups_drawn += 1
        if drawn.ended:
            epoch.extracting.end(epoch.groups_drawn)
        await sample_together(epoch, groups, _sample_and_put, first, drawn.error)


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
    epoch: Epoch,
    groups: Sequence[Sequence[Seeds]],
    each: Callable[[Sampling], Coroutine[Any, Any, None]],
    first: int = 0,
    error: Exception | None = None,
) -> None:
    """Sample groups of batches side by side, in one combined fetch.

    Nothing is awaited while their functions enter the workers' queue, one right behind the other:
    so the participants of the oldest combined fetch, which waits for all, run at the same time.
    `each` samples a group in a worker; its first await is that of the worker, or the same for all.
    `first` is the index of the first group; `error` is that of the batch behind the last.
    """
    combined: CombinedFetch[Any] = CombinedFetch()
    participants = [combined.join() for _ in groups]
    errors = [*[None] * (len(groups) - 1), error]
    async with asyncio.TaskGroup() as tasks:
        for index, (seeds, participant) in enumerate(zip(groups, participants, strict=True)):
            times = [epoch.times.begin(one.index) for one in seeds]
            sampling = Sampling(
                epoch, first + index, seeds, times, errors[index], combined, participant
            )
            task = tasks.create_task(each(sampling))
            task.add_done_callback(participant.leave)  # also if the task never began


async def _sample_and_put(sampling: Sampling) -> None:
    """Sample a group and put it, or its error, into the extracting queue."""
    epoch, index = sampling.epoch, sampling.index
    try:
        topologies = await epoch.inputs.feed.topologies(sampling.seeds[0].index)
        if topologies is not epoch.topologies:  # they were waited for
            for times in sampling.times:
                times.waited_for_disk(times.marks[DRAWN])
        sampled, seconds = await epoch.workers.run(_sample, sampling, topologies)
    except Exception as error:
        epoch.extracting.put(index, Failed(index, error))
        return
    epoch.counters.samples += len(sampled.batches)
    epoch.counters.sample_s += seconds
    epoch.buffer.announce(index, sampled.rows)
    epoch.extracting.put(index, sampled)


def _sample(sampling: Sampling, topologies: Sequence[Topology]) -> tuple[Sampled, float]:
    """In a worker thread: return the sampled group and the seconds that it took. The error of a
    batch ends its group; that of the first batch is raised."""
    started, error, batches = perf_counter(), sampling.error, list[SampledBatch]()
    samples = samples_of(sampling, topologies)
    for number in range(len(sampling.seeds)):
        try:
            batches.append(_sample_one(sampling, number, samples))
        except BaseException as raised:
            if not batches:
                raise
            error = carried(raised)
            break
    rows = batches[0].rows
    if len(batches) > 1:
        rows = {name: np.concatenate([batch.rows[name] for batch in batches]) for name in rows}
    return Sampled(sampling.index, tuple(batches), rows, error), perf_counter() - started


def _sample_one(
    sampling: Sampling, number: int, samples: Iterator[Sample | Subgraph]
) -> SampledBatch:
    inputs, seeds, times = sampling.epoch.inputs, sampling.seeds[number], sampling.times[number]
    sample = next_sample(sampling, number, samples)
    seeds = seeds if sample.replayed is None else sample.replayed.seeds
    rows = inputs.assembly.rows_of(sample)
    times.mark(SAMPLED, from_disk=sample.replayed is not None)  # a replayed one was read
    batch = SampledBatch(seeds, sample, rows, times)
    inputs.feed.sampled(batch)
    return batch


def samples_of(sampling: Sampling, topologies: Sequence[Topology]) -> Iterator[Sample | Subgraph]:
    """In a worker thread: the samples of a group, for `next_sample`."""
    inputs = sampling.epoch.inputs
    keys = [batch_key(inputs.seed, inputs.number, each.number) for each in sampling.seeds]
    grouped = [topology.in_group(sampling.combined) for topology in topologies]
    return inputs.sampler.samples(sampling.seeds, keys, grouped)


def next_sample(
    sampling: Sampling, number: int, samples: Iterator[Sample | Subgraph]
) -> Sample | Subgraph:
    """In a worker thread: the sample of a batch of a group; the last one leaves the combined
    fetch. If one call samples the group, it is at the first."""
    times = sampling.times[number]
    times.mark(SAMPLING)
    times.worker = threading.current_thread().name
    try:
        return next(samples)
    finally:
        if number == len(sampling.seeds) - 1:
            sampling.participant.leave()
