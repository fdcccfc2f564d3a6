"""The extract stage: several tasks, each of which brings batches' rows into the feature buffer
(GNNDrive §4.2).

A task takes one sample, and with it those behind it that are ready and that the buffer can hold
together: a sweep, whose rows are read in one sorted pass. Where a request costs as much as some ten
kilobytes, the rows of one batch make a pass over a good part of the file already, and those of the
next add little: that saves more time than the room for other batches costs. `sweep=1` is the paper.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

from gnndrive.common.records import Int64Array
from gnndrive.pipeline.batch_times import GRANTED, JOINED, READY, BatchTimes
from gnndrive.pipeline.channel import Channel, ChannelEnded, Source, change_of
from gnndrive.pipeline.epoch import (
    BatchBuffer,
    BatchLease,
    Counters,
    Extracted,
    Failed,
    Sampled,
    SampledBatch,
    Stages,
)

SWEEP_MAX = 8
FEW_MISSING = 0.1  # below this share of missing rows, reading is not the bottleneck


class Extracting(Protocol):
    """What the stage needs of an `Epoch`, see there; the host service has it for several ranks."""

    training: Channel[Extracted | Failed]
    stages: Stages
    counters: Counters
    together: int
    picking: asyncio.Lock

    @property
    def extracting(self) -> Source[Sampled | Failed]:
        """Where samples are taken from."""

    @property
    def buffer(self) -> BatchBuffer:
        """Admits the batches."""


async def extract_stage(epoch: Extracting) -> None:
    """Extract batch after batch until the samples end."""
    while True:
        try:
            async with epoch.picking:  # only one task at a time waits for samples
                count = await _next_sweep_size(epoch)
                # From here on nothing is awaited, and `picking` is held: samples are taken in the
                # order of their batches and join the admission queue in the same step (rule 1).
                epoch.training.reserve_now(count)
                waiting = _join_admission_queue(epoch, epoch.extracting.take_now(count))
        except ChannelEnded:
            epoch.training.end(epoch.extracting.taken)
            return
        try:
            while waiting:
                await _extract_one(epoch, *waiting.popleft())
        finally:
            for _, ticket in waiting:
                epoch.buffer.leave(ticket)


async def _next_sweep_size(epoch: Extracting) -> int:
    """Wait until a sweep can start, and return how many of the ready samples it has.

    The training queue has a place for each of them. While other batches are extracted this waits
    for more samples, up to as many as the buffer can hold together. It starts with the samples that
    are ready if nothing is extracted; or if no row is being read, and either more samples would be
    needed or few rows miss. How many samples fit is computed before a place is free: when one
    becomes free, slots become free too, and the event loop has other work. ChannelEnded: there are
    no more samples.
    """
    training, extracting = epoch.training, epoch.extracting
    await extracting.arrival()
    await asyncio.sleep(0)  # so that a gather of rows that have just landed starts before this
    most = min(epoch.stages.sweep or SWEEP_MAX, training.bound or SWEEP_MAX)
    held, full = 1, False
    while True:
        ready = extracting.peek(most)
        if len(ready) < held:  # the host service's ranks may give up batches that are ready
            await extracting.arrival()
            held, full = 1, False
            continue
        while held < len(ready) and not full:
            full = not epoch.buffer.fits_together(
                [_rows_needed(item) for item in ready[: held + 1]]
            )
            held += not full
        target = held if full else min(most, extracting.reach(epoch.together))
        if held >= target and training.room >= held:
            return held
        no_gain = held < target or epoch.buffer.missing_share < FEW_MISSING
        if training.under_way == 0 or (no_gain and training.room and not epoch.buffer.loading):
            return min(held, training.room)
        await change_of(training, extracting)


def _rows_needed(item: Sampled | Failed) -> tuple[int, Mapping[str, Int64Array]]:
    """(index, table name → row ids, int64 [n]); a failed group needs none."""
    return item.index, item.rows if isinstance(item, Sampled) else {}


def _join_admission_queue(
    epoch: Extracting, items: list[Sampled | Failed]
) -> deque[tuple[Sampled, Any]]:
    """Join the admission queue with a sweep; put failed batches into the training queue."""
    sampled: list[Sampled] = []
    for item in items:
        if isinstance(item, Failed):
            epoch.training.put(item.index, item)
            continue
        sampled.append(item)
        for times in _times_of(item):
            times.mark(JOINED)
    tickets = epoch.buffer.join([_rows_needed(item) for item in sampled])
    for item, ticket in zip(sampled, tickets, strict=True):
        _mark_grant(_times_of(item), ticket, epoch.buffer.valid_when_granted)
    return deque(zip(sampled, tickets, strict=True))


def _times_of(item: Sampled) -> list[BatchTimes]:
    return [batch.times for batch in item.batches if batch.times is not None]


def _mark_grant(records: list[BatchTimes], ticket: Any, valid: bool) -> None:
    """Mark the grant when it comes, though the task that waits for it may wait for another group of
    the sweep. If rows are `valid` when granted, all that was waited for counts as reading."""

    def mark(from_disk: bool) -> None:
        for times in records:
            times.mark(GRANTED, from_disk)

    if valid or ticket.granted.done():
        mark(from_disk=True)  # the first reads are under way
    elif records:
        ticket.granted.add_done_callback(lambda granted: mark(from_disk=False))


async def _extract_one(epoch: Extracting, item: Sampled, ticket: Any) -> None:
    """Wait for a group's lease and rows; put it, or its error, into the training queue."""
    started, index = perf_counter(), item.index
    try:
        lease = await epoch.buffer.granted(ticket)
    except Exception as error:
        epoch.training.put(index, Failed(index, error))
        return
    try:
        await lease.ready()
    except asyncio.CancelledError:
        lease.release()
        raise
    except Exception as error:
        batches, own = _before_failure(item, lease)
        item = replace(item, batches=batches, error=own or error)
        if not batches:
            lease.release()
            epoch.training.put(index, Failed(index, own or error))
            return
    for times in _times_of(item):
        times.mark(READY)
    epoch.training.put(index, Extracted(index, item.batches, item.rows, item.error, lease=lease))
    epoch.counters.extract_s += perf_counter() - started


def _before_failure(
    item: Sampled, lease: BatchLease
) -> tuple[tuple[SampledBatch, ...], Exception | None]:
    """The batches of a group before the first one that has a row which could not be read, and the
    error of that row; None: `Lease.ready` has raised it, or another."""
    failures = lease.failures() if len(item.batches) > 1 else {}
    ends = dict.fromkeys(failures, 0)
    for count, batch in enumerate(item.batches):
        for name, (place, error) in failures.items():
            ends[name] += len(batch.rows[name])
            if place < ends[name]:
                return item.batches[:count], error
    return (), None
