"""Superbatches: batches that are sampled and recorded before the first of them is extracted.

Ginex §4: once all samples of a superbatch are known, so is each next use of each row, and the
feature buffer can follow Belady's rule. `inspect_stage` samples a superbatch, records it in a
`Trace` and finds the next uses in one pass backwards; meanwhile `replay_stage` reads the records of
the superbatch before, in order, and puts them into the extracting queue, as the sample stage would.
At most two superbatches are alive. The first ones are short, so that the first batch comes soon.

The batches are those that the sample stage would draw, whatever the superbatches' sizes. A disk
that is full ends a superbatch early: samples that were drawn already stay in memory. An error
surfaces at its batch's turn.

When not to use it: for samples in PyG's own form, and for windows that need something in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from gnndrive.common.ffi import lib
from gnndrive.common.records import NextUses, Sample
from gnndrive.pipeline.batch import Failed, Sampled
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.leases import ForeseeingBuffer
from gnndrive.pipeline.sample import Sampling, draw_seeds, sample_seeds, sample_together
from gnndrive.pipeline.superbatch import Superbatch, SuperbatchSource
from gnndrive.sampling.trace import Trace

ALIVE_MAX = 2  # superbatches: one is replayed, the next one is inspected


@dataclass(eq=False)
class Superbatches:
    """What the two stages of an epoch share.

    Attributes:
        source: makes superbatches.
        ready: superbatches that were sampled and are yet to be replayed.
        alive: taken by each superbatch whose trace is open.
        known: set when the feature buffer knows the newest superbatch's first uses, so that their
            array may change.
        traces: those that are open.
    """

    source: SuperbatchSource
    ready: asyncio.Queue[Superbatch] = field(default_factory=lambda: asyncio.Queue(ALIVE_MAX))
    alive: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ALIVE_MAX))
    known: asyncio.Event = field(default_factory=asyncio.Event)
    traces: set[Trace] = field(default_factory=set)

    def close_trace(self, superbatch: Superbatch) -> None:
        """Free a superbatch's file, so that another may be sampled."""
        if superbatch.trace is not None:
            superbatch.trace.close()
            self.traces.discard(superbatch.trace)
        self.alive.release()

    def close(self) -> None:
        """Free all files, after the stages have ended."""
        for trace in self.traces:
            trace.close()


def superbatch_stages(epoch: Epoch, shared: Superbatches) -> list[Coroutine[Any, Any, None]]:
    """The stages that stand for the sample stage, by the epoch's phase."""
    if epoch.inputs.phase == "inspect":
        return [_inspect_one(epoch, shared)]
    if epoch.inputs.phase == "replay":
        return [_replay_one(epoch, shared)]
    return [inspect_stage(epoch, shared), replay_stage(epoch, shared)]


async def _inspect_one(epoch: Epoch, shared: Superbatches) -> None:
    """Sample a superbatch with the adjacency in memory, and free that again."""
    shared.known.set()
    try:
        await epoch.workers.run(shared.source.load_graph)
        superbatch = await _inspect(epoch, shared, 0)
    finally:
        shared.source.free_graph()
    if superbatch.trace is not None:
        shared.traces.discard(superbatch.trace)
    shared.source.keep(superbatch)


async def inspect_stage(epoch: Epoch, shared: Superbatches) -> None:
    """Sample and record superbatch after superbatch until the schedule ends."""
    number, ended = 0, False
    shared.known.set()
    while not ended:
        await shared.alive.acquire()
        superbatch = await _inspect(epoch, shared, number)
        ended = superbatch.last
        number += 1
        await shared.ready.put(superbatch)


async def _inspect(epoch: Epoch, shared: Superbatches, number: int) -> Superbatch:
    """Sample and record a superbatch, and find its next uses."""
    source, first, alone = shared.source, epoch.seeds_drawn, not shared.traces
    superbatch = Superbatch(None, first, source.size(number, _misses(epoch)), first)
    try:
        superbatch.trace = await epoch.workers.run(source.open_trace)
    except Exception as error:
        superbatch.fail(first, error)
        return superbatch
    shared.traces.add(superbatch.trace)
    await _sample_superbatch(epoch, superbatch)
    if alone and superbatch.end > first and not superbatch.written:
        superbatch.fail(first, source.no_room())
    await _find_next_uses(epoch, shared, superbatch)
    return superbatch


async def _sample_superbatch(epoch: Epoch, superbatch: Superbatch) -> None:
    """Sample and record its batches, as many at once as there are samplers."""

    async def sample_some() -> None:
        while superbatch.left > 0:
            count = min(superbatch.left, epoch.together)
            superbatch.left -= count
            drawn = draw_seeds(epoch, count)
            if not superbatch.last:
                superbatch.end = epoch.seeds_drawn
            if drawn.ended:
                superbatch.left, superbatch.last = 0, True
            if drawn.error is not None:
                superbatch.fail(epoch.seeds_drawn, drawn.error)
            await sample_together(epoch, drawn.seeds, record)

    async def record(sampling: Sampling) -> None:
        try:
            written, seconds = await epoch.workers.run(_sample_and_write, sampling, superbatch)
        except Exception as error:
            superbatch.fail(sampling.seeds.index, error)
            return
        epoch.counters.samples += 1
        epoch.counters.sample_s += seconds
        superbatch.written += written
        if not written:  # the disk is full
            superbatch.left = 0

    async with asyncio.TaskGroup() as group:
        for _ in range(max(epoch.stages.samplers // epoch.together, 1)):
            group.create_task(sample_some())


def _sample_and_write(sampling: Sampling, superbatch: Superbatch) -> tuple[bool, float]:
    """In a worker thread: sample a batch and record it; whether it is in the file, and seconds."""
    started = perf_counter()
    sample = sample_seeds(sampling)
    assert isinstance(sample, Sample), "samples in PyG's own form are refused before"
    assert superbatch.trace is not None
    written = superbatch.trace.write(sampling.seeds, sample)
    return written, perf_counter() - started


async def _find_next_uses(epoch: Epoch, shared: Superbatches, superbatch: Superbatch) -> None:
    """Make the pass from the last batch to the first."""
    assert superbatch.trace is not None
    await shared.known.wait()
    shared.known.clear()
    last = next(iter((await epoch.workers.run(shared.source.next_uses)).values()), None)
    if last is None:
        return
    last.fill(lib.GD_NO_CODE)
    for index in range(superbatch.end - 1, superbatch.first - 1, -1):
        try:
            await epoch.workers.run(superbatch.trace.add_next_uses, index, last)
        except Exception as error:
            superbatch.fail(index, error)


def _misses(epoch: Epoch) -> float | None:
    """Rows that a batch loaded so far; None: none was delivered yet."""
    batches, buffer = epoch.counters.batches, epoch.buffer
    if not batches or not isinstance(buffer, ForeseeingBuffer):
        return None
    return buffer.stats()["loads"] / batches


async def replay_stage(epoch: Epoch, shared: Superbatches) -> None:
    """Put the recorded samples into the extracting queue, in order."""
    _forget_next_uses(epoch)
    while True:
        superbatch = await shared.ready.get()
        end = await _replay_superbatch(epoch, shared, superbatch)
        if superbatch.last:
            epoch.extracting.end(end)
            return
        shared.close_trace(superbatch)


async def _replay_one(epoch: Epoch, shared: Superbatches) -> None:
    """Replay the superbatch that was sampled apart."""
    _forget_next_uses(epoch)
    superbatch = shared.source.recorded
    assert superbatch is not None
    if superbatch.trace is not None:
        shared.traces.add(superbatch.trace)
    epoch.extracting.end(await _replay_superbatch(epoch, shared, superbatch))


def _forget_next_uses(epoch: Epoch) -> None:
    """Rows in the buffer are keyed by the batches of another epoch."""
    assert isinstance(epoch.buffer, ForeseeingBuffer), "the host service foresees nothing"
    epoch.buffer.foresee(epoch.inputs.first, epoch.inputs.first, None)


async def _replay_superbatch(epoch: Epoch, shared: Superbatches, superbatch: Superbatch) -> int:
    """Put a superbatch's samples, and its error, into the extracting queue; returns the index
    behind them."""
    buffer, source = epoch.buffer, shared.source
    assert isinstance(buffer, ForeseeingBuffer)
    first, end, trace = superbatch.first, superbatch.end, superbatch.trace
    if end > first:
        assert trace is not None
        buffer.foresee_at_turn(first, end, source.next_uses(), shared.known.set)
        for index in range(first, end):
            await epoch.extracting.reserve()
            await _replay(epoch, buffer, source, trace, index)
    if superbatch.error is None:
        return end
    await epoch.extracting.reserve()
    epoch.extracting.put(end, Failed(end, superbatch.error))
    return end + 1


async def _replay(
    epoch: Epoch, buffer: ForeseeingBuffer, source: SuperbatchSource, trace: Trace, index: int
) -> None:
    """Read a sample and put it, or the error, into the extracting queue."""
    try:
        sampled, of_nodes = await epoch.workers.run(_read, epoch, trace, index)
    except Exception as error:
        epoch.extracting.put(index, Failed(index, error))
        return
    buffer.announce(index, sampled.rows, dict.fromkeys(source.next_uses(), of_nodes))
    epoch.extracting.put(index, sampled)


def _read(epoch: Epoch, trace: Trace, index: int) -> tuple[Sampled, NextUses]:
    """In a worker thread: read the sample of a batch."""
    seeds, sample, uses = trace.take(index)
    return Sampled(seeds, sample, epoch.inputs.assembly.rows_of(sample)), uses
