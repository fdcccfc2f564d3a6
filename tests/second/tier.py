"""A tier above another: it keeps copies of the rows that came through it in host memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from tests.second.use import used

ROWS_MAX = 96


class Keeping(Tier):
    """Serves what it has a copy of in the call itself and fetches the rest from the tier below.

    Only rows that have landed whole are copied. When there are `ROWS_MAX` copies, new ones
    overwrite the oldest.
    """

    name = "keeping"

    def __init__(self, below: Tier, rows: int, row_bytes: int) -> None:
        self.path = below.path
        self._below, self._rows = below, rows
        self._copies = np.empty((ROWS_MAX, row_bytes), np.uint8)
        self._row_of = np.full(ROWS_MAX, -1, np.int64)
        self._copy_of = np.full(rows, -1, np.int64)
        self._next = 0

    @classmethod
    def make(cls, context: TierContext) -> Self:
        if context.below is None:
            raise ConfigError("the tier 'keeping' needs one below it: name it above 'disk'")
        return cls(context.below, context.rows, context.row_bytes)

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._rows:
            raise ValueError(f"a row is out of range: {self.path} has {self._rows}")
        if len(np.unique(rows)) != len(rows):
            raise ValueError("a row is asked for twice")
        copy = self._copy_of[rows]
        kept = copy >= 0
        rest = self._below.fetch(rows[~kept], places[~kept], landing)
        memory = _memory(landing, places, self._copies.shape[1])
        memory[places[kept]] = self._copies[copy[kept]]
        used["tiers"] += int(kept.sum())
        return _Fetch(self, places[kept], rest, memory, (rows[~kept], places[~kept]))

    async def aclose(self) -> None:
        await self._below.aclose()

    def keep(self, rows: Int64Array, content: npt.NDArray[np.uint8]) -> None:
        """Copy rows that have landed whole, the newest where the oldest are."""
        new = self._copy_of[rows] < 0  # another fetch may have brought a row meanwhile
        rows, content = rows[new][-ROWS_MAX:], content[new][-ROWS_MAX:]
        copies = (self._next + np.arange(len(rows))) % ROWS_MAX
        old = self._row_of[copies]
        self._copy_of[old[old >= 0]] = -1
        self._copies[copies], self._row_of[copies] = content, rows
        self._copy_of[rows] = copies
        self._next = (self._next + len(rows)) % ROWS_MAX


class _Fetch:
    """First the rows that were kept, then those from below as they come."""

    def __init__(
        self, tier: Keeping, served: Int32Array, rest: Fetch, memory: npt.NDArray[np.uint8],
        asked: tuple[Int64Array, Int32Array],
    ) -> None:  # fmt: skip
        self._tier, self._served, self._rest, self._memory = tier, served, rest, memory
        rows, places = asked
        order = np.argsort(places)
        self._rows, self._places = rows[order], places[order]

    def __aiter__(self) -> AsyncIterator[Stretch]:
        return self._stretches()

    async def _stretches(self) -> AsyncIterator[Stretch]:
        if len(self._served):
            yield Stretch(self._served)
        async for stretch in self._rest:
            rows = self._rows[np.searchsorted(self._places, stretch.slots)]
            self._tier.keep(rows, self._memory[stretch.slots])
            yield stretch

    def cancel(self) -> None:
        self._rest.cancel()


def _memory(landing: Landing, places: Int32Array, row_bytes: int) -> npt.NDArray[Any]:
    """The places as far as they are asked for, uint8 [places, row_bytes]."""
    count = int(places.max(initial=-1)) + 1
    nbytes = (count - 1) * landing.slot_stride + row_bytes if count else 0
    memory = np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", landing.address), nbytes), np.uint8)
    return np.lib.stride_tricks.as_strided(memory, (count, row_bytes), (landing.slot_stride, 1))
