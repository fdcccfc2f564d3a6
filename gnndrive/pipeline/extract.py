"""The extract stage: several tasks, each bringing one batch's rows into the feature buffer
(GNNDrive §4.2).
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from gnndrive.pipeline.batch import Extracted, Failed, Sampled
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch


async def extract_stage(epoch: Epoch) -> None:
    """Extract batch after batch until the samples end."""
    while True:
        try:
            await epoch.training.reserve()
            # The sample is taken and the lease's ticket drawn in one step (rule 1): `take` returns
            # without
            # a pause, and `lease` joins the line before its first wait.
            item = await epoch.extracting.take()
        except ChannelEnded:
            epoch.training.end(epoch.extracting.taken)
            return
        if isinstance(item, Failed):
            epoch.training.put(item.index, item)
        else:
            await _extract(epoch, item)


async def _extract(epoch: Epoch, item: Sampled) -> None:
    started = perf_counter()
    index = item.seeds.index
    try:
        lease = await epoch.buffer.lease(dict.fromkeys(epoch.buffer.tables, item.sample.node))
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
