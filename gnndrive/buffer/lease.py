"""A lease: what a batch holds in the feature buffer, the only access to rows (GNNDrive §4.2).

`FeatureBuffer` makes a lease when it admits a batch. The extract stage awaits `ready`, the train
stage calls `gather` in a worker thread, and the release stage awaits `gathered` and then calls
`release`, once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import torch

from gnndrive.buffer.devices.base import Fence
from gnndrive.buffer.row_table import RowHold
from gnndrive.common.records import Int32Array

# If the next sweep waits for slots for a part, a lease releases its slots in this many steps: to
# release all of them takes 30 ms, and the disk may be idle until the sweep has some.
RELEASE_STEPS = 4


class Gate(Protocol):
    """What a lease calls in the feature buffer that made it.

    Attributes:
        retired: whether no batch will be admitted any more, so that slots need not be released.
        in_parts: whether the queue's head is admitted in parts.
        watchers: leases to be woken when their rows have settled.
    """

    retired: bool
    watchers: dict[Lease, None]

    @property
    def in_parts(self) -> bool:
        """See above."""
        ...

    def advance(self) -> None:
        """Slots have become available: try to admit the head of the queue (rule 4)."""
        ...

    def fail(self, error: BaseException) -> None:
        """Break the buffer: give every waiting batch this error."""
        ...

    def raise_if_broken(self) -> None:
        """Raise the error that broke the buffer, if there is one."""
        ...


class Lease:
    """Holds the slots of one batch's rows, some of which may still be loading, until `release`.

    Node aliases are slots: `alias("x")[i]` is the slot of row `ids[i]`, valid until `gather`.
    """

    def __init__(self, gate: Gate, holds: dict[str, RowHold]) -> None:
        self._gate = gate
        self._holds = holds
        self._held = {name: len(hold.alias) for name, hold in holds.items()}
        self._gathered: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[None] | None = None
        self._fences: list[Fence] = []
        self.released = False

    def alias(self, table: str) -> Int32Array:
        """The slots of the table's rows, in the order of the ids of the batch, int32 [n]."""
        return self._holds[table].alias

    async def ready(self) -> None:
        """Wait until every row is valid.

        Raises:
            ReadError: a row could not be read; the lease must still be released.
            ClosedError: its reads were cancelled.
        """
        while not self._all_settled():
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
        """Copy the table's rows into a new tensor [n, *row_shape]. Blocks; call it in a worker
        thread, once for each table. If the device reports pieces (the host does, from 64 MiB on),
        the slots of a piece are released while the others are being copied (rule 9)."""

        def copied_from(begin: int) -> None:
            self._loop.call_soon_threadsafe(self.release_tail, table, begin)

        assert table not in self._gathered, "other rows may be in these slots now"
        self._gathered.add(table)
        hold = self._holds[table]
        rows, fence = hold.table.memory.gather(hold.alias, dtype, row_shape, copied_from)
        self._fences.append(fence)
        return rows

    def holds(self, table: str, begin: int) -> bool:
        """Whether the slots of the table's rows from number `begin` on are held still."""
        return not self.released and 0 <= begin <= self._held[table]

    def release_tail(self, table: str, begin: int) -> None:
        """In the loop: release the slots of a table's rows from `begin` on, if still held."""
        if self.released or self._gate.retired:
            return
        hold, end = self._holds[table], self._held[table]
        self._held[table] = begin
        try:
            hold.release(begin, end)
            self._gate.advance()
        except Exception as error:  # no caller awaits this
            self._gate.fail(error)

    async def gathered(self) -> None:
        """Wait until the copies of `gather` have ended; only then call `release` (rule 9)."""
        for fence in self._fences:
            await fence()

    def release(self) -> None:
        """Release the slots that are still held: once, after `gathered` (rule 9); without a gather
        if the batch was cancelled or has failed.

        Raises:
            RuntimeError: the lease was released before.
        """
        if self.released:
            raise RuntimeError("this lease was released before: call release() once")
        self.released = True
        if self._gate.retired:
            return
        steps = RELEASE_STEPS if self._gate.in_parts else 1
        left = [
            (hold, held * step // steps, held * (step + 1) // steps)
            for hold, held in ((hold, self._held[name]) for name, hold in self._holds.items())
            for step in range(steps)
        ]
        try:
            # The last rows first: the first are the batch's hubs, which other batches share.
            while left and self._gate.in_parts:
                hold, begin, end = left.pop()
                hold.release(begin, end)
                self._gate.advance()
        finally:
            for hold, begin, end in reversed(left):
                hold.release(begin, end)
            self._gate.advance()

    def _all_settled(self) -> bool:
        return all(hold.settled() for hold in self._holds.values())

    def wake_if_settled(self) -> None:
        """Called by the buffer after each commit: wake `ready` if no row is loading any more."""
        if self._settled is not None and not self._settled.done() and self._all_settled():
            self._settled.set_result(None)

    def wake(self) -> None:
        """Called by the buffer when it breaks: wake `ready`, which then raises the error."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
