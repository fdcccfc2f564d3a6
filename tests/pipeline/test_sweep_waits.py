"""What an extractor waits for, and what not, before it takes the samples of a sweep."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive.pipeline import extract
from gnndrive.pipeline.batch import Failed
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run


@pytest.mark.parametrize(
    ("loading", "missing_share", "ready", "waits"),
    [
        (True, 1.0, 1, True),
        (True, 0.0, 1, True),
        (False, 1.0, 1, False),  # the disk is idle
        (False, 1.0, 3, True),  # for a place, which the next batch that is taken frees
        (False, 0.0, 3, False),  # nothing to read while it waits
    ],
)
def test_what_a_sweep_waits_for(
    loading: bool, missing_share: float, ready: int, waits: bool
) -> None:
    """One of three places is taken by another batch."""

    async def main() -> None:
        extracting: Channel[Failed] = Channel(6)
        training: Channel[Failed] = Channel(3)
        for channel, places in ((extracting, ready), (training, 1)):
            for _ in range(places):
                await channel.reserve()
        for index in range(ready):
            extracting.put(index, Failed(index, KeyError()))
        buffer = SimpleNamespace(
            loading=loading, missing_share=missing_share, fits_together=lambda batches: True
        )
        epoch: Any = SimpleNamespace(
            extracting=extracting, training=training, stages=Stages(), buffer=buffer, together=1
        )
        sweep = asyncio.ensure_future(extract._next_sweep_size(epoch))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sweep.done() is not waits
        training.put(0, Failed(0, KeyError()))
        training.take_now()
        buffer.loading = False
        assert await sweep == min(ready, 3 if waits else 2)

    run(main())


@pytest.mark.parametrize(("together", "waits"), [(1, False), (3, False), (4, True)])
def test_a_sweep_waits_for_no_sample_that_will_not_come(together: int, waits: bool) -> None:
    """With three of six samples and a combined fetch of four, no sample comes before one is taken:
    the sweep is complete, and waits for its places."""

    async def main() -> None:
        extracting: Channel[Failed] = Channel(6)
        training: Channel[Failed] = Channel(4)
        await extracting.reserve(3)
        await training.reserve(2)
        for index in range(3):
            extracting.put(index, Failed(index, KeyError()))
        buffer = SimpleNamespace(
            loading=False, missing_share=1.0, fits_together=lambda batches: True
        )
        epoch: Any = SimpleNamespace(
            extracting=extracting, training=training, stages=Stages(), buffer=buffer,
            together=together,
        )  # fmt: skip
        sweep = asyncio.ensure_future(extract._next_sweep_size(epoch))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sweep.done() is not waits
        training.put(0, Failed(0, KeyError()))
        training.take_now()
        assert await sweep == (3 if waits else 2)

    run(main())


def test_a_sweep_waits_for_a_place() -> None:
    """Also if there is no other reason to wait."""

    async def main() -> None:
        extracting: Channel[Failed] = Channel(6)
        training: Channel[Failed] = Channel(1)
        for channel in (extracting, training):
            await channel.reserve()
        extracting.put(0, Failed(0, KeyError()))
        buffer = SimpleNamespace(
            loading=False, missing_share=0.0, fits_together=lambda batches: True
        )
        epoch: Any = SimpleNamespace(
            extracting=extracting, training=training, stages=Stages(), buffer=buffer, together=1
        )
        sweep = asyncio.ensure_future(extract._next_sweep_size(epoch))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sweep.done()
        training.put(0, Failed(0, KeyError()))
        training.take_now()
        assert await sweep == 1

    run(main())
