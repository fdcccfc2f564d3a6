"""What the stages of an epoch share: the records that they pass on, their numbers and bounds, what
they call of the feature buffer, the loader and a feed, what they count, and the channels between
them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gnndrive.common.padding import Parts
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.pipeline.batch_times import BatchTimes, EpochTimes, StageTimes
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.output_queue import OutputQueue, References
from gnndrive.pipeline.workers import Workers
from gnndrive.sampling.samplers.base import Sampler
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology

WINDOWS_TIMED = 256


class BatchLease(Protocol):
    """Holds the slots of one batch's rows until `release`; see `feature_buffer.Lease`."""

    async def ready(self) -> None:
        """Wait until every row is valid; raises the error of a row that could not be read."""

    def failures(self) -> Mapping[str, tuple[int, Exception]]:
        """After `ready` has raised an error: for each table with a row that could not be read, the
        place of the first such row and its error; empty if some may be loading still."""

    def gather(
        self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...], parts: Parts = ()
    ) -> torch.Tensor:
        """Copy the table's rows into a new tensor [n, *row_shape], with padding as `parts` says;
        blocks, in a worker thread."""

    async def gathered(self) -> None:
        """Wait until the copies of `gather` have ended; only then call `release` (rule 9)."""

    def release(self) -> None:
        """Give the slots back, once."""


class BatchBuffer(Protocol):
    """Admits batches and fetches their rows; see `buffer.feature_buffer.FeatureBuffer`. It is this
    process's own, or the host service's; the stages only pass its tickets back.

    Attributes:
        missing_share: the share of the last admitted sweep's rows that had to be read, 0 to 1.
        valid_when_granted: whether a lease is given only when its rows are valid.
    """

    missing_share: float
    valid_when_granted: bool

    def row_bytes(self, table: str) -> int:
        """Bytes of a row of a table."""

    def announce(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """Announce that batch `index` will need `rows`."""

    def withdraw(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """Take back the announcement of a batch that will not join."""

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        """Whether these batches can be extracted together, in one sweep."""

    def join(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> Sequence[Any]:
        """Join the admission queue with the batches of a sweep; a ticket for each."""

    async def granted(self, ticket: Any) -> BatchLease:
        """Wait for the batch's lease; cancelling this gives up the batch (rule 10)."""

    def leave(self, ticket: Any) -> None:
        """Give up a place in the admission queue, or the lease that it has got."""

    @property
    def loading(self) -> bool:
        """Whether reads are under way."""

    def fail(self, error: BaseException) -> None:
        """Break the buffer: every waiting batch gets the error, and every later one."""

    async def drain(self) -> None:
        """Wait until no read is under way."""


class NoBuffer:
    """Stands for the feature buffer while batches are sampled apart, so that none is extracted, and
    behind an epoch that has ended; `run_epoch` drains it."""

    async def drain(self) -> None:
        """See `BatchBuffer.drain`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: no batch is extracted while batches are sampled apart")


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """A batch that was sampled.

    Attributes:
        rows: table name → ids of the rows that the batch needs, int64 [n].
        times: when it went from stage to stage; None: it is not recorded.
    """

    seeds: Seeds
    sample: Sample | Subgraph
    rows: Mapping[str, Int64Array]
    times: BatchTimes | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """An item of the extracting queue: a group of consecutive batches, often of one, whose rows are
    yet to be extracted. They are admitted, gathered and released together.

    Attributes:
        index: its place in the queues, counted in groups.
        batches: none in the host service, which only extracts them.
        rows: table name → ids of the rows of all batches, one behind the other, int64 [n].
        error: why the batch behind these could not be made; None: it is in another group.
    """

    index: int
    batches: tuple[SampledBatch, ...]
    rows: Mapping[str, Int64Array]
    error: Exception | None = None

    @classmethod
    def one(cls, batch: SampledBatch) -> Sampled:
        """A group of one batch."""
        return cls(batch.seeds.index, (batch,), batch.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted(Sampled):
    """An item of the training queue: each row of its batches is in the feature buffer and valid,
    and the lease holds their slots until the release stage releases it."""

    lease: BatchLease


@dataclass(frozen=True, slots=True)
class Gathered:
    """An item of the releasing queue: rows are being copied out. No sample is kept alive."""

    index: int
    lease: BatchLease


@dataclass(frozen=True, slots=True)
class Failed:
    """A group whose first batch could not be made; it keeps its place, behind all earlier ones
    (rule 14)."""

    index: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Stages:
    """How many tasks each stage has, and how far it may be ahead; the defaults are GNNDrive §4.1's.

    Attributes:
        extracting_queue: the most groups that are being sampled or wait to be extracted.
        training_queue: the most groups that are being extracted or wait to be gathered.
        in_order: whether the user gets batches by index.
        sweep: the most groups that are admitted and read together, if their samples are ready;
            None: as many as the buffer has room for. The paper has 1.
        group: the most batches of a group. Handing one over between tasks and threads costs as much
            as sampling and gathering two thousand rows.
    """

    samplers: int = 4
    extractors: int = 4
    extracting_queue: int = 6
    training_queue: int = 4
    in_order: bool = True
    sweep: int | None = None
    group: int = 1


class BatchAssembly(Protocol):
    """What the stages call in the loader (`loader/epoch_assembly.py`): `prepare` once an epoch,
    `rows_of` once a batch, `make` once a group. All of them block and run in worker threads."""

    def prepare(self) -> None:
        """Load what the first batch needs beside its rows; never raises. The epoch waits for it."""

    def check_sample(self, sample: Sample | Subgraph) -> None:
        """BatchTooLarge: a sample that is kept before `rows_of` is larger than the plan counts."""

    def rows_of(self, sample: Sample | Subgraph) -> Mapping[str, Int64Array]:
        """Table name → ids of the rows that a sample needs, int64 [n]."""

    def make(
        self, item: Extracted, gathered: Callable[[], object]
    ) -> Generator[tuple[Any, References], None, None]:
        """Yield the user's batches, each with references for `OutputQueue.put`; `gathered` is
        called once all rows of the lease have been gathered. Close it before the lease is released
        if it did not come to its end."""


class Feed:
    """How the seeds of a part of an epoch become samples in the extracting queue. A feed that
    samples apart from extraction divides an epoch into parts.

    Attributes:
        extracts: whether the part's batches are extracted; if not, they are only sampled.
        combines: whether samples that were drawn in one combined fetch arrive together.
    """

    extracts = True
    combines = True

    @property
    def following(self) -> Feed | int | None:
        """What follows a part whose batches have ended: a feed for the same batches, the index of
        the first batch of another part, or None, because the epoch has one part."""
        return None

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """The coroutines that stand before the extract stage, and what they need beside it."""
        raise NotImplementedError

    async def topologies(self, index: int) -> Sequence[Topology]:
        """The adjacency of a batch, once it is loaded; StoreError or ReadError: it cannot be."""
        raise NotImplementedError

    def drawn(self, window: Window, seeds: Seeds) -> None:
        """Note that a batch of a window was drawn."""

    def sampled(self, batch: SampledBatch) -> None:
        """In a worker thread: note that a batch was sampled. What this raises is its error."""

    def released(self, index: int) -> None:
        """Note that the slots of a group were released."""

    def stop(self) -> None:
        """Make workers that this feed waits for end soon; any thread may call this."""

    def close(self) -> None:
        """Free what the stages held, after they have ended."""

    def discard(self) -> None:
        """Free what is kept for a following part, because there will be none; idempotent."""


@dataclass(frozen=True, slots=True)
class EpochInputs:
    """What one epoch loads.

    Attributes:
        number: the epoch's number if the user gave `seed`, else 0.
        seed: the user's, or the one drawn for this epoch. With `number` and a batch's index it
            determines the batch's random draws.
        first: the index of the first batch, when an epoch is resumed.
    """

    number: int
    seed: int
    batches: Iterator[tuple[Window, Seeds]]
    sampler: Sampler
    assembly: BatchAssembly
    feed: Feed
    first: int = 0

    def stop(self) -> None:
        """Make workers that sample, or load what samples need, end soon, from any thread."""
        self.sampler.stop()
        self.feed.stop()


@dataclass(eq=False)
class Counters:
    """What the stages of a loader's epochs count, cheap enough to be always on; times are summed
    over tasks that run side by side. Counts of reads, slots and sampling are kept where they
    happen.

    Attributes:
        batches, rows, edges: put into output queues; rows and edges are nodes and edges of samples.
        samples: batches sampled, including those that the user did not take.
        sample_s: with samplers' waits for the disk and for the others of a combined fetch.
        extract_s: from a ticket's turn to its last valid row.
        gather_s: in which worker threads made batches.
        windows, window_load_s: that were loaded, if windows need something in memory.
        window_wait_s: in which no window was open.
        window_seconds: of each of the last windows that have ended: the seconds of loading it, and
            those from then, or from the end of the window before, to its last release.
        lock: held to change `batches`, `rows`, `edges`, `bytes_wanted` and `gather_s`, because
            worker threads of several epochs count these. All others are counted in the loop thread.
    """

    batches: int = 0
    rows: int = 0
    edges: int = 0
    bytes_wanted: int = 0
    samples: int = 0
    sample_s: float = 0.0
    extract_s: float = 0.0
    gather_s: float = 0.0
    windows: int = 0
    window_load_s: float = 0.0
    window_wait_s: float = 0.0
    window_seconds: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=WINDOWS_TIMED)
    )
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    times: StageTimes = field(default_factory=StageTimes)


@dataclass(eq=False)
class Epoch:
    """Everything that the stages of one epoch share.

    Attributes:
        topologies: the adjacency, one for each edge type.
        buffer: the feature buffer, which no other epoch uses while this one runs (rule 12).
        combined: groups, of one batch each, that share a combined fetch, at most the extracting
            queue's bound; 1: each sampler works by itself. `together` of them arrive together in
            the extracting queue.
        times: the records of its batches; the parts of an iterator's epoch share it.
        seeds_drawn: the index of the next batch whose seeds are drawn.
        groups_drawn: the index of the next group. Until there are groups of several batches, it is
            the batch's.
        picking: held by the extractor that chooses the next samples.
    """

    inputs: EpochInputs
    topologies: Sequence[Topology]
    buffer: BatchBuffer
    workers: Workers
    stages: Stages
    counters: Counters
    combined: int = 1
    times: EpochTimes = field(default_factory=lambda: EpochTimes(StageTimes()))

    def __post_init__(self) -> None:
        stages, self.seeds_drawn = self.stages, self.inputs.first
        self.groups_drawn = self.inputs.first
        assert self.combined == 1 or stages.group == 1, "each group would wait for the disk alone"
        self.together = self.combined if self.inputs.feed.combines else 1
        order = stages.in_order, self.inputs.first
        self.extracting: Channel[Sampled | Failed] = Channel(stages.extracting_queue, *order)
        self.training: Channel[Extracted | Failed] = Channel(stages.training_queue, *order)
        self.releasing: Channel[Gathered] = Channel(None)
        self.picking, self.output = asyncio.Lock(), OutputQueue()

    @property
    def group_size(self) -> int:
        """How many batches the next group has: at first few, so that the first batch comes soon."""
        return min(max(self.seeds_drawn - self.inputs.first, 1), self.stages.group)

    def count_batch(self, batch: SampledBatch, gather_s: float) -> None:
        """Count a batch before it is put into `output`; making it took `gather_s` seconds."""
        counters, row_bytes = self.counters, self.buffer.row_bytes
        wanted = sum(len(rows) * row_bytes(name) for name, rows in batch.rows.items())
        with counters.lock:
            counters.batches += 1
            counters.rows += batch.sample.num_nodes
            counters.edges += batch.sample.num_edges
            counters.bytes_wanted += wanted
            counters.gather_s += gather_s
