"""The feature buffer and its leases (GNNDrive §4.2), for one or several tables behind one gate.

A `Lease` is the only way to touch rows. `FeatureBuffer.lease` draws a ticket in the step that calls
it; the gate admits batches, first come first served, when the rows they miss fit into free and
standby slots, what is larger than a part by parts (rule 3). With the grant, in the same step, the
missing rows' reads are enqueued: from then on they belong to the buffer and end whatever becomes of
the batch (rule 5). A row becomes valid only after the device's commit of all of it (rule 7).

The books are C (`native/buffer.c`); Python sees batches and stretches, never rows. All of it runs
in one event loop.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from gnndrive.buffer.admission_queue import AdmissionQueue, Sweep, Ticket
from gnndrive.buffer.fetch_queue import FetchQueue
from gnndrive.buffer.lease import Lease
from gnndrive.buffer.partial_admission import PartialAdmission
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, lib
from gnndrive.common.records import Int64Array

# A part takes ten milliseconds to admit and a hundred to read; the first of a sweep are smaller.
# Smaller ones begin sooner, but each call into the C core costs a switch interval beside a thread
# that burns Python.
PART_ROWS = 1 << 17


class FeatureBuffer:
    """A gate over tables: admits batches and watches over their loads.

    Args:
        tables: by name; a lease names rows of some of them.
        part_rows: what is larger than this is admitted by parts of about so many missing rows.

    Attributes:
        tables: the same.
        missing_share: of the rows of the sweep that was admitted last, how many were not there.
        retired: see `retire`.
        watchers: leases that wait until their rows have settled.
    """

    def __init__(self, tables: Mapping[str, SlotTable], part_rows: int = PART_ROWS) -> None:
        self.tables = dict(tables)
        self._part_rows = part_rows
        self._queue = AdmissionQueue()
        self._begun: tuple[list[Ticket], PartialAdmission] | None = (
            None  # the head of the line, in part
        )
        self.watchers: dict[Lease, None] = {}
        self._fetches = FetchQueue(self._rows_settled, self.fail)
        self._broken: BaseException | None = None
        self.retired = False
        self._missing = 0  # rows that were loaded for the sweep at the head of the line
        self.missing_share = 1.0

    # ---- what is known of batches to come ----

    def announce(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """Batch `index` is sampled and will ask for `rows`: a policy that looks ahead keeps them
        longer. Whoever says so joins the line with that index, or takes it back with `withdraw`."""
        for name, ids in rows.items():
            self.tables[name].announce(index, ids)

    def withdraw(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """Batch `index`, which was foreseen, will not come."""
        if self.retired:
            return
        for name, ids in rows.items():
            self.tables[name].withdraw(index, ids)
            self.tables[name].rekey(ids)

    def retire(self) -> None:
        """No batch will come but those that have their rows: nobody is admitted any more, and what
        a batch that is gone wanted, or its lease held, is not worth the time to tell the books."""
        self.retired = True

    # ---- leases ----

    def join(self, batches: Sequence[tuple[int | None, Mapping[str, Int64Array]]]) -> list[Ticket]:
        """Join the line now with the batches of a sweep; the order of calls is the order of
        admission.

        Args:
            batches: (index if it was foreseen, table name → row ids, int64 [n], duplicates
                allowed) each. They are admitted together if the buffer can hold them together, and
                what they miss is read in one sorted pass.

        Returns:
            A ticket each, for `granted` or `leave`.
        """
        self.raise_if_broken()
        tickets = self._queue.join(batches)
        self.advance()
        return tickets

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        """Whether the buffer, with nobody else in it, can hold these batches, (index, table name →
        row ids) each, together."""
        return all(
            table.fits_together([(index, rows[name]) for index, rows in batches if name in rows])
            for name, table in self.tables.items()
        )

    async def granted(self, ticket: Ticket) -> Lease:
        """The lease, when the batch is admitted.

        Raises:
            ConfigError: the batch has more distinct rows than the buffer has slots; names the least
                that works.
            IndexError: a row id is out of range.
        """
        try:
            lease: Lease = await ticket.granted
            return lease
        except asyncio.CancelledError:
            self.leave(ticket)
            raise

    async def lease(self, rows: Mapping[str, Int64Array]) -> Lease:
        """Join the line with one batch and wait; see `join` and `granted`."""
        return await self.granted(self.join([(None, rows)])[0])

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in the line, or the lease that was granted for it (rule 10)."""
        if self._begun is not None and ticket in self._begun[0]:
            ticket.granted.cancel()
            if all(one.granted.done() for one in self._begun[0]):
                self._break_off()
                self.advance()
        elif ticket in self._queue:
            self._queue.remove(ticket)
            self._will_not_come(ticket)
            self.advance()  # the next in line may fit where this one did not
        elif ticket.granted.cancelled():
            self._will_not_come(ticket)
        elif ticket.granted.exception() is None:
            ticket.granted.result().release()

    def advance(self) -> None:
        """Try the head of the line again: called at every gain of a slot (rule 4)."""
        if self.retired:
            return
        while tickets := self._begun[0] if self._begun is not None else self._queue.head():
            try:
                leases = self._admit(tickets)
            except Exception as error:
                self._break_off()
                # Too large together, or one of them is at fault: fewer are tried next.
                tickets[0].sweep.try_anew(together=max(len(tickets) - 1, 1))
                if len(tickets) == 1 and not tickets[0].granted.done():
                    self._will_not_come(self._queue.pop())
                    tickets[0].granted.set_exception(error)
                continue
            if leases is None:
                return
            for ticket, lease in [(self._queue.pop(), lease) for lease in leases]:
                if ticket.granted.done():  # it went away when a part was admitted
                    lease.release()
                else:
                    ticket.granted.set_result(lease)

    def _admit(self, tickets: list[Ticket]) -> list[Lease] | None:
        """Leases for all of them; None: not now. Raises what is wrong with the first."""
        if self._begun is not None:
            return self._admit_parts(*self._begun)
        sweep = tickets[0].sweep
        for name, worth in sweep.awaited.items():
            if self.tables[name].available < worth:
                return None
        self._arrive(tickets)
        if sweep.rows is None:
            sweep.rows = {
                name: self.tables[name].joined([ticket.rows[name] for ticket in tickets])
                for name in tickets[0].rows
            }
        if any(len(rows) > self._part_rows for rows in sweep.rows.values()):
            return self._begin(tickets)
        if len(sweep.rows) > 1:  # all or none over all tables: look before the first is changed
            found = {name: self.tables[name].probe(rows) for name, rows in sweep.rows.items()}
            fits = [self._fits(sweep, name, *one) for name, one in found.items()]
            if not all(fits):
                return None
        holds: dict[str, SlotHold] = {}
        try:
            for name, rows in sweep.rows.items():
                code, found, hold = self.tables[name].admit(rows)
                if not self._fits(sweep, name, code, found):
                    assert not holds, "of several tables each has been looked at"
                    return None
                assert hold is not None
                holds[name] = hold
            sweep.try_anew()  # for what is left of it
            for hold in holds.values():
                self._load(hold)
            return self._granted(tickets, holds)
        except Exception:
            for hold in holds.values():
                hold.fail_unasked()
                hold.table.release(hold.alias)
            raise

    def _begin(self, tickets: list[Ticket]) -> list[Lease] | None:
        """Admit by parts what is more than one."""
        sweep = tickets[0].sweep
        assert sweep.rows is not None
        admission = PartialAdmission(self.tables, sweep.rows, self._part_rows, self._refuse)
        self._begun = tickets, admission
        sweep.try_anew()
        return self._admit_parts(tickets, admission)

    def _admit_parts(
        self, tickets: list[Ticket], admission: PartialAdmission
    ) -> list[Lease] | None:
        """Admit and load part after part as long as there are slots."""
        while admission.left:
            hold = admission.admit()
            if hold is None:
                return None
            try:
                self._load(hold)
            except Exception:
                hold.fail_unasked()
                raise
        leases = self._granted(tickets, admission.holds())
        self._begun = None
        return leases

    def _break_off(self) -> None:
        """Give back what was admitted by parts; who went away meanwhile leaves the line."""
        self._missing = 0
        if self._begun is None:
            return
        tickets, admission = self._begun
        self._begun = None
        admission.give_back()
        for ticket in tickets:
            if ticket.granted.done():
                self._queue.remove(ticket)

    def _will_not_come(self, ticket: Ticket) -> None:
        """A batch that was foreseen leaves without its rows having been held, which would have set
        their keys: what it wants is kept no longer."""
        if ticket.index is not None:
            self.withdraw(ticket.index, ticket.rows)

    def _arrive(self, tickets: list[Ticket]) -> None:
        """From now on what they want is what other batches are compared with, not a forecast."""
        for ticket in tickets:
            if ticket.index is not None and not ticket.arrived:
                for name, ids in ticket.rows.items():
                    self.tables[name].withdraw(ticket.index, ids)
            ticket.arrived = True

    def _granted(self, tickets: list[Ticket], holds: dict[str, SlotHold]) -> list[Lease]:
        """A lease for each, of what they hold together."""
        asked = sum(len(ids) for ticket in tickets for ids in ticket.rows.values())
        self.missing_share, self._missing = self._missing / max(asked, 1), 0
        split = {
            name: hold.split([len(ticket.rows[name]) for ticket in tickets])
            for name, hold in holds.items()
        }
        return [
            Lease(self, {name: parts[place] for name, parts in split.items()})
            for place in range(len(tickets))
        ]

    def _fits(self, sweep: Sweep, name: str, code: int, found: Any) -> bool:
        if code == -errno.EAGAIN:
            # Nobody is admitted before these batches, so their deficit shrinks only as slots become
            # available.
            sweep.awaited = {name: self.tables[name].available + int(found.deficit)}
            return False
        if code:
            self._refuse(name, code, found)
        return True

    def _refuse(self, name: str, code: int, found: Any) -> None:
        """Raise what is wrong with rows of the table `name`."""
        table = self.tables[name]
        if code == -errno.ENOSPC:
            need = table.slots + int(found.deficit)
            most = table.batch_rows_max
            # Several tables share it in proportion to their largest batches, rounded down.
            several = len(self.tables) > 1
            whole = sum((each.slots + several) * each.row_bytes for each in self.tables.values())
            a_slot = whole / table.slots
            any_batch = f" ({_size(most * a_slot)} holds any batch)" if most else ""
            raise ConfigError(
                f"the feature buffer holds {table.slots:,} rows of {name!r} "
                f"({_size(table.slots * table.row_bytes)}), but a batch needs {need:,}: "
                f'give it at least buffer="{_size(need * a_slot)}"{any_batch}, '
                "or a smaller batch_size or num_neighbors"
            )
        if code == -errno.ERANGE:
            raise IndexError(f"a row id of table {name!r} is out of range")
        check(code, "admission")

    # ---- loads ----

    def _load(self, hold: SlotHold) -> None:
        assert hold.loads is not None
        self._missing += len(hold.loads[0])
        self._fetches.begin(hold)

    def _rows_settled(self) -> None:
        for lease in list(self.watchers):
            lease.wake_if_settled()
        self.advance()

    def fail(self, error: BaseException) -> None:
        """An engine or device failed in a way that leaves slots loading for ever: everybody is
        told.
        """
        self._broken = self._broken or error
        for lease in list(self.watchers):
            lease.wake()
        self._break_off()
        self._queue.fail(error)

    def raise_if_broken(self) -> None:
        """Raise what broke the buffer, if anything did."""
        if self._broken is not None:
            raise self._broken

    # ---- the end ----

    async def drain(self) -> None:
        """Wait until no read is under way; those not yet started fail with ECANCELED."""
        await self._fetches.drain()

    @property
    def loading(self) -> bool:
        """Whether reads are under way."""
        return bool(self._fetches)

    @property
    def in_parts(self) -> bool:
        """Whether the head of the line was admitted in part and waits for slots for the rest."""
        return self._begun is not None

    @property
    def idle(self) -> bool:
        """Whether nothing is loading, waited for or in line; ready leases may be held."""
        return not self._fetches and not self._queue and not self.watchers

    def stats(self) -> Counter[str]:
        """What the books of all tables counted together, see `SlotTable.stats`."""
        counted: Counter[str] = Counter()
        for table in self.tables.values():
            counted.update(table.stats())
        return counted

    def verify(self) -> None:
        """Check every invariant of the books.

        Raises:
            AssertionError: one is broken; its number is in native/verify.c.
        """
        for name, table in self.tables.items():
            code = lib.gd_buffer_verify(table.handle)
            if code:
                raise AssertionError(
                    f"the feature buffer's books of {name!r} break invariant {code}"
                )

    def close(self) -> None:
        """Free the slots' memory. Only after `drain` (rule 13).

        Raises:
            RuntimeError: reads are still under way.
        """
        if self._fetches:
            raise RuntimeError("drain the feature buffer before closing it")
        for table in self.tables.values():
            table.memory.close()


def _size(count: float) -> str:
    """Bytes as a budget to give: whole megabytes (10⁶) or, below ten, kilobytes, rounded up."""
    unit, name = (1_000_000, "MB") if count >= 10_000_000 else (1_000, "KB")
    return f"{ceil(count / unit)}{name}"
