"""The books of one table in a feature buffer: the C core's mapping table, reverse map, ref counts
and standby list.

`Table` is one table's share of a buffer, `Share` what one lease holds of it. Nothing here waits:
the gate and the loads
are `gnndrive/buffer.py`'s.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np

from gnndrive._ffi import check, ffi, lib, pointer
from gnndrive.blocks import Allocate
from gnndrive.devices.base import SlotMemory
from gnndrive.errors import ClosedError, ReadError
from gnndrive.policies.base import Policy
from gnndrive.records import FAILURE, Int32Array, Int64Array, Stretch
from gnndrive.tiers.base import Tier


class Table:
    """One table's share of a feature buffer: the C books, the slots' memory, where rows come from,
    what leaves.

    Args:
        rows: rows of the table on disk.
        slots: rows that the buffer holds.
        row_bytes: bytes of one row.
        memory: the slots.
        tier: what rows are fetched from.
        policy: what is given up first.
        batch_rows_max: the most distinct rows that one batch can need, for an error that names
            it; 0: not known.
        empty: where an admission's arrays get their memory from.

    Raises:
        MemoryError: no memory for the books.
    """

    def __init__(
        self,
        rows: int,
        slots: int,
        row_bytes: int,
        memory: SlotMemory,
        tier: Tier,
        policy: Policy,
        batch_rows_max: int = 0,
        empty: Allocate = np.empty,
    ) -> None:
        books = lib.gd_buffer_new(rows, slots)
        if books == ffi.NULL:
            raise MemoryError(f"no memory for the mapping table of {rows} rows and {slots} slots")
        self.books = ffi.gc(books, lib.gd_buffer_free)
        self.slots = slots
        self.row_bytes = row_bytes
        self.memory = memory
        self.tier = tier
        self.policy = policy
        self.batch_rows_max = batch_rows_max
        self.empty = empty
        self.failures = np.empty(0, FAILURE)  # by slot, once there was one; C knows which hold

    @property
    def available(self) -> int:
        """Slots that an admission may take: free and standby."""
        return int(lib.gd_buffer_available(self.books))

    def stats(self) -> dict[str, int]:
        """The books' counters (`gd_buffer_stats` in native/gnndrive.h)."""
        counters = ffi.new("gd_buffer_stats *")
        lib.gd_buffer_get_stats(self.books, counters)
        return {name: int(getattr(counters, name)) for name, _ in ffi.typeof(counters[0]).fields}

    def probe(self, rows: Int64Array) -> tuple[int, Any]:
        """(0 or -errno, what an admission of `rows` would find)."""
        found = ffi.new("gd_admission *")
        return int(lib.gd_buffer_probe(self.books, pointer(rows), len(rows), found)), found

    def admit(self, rows: Int64Array) -> tuple[int, Any, Share | None]:
        """(0 or -errno, what the admission found, the lease's share when it was admitted)."""
        count = len(rows)
        found = ffi.new("gd_admission *")
        alias, pending, load_slots = (self.empty(count, np.int32) for _ in range(3))
        load_rows = self.empty(count, np.int64)
        keys = self.policy.keys(rows)
        code = lib.gd_buffer_admit(
            self.books,
            pointer(rows),
            count,
            ffi.NULL if keys is None else pointer(keys),
            pointer(alias),
            pointer(pending),
            pointer(load_rows),
            pointer(load_slots),
            found,
        )
        if code:
            return int(code), found, None
        share = Share(self, alias, pending[: found.pending])
        share.loads = (load_rows[: found.loads], load_slots[: found.loads])
        return 0, found, share

    def commit(self, stretch: Stretch) -> None:
        """Make landed rows valid and failed ones fail, in the books."""
        slots = stretch.slots
        check(lib.gd_buffer_commit(self.books, pointer(slots), len(slots)), "commit")
        if not len(stretch.failures):
            return
        failed = np.ascontiguousarray(stretch.failures["slot"])
        check(lib.gd_buffer_fail(self.books, pointer(failed), len(failed)), "fail")
        if not len(self.failures):
            self.failures = np.zeros(self.slots, FAILURE)
        self.failures[failed] = stretch.failures

    def release(self, alias: Int32Array) -> None:
        """Give one reference of each of `alias` back."""
        check(lib.gd_buffer_release(self.books, pointer(alias), len(alias)), "release")


class Share:
    """What a lease holds of one table."""

    __slots__ = ("alias", "loads", "pending", "position", "table")

    def __init__(self, table: Table, alias: Int32Array, pending: Int32Array) -> None:
        self.table = table
        self.alias = alias
        self.pending = pending
        self.position = ffi.new("int64_t *")
        self.loads: tuple[Int64Array, Int32Array] | None = None

    def give_up(self) -> None:
        """Take an admission back whose fetch failed: rows that were not asked for fail at once."""
        if self.loads is not None:
            slots = self.loads[1]
            check(lib.gd_buffer_fail(self.table.books, pointer(slots), len(slots)), "fail")
        self.table.release(self.alias)

    def settled(self) -> bool:
        """Whether none of its rows is loading any more."""
        books, pending = self.table.books, self.pending
        return bool(lib.gd_buffer_settled(books, pointer(pending), len(pending), self.position))

    def error(self) -> Exception | None:
        """What went wrong with the first row that failed, or None."""
        index = lib.gd_buffer_first_failed(self.table.books, pointer(self.alias), len(self.alias))
        if index < 0:
            return None
        failure = self.table.failures[self.alias[index]]
        if failure["error"] == errno.ECANCELED:
            return ClosedError("the loader was closed while this batch was being read")
        return ReadError(self.table.tier.path, int(failure["offset"]), int(failure["error"]))
