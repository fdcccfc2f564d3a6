"""The release stage: one task gives leases back once their gather's fence is behind them (GNNDrive
§4.1).
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
        # Taken behind the fence: whoever winds up finds it where it is if this task is cancelled.
        (lease,) = epoch.releasing.peek(1)
        await lease.gathered()
        epoch.releasing.take_now()
        lease.release()
