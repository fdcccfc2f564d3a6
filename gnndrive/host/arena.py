"""`Arena`: the memory in which a rank hands row ids to the host service and gets aliases back.

It has places for batches. A rank writes a batch's row ids into a free place and announces it; when
the batch has its turn the service copies them, because the rank could change them meanwhile, and
when its rows are valid the service writes the batch's aliases over the ids. A page with the
service's counters comes before the places. Both sides write; the service checks every number that
it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.items import Item, Owner, Phase, Shape
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.host.messages import ProtocolError

PAGE = 4096
COUNTERS = (
    "hits", "repeats", "waits", "loads", "evictions", "requests", "bytes", "retries",
)  # fmt: skip
"""What the service counts, for all ranks together; see `NeighborLoader.stats`."""


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """The size of an arena of so many places, each for a batch with at most `rows_max` rows of each
    table. `wide`: a table has 2^31 rows or more, so that ids take eight bytes instead of four."""

    places: int
    rows_max: tuple[int, ...]
    wide: bool = False

    @property
    def id_bytes(self) -> int:
        """Bytes of a row id."""
        return 8 if self.wide else 4

    @property
    def place_bytes(self) -> int:
        """Bytes of a place: for each table the number of rows, and their ids or aliases."""
        nbytes = sum(8 + 8 * -(-self.id_bytes * most // 8) for most in self.rows_max)
        return -(-nbytes // PAGE) * PAGE

    @property
    def nbytes(self) -> int:
        """Bytes of the arena; pages that no batch needs are never allocated."""
        return PAGE + self.places * self.place_bytes


class Arena:
    """An arena in shared memory, uint8, at least `shape.nbytes`."""

    def __init__(self, shape: ArenaShape, memory: npt.NDArray[np.uint8]) -> None:
        assert len(memory) >= shape.nbytes
        self.shape, self._memory = shape, memory
        self.counters: Int64Array = memory[: 8 * len(COUNTERS)].view(np.int64)
        self._dtype: np.dtype[Any] = np.dtype(np.int64 if shape.wide else np.int32)
        self._id_max = (1 << 8 * shape.id_bytes - 1) - 1
        sizes = (8 * -(-shape.id_bytes * most // 8) for most in shape.rows_max)
        *self._starts, _ = accumulate(sizes, initial=8 * len(shape.rows_max))

    def _counts(self, place: int) -> Int64Array:
        start = PAGE + place * self.shape.place_bytes
        return self._memory[start : start + 8 * len(self.shape.rows_max)].view(np.int64)

    def _part(self, place: int, table: int, nbytes: int) -> npt.NDArray[np.uint8]:
        start = PAGE + place * self.shape.place_bytes + self._starts[table]
        return self._memory[start : start + nbytes]

    def _ids(self, place: int, table: int, count: int) -> npt.NDArray[Any]:
        return self._part(place, table, self._dtype.itemsize * count).view(self._dtype)

    def write_rows(self, place: int, rows: Sequence[Int64Array]) -> None:
        """Write a batch's row ids, int64 [n] for each table."""
        for table, ids in enumerate(rows):
            assert len(ids) <= self.shape.rows_max[table], "a batch larger than any can be"
            if len(ids) and not 0 <= ids.min() <= ids.max() <= self._id_max:
                ids = np.where((ids < 0) | (ids > self._id_max), -1, ids)  # refused as no row
            self._ids(place, table, len(ids))[:] = ids
        self._counts(place)[:] = [len(ids) for ids in rows]

    def read_rows(self, place: int) -> list[Int64Array]:
        """Copy a batch's row ids, int64 [n] for each table; ProtocolError: there are more of them
        than a place has room for."""
        counts = [int(count) for count in self._counts(place)]
        for count, most in zip(counts, self.shape.rows_max, strict=True):
            if not 0 <= count <= most:
                raise ProtocolError(f"a batch has {count:,} rows of a table, at most {most:,} can")
        return [
            self._ids(place, table, count).astype(np.int64) for table, count in enumerate(counts)
        ]

    def alias(self, place: int, table: int, count: int) -> Int32Array:
        """The aliases of a batch's rows of a table, int32 [count], a view; they replace the ids."""
        return self._part(place, table, 4 * count).view(np.int32)


# An announced row: its id in the rank's arena; and from its batch's turn on, in the service too.
ANNOUNCED_BYTES, JOINED_BYTES = 4, 8


class AnnouncedRows:
    """The rows of the batches that are queued on all ranks."""

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        if not shape.shared:
            return
        announced, joined = shape.queued * shape.ranks, shape.extracted * shape.ranks
        nbytes = (ANNOUNCED_BYTES * announced + JOINED_BYTES * joined) * shape.entries
        why = f"ids of rows that {announced} queued batches of all ranks need"
        yield Item("announced rows", nbytes, why, Owner.BUFFER, during=Phase.EXTRACTION)
