"""The extract stage: several tasks, each bringing batches' rows into the feature buffer (GNNDrive
§4.2).

A task takes one sample, and with it those that wait behind it already, as many as the buffer can
hold together: a sweep, read in one sorted pass. On a disk whose requests cost as much as some ten
kilobytes of bandwidth the rows of one batch already make a pass over a good part of the file, and
the next batch's cost little more; that outweighs that little else fits into the buffer meanwhile.
`sweep=1` is the paper.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from time import perf_counter

from gnndrive.buffer.admission_queue import Ticket
from gnndrive.common.records import Int64Array
from gnndrive.pipeline.batch import Extracted, Failed, Sampled
from gnndrive.pipeline.channel import ChannelEnded, change_of
from gnndrive.pipeline.epoch import Epoch

SWEEP_MAX = 4
FEW_MISSING = 0.1  # of a batch's rows: reading them is not what takes time


async def extract_stage(epoch: Epoch) -> None:
    """Extract batch after batch until the samples end."""
    while True:
        try:
            async with epoch.picking:  # whoever waits for samples or places waits alone
                count = await _sweep(epoch)
                # Samples are taken and their tickets drawn in one step (rule 1): nothing from here
                # on waits.
                epoch.training.reserve_now(count)
                waiting = _join(epoch, epoch.extracting.take_now(count))
        except ChannelEnded:
            epoch.training.end(epoch.extracting.taken)
            return
        try:
            while waiting:
                await _bring(epoch, *waiting.popleft())
        finally:
            for _, ticket in waiting:
                epoch.buffer.leave(ticket)


async def _sweep(epoch: Epoch) -> int:
    """How many of the samples that are ready to take together, their places being free.

    As long as other batches are under way it waits for as many as the buffer holds, but not while
    the disk stands still for want of samples, or for want of rows that are missing. What the buffer
    holds is found out while it waits for a place: when there is one, slots come back as well, and
    the event loop has better things to do.

    Raises:
        ChannelEnded: there are no more samples.
    """
    training, extracting = epoch.training, epoch.extracting
    await extracting.arrival()
    await asyncio.sleep(0)  # whoever gathers what has just landed goes first, and runs beside this
    bounds = (channel.bound or SWEEP_MAX for channel in (training, extracting))
    most = min(epoch.stages.sweep or SWEEP_MAX, *bounds)
    held, full = 1, False
    while True:
        ready = extracting.peek(most)
        while held < len(ready) and not full:
            full = not epoch.buffer.fits_together([_wanted(item) for item in ready[: held + 1]])
            held += not full
        # A round of samples begins when there are places for all of it, so more may not come.
        more = extracting.room if extracting.room >= epoch.together else 0
        reach = extracting.under_way + more
        wanted = held if full else min(most, extracting.coming, reach)
        if held >= wanted and training.room >= held:
            return held
        useless = held < wanted or epoch.buffer.missing_share < FEW_MISSING
        if training.under_way == 0 or (useless and training.room and not epoch.buffer.loading):
            return min(held, training.room)
        await change_of(training, extracting)


def _wanted(item: Sampled | Failed) -> tuple[int, Mapping[str, Int64Array]]:
    return (item.seeds.index, item.rows) if isinstance(item, Sampled) else (item.index, {})


def _join(epoch: Epoch, items: list[Sampled | Failed]) -> deque[tuple[Sampled, Ticket]]:
    """Join the line before the gate with a sweep; failed batches pass on to their turn."""
    sampled = [item for item in items if isinstance(item, Sampled)]
    for item in items:
        if isinstance(item, Failed):
            epoch.training.put(item.index, item)
    tickets = epoch.buffer.join([_wanted(item) for item in sampled])
    return deque(zip(sampled, tickets, strict=True))


async def _bring(epoch: Epoch, item: Sampled, ticket: Ticket) -> None:
    """Wait for a batch's lease and rows and put it, or its error, into its place."""
    started = perf_counter()
    index = item.seeds.index
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
        lease.release()
        epoch.training.put(index, Failed(index, error))
    else:
        epoch.training.put(index, Extracted(item.seeds, item.sample, item.rows, lease))
    epoch.counters.extract_s += perf_counter() - started
