"""`RowTable` and `RowHold`: what the feature buffer asks of a table's slots.

`SlotTable` (`slot_table.py`) gives slots to single rows and keeps rows for later batches.
`PlaceTable` (`place_table.py`) keeps some rows for good and gives each batch a place for its
others. The feature buffer, its queues and leases work with both.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from gnndrive.buffer.devices.base import SlotMemory
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import FAILURE, Codes, Evicted, Int32Array, Int64Array, Stretch
from gnndrive.disk.tiers.base import Tier

Rows: TypeAlias = Mapping[str, Int64Array]
"""Table name → row ids, int64 [n], duplicates allowed."""


class RowHold(ABC):
    """What an admission holds of one table, for one batch or for all batches of a sweep.

    Attributes:
        table: the table.
        alias: the slot of each row, int32 [n].
        loads: rows still to fetch, int64 [k], and their slots, int32 [k]; None: none.
        evicted: rows that left these slots and are to be offered to the tier first; None: none.
    """

    __slots__ = ("alias", "evicted", "loads", "table")

    table: RowTable
    alias: Int32Array
    loads: tuple[Int64Array, Int32Array] | None
    evicted: Evicted | None

    @abstractmethod
    def split(self, counts: Sequence[int]) -> Sequence[RowHold]:
        """A hold for each batch of a sweep, of `counts` rows; all wait for the sweep's rows."""

    @abstractmethod
    def settled(self) -> bool:
        """Whether no row is loading any more."""

    @abstractmethod
    def failure(self) -> tuple[int, Exception] | None:
        """The place of the first row that failed, and its error; None: none has."""

    @abstractmethod
    def fail_unfetched(self) -> None:
        """Mark the rows that are yet to be fetched as failed, because their fetch was refused."""

    @abstractmethod
    def release(self, begin: int, end: int) -> None:
        """Give back what the entries [begin, end) hold, once each."""


class RowTable(ABC):
    """The slots of one table in a feature buffer; no method waits.

    Args:
        rows: rows of the table on disk.
        tier: where missing rows are fetched from.
        batch_rows_max: the most distinct rows that one batch can need, for an error message; 0:
            unknown.
        empty: allocates an admission's arrays.
    """

    def __init__(
        self, rows: int, slots: int, row_bytes: int, memory: SlotMemory, tier: Tier,
        batch_rows_max: int = 0, empty: Allocate = np.empty,
    ) -> None:  # fmt: skip
        self.rows, self.slots, self.row_bytes = rows, slots, row_bytes
        self.memory, self.tier, self.empty = memory, tier, empty
        self.batch_rows_max = batch_rows_max

    @property
    @abstractmethod
    def available(self) -> int:
        """Slots that an admission may take."""

    def joined(self, parts: Sequence[Int64Array]) -> Int64Array:
        """The rows of several batches, one behind the other; `RowHold.split` divides them again."""
        if len(parts) == 1:
            return parts[0]
        joined: Int64Array = self.empty(sum(map(len, parts)), np.int64)
        return np.concatenate(parts, out=joined)

    @abstractmethod
    def fits_together(self, batches: Sequence[tuple[int, Int64Array]]) -> bool:
        """Whether the rows of batches, (index, int64 [n]) each, would fit together if no other
        batch held a slot. True also for ids out of range: the admission raises the error."""

    @abstractmethod
    def probe(self, rows: Int64Array) -> tuple[int, int]:
        """What an admission of `rows` would answer: 0 or -errno, and the slots that are missing."""

    @abstractmethod
    def admit(
        self, rows: Int64Array, codes: Codes | None = None
    ) -> tuple[int, int, RowHold | None]:
        """Admit all of `rows` (int64 [n]) or none. `codes` (uint16 [n]) say when each is needed
        next; None: unknown.

        Returns:
            0 or -errno: -EAGAIN, too few slots are available now; -ENOSPC, the table has too few;
            -ERANGE, a row is none of the table. The slots that are missing. The hold, or None.
        """

    @abstractmethod
    def commit(self, stretch: Stretch) -> None:
        """Mark the landed rows of a stretch as valid (rule 7), and the failed ones as failed: their
        waiters get the error (rule 8). A slot that no lease holds any more becomes reusable only
        here (rule 6)."""

    def fail(self, slots: Int32Array, error: int) -> None:
        """Mark rows that will not be read as failed with an errno."""
        failures = np.zeros(len(slots), FAILURE)
        failures["slot"], failures["error"] = slots, error
        self.commit(Stretch(np.empty(0, np.int32), failures))

    def row_error(self, failure: np.void) -> Exception:
        """The error of a batch that needs a row which has failed, a `FAILURE`."""
        if failure["error"] == errno.ECANCELED:
            return ClosedError("the loader was closed while this batch was being read")
        return self.tier.row_error(int(failure["offset"]), int(failure["error"]))

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Counters: hits, waits, loads, evictions, and `repeats`: rows that an admission had more
        than once."""

    @abstractmethod
    def unused(self) -> tuple[int, int]:
        """How many slots are free, and how many have a valid row that no lease holds; or all with
        a valid row, if they keep their rows for good."""

    @abstractmethod
    def verify(self) -> None:
        """Check every invariant; an AssertionError if one does not hold."""

    def announce(  # noqa: B027  # not all look ahead
        self, index: int, rows: Int64Array, near: Int64Array | None = None
    ) -> None:
        """Announce that batch `index` will need `rows`, int64 [n], so that they are kept longer;
        `near`: see `NextUses`."""

    def withdraw(self, index: int, rows: Int64Array) -> None:  # noqa: B027
        """Take back the announcement of batch `index`: it will not be admitted, or it is tried now.
        `rows` must be those that were announced."""

    def rekey(self, rows: Int64Array) -> None:  # noqa: B027
        """Set the standby keys of `rows` again, after the batch that needed them was withdrawn."""

    def foresee(  # noqa: B027
        self, first: int, last: int, later: Codes | None, anew: bool = False
    ) -> None:
        """See `FeatureBuffer.foresee`; `later` is of this table."""

    def begin_residents(self) -> None:  # noqa: B027  # not all have residents
        """Before an epoch: have `next_residents` return those rows that never leave, are not valid
        yet, and that batches wait for."""

    def next_residents(self) -> RowHold | None:
        """The next rows to fetch that never leave the buffer; None: there are none now. The caller
        releases them as soon as their reads have begun."""
        return None
