"""One epoch: the four stages in one task group, over three channels.

A batch's way: `sample_stage` reserves a place in `extracting`, draws seeds, samples them in a
thread and puts the
sample; `extract_stage` takes it in order, draws its ticket in the same step and waits until each
row is valid;
`train_stage` gathers and hands over; `release_stage` gives the slots back.

The epoch ends in one of three ways: the schedule ends, a batch fails at its turn, or the user goes
away. In each of
them every lease is given back, every read has ended, and only then is the buffer free for somebody
else (rule 13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gnndrive.buffer import FeatureBuffer, Lease
from gnndrive.errors import ClosedError
from gnndrive.metrics import Counters
from gnndrive.pipeline.batch import Extracted, Failed, Sampled
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.extract import extract_stage
from gnndrive.pipeline.release import release_stage
from gnndrive.pipeline.sample import sample_stage
from gnndrive.pipeline.train import EpochFailed, Handover, train_stage
from gnndrive.pipeline.workers import Workers
from gnndrive.records import Seeds
from gnndrive.samplers.base import Sampler
from gnndrive.topologies.base import Topology


@dataclass(frozen=True, slots=True)
class Stages:
    """How many of each, and how far ahead (GNNDrive §4.1: 4 samplers, 4 extractors, queues of 6 and
    4).

    Attributes:
        samplers, extractors: tasks of the two stages.
        extracting_queue: batches that may be sampled or wait to be extracted.
        training_queue: batches that may be extracted or wait to be handed over.
        in_order: whether batches are handed over by index.
    """

    samplers: int = 4
    extractors: int = 4
    extracting_queue: int = 6
    training_queue: int = 4
    in_order: bool = True


@dataclass(eq=False)
class Epoch:
    """Everything that the stages of one epoch share.

    Attributes:
        number, seed: with a batch's index, what its random draws depend on.
        seeds: the schedule's batches, in order.
        sampler, topology: make samples.
        buffer: this epoch's alone while it runs.
        workers: threads for sampling and gathering.
        collate: makes the user's batch from an extracted one; blocking.
        counters: what happened so far.
    """

    number: int
    seed: int
    seeds: Iterator[Seeds]
    sampler: Sampler
    topology: Topology
    buffer: FeatureBuffer
    workers: Workers
    collate: Callable[[Extracted], Any]
    stages: Stages
    counters: Counters
    handover: Handover = field(default_factory=Handover)
    seeds_drawn: int = 0

    def __post_init__(self) -> None:
        stages = self.stages
        self.extracting: Channel[Sampled | Failed] = Channel(
            stages.extracting_queue, stages.in_order
        )
        self.training: Channel[Extracted | Failed] = Channel(stages.training_queue, stages.in_order)
        self.releasing: Channel[Lease] = Channel(None)

    async def run(self) -> None:
        """Run the epoch to its end; cancel the task to end it early. The hand-over hears of every
        end."""
        error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.stages.samplers):
                    group.create_task(sample_stage(self))
                for _ in range(self.stages.extractors):
                    group.create_task(extract_stage(self))
                group.create_task(train_stage(self))
                group.create_task(release_stage(self))
        except* EpochFailed:
            pass  # the hand-over has the batch's own error
        except* Exception as group_error:
            error = group_error.exceptions[0]
        except* asyncio.CancelledError:
            error = ClosedError("the iterator was closed")
        finally:
            try:
                await self._wind_up()
            finally:
                self.handover.finish(error)

    def count_batch(self, item: Extracted) -> None:
        """Count a batch that is about to be handed over."""
        self.counters.batches += 1
        self.counters.rows += len(item.sample.node)
        self.counters.edges += len(item.sample.row)
        for table in self.buffer.tables.values():
            self.counters.bytes_wanted += len(item.sample.node) * table.row_bytes

    async def _wind_up(self) -> None:
        for lease in self.releasing.drain():
            lease.release()
        for item in self.training.drain():
            if isinstance(item, Extracted):
                item.lease.release()
        self.extracting.drain()
        await self.buffer.drain()
