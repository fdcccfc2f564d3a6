"""`SlotCopies`: copies of rows whose slots lie in a device's memory, for ranks that ask for them.

Rows leave the device on its side stream, behind no work of the user's, go through pinned places,
and lie in ordinary host memory when they are sent. So only other copies wait for the places, of
which there are few, and none waits until a rank takes its rows.
"""

from __future__ import annotations

import asyncio
from typing import Self

import numpy as np
import torch

from gnndrive.buffer.devices.base import SlotMemory
from gnndrive.common.array_pool import Allocate, empty_tensor
from gnndrive.common.records import Int32Array
from gnndrive.disk.tiers.base import EvictedRows
from gnndrive.pipeline.workers import Workers

PIECES = 2  # of each table, so that one is filled while another one is emptied
PIECE_BYTES = 16 << 20


def piece_rows(row_bytes: int, rows: int) -> int:
    """How many rows of a table of so many are copied at once."""
    return max(min(PIECE_BYTES // max(row_bytes, 1), rows), 1)


class SlotCopies:
    """Copies rows of a table.

    Args:
        memory: `PIECES` times `rows` places.
        rows: see `piece_rows`.
        workers: copy.
        empty: allocates the memory of copies.
    """

    def __init__(self, memory: EvictedRows, rows: int, workers: Workers, empty: Allocate) -> None:
        self._memory, self._rows, self._workers, self._empty = memory, rows, workers, empty
        places = np.arange(PIECES * rows, dtype=np.int32)
        self._free = list(places.reshape(PIECES, rows))
        self._pieces = asyncio.Semaphore(PIECES)
        self._error: BaseException | None = None

    @classmethod
    def of(
        cls, slots: SlotMemory, row_bytes: int, rows: int, workers: Workers, empty: Allocate
    ) -> Self | None:
        """Those of a table of so many rows; None: `SlotMemory.gather` copies to host memory. Raises
        what `SlotMemory.evicted` does."""
        at_once = piece_rows(row_bytes, rows)
        memory = slots.evicted(PIECES * at_once)
        return None if memory is None else cls(memory, at_once, workers, empty)

    async def copy(self, slots: Int32Array) -> torch.Tensor:
        """The rows of slots that are valid and held, uint8 [n, row_bytes]; they are copied when
        this returns or raises. MemoryError: there is no memory on the way. Not to be cancelled."""
        shape = len(slots), self._memory.rows.shape[1]
        rows = empty_tensor(self._empty, shape, torch.uint8)
        for begin in range(0, len(slots), self._rows):
            async with self._pieces:
                await self._copy(slots[begin : begin + self._rows], rows[begin:])
        return rows

    async def _copy(self, slots: Int32Array, into: torch.Tensor) -> None:
        if self._error is not None:
            raise self._error
        piece = self._free.pop()
        places = piece[: len(slots)]
        try:
            ended = await self._workers.run(self._memory.copy_out, slots, places)
        except MemoryError:  # nothing was begun
            self._free.append(piece)
            raise
        except BaseException as error:  # a copy may run, so the places are never used again
            self._error = error
            raise
        try:
            await ended()
        except BaseException as error:
            self._error = error
            raise
        here = self._memory.rows[places[0] : places[-1] + 1]
        await self._workers.run(np.copyto, into.numpy()[: len(slots)], here)
        self._free.append(piece)

    def close(self) -> None:
        """Free the places, which no copy uses."""
        self._memory.close()
