"""The host device: the feature buffer in main memory; engines read rows straight into their slots.

For training on the CPU (GNNDrive §4.4); found as "host", and by `device="cpu"`. A row lands where
it will be gathered from, so a commit waits for nothing. The slots may lie in memory that another
process shares (`DeviceContext.map`): one process lands rows in them, and others gather from them.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gnndrive.buffer.devices.base import (
    PIECES,
    PIECES_BYTES,
    Device,
    DeviceContext,
    Fence,
    Gathering,
    SlotMemory,
    already_done,
    no_callback,
)
from gnndrive.common.array_pool import Allocate, empty_tensor, keep_from_children, private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.host_memory import gather_threads
from gnndrive.common.records import Int32Array, Landing


class HostMemory(SlotMemory):
    """Slots in one mapping, whose pages are allocated when they are first used.

    Args:
        empty, map: see `DeviceContext`; if the mapping is read-only, rows can be gathered and not
            landed.

    Raises:
        ConfigError: there is not that much memory, or `map` returned less.
    """

    def __init__(
        self,
        slots: int,
        row_bytes: int,
        empty: Allocate,
        map: Callable[[int], mmap.mmap] = private_map,
    ) -> None:
        self._row_bytes, self._empty = row_bytes, empty
        nbytes = slots * row_bytes
        try:
            self._map = map(nbytes)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for a feature buffer of {slots:,} rows of {row_bytes:,} bytes "
                f"({error}): ask for less with buffer= or memory="
            ) from error
        if len(self._map) < nbytes:
            raise ConfigError(
                f"a feature buffer of {slots:,} rows of {row_bytes:,} bytes needs {nbytes:,} "
                f"bytes, and was given {len(self._map):,}: end all processes of this run and start "
                "them again with the same version of gnndrive"
            )
        keep_from_children(self._map)
        self._bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = np.frombuffer(
            self._map, np.uint8
        )

    def landing(self, slots: Int32Array) -> Landing:
        """The mapping itself: rows land where they stay."""
        assert self._bytes is not None
        assert self._bytes.flags.writeable, "another process lands the rows of these slots"
        return Landing(self._bytes.ctypes.data, self._row_bytes, True, self._bytes)

    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        copied: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """See `SlotMemory.gather`; copies without the GIL, in pieces, see `PIECES`."""
        assert self._bytes is not None
        rows = empty_tensor(self._empty, (len(alias), *row_shape), dtype)
        into, row_bytes = ffi.cast("uint8_t *", rows.data_ptr()), self._row_bytes
        slots, end, threads = pointer(self._bytes), len(alias), gather_threads()
        for place in PIECES if end * row_bytes >= PIECES_BYTES else PIECES[-1:]:
            begin = int(len(alias) * place)
            piece = pointer(alias[begin:end])
            to = into + begin * row_bytes
            lib.gd_gather(slots, row_bytes, piece, end - begin, row_bytes, to, threads)
            if begin:
                copied(begin)
            end = begin
        return rows, already_done

    def begin_gather(
        self, alias: Int32Array, dtype: torch.dtype, row_shape: tuple[int, ...]
    ) -> tuple[torch.Tensor, Fence, Gathering]:
        """See `SlotMemory.begin_gather`; a thread of C copies."""
        assert self._bytes is not None
        rows = empty_tensor(self._empty, (len(alias), *row_shape), dtype)
        return rows, already_done, _Copying(self._bytes, self._row_bytes, alias, rows)

    def close(self) -> None:
        """Unmap the slots."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # a landing still has it: freed with that
            self._map.close()


class _Copying(Gathering):
    """The C `gd_gathering *`, and what it points to."""

    def __init__(
        self, slots: np.ndarray[Any, Any], row_bytes: int, alias: Int32Array, rows: torch.Tensor
    ) -> None:
        super().__init__(len(alias))
        self._copied = 0
        self._kept, into = (slots, alias, rows), ffi.cast("uint8_t *", rows.data_ptr())
        self._handle = lib.gd_gather_start(
            pointer(slots), row_bytes, pointer(alias), self.rows, row_bytes, into
        )
        if self._handle == ffi.NULL:
            raise MemoryError("no memory for a thread that copies rows: free some")

    def wait(self, rows: int) -> bool:
        """See `Gathering.wait`."""
        if self._copied < rows:
            self._copied = lib.gd_gather_wait(self._handle, rows)
        return self._copied == self.rows

    def end(self) -> None:
        """See `Gathering.end`."""
        lib.gd_gather_end(self._handle)


class Host(Device):
    """Main memory; for the arguments see `DeviceContext`."""

    name = "host"
    shares_slots = True

    def __init__(
        self, empty: Allocate = np.empty, map: Callable[[int], mmap.mmap] = private_map
    ) -> None:
        self._empty, self._map = empty, map

    @classmethod
    def make(cls, context: DeviceContext) -> Host:
        """See `Device.make`."""
        return cls(context.empty, context.map)

    def allocate(self, slots: int, row_bytes: int) -> HostMemory:
        """Slots in main memory; see `HostMemory`."""
        return HostMemory(slots, row_bytes, self._empty, self._map)
