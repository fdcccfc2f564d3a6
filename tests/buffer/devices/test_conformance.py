"""What every device must do; tests/gpu runs the same on a GPU."""

import asyncio
import errno

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnndrive.buffer.devices import host
from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.devices.host import Host
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import FAILURE, Stretch
from tests.buffer.devices.moving import (
    ROW_BYTES,
    gathered,
    land,
    load,
    look,
    places_of,
    shuffled,
    some_rows,
)  # fmt: skip

SLOTS = 90


async def fill(device: Device, row_bytes: int, slots: int = SLOTS, seed: int = 0):
    """Memory whose slots hold known rows, and the rows by slot."""
    memory, rows = device.allocate(slots, row_bytes), some_rows(slots, row_bytes, seed)
    most = memory.landing_rows_max or slots
    order = shuffled(slots, seed=seed)
    for start in range(0, slots, most):
        part = order[start : start + most]
        await load(memory, part, rows[part])
    return memory, rows


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
async def test_every_byte_arrives(device, row_bytes):
    memory, rows = await fill(device, row_bytes)
    for count in (SLOTS, 1, 33):
        alias = shuffled(count, SLOTS, seed=count)
        assert np.array_equal(await gathered(device, memory, alias, row_bytes), rows[alias])
    repeated = np.array([5, 5, 0, SLOTS - 1, 5], np.int32)
    assert np.array_equal(await gathered(device, memory, repeated, row_bytes), rows[repeated])
    memory.close()


async def test_stretches_of_several_landings_are_committed_at_once(device):
    memory, rows = await fill(device, 32)
    count = min(memory.landing_rows_max or SLOTS, 20)
    slots = shuffled(2 * count, SLOTS, seed=2)
    fresh = some_rows(2 * count, 32, seed=2)
    commits = []
    for half in np.array_split(np.arange(2 * count), 2):
        landing = memory.landing(slots[half])
        places = places_of(landing, slots[half])
        land(landing, places, fresh[half])
        commits += [memory.commit(landing, Stretch(part)) for part in np.array_split(places, 3)]
    await asyncio.gather(*reversed(commits))
    rows[slots] = fresh
    assert np.array_equal(await gathered(device, memory, slots, 32), rows[slots])
    memory.close()


async def test_staging_runs_out_and_comes_back(device):
    memory, rows = await fill(device, 64)
    slots = np.arange(min(memory.landing_rows_max or SLOTS, 10), dtype=np.int32)
    taken = [memory.landing(slots) for _ in range(getattr(device, "portions", 3))]
    assert None not in taken
    if memory.landing_rows_max is not None:
        assert memory.landing(slots) is None
    for landing in taken:
        landing.leave()
    for seed in range(5):  # one at a time it never runs out
        fresh = some_rows(len(slots), 64, seed)
        await load(memory, slots, fresh)
        assert np.array_equal(await gathered(device, memory, slots, 64), fresh)
    others = np.arange(len(slots), SLOTS, dtype=np.int32)
    assert np.array_equal(await gathered(device, memory, others, 64), rows[others])
    memory.close()


async def test_failures_name_slots(device):
    memory, rows = await fill(device, 16)
    slots = shuffled(8, SLOTS, seed=3)
    landing = memory.landing(slots)
    places, fresh = places_of(landing, slots), some_rows(8, 16, seed=3)
    land(landing, places, fresh)
    failures, expected = np.zeros(3, FAILURE), np.zeros(3, FAILURE)
    for each, where in ((failures, places), (expected, slots)):
        each["slot"], each["error"], each["offset"] = where[5:], errno.EIO, [512, 1024, 0]
    for some in (slice(5), slice(0)):
        stretch = await memory.commit(landing, Stretch(places[some], failures))
        assert np.array_equal(stretch.slots, slots[some])
        assert np.array_equal(stretch.failures, expected)
    landing.leave()
    rows[slots[:5]] = fresh[:5]
    assert np.array_equal(await gathered(device, memory, slots[:5], 16), rows[slots[:5]])
    memory.close()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(torch.float16, (5, 3)), (torch.bfloat16, (7,)), (torch.float64, ()), (torch.bool, (3,))],
)
async def test_rows_have_the_shape_and_type_they_are_asked_for(device, dtype, shape):
    row_bytes = dtype.itemsize * int(np.prod(shape, dtype=int))
    memory, rows = await fill(device, row_bytes, slots=20)
    alias = shuffled(12, 20)
    got, fence = memory.gather(alias, dtype, shape)
    await fence()
    assert (got.dtype, tuple(got.shape)) == (dtype, (12, *shape))
    as_bytes = got.reshape(12, -1).view(torch.uint8)
    assert np.array_equal(look(device, as_bytes), rows[alias])
    none, fence = memory.gather(alias[:0], dtype, shape)
    await fence()
    assert tuple(none.shape) == (0, *shape)
    memory.close()


async def test_slots_may_be_used_again_when_they_are_reported_as_copied(device, monkeypatch):
    """Piece by piece on the host, from the end; never before the fence elsewhere."""
    monkeypatch.setattr(host, "PIECES_BYTES", SLOTS * 48)
    memory, rows = await fill(device, 48)
    alias = shuffled(SLOTS, seed=5)
    reported: list[int] = []

    def use_again(begin: int) -> None:
        landing = memory.landing(alias[begin:])
        land(landing, alias[begin:], some_rows(len(alias) - begin, 48, seed=7))
        reported.append(begin)

    got, fence = memory.gather(alias, torch.uint8, (48,), use_again)
    await fence()
    assert np.array_equal(look(device, got), rows[alias])
    assert reported == ([SLOTS * k // 8 for k in (7, 6, 4)] if isinstance(device, Host) else [])
    if reported:  # a byte less is one piece
        reported.clear()
        memory.gather(alias[1:], torch.uint8, (48,), use_again)
        assert not reported
    memory.close()


async def test_slots_may_be_used_again_behind_the_fence(device):
    memory, _ = await fill(device, 48)
    slots = shuffled(min(memory.landing_rows_max or SLOTS, 16), SLOTS, seed=4)
    earlier = []
    for seed in range(6):
        fresh = some_rows(len(slots), 48, seed)
        await load(memory, slots, fresh)
        rows, fence = memory.gather(slots, torch.uint8, (48,))
        await fence()
        earlier.append((rows, fresh))
    for rows, expected in earlier:
        assert np.array_equal(look(device, rows), expected)
    memory.close()


async def test_rows_are_there_when_they_are_handed_over(device):
    """The user does not await the fence."""
    memory, rows = await fill(device, 44)
    for seed in range(5):
        alias = shuffled(SLOTS, seed=seed)
        expected = rows[alias]
        got, fence = memory.gather(alias, torch.uint8, (44,))
        alias[:] = 0  # it may be changed
        assert np.array_equal(look(device, got), expected)
        await fence()
    memory.close()


async def test_buffers_of_one_device_do_not_overlap(device):
    """Rows outlive the buffer that they were gathered from."""
    memories = [await fill(device, 36, seed=seed) for seed in range(3)]
    everything = np.arange(SLOTS, dtype=np.int32)
    memory, kept = memories.pop(1)
    got, fence = memory.gather(everything, torch.uint8, (36,))
    await fence()
    memory.close()
    memories.append(await fill(device, 36, seed=7))
    for memory, rows in memories:
        assert np.array_equal(await gathered(device, memory, everything, 36), rows)
        memory.close()
    assert np.array_equal(look(device, got), kept)


async def test_rows_are_kept_in_host_memory_when_their_slots_are_used_again(device):
    """Unless `gather` copies there; the wait for a copy may be cancelled and begun again."""
    memory, rows = await fill(device, 48)
    victims = memory.evicted(40)
    if not device.delivers:
        assert victims is None, "slots in host memory are that memory"
        memory.close()
        return
    slots, places = shuffled(12, SLOTS, seed=1), shuffled(12, 40, seed=2)
    kept = memory.evicted(40)
    for copies in (victims, kept):
        ended = copies.copy_out(slots, places)
        waiting = asyncio.ensure_future(ended())
        await asyncio.sleep(0)
        waiting.cancel()
        for start in range(0, len(slots), 4):
            part = slots[start : start + 4]
            await load(memory, part, some_rows(len(part), 48, seed=9))
        await ended()
        if copies is victims:
            assert np.array_equal(copies.rows[places], rows[slots])
    fresh = np.concatenate([some_rows(4, 48, seed=9)] * 3)
    assert np.array_equal(kept.rows[places], fresh)
    for _ in range(2):
        victims.close()
        kept.close()
    assert np.array_equal(await gathered(device, memory, slots, 48), fresh)
    for _ in range(2):
        memory.close()


def test_the_error_of_a_too_large_buffer_names_its_size(device):
    with pytest.raises(ConfigError, match=r"1,099,511,627,776 rows of 4,096 bytes.*buffer="):
        device.allocate(1 << 40, 4096)


async def test_a_batch_is_delivered_whole(device):
    draw = torch.Generator().manual_seed(0)
    tensors = {
        "edge_index": torch.randint(0, 1 << 40, (2, 70_000), generator=draw),
        "half": torch.rand(17, generator=draw).to(torch.float16),
        "mask": torch.rand(900, generator=draw) < 0.5,
        "turned": torch.rand(5, 40, generator=draw).t(),
        "none": torch.empty(0, 2, dtype=torch.int64),
        "number": torch.tensor(3),
    }
    memory, rows = await fill(device, 16)
    x, fence = memory.gather(shuffled(SLOTS), torch.float32, (4,))
    batch = Data(x=x, num_sampled_nodes=[3, 4], name="a", **tensors)
    expected = {name: value.clone() for name, value in tensors.items()}
    delivered = device.deliver(batch, [batch.x])
    if delivered["half"] is not tensors["half"]:  # it was copied: the sources may be changed
        for value in tensors.values():
            value.zero_()
    device.hand_over(delivered)
    await fence()
    assert delivered.x is x
    for name, value in expected.items():
        got = delivered[name]
        assert (got.dtype, got.device) == (value.dtype, x.device), name
        assert torch.equal(got.cpu(), value), name
    assert (delivered.num_sampled_nodes, delivered.name) == ([3, 4], "a")
    assert np.array_equal(look(device, x.view(torch.uint8)), rows[shuffled(SLOTS)])
    memory.close()


async def test_a_fence_may_be_cancelled_and_awaited_again(device):
    """As it is when an epoch ends early; the batch is still the user's."""
    memory, rows = await fill(device, 52)
    alias = shuffled(SLOTS, seed=6)
    gathers = [memory.gather(alias, torch.uint8, (52,)) for _ in range(4)]
    waiting = [asyncio.ensure_future(fence()) for _, fence in gathers]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    for got, fence in gathers:
        await fence()
        assert np.array_equal(look(device, got), rows[alias])
    memory.close()
