"""A lease: the only way to touch rows of the feature buffer (GNNDrive §4.2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import torch

from gnndrive.books import Share
from gnndrive.devices.base import Fence
from gnndrive.records import Int32Array

if TYPE_CHECKING:
    from gnndrive.buffer import FeatureBuffer

# A lease's slots are given up in so many steps if the next sweep waits for slots for a part: until
# it has some the disk may stand still, and all of them take 30 ms.
RELEASE_STEPS = 4


class Lease:
    """Rows held in the feature buffer for one batch: admitted, perhaps still loading, until
    `release`.

    Node aliases are slots: `alias("x")[i]` is where row `ids[i]` is.
    """

    def __init__(self, buffer: FeatureBuffer, shares: dict[str, Share]) -> None:
        self._buffer = buffer
        self._shares = shares
        self._settled: asyncio.Future[None] | None = None
        self._fences: list[Fence] = []
        self.released = False

    def alias(self, table: str) -> Int32Array:
        """The slots of the table's rows, in the order they were asked for, int32 [n]."""
        return self._shares[table].alias

    async def ready(self) -> None:
        """Wait until each row is valid.

        Raises:
            ReadError: a row could not be read; the lease is still to be released.
            ClosedError: its reads were cancelled.
        """
        while not self._check():
            self._buffer.raise_if_broken()
            self._settled = asyncio.get_running_loop().create_future()
            self._buffer.watch(self)
            try:
                await self._settled
            finally:
                self._settled = None
                self._buffer.unwatch(self)
        for share in self._shares.values():
            if error := share.error():
                raise error

    def gather(self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...]) -> torch.Tensor:
        """The rows as a new tensor [n, *row_shape]; blocking, for a worker thread. The last use."""
        share = self._shares[table]
        rows, fence = share.table.memory.gather(share.alias, dtype, row_shape)
        self._fences.append(fence)
        return rows

    async def gathered(self) -> None:
        """Wait until what `gather` began is over; only then may the lease be released (rule 9)."""
        for fence in self._fences:
            await fence()

    def release(self) -> None:
        """Give the slots up: once, after the gather's fence (rule 9).

        Raises:
            RuntimeError: it was released before.
        """
        if self.released:
            raise RuntimeError("a lease ends once")
        self.released = True
        if self._buffer.retired:
            return
        steps = RELEASE_STEPS if self._buffer.in_parts else 1
        left = [
            (share.table, slots)
            for share in self._shares.values()
            for slots in np.array_split(share.alias, steps)
        ]
        try:
            # The last first: the first are the batch's hubs, which other batches share.
            while left and self._buffer.in_parts:
                table, slots = left.pop()
                table.release(slots)
                self._buffer.advance()
        finally:
            for table, slots in reversed(left):
                table.release(slots)
            self._buffer.advance()

    def _check(self) -> bool:
        return all(share.settled() for share in self._shares.values())

    def wake_if_settled(self) -> None:
        """Called by the buffer after each commit: wake `ready` when nothing is pending any more."""
        if self._settled is not None and not self._settled.done() and self._check():
            self._settled.set_result(None)

    def wake(self) -> None:
        """Called by the buffer when it broke: `ready` looks at why."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
