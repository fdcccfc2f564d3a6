"""`Owners`: which rank keeps which rows of a table; `OwnedRows` brings those of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnndrive.common.records import Int32Array, Int64Array, Landing
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext

STRETCH_BYTES = 4 << 20  # so that a sorted pass over a rank's rows reads as much in one request
STRETCHES = 16  # of each rank at least, so that all have about as many rows


@dataclass(frozen=True, slots=True)
class Owners:
    """Stretches of 2^`shift` rows are dealt to ranks in turn; a rank numbers its own from 0."""

    rows: int
    world: int
    shift: int

    @classmethod
    def of(cls, rows: int, row_bytes: int, world: int, stride: bool = False) -> Owners:
        """The owners of a table; `stride`: row by row, as in LSM-GNN's paper."""
        shift = 0
        most = min(STRETCH_BYTES // max(row_bytes, 1), rows // (STRETCHES * world))
        if not stride and world > 1 and most > 1:
            shift = most.bit_length() - 1
        return cls(rows, world, shift)

    def count(self, rank: int) -> int:
        """How many rows a rank has."""
        stretches = -(-self.rows // (1 << self.shift))
        own = len(range(rank, stretches, self.world))
        lacking = (stretches << self.shift) - self.rows
        last = stretches > 0 and (stretches - 1) % self.world == rank
        return (own << self.shift) - lacking * last

    def split(self, rows: Int64Array) -> Iterator[tuple[Int32Array, Int64Array]]:
        """For each rank, which of `rows`, int64 [n], are its own: their places, int32, and its
        numbers for them, int64. A row that is out of range has a number that is, too."""
        stretch = rows >> self.shift
        owner, own = stretch % self.world, stretch // self.world
        numbers = (own << self.shift) + (rows & ((1 << self.shift) - 1))
        for rank in range(self.world):
            places = np.flatnonzero(owner == rank)
            yield places.astype(np.int32), numbers[places]

    def rows_of(self, rank: int, numbers: Int64Array) -> Int64Array:
        """The rows that a rank has numbered so."""
        stretch = (numbers >> self.shift) * self.world + rank
        return (stretch << self.shift) + (numbers & ((1 << self.shift) - 1))


class OwnedRows(Tier):
    """The rows of one rank, by its own numbers; `below` has all rows."""

    def __init__(self, below: Tier, owners: Owners, rank: int) -> None:
        self.path, self._below, self._owners, self._rank = below.path, below, owners, rank

    @classmethod
    def make(cls, context: TierContext) -> OwnedRows:
        """Not used: it is no plug-in, because a strategy does not name it."""
        raise NotImplementedError

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`."""
        return self._below.fetch(self._owners.rows_of(self._rank, rows), places, landing)

    def row_error(self, offset: int, errno: int) -> Exception:
        """See `Tier.row_error`."""
        return self._below.row_error(offset, errno)

    async def aclose(self) -> None:
        """See `Tier.aclose`."""
        await self._below.aclose()
