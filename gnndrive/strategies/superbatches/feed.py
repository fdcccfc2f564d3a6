"""Superbatches: batches that are sampled and recorded before the first of them is extracted.

Ginex §3.1: once all samples of a superbatch are known, so is each next use of each row, and the
feature buffer can follow Belady's rule. `AheadFeed` samples a superbatch, records it in a `Trace`
and finds the next uses in one pass backwards; meanwhile it reads the records of the superbatch
before, in order, and puts them into the extracting queue, as the sample stage would. `InspectFeed`
and `ReplayFeed` do the one and the other in parts of the epoch that follow each other.
As soon as a superbatch is known, the rows in slots and the batches that are yet to be admitted
learn what it needs.

The batches are those that the sample stage would draw, whatever the superbatches' sizes. A batch
that comes again (`Seeds.again`) is sampled once: until its last turn, superbatches share a trace. A
disk that is full ends a superbatch early: samples that were drawn already stay in memory. An error
surfaces at its batch's turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from time import perf_counter
from typing import Any, Protocol, cast

from gnndrive.buffer.feature_buffer import FeatureBuffer, add_later
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import lib
from gnndrive.common.records import Codes, Int64Array, NextUses, NodeKey, Sample, Seeds, Subgraph
from gnndrive.pipeline.batch_times import SAMPLED
from gnndrive.pipeline.epoch import Epoch, Failed, Feed, Sampled, SampledBatch
from gnndrive.pipeline.sample import (
    SampledFeed,
    Sampling,
    draw_seeds,
    next_sample,
    sample_together,
    samples_of,
)
from gnndrive.sampling.trace import Trace

ALIVE_MAX = 2  # superbatches: one is replayed, the next one is inspected


@dataclass(eq=False)
class Superbatch:
    """A superbatch that is being sampled, or was."""

    trace: Trace | None
    first: int  # the index of its first batch
    left: int  # how many more batches are to be drawn for it
    end: int  # the index after its last batch
    written: int = 0  # samples in the file
    error: Exception | None = None  # of batch `end`, which ends the epoch
    last: bool = False  # whether there are no batches after it
    full: bool = False  # whether the disk was, so that a sample is in memory
    shares: bool = False  # whether the next superbatch has the same trace
    repeats: dict[int, int] = field(default_factory=dict)  # batch → that under which it is recorded

    def fail(self, index: int, error: Exception) -> None:
        """Batch `index` failed. The epoch ends with it, so batches behind it do not matter."""
        self.left, self.last = 0, True
        if self.error is None or index < self.end:
            self.error, self.end = error, index


class Source(Protocol):
    """What a feed asks of `scheme.LoaderSuperbatches`, or of simulated ones."""

    end: int | None
    foreseen: Mapping[str, NodeKey]

    def size(self, number: int, first: int, misses: float | None) -> int:
        """See `LoaderSuperbatches.size`."""

    def open_trace(self) -> Trace:
        """See `LoaderSuperbatches.open_trace`."""

    def next_uses(self) -> Mapping[NodeKey, Codes]:
        """See `LoaderSuperbatches.next_uses`."""

    def no_room(self) -> ConfigError:
        """See `LoaderSuperbatches.no_room`."""


class ForeseeingBuffer(Protocol):
    """A `FeatureBuffer`, or one that passes on what it is told."""

    def announce(
        self, index: int, rows: Mapping[str, Int64Array], uses: Mapping[str, NextUses] | None
    ) -> None:
        """See `FeatureBuffer.announce`."""

    def foresee(self, first: int, last: int, later: Mapping[str, Codes] | None) -> None:
        """See `FeatureBuffer.foresee`."""


class AheadFeed(SampledFeed):
    """Samples a superbatch while the one before is replayed; see `epoch.Feed`. `recorded` is one
    that was sampled apart and is replayed next."""

    combines = False  # samples of a superbatch arrive one by one, however they were drawn
    recorded: Superbatch | None = None

    def __init__(self, source: Source, alive: int = ALIVE_MAX) -> None:
        self._source = source
        self._before = 0, 0  # see `loads_of`, at the start of the epoch
        self._ready: asyncio.Queue[Superbatch] = asyncio.Queue(ALIVE_MAX)
        self._sampled = self._ready
        self._alive = asyncio.Semaphore(alive)  # taken by each superbatch with an open trace
        # Node type → the first uses by the superbatch after the one that is replayed.
        self._later: Mapping[NodeKey, Codes] | None = None
        self._traces: set[Trace] = set()  # those that are open
        self._recorded: dict[int, int] = {}  # number → index of batches that will come again
        self._trace: Trace | None = None  # which has these

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`."""
        self._before = loads_of(epoch)
        _forget_next_uses(epoch)
        return [self._inspect_all(epoch), self._replay_all(epoch)]

    def discard(self) -> None:
        """See `Feed.discard`."""
        if self.recorded is not None and self.recorded.trace is not None:
            self.recorded.trace.close()

    def close(self) -> None:
        """See `Feed.close`: free all files."""
        for trace in self._traces:
            trace.close()

    def refuse(self, superbatch: Superbatch, error: ConfigError) -> None:
        """There is no room on disk for a single sample of the epoch's first superbatch."""
        superbatch.fail(superbatch.first, error)

    def note(self, epoch: Epoch, seeds: Seeds, sample: Sample | Subgraph) -> None:
        """In a worker thread: note what is needed of a sample before it is replayed."""

    # ---- sampling

    async def _inspect_all(self, epoch: Epoch) -> None:
        """Sample and record superbatch after superbatch until the schedule ends."""
        for number in count():
            await self._alive.acquire()
            superbatch = await self._inspect(epoch, number)
            if superbatch.end > superbatch.first:
                self._foresee(epoch, superbatch)
            await self._sampled.put(superbatch)
            if superbatch.last:
                return

    async def _inspect(self, epoch: Epoch, number: int) -> Superbatch:
        """Sample and record a superbatch, and find its next uses."""
        source, first, alone = self._source, epoch.seeds_drawn, not self._traces
        size = source.size(number, first, self._misses(epoch))
        superbatch = Superbatch(self._trace, first, size, first)
        if superbatch.trace is None:
            try:
                superbatch.trace = await epoch.workers.run(source.open_trace)
            except Exception as error:
                superbatch.fail(first, error)
                return superbatch
            self._traces.add(superbatch.trace)
        await self._sample(epoch, superbatch)
        if superbatch.full:  # else the next superbatches would keep samples in memory, too
            self._recorded.clear()
        superbatch.shares = bool(self._recorded)
        self._trace = superbatch.trace if superbatch.shares else None
        if alone and superbatch.end > first and not superbatch.written:
            self.refuse(superbatch, source.no_room())
        await self._find_next_uses(epoch, superbatch, superbatch.trace)
        return superbatch

    async def _sample(self, epoch: Epoch, superbatch: Superbatch) -> None:
        """Sample and record its batches, as many at once as there are samplers. Batch `end` of the
        source is not drawn; if that is None only the schedule knows which one is the last."""
        end = self._source.end

        async def sample_some() -> None:
            while superbatch.left > 0:
                count = min(superbatch.left, epoch.combined)
                superbatch.left -= count
                drawn = draw_seeds(epoch, count)
                if not superbatch.last:
                    superbatch.end = epoch.seeds_drawn
                if drawn.ended or epoch.seeds_drawn == end:
                    superbatch.left, superbatch.last = 0, True
                if drawn.error is not None:
                    superbatch.fail(epoch.seeds_drawn, drawn.error)
                new = [each for each in drawn.seeds if not self._repeats(epoch, superbatch, each)]
                await sample_together(epoch, [[each] for each in new], record)
                if not new:
                    await asyncio.sleep(0)

        async def record(sampling: Sampling) -> None:
            try:
                written, seconds = await epoch.workers.run(
                    self._sample_and_write, sampling, superbatch
                )
            except Exception as error:
                superbatch.fail(sampling.seeds[0].index, error)
                return
            epoch.counters.samples += 1
            epoch.counters.sample_s += seconds
            superbatch.written += written
            if not written:
                superbatch.left, superbatch.full = 0, True

        async with asyncio.TaskGroup() as group:
            for _ in range(max(epoch.stages.samplers // epoch.combined, 1)):
                group.create_task(sample_some())

    def _repeats(self, epoch: Epoch, superbatch: Superbatch, seeds: Seeds) -> bool:
        """Whether the trace has a batch that was drawn, or will have it."""
        index = self._recorded.setdefault(seeds.number, seeds.index)
        if not seeds.again:
            del self._recorded[seeds.number]
        if index == seeds.index:
            return False
        superbatch.repeats[seeds.index] = index
        epoch.times.begin(seeds.index).mark(SAMPLED)
        return True

    def _sample_and_write(self, sampling: Sampling, superbatch: Superbatch) -> tuple[bool, float]:
        """In a worker thread: sample a batch and record it. Whether it is in the file; seconds."""
        started = perf_counter()
        samples = samples_of(sampling, sampling.epoch.topologies)
        sample = next_sample(sampling, 0, samples)
        assert superbatch.trace is not None
        sampling.epoch.inputs.assembly.check_sample(sample)
        written = superbatch.trace.write(sampling.seeds[0], sample)
        self.note(sampling.epoch, sampling.seeds[0], sample)
        sampling.times[0].mark(SAMPLED)
        return written, perf_counter() - started

    def _misses(self, epoch: Epoch) -> float | None:
        """Rows that a batch of this epoch loaded so far; None: none was delivered yet."""
        batches, loads = loads_of(epoch)
        delivered = batches - self._before[0]
        return (loads - self._before[1]) / delivered if delivered > 0 else None

    async def _find_next_uses(self, epoch: Epoch, superbatch: Superbatch, trace: Trace) -> None:
        """Make the pass from the last batch to the first."""
        last = await epoch.workers.run(self._source.next_uses)
        if not last:
            return
        for codes in last.values():
            await epoch.workers.run(codes.fill, lib.GD_NO_CODE)
        for index in range(superbatch.end - 1, superbatch.first - 1, -1):
            try:
                await epoch.workers.run(trace.add_next_uses, index, last)
            except Exception as error:
                superbatch.fail(index, error)

    def _foresee(self, epoch: Epoch, superbatch: Superbatch) -> None:
        """Tell the feature buffer, and the batches that are yet to be replayed, what it needs."""
        self._later = later = self._source.next_uses()
        by_table = {name: later[type] for name, type in self._source.foreseen.items()}
        buffer = cast(ForeseeingBuffer, epoch.buffer)
        buffer.foresee(superbatch.first, superbatch.end, by_table)

    # ---- replaying

    async def _replay_all(self, epoch: Epoch) -> None:
        """Put the recorded samples into the extracting queue, in order."""
        while True:
            superbatch = await self._ready.get()
            end = await self._replay_superbatch(epoch, superbatch)
            if superbatch.last:
                epoch.extracting.end(end)
                return
            if superbatch.trace is not None and not superbatch.shares:
                superbatch.trace.close()
                self._traces.discard(superbatch.trace)
            self._alive.release()  # so that another superbatch may be sampled

    async def _replay_superbatch(self, epoch: Epoch, superbatch: Superbatch) -> int:
        """Queue a superbatch's samples, and its error; returns the index behind them."""
        self._later = None  # what was known of this one is in the buffer
        for index in range(superbatch.first, superbatch.end):
            await epoch.extracting.reserve()
            await self._replay(epoch, superbatch, index)
        end = superbatch.end
        if superbatch.error is None:
            return end
        await epoch.extracting.reserve()
        epoch.extracting.put(end, Failed(end, superbatch.error))
        return end + 1

    async def _replay(self, epoch: Epoch, superbatch: Superbatch, index: int) -> None:
        """Read a sample and put it, or the error, into the extracting queue."""
        buffer, known = cast(ForeseeingBuffer, epoch.buffer), self._later
        try:
            sampled, uses = await epoch.workers.run(self._read, epoch, superbatch, index, known)
        except Exception as error:
            epoch.extracting.put(index, Failed(index, error))
            return
        if self._later is not known:  # it became known meanwhile
            self._add_later(sampled, uses, self._later)
        by_table = {name: uses[type] for name, type in self._source.foreseen.items()}
        buffer.announce(index, sampled.rows, by_table)
        epoch.extracting.put(index, sampled)

    def _read(
        self,
        epoch: Epoch,
        superbatch: Superbatch,
        index: int,
        later: Mapping[NodeKey, Codes] | None,
    ) -> tuple[Sampled, Mapping[NodeKey, NextUses]]:
        """In a worker thread: read the sample of a batch."""
        started, times = epoch.times.stages.clock(), epoch.times.of(index)
        assert superbatch.trace is not None
        seeds, sample, uses = superbatch.trace.take(superbatch.repeats.get(index, index))
        seeds = replace(seeds, index=index)
        batch = SampledBatch(seeds, sample, epoch.inputs.assembly.rows_of(sample), times)
        sampled = Sampled.one(batch)
        if times is not None:
            times.waited_for_disk(started)
        self._add_later(sampled, uses, later)
        return sampled, uses

    def _add_later(
        self, sampled: Sampled, uses: Mapping[NodeKey, NextUses],
        later: Mapping[NodeKey, Codes] | None,
    ) -> None:  # fmt: skip
        """Add the next uses by the superbatch behind."""
        if later is None:
            return
        for name, type in self._source.foreseen.items():
            add_later(uses[type], sampled.rows[name], later[type])


class InspectFeed(AheadFeed):
    """Samples one superbatch without the feature buffer, for a part that replays it."""

    extracts = False

    def __init__(
        self, source: Source, load_graph: Callable[[], None], free_graph: Callable[[], None]
    ) -> None:
        super().__init__(source)
        self._load_graph, self._free_graph = load_graph, free_graph

    @property
    def following(self) -> Feed | int | None:
        """See `Feed`: the part that replays the superbatch."""
        return None if self.recorded is None else ReplayFeed(self._source, self.recorded)

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`."""
        self._before = loads_of(epoch)
        return [self._inspect_one(epoch)]

    async def _inspect_one(self, epoch: Epoch) -> None:
        try:
            await epoch.workers.run(self._load_graph)
            superbatch = await self._inspect(epoch, 0)
        finally:
            self._free_graph()
        if superbatch.trace is not None:
            self._traces.discard(superbatch.trace)
        self.recorded = superbatch


class ReplayFeed(AheadFeed):
    """Replays the superbatch that was sampled apart."""

    recorded: Superbatch

    def __init__(self, source: Source, recorded: Superbatch) -> None:
        super().__init__(source)
        self.recorded = recorded

    @property
    def following(self) -> Feed | int | None:
        """See `Feed`: the part behind the superbatch."""
        return None if self.recorded.last else self.recorded.end

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`."""
        _forget_next_uses(epoch)
        return [self._replay_one(epoch)]

    async def _replay_one(self, epoch: Epoch) -> None:
        if self.recorded.trace is not None:
            self._traces.add(self.recorded.trace)
            self._foresee(epoch, self.recorded)
        epoch.extracting.end(await self._replay_superbatch(epoch, self.recorded))


def loads_of(epoch: Epoch) -> tuple[int, int]:
    """How many batches of the loader were delivered, and rows loaded into the epoch's buffer."""
    buffer = epoch.buffer
    loads = buffer.stats()["loads"] if isinstance(buffer, FeatureBuffer) else 0
    return epoch.counters.batches, loads


def _forget_next_uses(epoch: Epoch) -> None:
    """Rows in the buffer are keyed by the batches of another epoch."""
    cast(ForeseeingBuffer, epoch.buffer).foresee(epoch.inputs.first, epoch.inputs.first, None)
