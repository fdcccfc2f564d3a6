"""A lease: the only way to touch rows of the feature buffer (GNNDrive §4.2)."""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np
import torch

from gnndrive.buffer.devices.base import Fence
from gnndrive.buffer.slot_table import SlotHold
from gnndrive.common.records import Int32Array

# A lease's slots are given up in so many steps if the next sweep waits for slots for a part: until
# it has some the disk may stand still, and all of them take 30 ms.
RELEASE_STEPS = 4


class Gate(Protocol):
    """What a lease needs of the feature buffer that granted it.

    Attributes:
        retired: whether slots that come back are of no use any more.
        in_parts: whether the head of the queue waits for slots for its next part.
        watchers: leases to be woken when their rows have settled.
    """

    retired: bool
    watchers: dict[Lease, None]

    @property
    def in_parts(self) -> bool:
        """See above."""
        ...

    def advance(self) -> None:
        """Slots have come back: try the head of the queue again (rule 4)."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tell every waiter of an error that leaves the buffer unusable."""
        ...

    def raise_if_broken(self) -> None:
        """Raise that error, if there was one."""
        ...


class Lease:
    """Rows held in the feature buffer for one batch: admitted, perhaps still loading, until
    `release`.

    Node aliases are slots: `alias("x")[i]` is where row `ids[i]` is, until it is gathered.
    """

    def __init__(self, gate: Gate, holds: dict[str, SlotHold]) -> None:
        self._gate = gate
        self._holds = holds
        self._held = {name: len(hold.alias) for name, hold in holds.items()}
        self._gathered: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[None] | None = None
        self._fences: list[Fence] = []
        self.released = False

    def alias(self, table: str) -> Int32Array:
        """The slots of the table's rows, in the order they were asked for, int32 [n]."""
        return self._holds[table].alias

    async def ready(self) -> None:
        """Wait until each row is valid.

        Raises:
            ReadError: a row could not be read; the lease is still to be released.
            ClosedError: its reads were cancelled.
        """
        while not self._check():
            self._gate.raise_if_broken()
            self._settled = asyncio.get_running_loop().create_future()
            self._gate.watchers[self] = None
            try:
                await self._settled
            finally:
                self._settled = None
                self._gate.watchers.pop(self, None)
        for hold in self._holds.values():
            if error := hold.error():
                raise error

    def gather(self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...]) -> torch.Tensor:
        """The rows as a new tensor [n, *row_shape]; blocking, for a worker thread. The last use:
        what has been copied is given up while the rest is (rule 9)."""

        def behind(begin: int) -> None:
            self._loop.call_soon_threadsafe(self._give_up, table, begin)

        assert table not in self._gathered, "slots may be others' by now"
        self._gathered.add(table)
        hold = self._holds[table]
        rows, fence = hold.table.memory.gather(hold.alias, dtype, row_shape, behind)
        self._fences.append(fence)
        return rows

    def _give_up(self, table: str, begin: int) -> None:
        """In the loop: give up a table's slots from `begin` on, as far as they are still held."""
        if self.released or self._gate.retired:
            return
        hold, end = self._holds[table], self._held[table]
        self._held[table] = begin
        try:
            hold.table.release(hold.alias[begin:end])
            self._gate.advance()
        except Exception as error:  # nobody awaits this
            self._gate.fail(error)

    async def gathered(self) -> None:
        """Wait until what `gather` began is over; only then may the lease be released (rule 9)."""
        for fence in self._fences:
            await fence()

    def release(self) -> None:
        """Give up the slots that are still held: once, after the gather's fence (rule 9).

        Raises:
            RuntimeError: it was released before.
        """
        if self.released:
            raise RuntimeError("a lease ends once")
        self.released = True
        if self._gate.retired:
            return
        steps = RELEASE_STEPS if self._gate.in_parts else 1
        left = [
            (hold.table, slots)
            for name, hold in self._holds.items()
            for slots in np.array_split(hold.alias[: self._held[name]], steps)
        ]
        try:
            # The last first: the first are the batch's hubs, which other batches share.
            while left and self._gate.in_parts:
                table, slots = left.pop()
                table.release(slots)
                self._gate.advance()
        finally:
            for table, slots in reversed(left):
                table.release(slots)
            self._gate.advance()

    def _check(self) -> bool:
        return all(hold.settled() for hold in self._holds.values())

    def wake_if_settled(self) -> None:
        """Called by the buffer after each commit: wake `ready` when nothing is pending any more."""
        if self._settled is not None and not self._settled.done() and self._check():
            self._settled.set_result(None)

    def wake(self) -> None:
        """Called by the buffer when it broke: `ready` looks at why."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
