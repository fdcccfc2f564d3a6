"""What the stages of one epoch share: channels, buffer, workers, counters.

A batch's way: `sample_stage` reserves a place in `extracting`, draws seeds, samples them in a
thread and puts the sample; `extract_stage` takes it in order, draws its ticket in the same step and
waits until each row is valid; `train_stage` gathers and hands over; `release_stage` gives the slots
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.lease import Lease
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.pipeline.batch import Extracted, Failed, Sampled
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.counters import Counters
from gnndrive.pipeline.output_queue import OutputQueue, References
from gnndrive.pipeline.workers import Workers
from gnndrive.sampling.samplers.base import Sampler
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology


@dataclass(frozen=True, slots=True)
class Stages:
    """How many of each, and how far ahead (GNNDrive §4.1: 4 samplers, 4 extractors, queues of 6 and
    4).

    Attributes:
        samplers: samples that are drawn at once.
        extractors: tasks of that stage.
        extracting_queue: batches that may be sampled or wait to be extracted.
        training_queue: batches that may be extracted or wait to be handed over.
        in_order: whether batches are handed over by index.
        sweep: the most batches that are admitted and read together, if they wait already; None: as
            many as the buffer has room for. 1 is the paper.
    """

    samplers: int = 4
    extractors: int = 4
    extracting_queue: int = 6
    training_queue: int = 4
    in_order: bool = True
    sweep: int | None = None


class BatchAssembly(Protocol):
    """What the stages ask of the loader, each once a batch; all but `rows_of` and `make` are called
    once an epoch. All are blocking and run in worker threads."""

    def prepare(self) -> None:
        """Bring what the first batch would wait for, beside its sample; must not fail. The epoch's
        end waits for it."""
        ...

    def rows_of(self, sample: Sample | Subgraph) -> Mapping[str, Int64Array]:
        """The rows of each table that a sample needs, int64 [n]."""
        ...

    def make(self, item: Extracted, gathered: Callable[[], object]) -> tuple[Any, References]:
        """The user's batch from an extracted one, and references to what holds the rows' memory,
        see `OutputQueue.put`; calls `gathered` once the lease's rows have been gathered."""
        ...


@dataclass(frozen=True, slots=True)
class EpochInputs:
    """What one epoch is about.

    Attributes:
        number, seed: with a batch's index, what its random draws depend on.
        batches: the schedule's batches, in order, each with the window that it is in.
        sampler: makes samples; stopped at the epoch's end.
        assembly: joins samples with their rows.
        first: the index of the first batch; those before it are left out.
    """

    number: int
    seed: int
    batches: Iterator[tuple[Window, Seeds]]
    sampler: Sampler
    assembly: BatchAssembly
    first: int = 0


@dataclass(eq=False)
class Epoch:
    """Everything that the stages of one epoch share.

    Attributes:
        inputs: what it is about.
        topologies: adjacency, one an edge type.
        buffer: this epoch's alone while it runs.
        workers: threads for sampling and gathering.
        stages: how many tasks, and how far ahead.
        counters: what happened so far.
        together: samples that fetch together, at most the extracting queue's bound; 1: each sampler
            works by itself.
        output: where finished batches go.
    """

    inputs: EpochInputs
    topologies: Sequence[Topology]
    buffer: FeatureBuffer
    workers: Workers
    stages: Stages
    counters: Counters
    together: int = 1
    output: OutputQueue = field(default_factory=OutputQueue)

    def __post_init__(self) -> None:
        stages, self.seeds_drawn = self.stages, self.inputs.first
        order = stages.in_order, self.inputs.first
        self.extracting: Channel[Sampled | Failed] = Channel(stages.extracting_queue, *order)
        self.training: Channel[Extracted | Failed] = Channel(stages.training_queue, *order)
        self.releasing: Channel[Lease] = Channel(None)
        self.picking = asyncio.Lock()  # the extractor that takes the next samples

    def count_batch(self, item: Extracted, gather_s: float) -> None:
        """Count a batch that is about to be handed over, and the seconds that making it took."""
        counters, tables = self.counters, self.buffer.tables
        wanted = sum(len(rows) * tables[name].row_bytes for name, rows in item.rows.items())
        with counters.handing_over:
            counters.batches += 1
            counters.rows += item.sample.num_nodes
            counters.edges += item.sample.num_edges
            counters.bytes_wanted += wanted
            counters.gather_s += gather_s
