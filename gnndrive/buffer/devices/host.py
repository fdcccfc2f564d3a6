"""The host device: the feature buffer in main memory, where engines put rows straight into their
slots.

For training on the CPU (GNNDrive §4.4). A landed row is where it will be gathered from, so a commit
waits for nothing.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable

import numpy as np
import torch

from gnndrive.buffer.devices.base import (
    Device,
    DeviceContext,
    Fence,
    SlotMemory,
    already_done,
    no_callback,
)
from gnndrive.common.array_pool import Allocate, empty_tensor, private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array, Landing, Stretch

# Where the pieces of a gather begin: each is as large as all before it, for the first slots that
# come back are those that the disk may be waiting for. A batch of less is one piece: to say what
# is behind it takes the GIL.
PIECES = (7 / 8, 3 / 4, 1 / 2, 0)
PIECES_BYTES = 64 << 20


class HostMemory(SlotMemory):
    """Slots in one private mapping, page by page touched as they are used."""

    def __init__(self, slots: int, row_bytes: int, empty: Allocate) -> None:
        self._row_bytes = row_bytes
        self._empty = empty
        try:
            self._map = private_map(slots * row_bytes)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for a feature buffer of {slots:,} rows of {row_bytes:,} bytes "
                f"({error}): ask for less with buffer= or memory="
            ) from error
        # A child of fork() would share these pages copy on write, and what the device then reads
        # into them could land in the child's copy.
        self._map.madvise(mmap.MADV_DONTFORK)
        self._bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = np.frombuffer(
            self._map, np.uint8
        )

    def landing(self, slots: Int32Array) -> Landing:
        """The mapping itself: rows land where they stay."""
        assert self._bytes is not None
        return Landing(self._bytes.ctypes.data, self._row_bytes, True, self._bytes)

    async def commit(self, landing: Landing, stretch: Stretch) -> Stretch:
        """Nothing to wait for."""
        return stretch

    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        behind: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """Copy rows into a new tensor, without the GIL; see `PIECES`."""
        assert self._bytes is not None
        rows = empty_tensor(self._empty, (len(alias), *row_shape), dtype)
        into, row_bytes = ffi.cast("uint8_t *", rows.data_ptr()), self._row_bytes
        slots, end = pointer(self._bytes), len(alias)
        for place in PIECES if end * row_bytes >= PIECES_BYTES else PIECES[-1:]:
            begin = int(len(alias) * place)
            piece = pointer(alias[begin:end])
            to = into + begin * row_bytes
            lib.gd_gather(slots, row_bytes, piece, end - begin, row_bytes, to)
            if begin:
                behind(begin)
            end = begin
        return rows, already_done

    def close(self) -> None:
        """Unmap the slots."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # somebody may still land rows: it goes with them
            self._map.close()


class Host(Device):
    """Main memory.

    Args:
        empty: where gathered rows get their memory from.
    """

    name = "host"

    def __init__(self, empty: Allocate = np.empty) -> None:
        self._empty = empty

    @classmethod
    def make(cls, context: DeviceContext) -> Host:
        """See `Device.make`."""
        return cls(context.empty)

    def allocate(self, slots: int, row_bytes: int) -> HostMemory:
        """Slots in main memory; see `HostMemory`."""
        return HostMemory(slots, row_bytes, self._empty)
