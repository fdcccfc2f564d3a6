"""The sample stage: several tasks draw seeds in order and sample them in worker threads (GNNDrive
§4.1).
"""

from __future__ import annotations

from time import perf_counter

from gnndrive.pipeline.batch import Failed, Sampled
from gnndrive.pipeline.channel import ChannelEnded
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.workers import carried
from gnndrive.records import Seeds
from gnndrive.samplers.base import batch_key


async def sample_stage(epoch: Epoch) -> None:
    """Sample batch after batch until the schedule ends."""
    while True:
        try:
            await epoch.extracting.reserve()
        except ChannelEnded:
            return
        # No wait between the place and the seeds: batch indices are drawn in the order of places.
        try:
            seeds = next(epoch.seeds, None)
        except BaseException as error:  # the user's own sampler, for instance
            epoch.extracting.put(epoch.seeds_drawn, Failed(epoch.seeds_drawn, carried(error)))
            epoch.seeds_drawn += 1
            seeds = None
        if seeds is None:
            epoch.extracting.end(epoch.seeds_drawn)
            return
        epoch.seeds_drawn += 1
        try:
            sampled, seconds = await epoch.workers.run(_sample, epoch, seeds)
        except Exception as error:
            epoch.extracting.put(seeds.index, Failed(seeds.index, error))
        else:
            epoch.counters.samples += 1
            epoch.counters.sample_s += seconds
            epoch.buffer.foresee(seeds.index, sampled.rows)
            epoch.extracting.put(seeds.index, sampled)


def _sample(epoch: Epoch, seeds: Seeds) -> tuple[Sampled, float]:
    """In a worker thread: the sample, and how many seconds it took."""
    started = perf_counter()
    key = batch_key(epoch.seed, epoch.number, seeds.index)
    sample = epoch.sampler.draw(seeds, key, epoch.topologies)
    return Sampled(seeds, sample, epoch.rows_of(sample)), perf_counter() - started
