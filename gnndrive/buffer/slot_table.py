"""The books of one table in a feature buffer: the C core's mapping table, reverse map, ref counts
and standby list.

`SlotTable` is one table of a feature buffer; `SlotHold` is what one lease holds of it. Nothing here
waits: the gate is in `feature_buffer.py`, and the reads under way are in `fetch_queue.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnndrive.buffer.devices.base import SlotMemory
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ClosedError, ReadError
from gnndrive.common.ffi import check, ffi, holding_gil, lib, pointer
from gnndrive.common.records import FAILURE, Int32Array, Int64Array, Stretch
from gnndrive.disk.tiers.base import Tier


class SlotTable:
    """One table's share of a feature buffer: the C books, the slots' memory, where rows come from,
    what leaves.

    Args:
        rows: rows of the table on disk.
        slots: rows that the buffer holds.
        row_bytes: bytes of one row.
        memory: the slots.
        tier: what rows are fetched from.
        policy: what is given up first; None: the slot that was released longest ago.
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
        policy: Policy | None,
        batch_rows_max: int = 0,
        empty: Allocate = np.empty,
    ) -> None:
        handle = lib.gd_buffer_new(rows, slots)
        if handle == ffi.NULL:
            raise MemoryError(f"no memory for the mapping table of {rows} rows and {slots} slots")
        self.handle = ffi.gc(handle, lib.gd_buffer_free)
        self._room = lib.gd_buffer_room(handle)
        self.rows, self.slots = rows, slots
        self.row_bytes = row_bytes
        self.memory = memory
        self.tier = tier
        self._policy = policy if policy is not None and policy.looks_ahead else None
        self.batch_rows_max = batch_rows_max
        self.empty = empty
        self._repeats = 0  # rows asked for again within one admission: in two batches of a sweep
        self._window: Any = ffi.NULL
        self._beyond: dict[int, Int64Array] = {}  # by index, what the window has no place for
        if self._policy is not None:
            window = lib.gd_window_new(rows)
            if window == ffi.NULL:
                raise MemoryError(f"no memory to look ahead in a table of {rows} rows")
            self._window = ffi.gc(window, lib.gd_window_free)
            wishes = lib.gd_window_wishes(window)
            self._next_use = np.frombuffer(ffi.buffer(wishes.next), np.int64)
            self._keys = np.frombuffer(ffi.buffer(wishes.key), np.int64)
            self._choose_keys()
        self.failures = np.empty(0, FAILURE)  # by slot, once there was one; C knows which hold

    @property
    def available(self) -> int:
        """Slots that an admission may take: free and standby."""
        return int(self._room.available)

    def stats(self) -> dict[str, int]:
        """The books' counters (`gd_buffer_stats` in native/gnndrive.h), and `repeats`: rows that
        came twice in one admission, such as in two batches of a sweep."""
        counters = ffi.new("gd_buffer_stats *")
        lib.gd_buffer_get_stats(self.handle, counters)
        names = [name for name, _ in ffi.typeof(counters[0]).fields]
        return {name: int(getattr(counters, name)) for name in names} | {"repeats": self._repeats}

    def joined(self, parts: Sequence[Int64Array]) -> Int64Array:
        """Rows of several batches, one after the other, as `SlotHold.split` takes them apart."""
        if len(parts) == 1:
            return parts[0]
        joined: Int64Array = self.empty(sum(map(len, parts)), np.int64)
        return np.concatenate(parts, out=joined)

    def probe(self, rows: Int64Array) -> tuple[int, Any]:
        """(0 or -errno, what an admission of `rows` would find)."""
        found = ffi.new("gd_admission *")
        return int(lib.gd_buffer_probe(self.handle, pointer(rows), len(rows), found)), found

    def fits_together(self, batches: Sequence[tuple[int, Int64Array]]) -> bool:
        """Whether the rows of batches, (index, int64 [n]) each, would fit together if nobody else
        held any; also for those out of range, for their admission will say so."""
        parts = [rows for _, rows in batches]
        if sum(map(len, parts)) <= self.slots:
            return True
        if self._policy is not None:  # it has counted them
            indices = np.array([index for index, _ in batches], np.int64)
            count = holding_gil.gd_window_together(self._window, pointer(indices), len(indices))
            if count >= 0:
                return bool(count <= self.slots)
        rows = self.joined(parts)
        return int(lib.gd_buffer_holds(self.handle, pointer(rows), len(rows))) != -errno.ENOSPC

    def announce(self, index: int, rows: Int64Array) -> None:
        """Batch `index` is known and will want `rows` (int64 [n]): what it wants stays longer.

        Batches beyond those that the window holds are looked at when there is a place.
        """
        if self._policy is None:
            return
        if holding_gil.gd_window_count(self._window) == lib.GD_WINDOW_BATCHES:
            self._beyond[index] = rows
            return
        code = lib.gd_window_add(self._window, index, pointer(rows), len(rows))
        if code != -errno.ERANGE:  # or its admission will say so
            check(code, "look-ahead")
            self._choose_keys()
            code = lib.gd_buffer_rekey(self.handle, self._window, pointer(rows), len(rows))
            check(code, "rekey")

    @property
    def announced(self) -> int:
        """Batches that are known and not admitted."""
        if self._policy is None:
            return 0
        return int(holding_gil.gd_window_count(self._window)) + len(self._beyond)

    def withdraw(self, index: int, rows: Int64Array) -> None:
        """Batch `index` will not come, or comes now: `rows` as they were foreseen."""
        if self._policy is None or self._beyond.pop(index, None) is not None:
            return
        if lib.gd_window_drop(self._window, index, pointer(rows), len(rows)) == 0:
            self._choose_keys()
            while (
                self._beyond and holding_gil.gd_window_count(self._window) < lib.GD_WINDOW_BATCHES
            ):
                nearest = min(self._beyond)
                self.announce(nearest, self._beyond.pop(nearest))

    def rekey(self, rows: Int64Array) -> None:
        """After `withdraw`: set the standby keys of `rows` anew, without the batch that left."""
        if self._policy is not None:
            # -ERANGE: a batch with such a row was not foreseen
            lib.gd_buffer_rekey(self.handle, self._window, pointer(rows), len(rows))

    def _choose_keys(self) -> None:
        """Have the policy say the keys, by which of the known batches want a row."""
        assert self._policy is not None
        self._keys[:] = self._policy.keys(self._next_use.copy())

    def admit(self, rows: Int64Array) -> tuple[int, Any, SlotHold | None]:
        """(0 or -errno, what the admission found, the lease's share when it was admitted)."""
        count = len(rows)
        found = ffi.new("gd_admission *")
        alias, pending, load_slots = (self.empty(count, np.int32) for _ in range(3))
        load_rows = self.empty(count, np.int64)
        code = lib.gd_buffer_admit(
            self.handle,
            self._window,
            pointer(rows),
            count,
            pointer(alias),
            pointer(pending),
            pointer(load_rows),
            pointer(load_slots),
            found,
        )
        if code:
            return int(code), found, None
        self._repeats += count - int(found.hits + found.waits + found.loads)
        loads = (load_rows[: found.loads], load_slots[: found.loads])
        return 0, found, SlotHold(self, alias, pending[: found.pending], loads)

    def hold_present(self, rows: Int64Array) -> tuple[int, Any, SlotHold | None]:
        """Like `admit`, but only what is there of `rows` or being loaded, which needs no slot; what
        is not has an alias below 0 (`gd_buffer_hold`)."""
        count = len(rows)
        found = ffi.new("gd_admission *")
        alias, pending = (self.empty(count, np.int32) for _ in range(2))
        code = lib.gd_buffer_hold(
            self.handle,
            self._window,
            pointer(rows),
            count,
            pointer(alias),
            pointer(pending),
            found,
        )
        if code:
            return int(code), found, None
        held = int(np.count_nonzero(alias >= 0))
        self._repeats += held - int(found.hits + found.waits)
        return 0, found, SlotHold(self, alias, pending[: found.pending])

    def commit(self, stretch: Stretch) -> None:
        """Make landed rows valid and failed ones fail, in the books."""
        slots = stretch.slots
        check(holding_gil.gd_buffer_commit(self.handle, pointer(slots), len(slots)), "commit")
        if not len(stretch.failures):
            return
        failed = np.ascontiguousarray(stretch.failures["slot"])
        check(lib.gd_buffer_fail(self.handle, pointer(failed), len(failed)), "fail")
        if not len(self.failures):
            self.failures = np.zeros(self.slots, FAILURE)
        self.failures[failed] = stretch.failures

    def release(self, alias: Int32Array) -> None:
        """Give one reference of each of `alias` back."""
        check(lib.gd_buffer_release(self.handle, pointer(alias), len(alias)), "release")


class SlotHold:
    """What an admission holds of one table, for one batch or for the batches of a sweep together.

    Attributes:
        alias: the slot of each row, int32 [n].
        pending: slots that were not valid at admission, int32 [m].
        loads: rows and slots that nobody was asked for yet, or None.
    """

    __slots__ = ("alias", "loads", "pending", "position", "table")

    def __init__(
        self,
        table: SlotTable,
        alias: Int32Array,
        pending: Int32Array,
        loads: tuple[Int64Array, Int32Array] | None = None,
    ) -> None:
        self.table = table
        self.alias = alias
        self.pending = pending
        self.position = ffi.new("int64_t *")
        self.loads = loads

    def split(self, counts: Sequence[int]) -> list[SlotHold]:
        """A share for each batch of a sweep, `counts` rows each; all wait for the whole sweep."""
        ends = np.cumsum(counts)
        assert ends[-1] == len(self.alias)
        return [
            SlotHold(self.table, self.alias[end - count : end], self.pending)
            for end, count in zip(ends, counts, strict=True)
        ]

    def fail_unasked(self) -> None:
        """Rows that nobody was asked for fail at once: their fetch could not be made."""
        if self.loads is not None:
            slots = self.loads[1]
            check(lib.gd_buffer_fail(self.table.handle, pointer(slots), len(slots)), "fail")

    def settled(self) -> bool:
        """Whether none of its rows is loading any more."""
        handle, pending = self.table.handle, self.pending
        return bool(
            holding_gil.gd_buffer_settled(handle, pointer(pending), len(pending), self.position)
        )

    def error(self) -> Exception | None:
        """What went wrong with the first row that failed, or None."""
        index = holding_gil.gd_buffer_first_failed(
            self.table.handle, pointer(self.alias), len(self.alias)
        )
        if index < 0:
            return None
        failure = self.table.failures[self.alias[index]]
        if failure["error"] == errno.ECANCELED:
            return ClosedError("the loader was closed while this batch was being read")
        return ReadError(self.table.tier.path, int(failure["offset"]), int(failure["error"]))
