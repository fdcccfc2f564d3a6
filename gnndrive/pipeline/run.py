"""Runs an epoch: the four stages in one task group.

The epoch ends in one of three ways: the schedule ends, a batch fails at its turn, or the user goes
away. In each of them every lease is given back, every read has ended, and only then is the buffer
free for somebody else (rule 13).
"""

from __future__ import annotations

import asyncio
import threading

from gnndrive.common.errors import ClosedError
from gnndrive.pipeline.batch import Extracted, Sampled
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.extract import extract_stage
from gnndrive.pipeline.release import release_stage
from gnndrive.pipeline.sample import sample_stage
from gnndrive.pipeline.train import EpochFailed, train_stage


class EpochRun:
    """A running epoch, as its iterator sees it.

    Attributes:
        epoch: its stages; `epoch.output` is where batches come from.
        ended: set when nothing of the epoch is under way any more.
    """

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.ended = threading.Event()


async def run_epoch(epoch: Epoch) -> None:
    """Run the epoch to its end; cancel the task to end it early. The hand-over hears of every
    end."""
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(epoch.workers.run(epoch.inputs.assembly.prepare))
            for _ in range(epoch.stages.samplers // epoch.together):
                group.create_task(sample_stage(epoch, epoch.together))
            for _ in range(epoch.stages.extractors):
                group.create_task(extract_stage(epoch))
            group.create_task(train_stage(epoch))
            group.create_task(release_stage(epoch))
    except* EpochFailed:
        pass  # the hand-over has the batch's own error
    except* Exception as group_error:
        error = _first(group_error)
    except* asyncio.CancelledError:
        error = ClosedError("the iterator was closed")
    finally:
        # First, because whoever hears of the end need not cancel this task, which must not happen
        # while it winds up.
        epoch.output.finish(error)
        await _wind_up(epoch)


def _first(error: BaseException) -> BaseException:
    """What a group of errors began with; a round of samples is a group in the group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _wind_up(epoch: Epoch) -> None:
    for lease in epoch.releasing.drain():
        try:
            await lease.gathered()
        except Exception as error:  # the device's: nobody can say what is in its memory
            epoch.buffer.fail(error)
        lease.release()
    for item in epoch.training.drain():
        if isinstance(item, Extracted):
            item.lease.release()
    for sampled in epoch.extracting.drain():
        if isinstance(sampled, Sampled):
            epoch.buffer.withdraw(sampled.seeds.index, sampled.rows)
    await epoch.buffer.drain()
