"""`Owners`: who keeps which rows of a table, of the ranks of a loader or the parts of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Int32Array, Int64Array

Value = TypeVar("Value", bound=np.generic)

STRETCH_BYTES = 4 << 20  # so that a sorted pass over a rank's rows reads as much in one request
STRETCHES = 16  # of each rank at least, so that all have about as many rows


@dataclass(frozen=True, slots=True)
class Owners:
    """Stretches of 2^`shift` rows are dealt to `world` owners in turn; each numbers its own from
    0."""

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

    def count(self, owner: int) -> int:
        """How many rows an owner has."""
        stretches = -(-self.rows // (1 << self.shift))
        own = len(range(owner, stretches, self.world))
        lacking = (stretches << self.shift) - self.rows
        last = stretches > 0 and (stretches - 1) % self.world == owner
        return (own << self.shift) - lacking * last

    def split(self, rows: Int64Array) -> list[tuple[Int32Array, Int64Array]]:
        """For each owner, which of `rows`, int64 [n], are its own: their places, int32, and its
        numbers for them, int64. A row that is out of range has a number that is, too."""
        count, ends = len(rows), np.empty(self.world, np.int64)
        places, numbers = np.empty(count, np.int32), np.empty(count, np.int64)
        lib.gd_split_rows(
            pointer(rows), count, self.shift, self.world,
            pointer(ends), pointer(places), pointer(numbers),
        )  # fmt: skip
        own = (np.split(each, ends[:-1]) for each in (places, numbers))
        return list(zip(*own, strict=True))

    def numbers(self, rows: Int64Array) -> Int64Array:
        """The numbers that their owners have for rows."""
        own = (rows >> self.shift) // self.world
        return (own << self.shift) + (rows & ((1 << self.shift) - 1))

    def rows_of(self, owner: int, numbers: Int64Array) -> Int64Array:
        """The rows that an owner has numbered so."""
        stretch = (numbers >> self.shift) * self.world + owner
        return (stretch << self.shift) + (numbers & ((1 << self.shift) - 1))

    def values_of(self, owner: int, values: npt.NDArray[Value]) -> npt.NDArray[Value]:
        """Copy those of an owner's rows out of an array with a value for each row."""
        size, found = 1 << self.shift, np.empty(self.count(owner), values.dtype)
        rounds = self.rows // (size * self.world)
        dealt = rounds * size * self.world
        of_owner = values[:dealt].reshape(rounds, self.world, size)[:, owner]
        found[: rounds * size].reshape(rounds, size)[:] = of_owner
        found[rounds * size :] = values[dealt + owner * size :][:size]
        return found
