"""What an extractor waits for before it takes the samples of a sweep, and what not."""

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
        (False, 1.0, 1, False),  # the disk stands still
        (False, 1.0, 3, True),  # for a place, which comes with the next hand-over
        (False, 0.0, 3, False),  # nothing to read: why wait
    ],
)
def test_what_a_sweep_waits_for(
    loading: bool, missing_share: float, ready: int, waits: bool
) -> None:
    """Of three places one is another batch's."""

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
        sweep = asyncio.ensure_future(extract._sweep(epoch))
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
    """With three samples of six and a round of four there is none before one is taken: the sweep is
    whole, and worth a wait for its places."""

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
        sweep = asyncio.ensure_future(extract._sweep(epoch))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sweep.done() is not waits
        training.put(0, Failed(0, KeyError()))
        training.take_now()
        assert await sweep == (3 if waits else 2)

    run(main())


def test_a_sweep_waits_for_a_place() -> None:
    """Whatever else there is no reason to wait for."""

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
        sweep = asyncio.ensure_future(extract._sweep(epoch))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sweep.done()
        training.put(0, Failed(0, KeyError()))
        training.take_now()
        assert await sweep == 1

    run(main())
