"""How the devices' tests bring rows into a feature buffer and read them back."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices.base import Device, SlotMemory
from gnndrive.common.ffi import ffi
from gnndrive.common.records import Int32Array, Landing, Stretch

Rows = npt.NDArray[np.uint8]

# Rows of one byte; of odd numbers of bytes, 2-byte, 4-byte, 8-byte and 16-byte words; dimensions
# of real data sets.
ROW_BYTES = [1, 2, 3, 4, 6, 8, 16, 100, 127, 256, 400, 508, 512, 513, 768, 1024, 1032, 3072, 4097]


def some_rows(count: int, row_bytes: int, seed: int = 0) -> Rows:
    """Random rows, uint8 [count, row_bytes]."""
    return np.random.default_rng([seed, row_bytes]).integers(0, 256, (count, row_bytes), np.uint8)


def shuffled(count: int, of: int | None = None, seed: int = 0) -> Int32Array:
    """`count` different numbers below `of`, in any order, int32."""
    return np.random.default_rng(seed).permutation(of or count)[:count].astype(np.int32)


def places_of(landing: Landing, slots: Int32Array) -> Int32Array:
    """Where the rows of `slots` land."""
    return slots if landing.places is None else landing.places


def land(landing: Landing, places: Int32Array, rows: Rows) -> None:
    """Put rows where an engine would."""
    nbytes = (int(places.max()) + 1) * landing.slot_stride
    memory = ffi.buffer(ffi.cast("uint8_t *", landing.address), nbytes)
    np.frombuffer(memory, np.uint8).reshape(-1, landing.slot_stride)[places] = rows


async def load(memory: SlotMemory, slots: Int32Array, rows: Rows, stretches: int = 1) -> None:
    """Bring rows into slots: land them, commit them in `stretches` stretches, leave."""
    landing = memory.landing(slots)
    assert landing is not None, "no staging is left"
    places = places_of(landing, slots)
    for part in np.array_split(np.arange(len(slots)), stretches):
        land(landing, places[part], rows[part])
        committed = await memory.commit(landing, Stretch(places[part]))
        assert np.array_equal(committed.slots, slots[part])
        assert not len(committed.failures)
    landing.leave()


def look(device: Device, tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The content of a tensor on a device, as the user's thread sees it."""
    device.hand_over(tensor)
    return tensor.cpu().numpy()


async def gathered(device: Device, memory: SlotMemory, alias: Int32Array, row_bytes: int) -> Rows:
    """The rows of `alias`."""
    rows, fence = memory.gather(alias, torch.uint8, (row_bytes,))
    await fence()
    return look(device, rows)
