"""The extract stage: several tasks, each bringing batches' rows into the feature buffer (GNNDrive
§4.2).

A task takes one sample, and with it those that wait behind it already if the buffer has room for
their rows together: a sweep, read in one sorted pass. On a disk whose requests cost as much as some
ten kilobytes of bandwidth that is fewer requests and bytes for each batch. `sweep=1` is the paper.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter

from gnndrive.line import Ticket
from gnndrive.pipeline.batch import Extracted, Failed, Sampled
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch

SWEEP_MAX = 4
SWEEP_ROOM = 1.5  # slots for each row of a sweep: while it is read, others are gathered


async def extract_stage(epoch: Epoch) -> None:
    """Extract batch after batch until the samples end."""
    while True:
        try:
            async with epoch.picking:  # whoever waits for its turn holds no place meanwhile
                await epoch.training.reserve()
                first = await epoch.extracting.take()
                # Samples are taken and their tickets drawn in one step (rule 1): `take` returns
                # without a pause, and nothing from here on waits.
                waiting = _join(epoch, [first, *_ready_too(epoch, first)])
        except ChannelEnded:
            epoch.training.end(epoch.extracting.taken)
            return
        try:
            while waiting:
                await _bring(epoch, *waiting.popleft())
        finally:
            for _, ticket in waiting:
                epoch.buffer.leave(ticket)


def _ready_too(epoch: Epoch, first: Sampled | Failed) -> list[Sampled | Failed]:
    """Further samples for a sweep, taken: none that is yet to be waited for."""
    items, sweep = [first], epoch.stages.sweep or SWEEP_MAX
    while len(items) < sweep and epoch.training.has_room:
        more = epoch.extracting.peek()
        if more is None or (epoch.stages.sweep is None and not _hold(epoch, [*items, more])):
            break
        epoch.training.reserve_now()
        items.append(epoch.extracting.take_now())
    return items[1:]


def _hold(epoch: Epoch, items: list[Sampled | Failed]) -> bool:
    """Whether the buffer has room for a sweep of these."""
    rows = sum(len(item.sample.node) for item in items if isinstance(item, Sampled))
    return all(rows * SWEEP_ROOM <= table.slots for table in epoch.buffer.tables.values())


def _join(epoch: Epoch, items: list[Sampled | Failed]) -> deque[tuple[Sampled, Ticket]]:
    """Join the line before the gate with a sweep; failed batches pass on to their turn."""
    sampled = [item for item in items if isinstance(item, Sampled)]
    for item in items:
        if isinstance(item, Failed):
            epoch.training.put(item.index, item)
    batches = [(item.seeds.index, epoch.rows_of(item.sample)) for item in sampled]
    return deque(zip(sampled, epoch.buffer.join(batches), strict=True))


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
        epoch.training.put(index, Extracted(item.seeds, item.sample, lease))
    epoch.counters.extract_s += perf_counter() - started
