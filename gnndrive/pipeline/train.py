"""The train stage, which gathers batches and puts them into the output queue, and the release
stage, which gives their slots back (GNNDrive §4.1).

Training itself happens in the user's thread. `run_epoch` starts one task of each stage. As soon as
the output queue has room, the train stage has a worker thread gather a group's rows, so one group
is ready while the user computes on the one before. As soon as the rows are gathered the lease goes
to the release stage, because the next groups may need the slots; meanwhile the same worker thread
makes the rest of each batch and puts it into the output queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

from gnndrive.pipeline.batch_times import GATHERING
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch, Extracted, Failed, Gathered

TOGETHER_S = 1e-3  # waking the user's thread for each batch would cost more than making it


class EpochFailed(Exception):
    """Ends `run_epoch`'s task group once the output queue has the error; `run_epoch` catches it."""


async def train_stage(epoch: Epoch) -> None:
    """Put group after group into the output queue until they end or a batch has failed."""
    delivered = 0
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    while True:
        try:
            item = await epoch.training.take()
        except ChannelEnded:
            break
        if isinstance(item, Failed):
            epoch.output.finish(item.error)
            raise EpochFailed
        put_lease = _put_lease_once(epoch, delivered, Gathered(item.index, item.lease))
        try:
            await epoch.output.room()
            await epoch.workers.run(_gather_and_put, epoch, item, partial(call_soon, put_lease))
        finally:
            put_lease()  # the gather has ended or never began, also when this was cancelled
        error = item.error
        del item  # from here on only the user keeps the batches alive
        if error is not None:
            epoch.output.finish(error)
            raise EpochFailed
        delivered += 1
    epoch.releasing.end(delivered)
    epoch.output.finish(None)


def _gather_and_put(epoch: Epoch, item: Extracted, gathered: Callable[[], object]) -> None:
    """In a worker thread: make a group's batches and put them into the output queue. The event loop
    does not put them, because it may be in an admission for a tenth of a second."""
    started, output = perf_counter(), epoch.output
    for sampled in item.batches:
        if sampled.times is not None:
            sampled.times.mark(GATHERING)
    together, put = list[Any](), perf_counter()
    with closing(epoch.inputs.assembly.make(item, gathered)) as made:
        try:
            for sampled in item.batches:
                batch, memory = next(made)
                if output.ended:  # no iterator would take it
                    return
                ended = perf_counter()
                epoch.count_batch(sampled, ended - started)
                together.append((batch, memory, sampled.times, item.index))
                started = ended
                del batch
                if ended - put > TOGETHER_S:
                    output.put_all(together)
                    put, together = ended, []
        finally:
            output.put_all(together)


def _put_lease_once(epoch: Epoch, number: int, gathered: Gathered) -> Callable[[], None]:
    """A function that puts a batch's lease into the releasing queue, at its first call only."""
    held = [gathered]

    def put_lease() -> None:
        if held:
            epoch.releasing.put(number, held.pop())

    return put_lease


async def release_stage(epoch: Epoch) -> None:
    """Release lease after lease once their gather's fence has passed, until training ends. Only
    then may other rows take the slots, because a device may still be copying them (rule 9)."""
    while True:
        try:
            await epoch.releasing.arrival()
        except ChannelEnded:
            return
        # Taken after the fence: if this is cancelled before, run_epoch releases what is queued.
        (batch,) = epoch.releasing.peek(1)
        await batch.lease.gathered()
        epoch.releasing.take_now()
        batch.lease.release()
        epoch.inputs.feed.released(batch.index)
