"""The release stage: one task releases leases once their gather's fence has passed (GNNDrive §4.1).

The train stage puts the leases into the releasing queue; `run_epoch` starts the task. Only after
the fence may other rows take the slots, because a device may still be copying them (rule 9).
"""

from __future__ import annotations

from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch


async def release_stage(epoch: Epoch) -> None:
    """Release lease after lease until training ends."""
    while True:
        try:
            await epoch.releasing.arrival()
        except ChannelEnded:
            return
        # Taken only after the fence: if this task is cancelled before, run_epoch finds the lease in
        # the queue and releases it.
        (batch,) = epoch.releasing.peek(1)
        await batch.lease.gathered()
        epoch.releasing.take_now()
        batch.lease.release()
        epoch.inputs.feed.released(batch.index)
