"""`RemoteRows`: a cache of those rows of one table that other ranks own.

Where the net is slower than the disk, a row that many batches need should not cross it for each of
them. A batch holds the rows that are here from its announcement on, and asks their owners for the
others alone. These enter the cache once they have arrived, and rows that were used longest ago
leave it; no row leaves that a batch holds.

A batch waits here for copies only. Rows for which there is no slot are not kept, and a row that
another batch of this rank has asked its owner for is asked for again. So there is no new wait (a
user waits for its batch, the batch for its owners' shares, these for their disks), and a batch that
is given up or fails has no effect on others. A batch may find a row that is still being copied in;
copies are made in the order in which they began, so the row is there when it is copied out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.array_pool import mapped_bytes
from gnndrive.common.ffi import copy_rows
from gnndrive.common.records import Int32Array, Int64Array, Stretch
from gnndrive.pipeline.workers import Workers

NO_MEMORY: Any = None  # of the slot table's own
NO_TIER: Any = SimpleNamespace(takes_offers=False, ranked=(), rows_served=0, bytes_read=0)


class Held(NamedTuple):
    """The slots that a batch holds, int32 [n], and where their rows go, int32 [n]."""

    slots: Int32Array
    places: Int32Array


class RemoteRows:
    """A cache of one table's rows; it is used in the event loop.

    Args:
        rows: those of the table, of all owners.
        own: the owner that this rank is, whose rows it does not keep here.
        workers: copy rows.
    """

    def __init__(self, rows: int, own: int, slots: int, row_bytes: int, workers: Workers) -> None:
        self.table = SlotTable(rows, slots, row_bytes, NO_MEMORY, NO_TIER, None)
        memory = mapped_bytes(slots * row_bytes)
        self._memory = memory[: slots * row_bytes].reshape(slots, row_bytes)
        self._own, self._workers = own, workers
        self._order = asyncio.Lock()  # first come, first served
        self._error: BaseException | None = None  # why a copy has failed

    def hold(self, rows: Int64Array, split: list[tuple[Int32Array, Int64Array]]) -> Held:
        """Hold those of a batch's `rows`, int64 [n], that are here, and leave them out of `split`;
        see `Owners.split`."""
        held: list[tuple[Int32Array, Int32Array]] = []
        for owner, (places, numbers) in enumerate(split):
            if owner == self._own:
                continue
            slots = self._find(rows[places])
            here = slots >= 0
            held.append((slots[here], places[here]))
            split[owner] = places[~here], numbers[~here]
        return Held(*map(np.concatenate, zip(*held, strict=True)))

    def _find(self, rows: Int64Array) -> Int32Array:
        """The slots of rows, which are held; -1: the row is not here."""
        found, at_once = np.full(len(rows), -1, np.int32), self.table.slots
        for begin in range(0, len(rows), at_once):
            part = slice(begin, begin + at_once)
            _, _, hold = self.table.hold_present(rows[part])
            if hold is not None:  # else a row is out of range, which its owner says
                found[part] = hold.alias
        return found

    def release(self, held: Held) -> None:
        """Give up what `hold` has returned, instead of `copy_out`."""
        self.table.release(held.slots)

    async def copy_out(self, held: Held, rows: torch.Tensor) -> None:
        """Copy held rows to their places among a batch's, uint8 [n, row_bytes], and release them.
        Not to be cancelled."""
        try:
            await self._copy(self._memory, held.slots.astype(np.int64), held.places, rows.numpy())
        finally:
            self.table.release(held.slots)

    async def copy_in(
        self, needed: Int64Array, places: Sequence[Int32Array], rows: torch.Tensor
    ) -> None:
        """Keep rows of a batch that have arrived, as far as there are slots; `places` are those of
        each owner's among all that it has `needed`, int64 [n]. Not to be cancelled."""
        remote = np.concatenate([each for at, each in enumerate(places) if at != self._own])
        arrived = remote[: self.table.available].astype(np.int64)
        _, _, hold = self.table.admit(needed[arrived])
        assert hold is not None, "there are as many slots, and the owners had the rows"
        assert hold.loads is not None
        # From here on batches may hold these rows.
        await self._copy(rows.numpy(), arrived, hold.alias, self._memory)
        self.table.commit(Stretch(hold.loads[1]))
        self.table.release(hold.alias)

    async def _copy(
        self, rows: npt.NDArray[np.uint8], numbers: Int64Array, places: Int32Array,
        into: npt.NDArray[np.uint8],
    ) -> None:  # fmt: skip
        async with self._order:
            if self._error is not None:  # rows that others found on their way have not come
                raise self._error
            try:
                await self._workers.run(copy_rows, rows, numbers, places, into)
            except BaseException as error:
                self._error = error
                raise
