"""The train stage: gathers batches and hands them over to whoever trains (GNNDrive §4.1).

The stage gathers a batch's rows in a worker thread as soon as the hand-over has room for it, so one
batch waits ready while the user computes on the one before, and its slots are free again: already
while the rest of the batch is made, for the next batches' rows may be waiting for them. The same
thread hands the batch over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

from gnndrive.buffer.lease import Lease
from gnndrive.pipeline.batch import Extracted, Failed
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch


class EpochFailed(Exception):
    """Ends the pipeline's task group after an error was handed over; never leaves the pipeline."""


async def train_stage(epoch: Epoch) -> None:
    """Hand batch after batch over until the extracted ones end or one failed."""
    handed_over = 0
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    while True:
        try:
            item = await epoch.training.take()
        except ChannelEnded:
            break
        if isinstance(item, Failed):
            epoch.output.finish(item.error)
            # The epoch's end waits for sampling threads, which may be waiting for the disk.
            epoch.inputs.sampler.stop()
            raise EpochFailed
        leave = _leaving(epoch, handed_over, item.lease)
        try:
            await epoch.output.room()
            await epoch.workers.run(_hand_over, epoch, item, partial(call_soon, leave))
        finally:
            leave()  # the gather has ended or never began, also when this was cancelled
        del item  # the user alone keeps what is of his batch alive
        handed_over += 1
    epoch.releasing.end(handed_over)
    epoch.output.finish(None)


def _hand_over(epoch: Epoch, item: Extracted, gathered: Callable[[], object]) -> None:
    """In a worker thread: make a batch and hand it over. The event loop may be in an admission for
    a tenth of a second, and whoever waits for the batch need not wait for that."""
    started = perf_counter()
    batch, memory = epoch.inputs.assembly.make(item, gathered)
    if not epoch.output.ended:  # nobody would take it
        epoch.count_batch(item, perf_counter() - started)
        epoch.output.put(batch, memory)


def _leaving(epoch: Epoch, number: int, lease: Lease) -> Callable[[], None]:
    """Puts a lease on its way to be released, at its first call."""
    held = [lease]

    def leave() -> None:
        if held:
            epoch.releasing.put(number, held.pop())

    return leave
