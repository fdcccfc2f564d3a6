"""Slots in host memory, beside a device that gets batches out of them: `device_memory=0`.

Ginex, PaGraph, MariusGNN and HierBatching have their caches in host memory, and copy a batch's rows
to the GPU. A row lands in its slot, as on the host. A device that reads pinned memory gathers a
batch from its slots, which are pinned, into a new tensor of its own memory. For another one the CPU
gathers rows into pinned pieces, and each piece is copied while the next one is filled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from gnndrive.buffer.devices._staged import Driver, Staged, portion_rows, rows_limited
from gnndrive.buffer.devices.base import Fence, SlotMemory, already_done, no_callback
from gnndrive.common.array_pool import mapped_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import copy_rows, ffi, lib, pointer
from gnndrive.common.host_memory import gather_threads
from gnndrive.common.io.direct_file import Bytes, whole_pages
from gnndrive.common.records import Int32Array, Landing


class HostSlotMemory(SlotMemory):
    """Slots in host memory, and `pieces` pieces of pinned memory with `piece_rows` rows each if the
    device cannot read the slots."""

    def __init__(
        self, driver: Driver, slots: int, row_bytes: int, pieces: int, piece_rows: int
    ) -> None:
        self._driver, self._row_bytes, self._piece_rows = driver, row_bytes, piece_rows
        self._pinned: list[Bytes] = []
        self._pieces: deque[tuple[Bytes, Any]] = deque()  # with the event of its last copy
        self._using_pieces = threading.Lock()
        self._wait: Callable[[int], object] = no_callback
        nbytes = max(slots * row_bytes, 1)
        self._limited = partial(
            rows_limited, "host memory for a feature buffer of", slots, row_bytes,
            "buffer= or memory=",
        )  # fmt: skip
        try:
            with self._limited():
                if driver.reads_pinned:
                    memory, self._wait = driver.pinned_later(nbytes)
                    self._pinned.append(memory)
                else:
                    memory = mapped_bytes(nbytes)
                    whole = driver.pinned(pieces * _piece_bytes(piece_rows, row_bytes))
                    self._pinned.append(whole)
                    self._pieces.extend((piece, None) for piece in whole.reshape(pieces, -1))
        except ConfigError:
            self.close()
            raise
        self._slots = memory[: slots * row_bytes].reshape(slots, row_bytes)

    def landing(self, slots: Int32Array) -> Landing:
        """See `SlotMemory.landing`: rows land where they stay."""
        return Landing(self._slots.ctypes.data, self._row_bytes, True, self._slots)

    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        copied: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """See `SlotMemory.gather`; the slots of pieces have been read when this returns."""
        if self._pieces:
            with self._using_pieces:
                rows, fence = self._in_pieces(alias), already_done
        else:
            with self._limited():
                self._wait((int(alias.max(initial=-1)) + 1) * self._row_bytes)
            rows, event = self._driver.gather(torch.from_numpy(self._slots), alias)
            fence = partial(self._driver.wait, event)
        return rows.view(dtype).view(len(alias), *row_shape), fence

    def _in_pieces(self, alias: Int32Array) -> torch.Tensor:
        rows, row_bytes = self._driver.empty(len(alias), self._row_bytes), self._row_bytes
        slots, threads = pointer(self._slots.reshape(-1)), gather_threads()
        for begin in range(0, len(alias), self._piece_rows):
            part = alias[begin : begin + self._piece_rows]
            piece, event = self._pieces[0]
            if event is not None:
                self._driver.finish(event)
            to = ffi.cast("uint8_t *", piece.ctypes.data)
            lib.gd_gather(slots, row_bytes, pointer(part), len(part), row_bytes, to, threads)
            filled = piece[: len(part) * row_bytes].reshape(len(part), row_bytes)
            self._pieces[0] = piece, self._driver.fill(rows[begin : begin + len(part)], filled)
            self._pieces.rotate(-1)
        return rows

    def evicted(self, places: int) -> CopiesOfSlots:
        """See `SlotMemory.evicted`; for ranks that exchange rows."""
        return CopiesOfSlots(self._slots, places)

    def close(self) -> None:
        """Free slots and pieces; see `SlotMemory.close`."""
        for _, event in self._pieces:
            if event is not None:
                self._driver.finish(event)
        self._pieces.clear()
        self._slots = np.empty((0, 0), np.uint8)
        while self._pinned:
            self._driver.unpin(self._pinned.pop())


class CopiesOfSlots:
    """Host memory for `places` rows of `slots`, uint8 [slots, row_bytes]; an `EvictedRows`."""

    rows_max: int | None = None
    read_in_place = False

    def __init__(self, slots: Bytes, places: int) -> None:
        self._slots, self.rows = slots, np.empty((places, slots.shape[1]), np.uint8)

    def copy_out(self, slots: Int32Array, places: Int32Array) -> Fence:
        """See `EvictedRows.copy_out`; the rows are there when this returns."""
        copy_rows(self._slots, slots.astype(np.int64), places, self.rows)
        return already_done

    def wait(self) -> None:
        """See `EvictedRows.wait`."""

    def close(self) -> None:
        """See `EvictedRows.close`."""
        self._slots = self.rows = np.empty((0, 0), np.uint8)


class HostSlots(Staged):
    """A device beside slots in host memory; it comes before `Staged` devices in a list of bases."""

    def allocate(self, slots: int, row_bytes: int) -> SlotMemory:
        """Slots in host memory; see `HostSlotMemory`."""
        rows = portion_rows(self.portion_bytes, row_bytes, slots)
        return HostSlotMemory(self.driver, slots, row_bytes, self.portions, rows)

    @classmethod
    def free_bytes(cls, where: torch.device | None) -> int | None:
        """See `Device.free_bytes`."""
        return None

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        """See `Device.pinned_bytes`: those of the pieces."""
        each = portion_rows(cls.portion_bytes, row_bytes, rows)
        return cls.options.portions * _piece_bytes(each, row_bytes)


def _piece_bytes(rows: int, row_bytes: int) -> int:
    return whole_pages(max(rows * row_bytes, 1))
