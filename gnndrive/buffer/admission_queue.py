"""The admission queue: batches that wait for slots, in the order in which they will be admitted.

The feature buffer adds batches and tries to admit those at the head of the queue. Batches may join
as a sweep: they are admitted together if the buffer can hold them together, so that the rows they
miss are read in one sorted pass. If it cannot, fewer of them are tried together, down to one. No
batch is ever admitted before one that joined earlier (rule 3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gnndrive.buffer.row_table import Rows
from gnndrive.common.records import Codes, Int64Array


@dataclass(eq=False)
class Sweep:
    """Batches to be admitted together.

    Attributes:
        together: how many batches, from the first one, the next try admits.
        rows: table name → their rows one behind the other, int64 [n], as tried last; None: they are
            to be joined anew.
        codes: table name → the codes of these rows, uint16 [n]; empty: none came.
        slots_needed: table name → slots that must be available before another try can succeed.
    """

    together: int
    rows: dict[str, Int64Array] | None = None
    codes: dict[str, Codes] = field(default_factory=dict)
    slots_needed: dict[str, int] = field(default_factory=dict)

    def try_anew(self, together: int | None = None) -> None:
        """Forget the last try, because the batches that are tried together have changed."""
        self.together = together or self.together
        self.rows = None
        self.slots_needed = {}


@dataclass(eq=False)
class Ticket:
    """A batch's place in the admission queue.

    Attributes:
        index: the batch's index if it was announced, else None.
        granted: gets the batch's lease when it is admitted.
        arrived: whether its announcement was withdrawn because admission was tried.
    """

    index: int | None
    rows: Rows
    granted: asyncio.Future[Any]
    sweep: Sweep
    arrived: bool = False


class AdmissionQueue:
    """Tickets in the order in which they joined."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def join(self, batches: Sequence[tuple[int | None, Rows]]) -> list[Ticket]:
        """Add the batches of one sweep, each as (index or None, rows by table)."""
        loop, sweep = asyncio.get_running_loop(), Sweep(len(batches))
        tickets = [Ticket(index, rows, loop.create_future(), sweep) for index, rows in batches]
        self._tickets.extend(tickets)
        return tickets

    def head(self) -> list[Ticket]:
        """The tickets that are tried together now; empty if none waits."""
        while self._tickets and self._tickets[0].granted.done():  # cancelled while waiting
            self._tickets.popleft().sweep.try_anew()
        tickets: list[Ticket] = []
        if self._tickets:
            sweep = self._tickets[0].sweep
            for ticket in islice(self._tickets, sweep.together):
                if ticket.sweep is not sweep:
                    break
                if ticket.granted.done():  # cancelled: `sweep.rows` has its rows too
                    sweep.try_anew()
                    break
                tickets.append(ticket)
        return tickets

    def pop(self) -> Ticket:
        """Remove and return the first ticket."""
        return self._tickets.popleft()

    def remove(self, ticket: Ticket) -> None:
        """Remove a ticket whose batch is given up."""
        self._tickets.remove(ticket)
        ticket.sweep.try_anew()

    def fail(self, error: BaseException) -> None:
        """Give every ticket the error and empty the queue."""
        while self._tickets:
            ticket = self._tickets.popleft()
            if not ticket.granted.done():
                ticket.granted.set_exception(error)
