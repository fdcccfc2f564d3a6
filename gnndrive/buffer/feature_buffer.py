"""The feature buffer (GNNDrive §4.2): one gate that admits batches to one or several slot tables.

The extract stage calls `join`, which draws the tickets, and awaits `granted`. The gate admits
batches in the order of their tickets, each when the rows that it misses fit into free and standby
slots; batches larger than one part are admitted in parts (rule 3). In the same step their missing
rows are given to the fetch queue, and the reads end even if the batch is cancelled (rule 5).

`loader/buffer_pool.py` gives each live iterator a feature buffer of its own. The slot tables are C
(`native/buffer.c`): Python handles batches and stretches, never single rows. All methods run in one
event loop.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil

import numpy as np
import torch

from gnndrive.buffer.admission_queue import AdmissionQueue, Sweep, Ticket
from gnndrive.buffer.devices.base import Fence, Gathering
from gnndrive.buffer.fetch_queue import Copies, FetchQueue
from gnndrive.buffer.partial_admission import PartialAdmission
from gnndrive.buffer.row_table import RowHold, Rows, RowTable
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import check, lib, pointer
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.padding import Parts, padded
from gnndrive.common.records import Codes, Int32Array, Int64Array, NextUses

# If the next sweep waits for slots for a part, a lease releases its slots in this many steps: to
# release all of them takes 30 ms, and the disk may be idle until the sweep has some.
RELEASE_STEPS = 4
# Such a part takes 10 ms to admit and 100 ms to read; the first parts of a sweep are smaller. Reads
# of smaller parts would begin sooner, but each call into the C core costs a GIL switch interval
# beside a thread that computes in Python.
PART_ROWS = 1 << 17


class Foreseen(dict[int | None, tuple[Rows, Mapping[str, NextUses]]]):
    """By index, the rows of announced batches and their next uses, by table.

    A batch of a superbatch that was sampled ahead is announced with the next use of each of its
    rows, as far as it was known then. When another superbatch becomes known, the batches that wait
    learn what it needs, because they set the keys of their rows when they are admitted.
    """

    def learn(self, later: Mapping[str, Codes]) -> None:
        """Another superbatch is known. `later` has the code of its first use of each row, by table,
        uint16 [rows]; rows that no batch before it needs get these codes."""
        for rows, uses in self.values():
            for name in uses.keys() & later.keys():
                add_later(uses[name], rows[name], later[name])

    def joined(self, tickets: Sequence[Ticket]) -> dict[str, Codes]:
        """Table name → the codes of the tickets' rows, one behind the other; empty: none came."""
        uses = [self[each.index][1] for each in tickets if each.index in self]
        if not uses:
            return {}
        assert len(uses) == len(tickets), "codes come with all batches or with none"
        return {name: np.concatenate([each[name].codes for each in uses]) for name in uses[0]}


class FeatureBuffer:
    """Admits batches to slot tables and fetches the rows that they miss.

    Args:
        tables: by name; a batch needs rows of some of them.
        part_rows: a sweep of more rows than this is admitted in parts of about this many missing
            rows.
        buffers: feature buffers on this host that divide the user's `buffer=`, for messages.
        copies: told of each copy to the device.

    Attributes:
        foreseen: the announced batches whose superbatches are known.
        missing_share: the share of the last admitted sweep's rows that had to be read, 0 to 1.
        retired: see `retire`.
        watchers: leases whose `ready` waits until their rows are valid or failed.
    """

    valid_when_granted = False

    def __init__(
        self, tables: Mapping[str, RowTable], part_rows: int = PART_ROWS, buffers: int = 1,
        copies: Copies | None = None,
    ) -> None:  # fmt: skip
        self.tables = dict(tables)
        self._refuse = partial(raise_refusal, self.tables, buffers)
        self._part_rows = part_rows
        self._queue = AdmissionQueue()
        self.foreseen = Foreseen()
        # The tickets at the head of the queue that are being admitted in parts.
        self._partial: tuple[list[Ticket], PartialAdmission] | None = None
        self.watchers: dict[Lease, None] = {}
        self._fetches = FetchQueue(self._rows_settled, self.fail, copies)
        self._broken: BaseException | None = None
        self.retired = False
        self._rows_missing = 0  # rows fetched for the sweep at the head of the queue
        self.missing_share = 1.0

    # ---- the tables ----

    def row_bytes(self, table: str) -> int:
        """Bytes of a row of a table."""
        return self.tables[table].row_bytes

    def fits_together(self, batches: Sequence[tuple[int, Rows]]) -> bool:
        """Whether the buffer could hold these batches, each with its index, together if no other
        batch held a slot."""
        return all(
            table.fits_together([(index, rows[name]) for index, rows in batches if name in rows])
            for name, table in self.tables.items()
        )

    def stats(self) -> Counter[str]:
        """The counters of all tables, added; see `RowTable.stats`."""
        counted: Counter[str] = Counter()
        for table in self.tables.values():
            counted.update(table.stats())
        return counted

    def unused(self) -> tuple[int, int]:
        """How many slots are free, and how many are on standby, in all tables."""
        counted = [table.unused() for table in self.tables.values()]
        return sum(free for free, _ in counted), sum(standby for _, standby in counted)

    def verify(self) -> None:
        """Check every invariant of the tables; an AssertionError if one does not hold."""
        for table in self.tables.values():
            table.verify()

    # ---- announcements of later batches ----

    def announce(self, index: int, rows: Rows, uses: Mapping[str, NextUses] | None = None) -> None:
        """Announce that batch `index` will need `rows`, so that a policy that looks ahead keeps
        them longer. Later it joins, or the caller calls `withdraw`. `uses` says when the rows of a
        table are needed next, if its superbatch is known.
        """
        if uses is not None:
            self.foreseen[index] = rows, uses
        for name, ids in rows.items():
            near = uses[name].near if uses is not None and name in uses else None
            self.tables[name].announce(index, ids, near)

    def foresee(
        self, first: int, last: int, later: Mapping[str, Codes] | None, anew: bool = False
    ) -> None:
        """The next uses by the batches [first, last) are known: a superbatch was sampled ahead.
        Announced batches before `first` learn of it, too.

        Args:
            first, last: the indices; the code of batch i is `i % GD_NO_CODE`.
            later: table name → the code of the first of these batches that needs each row, uint16
                [rows], `GD_NO_CODE` for none; tables whose next uses are not known are left out. It
                is not kept. None: nothing is known any more, as at the start of an epoch; then
                `first` and `last` are equal.
            anew: whether rows that have next uses get those of `later` instead.
        """
        if later is None:
            self.foreseen.clear()
        else:
            self.foreseen.learn(later)
            if self._partial is not None:
                self._partial[1].learn(later)
            for ticket in self._queue.head():
                ticket.sweep.rows = None  # joined anew, with more codes
        for name in self.tables if later is None else later:
            self.tables[name].foresee(first, last, None if later is None else later[name], anew)

    def withdraw(self, index: int, rows: Rows) -> None:
        """Take back the announcement of batch `index`, because it will not join."""
        self.foreseen.pop(index, None)
        if self.retired:
            return
        for name, ids in rows.items():
            self.tables[name].withdraw(index, ids)
            self.tables[name].rekey(ids)

    def retire(self) -> None:
        """Before the buffer is closed: admit no more batches. From now on leases release no slots
        and announcements are not withdrawn, because both would only cost time."""
        self.retired = True

    # ---- leases ----

    def join(self, batches: Sequence[tuple[int | None, Rows]]) -> list[Ticket]:
        """Join the admission queue with the batches of a sweep, in this call; batches are admitted
        in the order of the calls.

        Args:
            batches: of each the index if it was announced, else None, and its rows. They are
                admitted together if the buffer can hold them together; then the rows they miss are
                read in one sorted pass.

        Returns:
            A ticket for each batch, for `granted` or `leave`.

        Raises:
            Exception: the error that broke the buffer, see `fail`.
        """
        self.raise_if_broken()
        tickets = self._queue.join(batches)
        self.advance()
        return tickets

    async def granted(self, ticket: Ticket) -> Lease:
        """Wait until the batch is admitted and return its lease. Cancelling this gives up the place
        in the queue, or the lease (rule 10).

        Raises:
            ConfigError: the batch has more distinct rows than the buffer has slots; the message
                names the smallest buffer that works.
            IndexError: a row id is out of range.
        """
        try:
            lease: Lease = await ticket.granted
            return lease
        except asyncio.CancelledError:
            self.leave(ticket)
            raise

    async def lease(self, rows: Rows) -> Lease:
        """Join the admission queue with one batch and wait; see `join` and `granted`."""
        return await self.granted(self.join([(None, rows)])[0])

    def lease_now(self, rows: Rows) -> Lease | None:
        """Join with one batch, and leave again unless it is admitted in this call; see `join`."""
        (ticket,) = self.join([(None, rows)])
        lease: Lease | None = ticket.granted.result() if ticket.granted.done() else None
        if lease is None:
            self.leave(ticket)
        return lease

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in the admission queue, or the lease that it has got (rule 10)."""
        if self._partial is not None and ticket in self._partial[0]:
            ticket.granted.cancel()
            if all(one.granted.done() for one in self._partial[0]):
                self._abandon_partial()
                self.advance()
        elif ticket in self._queue:
            self._queue.remove(ticket)
            self._withdraw_ticket(ticket)
            self.advance()  # the next batch may fit where this one did not
        elif ticket.granted.cancelled():
            self._withdraw_ticket(ticket)
        elif ticket.granted.exception() is None:
            ticket.granted.result().release()

    def advance(self) -> None:
        """Try to admit the head of the queue: called whenever slots become available (rule 4)."""
        if self.retired:
            return
        while tickets := self._partial[0] if self._partial is not None else self._queue.head():
            try:
                leases = self._admit(tickets)
            except Exception as error:
                self._abandon_partial()
                # They are too large together, or one of them is at fault: try fewer.
                tickets[0].sweep.try_anew(together=max(len(tickets) - 1, 1))
                if len(tickets) == 1 and not tickets[0].granted.done():
                    self._withdraw_ticket(self._queue.pop())
                    tickets[0].granted.set_exception(error)
                continue
            if leases is None:
                return
            for ticket, lease in [(self._queue.pop(), lease) for lease in leases]:
                self.foreseen.pop(ticket.index, None)
                if ticket.granted.done():  # cancelled while it was admitted in parts
                    lease.release()
                else:
                    ticket.granted.set_result(lease)

    def _admit(self, tickets: list[Ticket]) -> list[Lease] | None:
        """Admit all of `tickets`: a lease each, or None if there are too few slots now. Raises what
        is wrong with one of them."""
        if self._partial is not None:
            return self._admit_parts(*self._partial)
        sweep = tickets[0].sweep
        for name, worth in sweep.slots_needed.items():
            if self.tables[name].available < worth:
                return None
        self._withdraw_announcements(tickets)
        if sweep.rows is None:
            sweep.rows = {
                name: self.tables[name].joined([ticket.rows[name] for ticket in tickets])
                for name in tickets[0].rows
            }
            sweep.codes = self.foreseen.joined(tickets)
        tables = {name: self.tables[name] for name in sweep.rows}
        parted = {name: each for name, each in tables.items() if isinstance(each, SlotTable)}
        if any(len(sweep.rows[name]) > self._part_rows for name in parted):
            admission = PartialAdmission(
                parted, sweep.rows, sweep.codes, self._part_rows, self._refuse
            )
            self._partial = tickets, admission
            sweep.try_anew()
            return self._admit_parts(tickets, admission)
        if len(tables) > 1:  # all tables or none: probe each before the first is changed
            found = {name: tables[name].probe(ids) for name, ids in sweep.rows.items()}
            fits = [self._fits(sweep, name, *answer) for name, answer in found.items()]
            if not all(fits):
                return None
        holds: dict[str, RowHold] = {}
        try:
            for name, ids in sweep.rows.items():
                code, deficit, hold = tables[name].admit(ids, sweep.codes.get(name))
                if not self._fits(sweep, name, code, deficit):
                    assert not holds, "each of several tables was probed"
                    return None
                assert hold is not None
                holds[name] = hold
            sweep.try_anew()  # for the rest of the sweep
            for hold in holds.values():
                self._begin_fetch(hold)
            return self._make_leases(tickets, holds)
        except Exception:
            for hold in holds.values():
                hold.fail_unfetched()
                hold.release(0, len(hold.alias))
            raise

    def _admit_parts(
        self, tickets: list[Ticket], admission: PartialAdmission
    ) -> list[Lease] | None:
        """Admit and fetch part after part; None: there are too few slots for the next part now."""
        while admission.unfinished:
            hold = admission.admit_next()
            if hold is None:
                return None
            try:
                self._begin_fetch(hold)
            except Exception:
                hold.fail_unfetched()
                raise
        leases = self._make_leases(tickets, admission.holds())
        self._partial = None
        return leases

    def _abandon_partial(self) -> None:
        """Release what was admitted in parts; remove the tickets that were cancelled meanwhile."""
        self._rows_missing = 0
        if self._partial is None:
            return
        tickets, admission = self._partial
        self._partial = None
        admission.release_all()
        for ticket in tickets:
            if ticket.granted.done():
                self._queue.remove(ticket)

    def _withdraw_ticket(self, ticket: Ticket) -> None:
        """Withdraw the announcement of a batch that is not admitted, and set keys again."""
        if ticket.index is not None:
            self.withdraw(ticket.index, ticket.rows)

    def _withdraw_announcements(self, tickets: list[Ticket]) -> None:
        """Withdraw the announcements: a key must name the next use by a *later* batch."""
        for ticket in tickets:
            if ticket.index is not None and not ticket.arrived:
                for name, ids in ticket.rows.items():
                    self.tables[name].withdraw(ticket.index, ids)
            ticket.arrived = True

    def _make_leases(self, tickets: list[Ticket], holds: Mapping[str, RowHold]) -> list[Lease]:
        """A lease for each ticket, from what they hold together."""
        asked = sum(len(ids) for ticket in tickets for ids in ticket.rows.values())
        self.missing_share, self._rows_missing = self._rows_missing / max(asked, 1), 0
        split = {
            name: hold.split([len(ticket.rows[name]) for ticket in tickets])
            for name, hold in holds.items()
        }
        return [
            Lease(self, {name: parts[place] for name, parts in split.items()})
            for place in range(len(tickets))
        ]

    def _fits(self, sweep: Sweep, name: str, code: int, deficit: int) -> bool:
        """Whether `sweep` fits, by a table's answer; if not, note the slots that it needs."""
        if code == -errno.EAGAIN:
            # These batches are first in line, so a retry fails until that many slots are available.
            sweep.slots_needed = {name: self.tables[name].available + deficit}
            return False
        if code:
            self._refuse(name, code, deficit)
        return True

    # ---- fetches ----

    def begin_residents(self) -> None:
        """Fetch the rows that never leave the buffer, part after part; later epochs find them
        there."""
        for table in self.tables.values():
            table.begin_residents()
        self._fetch_residents()

    def _fetch_residents(self) -> None:
        """Begin to fetch the next residents, if earlier parts have ended."""
        for table in self.tables.values():
            while (hold := table.next_residents()) is not None:
                try:
                    self._fetches.begin(hold)
                except Exception as error:
                    hold.fail_unfetched()
                    if not isinstance(error, (ClosedError, MemoryError)):
                        self.fail(error)
                hold.release(0, len(hold.alias))  # rows that are loading stay out of use (rule 6)

    def _begin_fetch(self, hold: RowHold) -> None:
        assert hold.loads is not None
        self._rows_missing += len(hold.loads[0])
        self._fetches.begin(hold)

    def _rows_settled(self) -> None:
        if not self.retired:
            self._fetch_residents()
        for lease in list(self.watchers):
            lease.wake_if_settled()
        self.advance()

    def fail(self, error: BaseException) -> None:
        """Break the buffer, because slots load for ever: every batch gets the error from now on."""
        self._broken = self._broken or error
        for lease in list(self.watchers):
            lease.wake()
        self._abandon_partial()
        self._queue.fail(error)

    def raise_if_broken(self) -> None:
        """Raise the error that broke the buffer, if there is one."""
        if self._broken is not None:
            raise self._broken

    # ---- the end ----

    async def drain(self) -> None:
        """Wait until no read is under way; reads that were not started fail with ECANCELED."""
        await self._fetches.drain()

    @property
    def loading(self) -> bool:
        """Whether reads are under way."""
        return bool(self._fetches)

    @property
    def in_parts(self) -> bool:
        """Whether the head of the queue is admitted in part and waits for slots."""
        return self._partial is not None

    @property
    def idle(self) -> bool:
        """Whether no row is loading and no batch waits; leases that are ready may be held."""
        return not self._fetches and not self._queue and not self.watchers

    async def aclose(self) -> None:
        """Free what the tiers hold, and the slots' memory. Only after `drain` (rule 13), else a
        RuntimeError."""
        if self._fetches:
            raise RuntimeError("drain the feature buffer before closing it")
        await self.close_tiers()  # which copy rows into the slots
        self.free_slots()
        self._fetches.close()

    async def close_tiers(self) -> None:
        """Free what the tiers hold; no row can be fetched afterwards. Only after `drain`, and
        before the engine and the layouts are closed."""
        for table in self.tables.values():
            await table.tier.aclose()

    def free_slots(self) -> None:
        """Free the slots' memory; in any thread. Only after `drain` and `close_tiers`."""
        for table in self.tables.values():
            table.memory.close()


class Lease:
    """Holds the slots of one batch's rows, some of which may still be loading, until `release`: the
    only access to rows (GNNDrive §4.2).

    The extract stage awaits `ready`, the train stage calls `gather` in a worker thread, and the
    release stage awaits `gathered` and then calls `release`, once.
    """

    def __init__(self, buffer: FeatureBuffer, holds: dict[str, RowHold]) -> None:
        self._buffer = buffer
        self._holds = holds
        self._held = {name: len(hold.alias) for name, hold in holds.items()}
        self._gathered: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[None] | None = None
        self._fences: list[Fence] = []
        self.released = False

    def alias(self, table: str) -> Int32Array:
        """The slots of the table's rows, in the order of the batch's ids, int32 [n]: node aliases,
        valid until `gather`."""
        return self._holds[table].alias

    async def ready(self) -> None:
        """Wait until every row is valid.

        Raises:
            ReadError: a row could not be read; the lease must still be released.
            ClosedError: its reads were cancelled.
        """
        while not self._all_settled():
            self._buffer.raise_if_broken()
            self._settled = asyncio.get_running_loop().create_future()
            self._buffer.watchers[self] = None
            try:
                await self._settled
            finally:
                self._settled = None
                self._buffer.watchers.pop(self, None)
        for hold in self._holds.values():
            if failure := hold.failure():
                raise failure[1]

    def failures(self) -> dict[str, tuple[int, Exception]]:
        """See `BatchLease.failures`."""
        if not self._all_settled():
            return {}
        found = {name: hold.failure() for name, hold in self._holds.items()}
        return {name: failure for name, failure in found.items() if failure is not None}

    def gather(
        self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...], parts: Parts = ()
    ) -> torch.Tensor:
        """Copy the table's rows into a new tensor [n, *row_shape], and as `parts` says the last row
        of each batch again. Blocks; call it in a worker thread, once for each table. If the device
        reports pieces (the host does, from 64 MiB on), the slots of a piece are released while the
        others are being copied (rule 9)."""
        hold = self._to_gather(table)
        count = len(hold.alias)

        def copied_from(begin: int) -> None:
            self._loop.call_soon_threadsafe(self.release_tail, table, min(begin, count))

        alias = padded(hold.alias, parts)
        rows, fence = hold.table.memory.gather(alias, dtype, row_shape, copied_from)
        self._fences.append(fence)
        return rows

    def begin_gather(
        self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...], parts: Parts = ()
    ) -> tuple[torch.Tensor, Gathering]:
        """Begin to copy as `gather` does; see `SlotMemory.begin_gather`."""
        hold = self._to_gather(table)
        alias = padded(hold.alias, parts)
        rows, fence, gathering = hold.table.memory.begin_gather(alias, dtype, row_shape)
        self._fences.append(fence)
        return rows, gathering

    def _to_gather(self, table: str) -> RowHold:
        assert table not in self._gathered, "other rows may be in these slots now"
        self._gathered.add(table)
        return self._holds[table]

    def holds(self, table: str, begin: int) -> bool:
        """Whether the slots of the table's rows from number `begin` on are held still."""
        return not self.released and 0 <= begin <= self._held[table]

    def release_tail(self, table: str, begin: int) -> None:
        """In the loop: release the slots of a table's rows from `begin` on, if still held."""
        if self.released or self._buffer.retired:
            return
        hold, end = self._holds[table], self._held[table]
        self._held[table] = begin
        try:
            hold.release(begin, end)
            self._buffer.advance()
        except Exception as error:  # no caller awaits this
            self._buffer.fail(error)

    async def gathered(self) -> None:
        """Wait until the copies of `gather` have ended; only then call `release` (rule 9)."""
        for fence in self._fences:
            await fence()

    def release(self) -> None:
        """Release the slots that are still held: once, after `gathered` (rule 9); without a gather
        if the batch was cancelled or has failed."""
        if self.released:
            raise RuntimeError("this lease was released before: call release() once")
        self.released = True
        if self._buffer.retired:
            return
        steps = RELEASE_STEPS if self._buffer.in_parts else 1
        left = [
            (hold, held * step // steps, held * (step + 1) // steps)
            for hold, held in ((hold, self._held[name]) for name, hold in self._holds.items())
            for step in range(steps)
        ]
        try:
            # The last rows first: the first are the batch's hubs, which other batches share.
            while left and self._buffer.in_parts:
                hold, begin, end = left.pop()
                hold.release(begin, end)
                self._buffer.advance()
        finally:
            for hold, begin, end in reversed(left):
                hold.release(begin, end)
            self._buffer.advance()

    def _all_settled(self) -> bool:
        return all(hold.settled() for hold in self._holds.values())

    def wake_if_settled(self) -> None:
        """Called by the buffer after each commit: wake `ready` if no row is loading any more."""
        if self._all_settled():
            self.wake()

    def wake(self) -> None:
        """Called by the buffer when it breaks: wake `ready`, which then raises the error."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)


def add_later(uses: NextUses, rows: Int64Array, later: Codes) -> None:
    """Give those of `rows` (int64 [n]) that have no next use the code in `later`, uint16 [rows of
    the table]."""
    lib.gd_trace_patch(pointer(uses.codes), pointer(rows), len(rows), pointer(later))


def raise_refusal(
    tables: Mapping[str, RowTable], buffers: int, name: str, code: int, deficit: int
) -> None:
    """Raise the error that the answer of table `name` means (`RowTable.admit`), which is not
    -EAGAIN; so many `buffers` divide the user's `buffer=`."""
    table = tables[name]
    if code == -errno.ENOSPC:
        need = table.slots + deficit
        most = table.batch_rows_max
        # Tables share buffer= in proportion to their largest batches, rounded down.
        several = len(tables) > 1
        whole = sum((each.slots + several) * each.row_bytes for each in tables.values())
        a_slot = buffers * whole / table.slots
        any_batch = f" ({least_text(ceil(most * a_slot))} holds any batch)" if most else ""
        give = f'give it at least buffer="{least_text(ceil(need * a_slot))}"'
        if buffers > 1:
            give += f" for all {buffers} ranks of this host"
        raise ConfigError(
            f"the feature buffer holds {table.slots:,} rows of {name!r} "
            f"({format_size(table.slots * table.row_bytes)}), but a batch needs {need:,}: "
            f"{give}{any_batch}, or a smaller batch_size or num_neighbors"
        )
    if code == -errno.ERANGE:
        raise IndexError(f"a row id of {name!r} is out of range: check neighbor_sampler=")
    check(code, "admission")
