"""What every driver of a staged device must do; tests/gpu runs the same on a real one."""

import asyncio
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices._staged import Driver, StagedMemory
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi
from tests.buffer.devices.moving import ROW_BYTES, shuffled, some_rows

PLACES, SLOTS = 70, 50


def pinned_moves(driver: Driver, places: np.ndarray, slots: np.ndarray, before: int = 0):
    """Pinned places and slots behind `before` others: int32 [2, n], rows not contiguous."""
    whole = driver.pinned(2 * (before + len(places)) * 4).view(np.int32).reshape(2, -1)
    whole[:, :before] = -1
    moves = whole[:, before:]
    moves[0], moves[1] = places, slots
    return moves


def staged(driver: Driver, rows: np.ndarray) -> np.ndarray:
    """The rows in pinned memory."""
    staging = driver.pinned(rows.size).reshape(rows.shape)
    staging[:] = rows
    return staging


def slots_with(driver: Driver, rows: np.ndarray) -> torch.Tensor:
    """Slots with these rows, uint8 [slots, row_bytes]."""
    slots, every = driver.allocate(rows.size).view(rows.shape), np.arange(len(rows), dtype=np.int32)
    driver.scatter(slots, staged(driver, rows), pinned_moves(driver, every, every))
    driver.synchronize()
    return slots


async def content(driver: Driver, into: torch.Tensor, alias: Any = None) -> np.ndarray:
    """What is in the slots of `alias`; None: in all."""
    alias = np.arange(len(into), dtype=np.int32) if alias is None else alias
    out, event = driver.gather(into, alias)
    await driver.wait(event)
    driver.hand_over([out])
    return out.cpu().numpy()


EVERY = np.arange(SLOTS, dtype=np.int32)


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
async def test_a_scatter_moves_its_rows_and_nothing_else(driver, row_bytes):
    rows = some_rows(PLACES, row_bytes)
    staging, expected = staged(driver, rows), some_rows(SLOTS, row_bytes, seed=1)
    into = slots_with(driver, expected)
    assert np.array_equal(await content(driver, into), expected)
    in_order = np.arange(9, 40)
    for count, before in ((1, 0), (17, 3), (SLOTS, 1), (len(in_order), 0)):
        places = in_order if count == len(in_order) else shuffled(count, PLACES, seed=1)
        slots = shuffled(count, SLOTS, seed=2)
        moves = pinned_moves(driver, places, slots, before)
        await driver.wait(driver.scatter(into, staging, moves))
        expected[slots] = rows[places]
        assert np.array_equal(await content(driver, into), expected), count
    alias = shuffled(SLOTS, seed=4)[:33].repeat(3)
    assert np.array_equal(await content(driver, into, alias), expected[alias])


async def test_scatters_keep_their_order(driver):
    """Of two that go to one slot the later one counts."""
    into = driver.allocate(SLOTS * 256).view(SLOTS, 256)
    kept = [staged(driver, some_rows(SLOTS, 256, seed)) for seed in range(8)]
    moves = pinned_moves(driver, EVERY, EVERY)
    events = [driver.scatter(into, staging, moves) for staging in kept]
    await driver.wait(events[-1])
    await driver.wait(events[0])
    assert np.array_equal(await content(driver, into), kept[-1])


@pytest.mark.parametrize("method", ["copy_out", "pull"])
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
async def test_rows_leave_slots_for_their_places_and_nowhere_else(driver, row_bytes, method):
    """To host memory, and to memory of the device."""
    rows, there = some_rows(SLOTS, row_bytes), driver.rows(PLACES, row_bytes)
    slots, here = slots_with(driver, rows), staged(driver, some_rows(PLACES, row_bytes, seed=1))
    into = there if method == "pull" else here
    expected = await content(driver, there) if method == "pull" else here.copy()
    for count in (1, 17, SLOTS):
        moves = np.stack([shuffled(count, SLOTS, seed=1), shuffled(count, PLACES, seed=2)])
        event = getattr(driver, method)(slots, into, moves)
        expected[moves[1]] = rows[moves[0]]
        moves[:] = 0  # it may be changed
        await driver.wait(event)
        await driver.wait(event)
        found = await content(driver, there) if method == "pull" else here
        assert np.array_equal(found, expected), count


async def test_a_row_is_copied_out_before_another_is_scattered_into_its_slot(driver):
    kept = [staged(driver, some_rows(SLOTS, 256, seed)) for seed in range(5)]
    into = [staged(driver, np.zeros((SLOTS, 256), np.uint8)) for _ in kept]
    slots = driver.allocate(SLOTS * 256).view(SLOTS, 256)
    moves, events = pinned_moves(driver, EVERY, EVERY), []
    for staging, copied in zip(kept, into, strict=True):
        driver.scatter(slots, staging, moves)
        events.append(driver.copy_out(slots, copied, np.stack([EVERY, EVERY[::-1]])))
    for event in reversed(events):
        await driver.wait(event)
    for staging, copied in zip(kept, into, strict=True):
        assert np.array_equal(copied[::-1], staging)


@pytest.mark.parametrize("nbytes", [1, 5000])
def test_pinned_memory_is_aligned_to_a_page(driver, nbytes):
    memory = driver.pinned(nbytes)
    assert (memory.dtype, memory.shape) == (np.uint8, (nbytes,))
    assert int(ffi.cast("uintptr_t", ffi.from_buffer(memory))) % 4096 == 0
    memory[:] = 7
    assert memory.flags.writeable


async def test_many_tasks_may_wait_and_some_be_cancelled(driver):
    staging = staged(driver, some_rows(SLOTS, 512))
    into = driver.allocate(staging.size).view(staging.shape)
    moves = pinned_moves(driver, EVERY, EVERY)
    events = [driver.scatter(into, staging, moves) for _ in range(20)]
    waiting = [asyncio.ensure_future(driver.wait(event)) for event in events * 2]
    await asyncio.sleep(0)
    for task in waiting[::3]:
        task.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ended)
    assert ended.count(None) >= len(waiting) * 2 // 3
    assert np.array_equal(await content(driver, into), staging)


def test_synchronize_leaves_nothing_under_way(driver):
    rows = some_rows(SLOTS, 768)
    into = slots_with(driver, rows)
    out, _ = driver.gather(into, EVERY)
    driver.synchronize()
    assert np.array_equal(out.cpu().numpy(), rows)


def test_memory_that_cannot_be_pinned_says_which_argument_to_change(driver, monkeypatch):
    memory = StagedMemory(driver, 10, 512, portions=2, portion_rows=4)
    victims = memory.evicted(7)
    assert victims.rows.shape == (7, 512)
    assert victims.rows_max is None or victims.rows_max * 512 <= (driver.copy_out_bytes_max or 0)
    victims.close()
    for name in ("pinned", "pinned_later"):
        monkeypatch.setattr(driver, name, Mock(side_effect=MemoryError("none is left")))
    if driver.reads_pinned:
        with pytest.raises(ConfigError, match=r"7 rows of 512 bytes \(none is left\).*victim_buf"):
            memory.evicted(7)
    else:
        memory.evicted(7).close()  # the device does not read it, so it is not pinned
    with pytest.raises(ConfigError, match="none is left"):
        StagedMemory(driver, 10, 512, 2, 4)
    memory.close()
