"""The victim buffer (LSM-GNN's PVP): rows that leave a device's slots stay in host memory.

`victim.py`, `victim_first.py` and `victim_queues.py` have the rules by which rows stay. The buffer
offers rows that an admission took out of their slots (`Tier.offer`). Those that are kept are copied
to pinned host memory on the device's side stream, which is ordered before the scatter of other rows
into the same slots. A fetch takes the rows that are here and passes the others on to the tier
below; the rows that it takes leave the victim buffer, because the feature buffer has them then. A
device that reads pinned memory itself scatters them from here, for others a thread copies them to
the landing.

The C core's table (`native/victim.c`) says where which row is. A place is in use from the offer to
the end of the copy-out, and from the fetch to the end of the copy back; only between the two may
another row take it (law 3). A fetch may find a row whose copy-out is under way: it waits for it.

When not to use it: with a feature buffer in host memory, which is the memory that rows would be
copied to; such a tier passes everything on.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

import numpy as np

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.records import Evicted, Int32Array, Int64Array, Landing, PinnedRows
from gnndrive.disk.tiers._copied import CopiedFetch, begin_copy, spread_rows, start_thread
from gnndrive.disk.tiers.base import EvictedRows, Fetch, Tier, TierContext


class Victims(Tier):
    """Keeps rows that left the slots of one table.

    Args:
        below: the tier that has all rows.
        rows: rows of the table.
        memory: where rows are kept; the tier closes it. None: nothing is kept.

    Attributes:
        queue_rows: the most rows that are kept for one batch to come; 0: one order of keys decides
            which rows stay.
        gives_up: whether a row may take the place of another one.
    """

    takes_offers = True
    queue_rows = 0
    gives_up = True

    def __init__(self, below: Tier, rows: int, memory: EvictedRows | None) -> None:
        self.path, self._below, self._memory = below.path, below, memory
        self.takes_offers = memory is not None
        self._copies_out: dict[asyncio.Task[None], int] = {}  # and how many rows each has
        self._copies_back: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None  # of a copy-out: the device is broken
        if memory is None:
            return
        handle = lib.gd_victims_new(rows, len(memory.rows), self.queue_rows)
        if handle == ffi.NULL:
            raise MemoryError(f"no memory for the victim buffer's table of {rows:,} rows")
        self._handle = ffi.gc(handle, lib.gd_victims_free)
        self.table = lib.gd_victims_table(self._handle)
        self.ranked = () if self.queue_rows else (self.table,)
        self._thread = start_thread("gnndrive-victims")

    @classmethod
    def make(cls, context: TierContext) -> Self:
        """See `Tier.make`."""
        if context.below is None:
            raise ConfigError(f"the tier {cls.name!r} needs one below it: name it above 'disk'")
        return cls(context.below, context.rows, context.evicted)

    # ---- rows that leave the device

    def offer(self, evicted: Evicted) -> None:
        """See `Tier.offer`; begins to copy the rows that it keeps."""
        memory = self._memory
        if memory is None or self._error is not None:
            return
        count = len(evicted.rows)
        most = count
        if memory.rows_max is not None:
            most = min(count, memory.rows_max - sum(self._copies_out.values()))
        if not self.gives_up:
            counters = ffi.new("gd_buffer_stats *")
            lib.gd_buffer_get_stats(self.table, counters)
            most = min(most, int(counters.free))
        slots, places = np.empty(count, np.int32), np.empty(count, np.int32)
        kept = lib.gd_victims_offer(
            self._handle, ffi.cast("gd_evicted *", evicted.rows.ctypes.data),
            pointer(evicted.next_use), count, most, evicted.now, pointer(slots), pointer(places),
        )  # fmt: skip
        if not check(kept, "offer"):
            return
        slots, places = slots[:kept], places[:kept]
        try:
            ended = memory.copy_out(slots, places)
        except MemoryError:  # nothing was begun; the rows are read again when they are wanted
            check(lib.gd_victims_withdraw(self._handle, pointer(places), kept), "withdraw")
            return
        except BaseException as error:  # copies may run, so their places are never used again
            self._error = error
            raise
        task = asyncio.get_running_loop().create_task(self._copy_out(ended, places))
        self._copies_out[task] = kept
        task.add_done_callback(self._copied_out)

    async def _copy_out(self, ended: Callable[[], Awaitable[None]], places: Int32Array) -> None:
        """Make rows valid when their copies have ended; after an error they never are, and their
        places are never used again."""
        await ended()
        check(lib.gd_buffer_commit(self.table, pointer(places), len(places)), "commit")

    def _copied_out(self, task: asyncio.Task[None]) -> None:
        del self._copies_out[task]
        error = task.exception() if not task.cancelled() else ClosedError("a copy was cancelled")
        self._error = self._error or error

    # ---- rows that come back

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`."""
        if self._memory is None:
            return self._below.fetch(rows, places, landing)
        found = np.empty(len(rows), np.int32)
        code = lib.gd_victims_find(self._handle, pointer(rows), len(rows), pointer(found))
        if code == -errno.EINVAL:
            raise ValueError("a row is requested twice")
        here = found >= 0
        if code or not here.any():  # -ERANGE: the tier below says which row it is
            return self._below.fetch(rows, places, landing)
        kept, served, others, elsewhere = found[here], places[here], rows[~here], places[~here]
        arriving = lib.gd_victims_take(self._handle, pointer(kept), len(kept))
        pinned: PinnedRows | None = None
        if self._memory.read_in_place:
            pinned = PinnedRows(self._memory.rows, kept, partial(self._drop, kept))
        copied: asyncio.Task[None] | None = None
        try:
            # Copies out end in the order of the device's stream; those of these rows are among
            # them.
            before = set(self._copies_out) if arriving else None
            copied = asyncio.get_running_loop().create_task(
                self._copy_back(before, kept, served, landing)
            )
            self._copies_back.add(copied)
            copied.add_done_callback(self._copies_back.discard)
            # Last, because the disk writes to the landing from then on (law 3).
            rest = self._below.fetch(others, elsewhere, landing)
        except BaseException:
            if copied is not None:
                copied.cancel()  # it begins in a later step of the loop, so it has done nothing
            check(lib.gd_buffer_release(self.table, pointer(kept), len(kept)), "release")
            raise
        self.rows_served += len(kept)
        return CopiedFetch(served, copied, rest, pinned)

    def _begin_copy_back(
        self, kept: Int32Array, served: Int32Array, landing: Landing
    ) -> asyncio.Future[None]:
        """Begin to copy the rows of the places `kept` to the places `served` of the landing."""
        assert self._memory is not None
        memory = self._memory.rows
        return begin_copy(
            self._thread, spread_rows, memory.ctypes.data, memory.shape[1],
            kept.astype(np.int64), served, landing,
        )  # fmt: skip

    async def _copy_back(
        self, before: set[asyncio.Task[None]] | None, kept: Int32Array, served: Int32Array,
        landing: Landing,
    ) -> None:  # fmt: skip
        """Copy rows to a landing and let them leave, unless the device reads them here. `before`:
        copies out of slots that must have ended first; None: the rows are there."""
        if before is not None:
            if before:
                await asyncio.wait(before)
            if self._error is not None:
                raise self._error
        assert self._memory is not None
        if not self._memory.read_in_place:
            await self._begin_copy_back(kept, served, landing)
            self._drop(kept)

    def _drop(self, kept: Int32Array) -> None:
        """Let rows leave that the feature buffer has, or a landing."""
        check(lib.gd_victims_drop(self._handle, pointer(kept), len(kept)), "drop")

    def row_error(self, offset: int, errno: int) -> Exception:
        """See `Tier.row_error`."""
        return self._below.row_error(offset, errno)

    # ---- the end

    async def aclose(self) -> None:
        """See `Tier.aclose`; waits for the copies that are under way (rule 13)."""
        while copies := [*self._copies_out, *self._copies_back]:
            await asyncio.wait(copies)
        if self._memory is not None:
            memory, self._memory = self._memory, None
            self._thread.shutdown()
            memory.close()
        await self._below.aclose()

    def verify(self) -> None:
        """Assert every invariant of the table."""
        if self._memory is not None and (code := lib.gd_buffer_verify(self.table)):
            raise AssertionError(f"the victim buffer's table breaks invariant {code}")
