"""The place table: rows that never leave the buffer, and a place for each batch's other rows.

Where batches are replayed from a pack, it is known which rows are used most (`residents`) and how
many others the largest batch needs. So there is no mapping table and no standby list: the first
rows of the packed file have the slots of their own numbers for good, and behind them are a few
places, each with room for the other rows of any batch. A batch is admitted when a place is free,
and the place is free again when the batch's rows are gathered and all its reads have ended (rule
6).

When not to use it: for batches that are drawn, whose rows other batches may share.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import numpy as np

from gnndrive.buffer.devices.base import SlotMemory
from gnndrive.buffer.row_table import RowHold, RowTable
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Codes, Int32Array, Int64Array, Stretch
from gnndrive.disk.tiers.base import Tier

# Residents are fetched in parts, because planning the read of a row takes 33 bytes.
RESIDENT_PART_ROWS = 1 << 18
SLOTS_MAX = (1 << 31) - 1
_MISSING, _LOADING, _VALID = range(3)  # the states of a resident


class _Place:
    """A place, which begins at `slot`, or the residents.

    Attributes:
        entries: entries of the batch's alias that are not released yet.
        loading: slots whose reads have not ended.
        failed: the `FAILURE` of the first row that failed; None: none has.
    """

    __slots__ = ("entries", "failed", "loading", "slot")

    def __init__(self, slot: int) -> None:
        self.slot, self.entries, self.loading = slot, 0, 0
        self.failed: np.void | None = None

    @property
    def free(self) -> bool:
        """Whether another batch may take it."""
        return not self.entries and not self.loading


class PlaceHold(RowHold):
    """What a batch holds of one table: a place, and the residents that it uses."""

    __slots__ = ("_place",)

    table: PlaceTable

    def __init__(
        self, table: PlaceTable, place: _Place, alias: Int32Array,
        loads: tuple[Int64Array, Int32Array],
    ) -> None:  # fmt: skip
        self.table, self._place, self.alias, self.loads = table, place, alias, loads
        self.evicted = None

    def split(self, counts: Sequence[int]) -> list[PlaceHold]:
        """See `RowHold.split`; a sweep is one batch."""
        assert list(counts) == [len(self.alias)], "a place is for one batch"
        return [self]

    def settled(self) -> bool:
        """See `RowHold.settled`; a batch waits for all residents."""
        return not self._place.loading and self.table.residents_settled

    def failure(self) -> tuple[int, Exception] | None:
        """See `RowHold.failure`; all rows wait for one read."""
        failed = self._place.failed
        if failed is None:
            failed = self.table.residents.failed
        return None if failed is None else (0, self.table.row_error(failed))

    def fail_unfetched(self) -> None:
        """See `RowHold.fail_unfetched`."""
        if self.loads is not None:
            self.table.fail(self.loads[1], errno.ENOMEM)

    def release(self, begin: int, end: int) -> None:
        """See `RowHold.release`."""
        self._place.entries -= end - begin
        assert self._place.entries >= 0, "an entry was released twice"


class PlaceTable(RowTable):
    """The slots of one table of a packed layout; see the module and `RowTable`.

    Args:
        rows: rows of the packed file.
        residents: how many of its first rows never leave.
        places: how many batches may be in the buffer at once.
        place_rows: the most rows of a batch that are not resident, duplicates counted.
        row_bytes, memory, tier, empty: see `RowTable`; the memory has residents + places ×
            place_rows slots.
    """

    def __init__(
        self, rows: int, residents: int, places: int, place_rows: int, row_bytes: int,
        memory: SlotMemory, tier: Tier, empty: Allocate = np.empty,
    ) -> None:  # fmt: skip
        slots = residents + places * place_rows
        if slots > SLOTS_MAX:
            raise ConfigError(
                f"a place table cannot have {slots:,} slots, because slots are numbered with 31 "
                "bits: give buffer= or memory= less"
            )
        super().__init__(rows, slots, row_bytes, memory, tier, place_rows, empty)
        self.residents = _Place(0)
        self._states = np.full(residents, _MISSING, np.uint8)
        self._next = 0  # residents before this one are not missing, or have failed
        self._place_rows = place_rows
        self._places = [_Place(residents + place * place_rows) for place in range(places)]
        self._counted = dict.fromkeys(("hits", "waits", "loads", "evictions", "repeats"), 0)

    @property
    def available(self) -> int:
        """See `RowTable.available`; a place without rows counts as one slot."""
        return max(self._place_rows, 1) * sum(place.free for place in self._places)

    def fits_together(self, batches: Sequence[tuple[int, Int64Array]]) -> bool:
        """See `RowTable.fits_together`; batches do not share reads."""
        return len(batches) <= 1

    def probe(self, rows: Int64Array) -> tuple[int, int]:
        """See `RowTable.probe`; a batch without rows of this table needs no place."""
        if not len(rows) or any(place.free for place in self._places):
            return 0, 0
        return -errno.EAGAIN, max(self._place_rows, 1)

    def admit(
        self, rows: Int64Array, codes: Codes | None = None
    ) -> tuple[int, int, PlaceHold | None]:
        """See `RowTable.admit`; a StoreError if the batch has more rows that are not resident than
        the plan counts."""
        code, deficit = self.probe(rows)
        if code:
            return code, deficit, None
        count = len(rows)
        # Places without entries are free: another batch would get the same one.
        place = next(place for place in self._places if place.free) if count else _Place(0)
        alias, load_slots = (self.empty(count, np.int32) for _ in range(2))
        load_rows = self.empty(count, np.int64)
        loads = int(
            lib.gd_place_rows(
                pointer(rows), count, self.rows, len(self._states), place.slot, self._place_rows,
                pointer(alias), pointer(load_rows), pointer(load_slots),
            )
        )  # fmt: skip
        if loads == -errno.ENOSPC:
            raise StoreError(
                f"a batch needs more rows of {self.tier.path} than the pack's index says, so the "
                "pack is damaged: remove it, and pack the store again (gnndrive pack)"
            )
        if loads < 0:
            return loads, 0, None
        place.entries, place.loading, place.failed = count, loads, None
        self._counted["hits"] += count - loads
        self._counted["loads"] += loads
        return 0, 0, PlaceHold(self, place, alias, (load_rows[:loads], load_slots[:loads]))

    def commit(self, stretch: Stretch) -> None:
        """See `RowTable.commit`; the stretch is of one fetch, so of one place."""
        slots, failures = stretch.slots, stretch.failures
        if not len(slots) + len(failures):
            return
        slot = int(slots[0] if len(slots) else failures["slot"][0])
        place = self._place_of(slot)
        place.loading -= len(slots) + len(failures)
        assert place.loading >= 0, "a row ended twice"
        if place is self.residents:
            self._states[slots], self._states[failures["slot"]] = _VALID, _MISSING
        if len(failures) and place.failed is None:
            place.failed = failures[0]

    def _place_of(self, slot: int) -> _Place:
        if slot < len(self._states):
            return self.residents
        return self._places[(slot - len(self._states)) // self._place_rows]

    # ---- residents ----

    @property
    def residents_settled(self) -> bool:
        """Whether all residents are valid, or one has failed and no more are being fetched."""
        ended = self._next >= len(self._states) or self.residents.failed is not None
        return ended and not self.residents.loading

    def begin_residents(self) -> None:
        """See `RowTable.begin_residents`; tries those again that have failed."""
        self._next, self.residents.failed = 0, None

    def next_residents(self) -> PlaceHold | None:
        """See `RowTable.next_residents`; a part, if less than half a part is being fetched."""
        if self.residents.loading > RESIDENT_PART_ROWS // 2 or self.residents.failed is not None:
            return None
        while self._next < len(self._states):
            states = self._states[self._next : self._next + RESIDENT_PART_ROWS]
            part = self._next + np.flatnonzero(states == _MISSING)
            self._next += len(states)
            if len(part):
                self._states[part] = _LOADING
                self.residents.loading += len(part)
                none = np.empty(0, np.int32)
                return PlaceHold(self, self.residents, none, (part, part.astype(np.int32)))
        return None

    def unused(self) -> tuple[int, int]:
        """See `RowTable.unused`; a place keeps nothing on standby."""
        return self.available, 0

    def stats(self) -> dict[str, int]:
        """See `RowTable.stats`; a row that a batch has several times is loaded several times."""
        return dict(self._counted)

    def verify(self) -> None:
        """See `RowTable.verify`."""
        for place in self._places:
            assert place.entries >= 0, f"the place at slot {place.slot} was released twice"
            assert 0 <= place.loading <= self._place_rows, f"{place.loading} rows are loading"
        loading = np.count_nonzero(self._states == _LOADING)
        assert self.residents.loading == loading, f"{loading} residents are loading"
