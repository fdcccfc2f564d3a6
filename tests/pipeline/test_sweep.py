"""What an extractor waits for, and what not, before it takes the samples of a sweep; and what it
keeps of a group with rows that cannot be read."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

from gnndrive.common.errors import ClosedError
from gnndrive.pipeline import extract
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.epoch import Counters, Extracted, Failed, Sampled, SampledBatch, Stages
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


@pytest.mark.parametrize(
    ("failures", "kept", "table"),
    [
        ({"x": 1}, 0, "x"),
        ({"x": 2}, 1, "x"),
        ({"x": 3}, 2, "x"),
        ({"x": 5}, 2, "x"),
        ({"x": 3, "e": 0}, 0, "e"),  # the batches of each table's first failure differ
        ({"e": 3, "x": 2}, 1, "x"),
        ({"x": 4, "e": 2}, 1, "e"),
        ({}, 0, None),  # cancelled: some rows are loading still
    ],
)
@in_virtual_loop
async def test_batches_before_the_first_failed_row_are_kept(failures, kept, table):
    """`failures`: table name → the place of its first failed row among the group's. The lease is
    kept with them, or released."""
    errors = {name: (place, LookupError(name)) for name, place in failures.items()}
    raised = next((error for _, error in errors.values()), ClosedError("cancelled"))
    released, nothing = list[bool](), Any
    counts: list[dict[str, int]] = [{"x": 2, "e": 1}, {"x": 1, "e": 2}, {"x": 3, "e": 1}]
    batches = tuple(
        SampledBatch(nothing, nothing, {name: np.zeros(n, np.int64) for name, n in each.items()})
        for each in counts
    )
    lease: Any = Mock(**{
        "ready": AsyncMock(side_effect=raised), "failures.return_value": errors,
        "release": lambda: released.append(True),
    })  # fmt: skip
    buffer = SimpleNamespace(granted=AsyncMock(return_value=lease))
    epoch: Any = SimpleNamespace(training=Channel(4), buffer=buffer, counters=Counters())
    behind = KeyError("of the batch behind the group")
    await extract._extract_one(epoch, Sampled(0, batches, {}, behind), None)
    found = await epoch.training.take()
    assert found.error is (errors[table][1] if table else raised)
    assert (found.batches if isinstance(found, Extracted) else ()) == batches[:kept]
    assert released == [True] * (not kept)
