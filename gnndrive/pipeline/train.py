"""The train stage: gathers batches and hands them over to whoever trains (GNNDrive §4.1).

The stage gathers a batch's rows in a worker thread as soon as the hand-over has room for it, so one
batch waits ready while the user computes on the one before, and its slots are free again.
"""

from __future__ import annotations

from time import perf_counter

from gnndrive.pipeline.batch import Failed
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch


class EpochFailed(Exception):
    """Ends the pipeline's task group after an error was handed over; never leaves the pipeline."""


async def train_stage(epoch: Epoch) -> None:
    """Hand batch after batch over until the extracted ones end or one failed."""
    handed_over = 0
    while True:
        try:
            item = await epoch.training.take()
        except ChannelEnded:
            break
        if isinstance(item, Failed):
            epoch.handover.finish(item.error)
            epoch.sampler.stop()  # its threads are waited for, and may be waiting for the disk
            raise EpochFailed
        try:
            await epoch.handover.room()
            started = perf_counter()
            batch, memory = await epoch.workers.run(epoch.collate, item)
        finally:
            # The gather has ended or never began: this is behind its fence, also when cancelled.
            epoch.releasing.put(handed_over, item.lease)
        handed_over += 1
        epoch.counters.gather_s += perf_counter() - started
        epoch.count_batch(item)
        epoch.handover.put(batch, memory)
        del batch, item  # the user alone keeps it alive
    epoch.releasing.end(handed_over)
    epoch.handover.finish(None)
