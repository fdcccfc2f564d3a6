"""The tier of host memory: it keeps some rows there for good, between a device and the disk.

For strategies whose hottest rows are known (DiskGNN §4.2): the hottest stay on the device, the next
ones here, and only the others are read. The rows are read once, beginning with the first fetch;
until all of them are there, fetches bring them from the tier below.

When not to use it: for a feature buffer in host memory, which holds its rows itself.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from typing import Self

import numpy as np

from gnndrive.common.array_pool import keep_from_children, private_map
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext

PART_ROWS = 1 << 18  # rows that are read at a time, because planning a read takes memory


class HostRows(Tier):
    """Keeps the rows [first, end) in host memory.

    Args:
        below: the tier that has all rows.
        first, end: which rows are kept; none if they are equal.
        row_bytes: bytes of one row.

    Raises:
        MemoryError: there is no memory for the rows.
    """

    name = "host-rows"

    def __init__(self, below: Tier, first: int, end: int, row_bytes: int) -> None:
        self.path, self._below = below.path, below
        self.first, self.end, self.row_bytes = first, end, row_bytes
        self._filling: asyncio.Task[None] | None = None
        self._valid = np.zeros(end - first, np.bool_)
        self._full = False
        self._map = private_map((end - first) * row_bytes) if end > first else None
        if self._map is not None:
            keep_from_children(self._map)

    @classmethod
    def make(cls, context: TierContext) -> Self:
        """See `Tier.make`.

        Raises:
            ConfigError: there is no tier below.
        """
        if context.below is None:
            raise ConfigError("the tier 'host-rows' needs one below it: name it above 'disk'")
        return cls(context.below, *context.kept, context.row_bytes)

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`."""
        if self._map is None:
            return self._below.fetch(rows, places, landing)
        if not self._full:
            if self._filling is None or self._filling.done():
                self._filling = asyncio.get_running_loop().create_task(self._fill())
            return self._below.fetch(rows, places, landing)
        here = (rows >= self.first) & (rows < self.end)
        here[here] = self._valid[rows[here] - self.first]
        rest = self._below.fetch(rows[~here], places[~here], landing)
        kept, served = rows[here] - self.first, places[here]
        memory = self._landing()
        lib.gd_spread(
            ffi.cast("uint8_t *", memory.address), pointer(kept), len(kept), self.row_bytes,
            pointer(served), landing.slot_stride, ffi.cast("uint8_t *", landing.address),
        )  # fmt: skip
        return _Fetch(served, rest)

    def _landing(self) -> Landing:
        assert self._map is not None
        memory = np.frombuffer(self._map, np.uint8)
        return Landing(memory.ctypes.data, self.row_bytes, True, memory)

    async def _fill(self) -> None:
        """Bring all kept rows, part after part. A row that cannot be read is not kept, so that each
        batch that needs it gets the error. After a cancellation a later fetch goes on."""
        missing = np.flatnonzero(~self._valid)
        for start in range(0, len(missing), PART_ROWS):
            rows = missing[start : start + PART_ROWS]
            try:
                part = self._below.fetch(rows + self.first, rows.astype(np.int32), self._landing())
            except ClosedError:
                return
            async for stretch in part:
                self._valid[stretch.slots] = True
                if (stretch.failures["error"] == errno.ECANCELED).any():
                    return
        self._full = True


class _Fetch:
    """First the rows that are kept, then those from below as they come."""

    def __init__(self, served: Int32Array, rest: Fetch) -> None:
        self._served, self._rest = served, rest

    def __aiter__(self) -> AsyncIterator[Stretch]:
        return self._stretches()

    async def _stretches(self) -> AsyncIterator[Stretch]:
        if len(self._served):
            yield Stretch(self._served)
        async for stretch in self._rest:
            yield stretch

    def cancel(self) -> None:
        """See `Fetch.cancel`."""
        self._rest.cancel()
