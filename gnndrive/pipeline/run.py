"""Runs an epoch: its feed and the other three stages, in one task group.

The epoch ends in one of three ways: the schedule ends, a batch fails at its turn, or the task is
cancelled because the iterator or the loader is closed. In each of them every lease is released and
every read has ended before the feature buffer is given to another epoch (rule 13).
"""

from __future__ import annotations

import asyncio
from functools import partial

from gnndrive.common.errors import ClosedError
from gnndrive.pipeline.epoch import Epoch, Extracted, Sampled
from gnndrive.pipeline.extract import extract_stage
from gnndrive.pipeline.train import EpochFailed, release_stage, train_stage


async def run_epoch(epoch: Epoch) -> None:
    """Run the epoch until it ends or the task is cancelled; `epoch.output` gets end or error."""
    error: BaseException | None = None
    feed = epoch.inputs.feed
    try:
        stages = [epoch.workers.run(epoch.inputs.assembly.prepare), *feed.stages(epoch)]
        if feed.extracts:
            stages += [extract_stage(epoch) for _ in range(epoch.stages.extractors)]
            stages += [train_stage(epoch), release_stage(epoch)]
        async with asyncio.TaskGroup() as group:
            for stage in stages:
                group.create_task(stage).add_done_callback(partial(_stop_if_failed, epoch))
    except* EpochFailed:
        pass  # the output queue has the batch's own error
    except* Exception as group_error:
        error = _first_error(group_error)
    except* asyncio.CancelledError:
        error = ClosedError("the iterator was closed")
    finally:
        # First, because an iterator whose output queue has ended does not cancel this task, and it
        # must not be cancelled while it cleans up.
        epoch.output.finish(error)
        feed.close()
        await _release_and_drain(epoch)


def _stop_if_failed(epoch: Epoch, task: asyncio.Task[None]) -> None:
    """The epoch's end waits for workers, which sample, or load what samples need."""
    if not task.cancelled() and task.exception() is not None:
        epoch.inputs.stop()


def _first_error(error: BaseException) -> BaseException:
    """The first error of a group; a combined fetch's samples are a group within the group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _release_and_drain(epoch: Epoch) -> None:
    """Release the leases that are still in a queue, and wait until no read is under way."""
    for batch in epoch.releasing.drain():
        try:
            await batch.lease.gathered()
        except Exception as error:  # the device failed: its memory may hold anything
            epoch.buffer.fail(error)
        batch.lease.release()
    for item in epoch.training.drain():
        if isinstance(item, Extracted):
            item.lease.release()
    for sampled in epoch.extracting.drain():
        if isinstance(sampled, Sampled):
            epoch.buffer.withdraw(sampled.index, sampled.rows)
    await epoch.buffer.drain()
