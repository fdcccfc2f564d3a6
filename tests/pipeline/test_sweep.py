"""What an extractor waits for, and what not, before it takes the samples of a sweep."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive.pipeline import extract
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.epoch import Failed, Stages
from tests.pipeline.tight import in_virtual_loop


@pytest.mark.parametrize(
    ("loading", "missing_share", "ready", "training", "together", "waits"),
    [
        (True, 1.0, 1, (1, 3), 1, True),
        (True, 0.0, 1, (1, 3), 1, True),
        (False, 1.0, 1, (1, 3), 1, False),  # the disk is idle
        (False, 1.0, 3, (1, 3), 1, True),  # for a place, which the next batch that is taken frees
        (False, 0.0, 3, (1, 3), 1, False),  # nothing to read while it waits
        # Of six samples three are there. With a combined fetch of four none comes before one is
        # taken: the sweep is complete, and waits for its places.
        (False, 1.0, 3, (2, 4), 1, False),
        (False, 1.0, 3, (2, 4), 3, False),
        (False, 1.0, 3, (2, 4), 4, True),
        (False, 0.0, 1, (1, 1), 1, True),  # for a place, without any other reason
    ],
)
@in_virtual_loop
async def test_what_a_sweep_waits_for(loading, missing_share, ready, training, together, waits):
    """`training`: how many of how many places are taken by other batches."""
    taken, bound = training
    queues = Channel[Failed](6), Channel[Failed](bound)
    for channel, places in zip(queues, (ready, taken), strict=True):
        for _ in range(places):
            await channel.reserve()
    for index in range(ready):
        queues[0].put(index, Failed(index, KeyError()))
    buffer = SimpleNamespace(
        loading=loading, missing_share=missing_share, fits_together=lambda batches: True
    )
    epoch: Any = SimpleNamespace(
        extracting=queues[0], training=queues[1], stages=Stages(), buffer=buffer,
        together=together,
    )  # fmt: skip
    sweep = asyncio.ensure_future(extract._next_sweep_size(epoch))
    for _ in range(5):
        await asyncio.sleep(0)
    assert sweep.done() is not waits
    queues[1].put(0, Failed(0, KeyError()))
    queues[1].take_now()
    buffer.loading = False
    assert await sweep == min(ready, bound - taken + waits)
