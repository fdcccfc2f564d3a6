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
            lease = await epoch.releasing.take()
        except ChannelEnded:
            return
        lease.release()
