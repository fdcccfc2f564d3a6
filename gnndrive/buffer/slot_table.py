"""The slot table: which rows of one table have a slot, in C, and what an admission holds of them.

`SlotTable` is the C core's mapping table, reverse map, reference counts and standby list of one
table, with the slots' memory, the tier that rows are fetched from and the policy that sets standby
keys. `SlotHold` is what a lease, or a sweep, holds of it. No method here waits: `feature_buffer.py`
decides when a batch is admitted, and `fetch_queue.py` has the reads.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnndrive.buffer.devices.base import SlotMemory
from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.ranking import Classes, make_ranking
from gnndrive.buffer.row_table import RowHold, RowTable
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, holding_gil, lib, pointer
from gnndrive.common.records import (
    EVICTED,
    FAILURE,
    Codes,
    Evicted,
    Int32Array,
    Int64Array,
    Stretch,
)
from gnndrive.disk.tiers.base import Tier


class SlotTable(RowTable):
    """The slots of one table in a feature buffer.

    Args:
        rows, …, empty: see `RowTable`.
        policy: chooses the standby slots that are reused first; None: the slot that was released
            longest ago. It is not used if there is a slot for each row.
        classes: the class of each row for the policy, uint8 [rows]; None: all have class 0.
        foreseen: whether codes of next uses come with the rows that are admitted.
        ahead: if there is a slot for each row, how many rows that no batch has asked for may be
            read for each row that a batch missed, and how many at once (`next_residents`).

    Attributes:
        keeps: whether there is a slot for each row, so that valid rows stay for good.
    """

    def __init__(
        self, rows: int, slots: int, row_bytes: int, memory: SlotMemory, tier: Tier,
        policy: Policy | None, batch_rows_max: int = 0, empty: Allocate = np.empty,
        classes: Classes | None = None, foreseen: bool = False, ahead: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        handle = lib.gd_buffer_new(rows, slots)
        if handle == ffi.NULL and ffi.errno == errno.EINVAL:
            raise ConfigError(
                f"a slot table cannot have {slots:,} slots for {rows:,} rows: give buffer= less, "
                "because slots are numbered with 31 bits"
            )
        if handle == ffi.NULL:
            raise MemoryError(
                f"no memory for the mapping table of {rows:,} rows and {slots:,} slots: give "
                "buffer= less"
            )
        self.handle = ffi.gc(handle, lib.gd_buffer_free)
        self._room = lib.gd_buffer_room(handle)
        super().__init__(rows, slots, row_bytes, memory, tier, batch_rows_max, empty)
        self._repeats = 0  # duplicate rows within one admission, as of two batches of a sweep
        self.keeps = slots >= rows
        policy = None if self.keeps else policy
        self._ranking = make_ranking(policy, handle, rows, classes, foreseen)
        # Rows from this one on are still to be read in order, so many of them now.
        self._ahead, self._ahead_rows = 0 if self.keeps else rows, 0
        self._ahead_per_miss, self._ahead_part = ahead
        if ahead[1] and memory.landing_rows_max is not None:  # a part must not fill all staging
            self._ahead_part = min(self._ahead_part, memory.landing_rows_max)
        self._ahead_from = self._ahead  # where the last part began
        self._reading_ahead: SlotHold | None = None
        self._not_asked: Counter[str] = Counter()  # rows that were counted for no batch
        # By slot, made at the first failure; C knows which entries are current.
        self.failures = np.empty(0, FAILURE)

    @property
    def _ranked(self) -> tuple[Any, ...]:
        """The slot tables whose rows have keys of the one order."""
        return (self.handle, *self.tier.ranked)

    @property
    def available(self) -> int:
        """Slots that an admission may take: free ones and those on standby."""
        return int(self._room.available)

    def stats(self) -> dict[str, int]:
        """The C table's counters (`gd_buffer_stats` in native/gnndrive.h); `repeats`: rows that an
        admission had more than once, as in two batches of a sweep; `served`: rows that the tier
        had itself (`Tier.rows_served`); `bytes`: `Tier.bytes_read`."""
        counters = ffi.new("gd_buffer_stats *")
        lib.gd_buffer_get_stats(self.handle, counters)
        names = [name for name, _ in ffi.typeof(counters[0]).fields]
        counted = {name: int(getattr(counters, name)) for name in names}
        for name, rows in self._not_asked.items():
            counted[name] -= rows
        return counted | {
            "repeats": self._repeats,
            "served": self.tier.rows_served,
            "bytes": self.tier.bytes_read,
        }

    def unused(self) -> tuple[int, int]:
        """See `RowTable.unused`."""
        counted = self.stats()
        return counted["free"], counted["standby"]

    def probe(self, rows: Int64Array) -> tuple[int, int]:
        """See `RowTable.probe`."""
        # A slot for each of them, or for each row of the table: then C need not look at every row.
        fit = len(rows) <= self.available or (self.keeps and not len(self.failures))
        if fit and len(rows) and 0 <= int(rows.min()) <= int(rows.max()) < self.rows:
            return 0, 0
        found = ffi.new("gd_admission *")
        code = lib.gd_buffer_probe(self.handle, pointer(rows), len(rows), found)
        return int(code), int(found.deficit)

    def fits_together(self, batches: Sequence[tuple[int, Int64Array]]) -> bool:
        """See `RowTable.fits_together`."""
        parts = [rows for _, rows in batches]
        if self.keeps or sum(map(len, parts)) <= self.slots:
            return True
        count = self._ranking.together([index for index, _ in batches])
        if count is not None:
            return count <= self.slots
        rows = self.joined(parts)
        return int(lib.gd_buffer_holds(self.handle, pointer(rows), len(rows))) != -errno.ENOSPC

    @property
    def announced(self) -> int:
        """Batches that are announced and not admitted."""
        return self._ranking.announced

    def announce(self, index: int, rows: Int64Array, near: Int64Array | None = None) -> None:
        """See `RowTable.announce`."""
        self._ranking.announce(self._ranked, index, rows, near)

    def withdraw(self, index: int, rows: Int64Array) -> None:
        """See `RowTable.withdraw`."""
        self._ranking.withdraw(self._ranked, index, rows)

    def rekey(self, rows: Int64Array) -> None:
        """See `RowTable.rekey`."""
        self._ranking.rekey(self._ranked, rows)

    def foresee(self, first: int, last: int, later: Codes | None, anew: bool = False) -> None:
        """See `FeatureBuffer.foresee`."""
        self._ranking.foresee(self._ranked, first, last, later, anew)

    def keep_from(self, least: int) -> None:
        """Rows of class `least` and above that are admitted from now on never leave their slots,
        and the others leave them at their release, whatever the policy says; 0: it decides. The
        caller sees to it that the slots of the others hold any batch."""
        self._ranking.keep_from(least)

    def _used(self, codes: Codes | None) -> Any:
        """Where codes are in memory, or NULL: a policy that does not look ahead has no case for
        each of them."""
        return pointer(codes) if codes is not None and self._ranking.takes_codes else ffi.NULL

    def admit(
        self, rows: Int64Array, codes: Codes | None = None
    ) -> tuple[int, int, SlotHold | None]:
        """See `RowTable.admit`."""
        count = len(rows)
        found = ffi.new("gd_admission *")
        alias, pending, load_slots = (self.empty(count, np.int32) for _ in range(3))
        load_rows = self.empty(count, np.int64)
        offers = self.tier.takes_offers
        left = np.empty(count if offers else 0, EVICTED)
        code = lib.gd_buffer_admit(
            self.handle, self._ranking.c, pointer(rows), self._used(codes), count,
            pointer(alias), pointer(pending), pointer(load_rows), pointer(load_slots),
            ffi.cast("gd_evicted *", left.ctypes.data) if offers else ffi.NULL, found,
        )  # fmt: skip
        if code:
            return int(code), int(found.deficit), None
        self._repeats += count - int(found.hits + found.waits + found.loads)
        self._ahead_rows += int(found.loads) * self._ahead_per_miss
        loads = (load_rows[: found.loads], load_slots[: found.loads])
        hold = SlotHold(self, alias, pending[: found.pending], loads)
        if offers and found.evicted:
            left = left[: found.evicted]
            next_use = self._ranking.next_uses(left["known"])
            hold.evicted = Evicted(left, next_use, self._ranking.now)
        return 0, 0, hold

    def hold_present(
        self, rows: Int64Array, codes: Codes | None = None
    ) -> tuple[int, int, SlotHold | None]:
        """Like `admit`, but only for those of `rows` that have a slot already, valid or loading;
        the others get an alias below 0 (`gd_buffer_hold`)."""
        count = len(rows)
        found = ffi.new("gd_admission *")
        alias, pending = (self.empty(count, np.int32) for _ in range(2))
        code = lib.gd_buffer_hold(
            self.handle, self._ranking.c, pointer(rows), self._used(codes), count,
            pointer(alias), pointer(pending), found,
        )  # fmt: skip
        if code:
            return int(code), int(found.deficit), None
        held = int(np.count_nonzero(alias >= 0))
        self._repeats += held - int(found.hits + found.waits)
        return 0, 0, SlotHold(self, alias, pending[: found.pending])

    def commit(self, stretch: Stretch) -> None:
        """See `RowTable.commit`; failed rows are unmapped."""
        slots = stretch.slots
        check(holding_gil.gd_buffer_commit(self.handle, pointer(slots), len(slots)), "commit")
        if not len(stretch.failures):
            return
        self._ahead_rows = 0  # reads end, perhaps: another miss allows more
        if (stretch.failures["error"] == errno.ECANCELED).any():
            self._ahead = self._ahead_from
        failed = np.ascontiguousarray(stretch.failures["slot"])
        check(lib.gd_buffer_fail(self.handle, pointer(failed), len(failed)), "fail")
        self.may_fail()
        self.failures[failed] = stretch.failures

    def may_fail(self) -> None:
        """Rows have failed: their slots may be held."""
        if not len(self.failures):
            self.failures = np.zeros(self.slots, FAILURE)

    def next_residents(self) -> SlotHold | None:
        """See `RowTable.next_residents`: if each row has a slot, rows in order, a part at once.

        For what the request of a single row costs, the rows behind it could have been read. So when
        rows that batches missed have landed, as many others are read as take as long as these. No
        batch waits for them, and later batches find them. If none needs them, the disk has worked
        twice as long; if all do, an epoch takes few requests.
        """
        part = min(self._ahead_rows, self._ahead_part, self.rows - self._ahead)
        if part <= 0:
            return None
        if self._reading_ahead is not None and not self._reading_ahead.settled():
            return None
        allowed, before = self._ahead_rows, self.stats()
        self._ahead_from = self._ahead
        rows = np.arange(self._ahead, self._ahead + part)
        code, _, hold = self.admit(rows)
        self._ahead_rows = allowed - len(rows)
        if code:  # the slots of failed rows are held
            return None
        self._ahead += len(rows)
        after = self.stats()
        for name in ("hits", "waits", "loads"):
            self._not_asked[name] += after[name] - before[name]
        self._reading_ahead = hold
        return hold

    def release(self, alias: Int32Array) -> None:
        """Give back one reference to each slot of `alias`, int32 [n]. A slot that is still loading
        stays out of use (rule 6); a failed one is free after its last reference (rule 8)."""
        check(lib.gd_buffer_release(self.handle, pointer(alias), len(alias)), "release")

    def verify(self) -> None:
        """See `RowTable.verify`; native/verify.c explains the number of the invariant."""
        code = lib.gd_buffer_verify(self.handle)
        if code:
            raise AssertionError(f"a slot table breaks invariant {code}")


class SlotHold(RowHold):
    """What an admission holds of one slot table; see `RowHold`.

    Attributes:
        pending: slots that were not valid at admission, int32 [m].
        position: pending slots before this one are known to have settled.
    """

    __slots__ = ("pending", "position")

    table: SlotTable

    def __init__(
        self, table: SlotTable, alias: Int32Array, pending: Int32Array,
        loads: tuple[Int64Array, Int32Array] | None = None,
    ) -> None:  # fmt: skip
        self.table, self.alias, self.pending, self.loads = table, alias, pending, loads
        self.position = ffi.new("int64_t *")
        self.evicted = None

    def split(self, counts: Sequence[int]) -> list[SlotHold]:
        """See `RowHold.split`."""
        ends = np.cumsum(counts)
        assert ends[-1] == len(self.alias)
        return [
            SlotHold(self.table, self.alias[end - count : end], self.pending)
            for end, count in zip(ends, counts, strict=True)
        ]

    def fail_unfetched(self) -> None:
        """See `RowHold.fail_unfetched`."""
        if self.loads is not None:
            slots = self.loads[1]
            self.table.may_fail()
            check(lib.gd_buffer_fail(self.table.handle, pointer(slots), len(slots)), "fail")

    def settled(self) -> bool:
        """See `RowHold.settled`."""
        handle, pending = self.table.handle, self.pending
        return bool(
            holding_gil.gd_buffer_settled(handle, pointer(pending), len(pending), self.position)
        )

    def failure(self) -> tuple[int, Exception] | None:
        """See `RowHold.failure`."""
        if not len(self.pending):  # each row was valid at admission, and stays so
            return None
        place = int(
            holding_gil.gd_buffer_first_failed(
                self.table.handle, pointer(self.alias), len(self.alias)
            )
        )
        if place < 0:
            return None
        return place, self.table.row_error(self.table.failures[self.alias[place]])

    def release(self, begin: int, end: int) -> None:
        """See `RowHold.release`."""
        if self.table.keeps and not len(self.pending):
            return
        self.table.release(self.alias[begin:end])
