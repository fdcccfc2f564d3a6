"""The channel between stages: windows, order, ends."""

import asyncio

import pytest

from gnndrive.pipeline.channel import Channel, ChannelEnded
from tests.pipeline.tight import in_virtual_loop


@pytest.mark.parametrize("ordered", [True, False])
@in_virtual_loop
async def test_items_leave_in_index_order_or_as_they_come(ordered):
    channel: Channel[int] = Channel(3, ordered=ordered)
    for _ in range(3):
        await channel.reserve()
    for index in (2, 0, 1):
        channel.put(index, index)
    assert [await channel.take() for _ in range(3)] == ([0, 1, 2] if ordered else [2, 0, 1])


@in_virtual_loop
async def test_the_window_counts_from_the_oldest_not_taken():
    channel: Channel[int] = Channel(2)
    await channel.reserve(2)
    third = asyncio.ensure_future(channel.reserve())
    channel.put(1, 1)  # the younger is finished, the oldest is not: no room
    await asyncio.sleep(0)
    assert not third.done()
    channel.put(0, 0)
    assert await channel.take() == 0
    await third


@in_virtual_loop
async def test_several_places_are_taken_in_one_step_or_none():
    channel: Channel[int] = Channel(4)
    await channel.reserve(3)
    several = asyncio.ensure_future(channel.reserve(2))
    await asyncio.sleep(0)
    assert (several.done(), channel.under_way) == (False, 3)
    channel.put(0, 0)
    assert await channel.take() == 0
    await several
    assert channel.under_way == 4
    ended = asyncio.ensure_future(channel.reserve(2))
    channel.end(4)
    with pytest.raises(ChannelEnded):
        await ended
    assert channel.under_way == 3, "a place for an item after the last is free"


@in_virtual_loop
async def test_end_wakes_takers_and_reservers():
    channel: Channel[int] = Channel(1)
    await channel.reserve()
    taker, reserver = (asyncio.ensure_future(c) for c in (channel.take(), channel.reserve()))
    await asyncio.sleep(0)
    channel.put(0, 7)
    channel.end(1)
    assert await taker == 7
    with pytest.raises(ChannelEnded):
        await reserver
    with pytest.raises(ChannelEnded):
        await channel.take()


@in_virtual_loop
async def test_a_cancelled_taker_loses_nothing():
    channel: Channel[int] = Channel(2)
    first, second = (asyncio.ensure_future(channel.take()) for _ in range(2))
    await asyncio.sleep(0)
    channel.put(0, 0)  # wakes both; the first is cancelled before it looks
    first.cancel()
    assert await second == 0
