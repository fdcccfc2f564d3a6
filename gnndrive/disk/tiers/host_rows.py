"""The tier of host memory: it keeps some rows there for good, between a device and the disk.

For strategies whose hottest rows are known (DiskGNN §4.2): the hottest stay on the device, the next
ones here, and only the others are read. The rows are read once, beginning with the first fetch;
until all of them are there, fetches bring them from the tier below. A device that reads pinned
memory itself scatters them from here, for others a thread copies them to the landing.

When not to use it: for a feature buffer in host memory, which holds its rows itself.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Self

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array, Int64Array, Landing, PinnedRows
from gnndrive.disk.tiers._copied import CopiedFetch, begin_copy, spread_rows, start_thread
from gnndrive.disk.tiers.base import EvictedRows, Fetch, Tier, TierContext

PART_ROWS = 1 << 18  # rows that are read at a time, because planning a read takes memory


class HostRows(Tier):
    """Keeps the rows [first, end) in host memory.

    Args:
        below: the tier that has all rows.
        memory: where they are kept, with a place for each; the tier closes it. None: nothing is
            kept.
    """

    name = "host-rows"

    def __init__(self, below: Tier, first: int, end: int, memory: EvictedRows | None) -> None:
        self.path, self._below, self._memory = below.path, below, memory
        self.first, self.end = first, end
        self._filling: asyncio.Task[None] | None = None
        self._valid = np.zeros(end - first, np.bool_)
        self._part: Fetch | None = None  # what the filling task waits for
        self._pinned: asyncio.Future[None] | None = None  # done when the device can read the rows
        self._full = self._closed = False
        if memory is not None:
            self._thread = start_thread("gnndrive-host-rows")

    @classmethod
    def make(cls, context: TierContext) -> Self:
        """See `Tier.make`."""
        if context.below is None:
            raise ConfigError("the tier 'host-rows' needs one below it: name it above 'disk'")
        return cls(context.below, *context.kept, context.evicted)

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`."""
        memory = self._memory
        if memory is None:
            return self._below.fetch(rows, places, landing)
        if not self._full:
            if self._filling is None or self._filling.done():
                self._filling = asyncio.get_running_loop().create_task(self._fill())
            return self._below.fetch(rows, places, landing)
        here = (rows >= self.first) & (rows < self.end)
        here[here] = self._valid[rows[here] - self.first]
        if not here.any():
            return self._below.fetch(rows, places, landing)
        kept, served, pinned = rows[here] - self.first, places[here], None
        if memory.read_in_place:
            pinned = PinnedRows(memory.rows, kept.astype(np.int32))
            if self._pinned is None:
                self._pinned = begin_copy(self._thread, memory.wait)
        rest = self._below.fetch(rows[~here], places[~here], landing)
        if self._pinned is not None:
            return CopiedFetch(served, self._pinned, rest, pinned)
        copied = begin_copy(
            self._thread, spread_rows, memory.rows.ctypes.data, memory.rows.shape[1], kept, served,
            landing,
        )  # fmt: skip
        return CopiedFetch(served, copied, rest)

    async def aclose(self) -> None:
        """See `Tier.aclose`; ends the filling, waits for copies, and frees the rows."""
        self._closed = True
        if self._part is not None:
            self._part.cancel()
        if self._filling is not None and not self._filling.done():
            await asyncio.wait([self._filling])
        if self._memory is not None:
            memory, self._memory = self._memory, None
            self._thread.shutdown()
            memory.close()
        await self._below.aclose()

    def _landing(self) -> Landing:
        assert self._memory is not None
        rows = self._memory.rows
        return Landing(rows.ctypes.data, rows.shape[1], True, rows)

    async def _fill(self) -> None:
        """Bring all kept rows by parts; after a cancellation or an error a later fetch goes on. A
        row that cannot be read is not kept, so that each batch that needs it gets the error."""
        for start in range(0, len(self._valid), PART_ROWS):
            rows = start + np.flatnonzero(~self._valid[start : start + PART_ROWS])
            if len(rows) and not await self._fill_part(rows):
                return
        self._full = True

    async def _fill_part(self, rows: Int64Array) -> bool:
        """Bring some of the kept rows; returns whether each has landed or cannot be read."""
        if self._closed:
            return False
        cancelled = False
        try:
            part = self._below.fetch(rows + self.first, rows.astype(np.int32), self._landing())
            self._part = part
            async for stretch in part:  # to its end: reads that were started go on
                self._valid[stretch.slots] = True
                cancelled |= bool((stretch.failures["error"] == errno.ECANCELED).any())
        except Exception:  # no batch waits for this; those that need the rows get their own error
            return False
        finally:
            self._part = None
        return not cancelled
