"""The line before the gate: batches in the order of their admission, some of them as sweeps.

A sweep is batches that are admitted together as long as the buffer can hold them together, so that
what they miss is read in one sorted pass. It is only a wish: it may be cut down to single batches,
but nobody ever overtakes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gnndrive.common.records import Int64Array


@dataclass(eq=False)
class Sweep:
    """Batches to be admitted together.

    Attributes:
        together: so many of them, counted from the first in line, are tried at once.
        rows: what the gate was asked for last, their rows joined by table, or None.
        awaited: table → how many slots must be available for another try to be worth it.
    """

    together: int
    rows: dict[str, Int64Array] | None = None
    awaited: dict[str, int] = field(default_factory=dict)

    def try_anew(self, together: int | None = None) -> None:
        """What was found out of its batches together holds no longer."""
        self.together = together or self.together
        self.rows = None
        self.awaited = {}


@dataclass(eq=False)
class Ticket:
    """A batch's place in the line.

    Attributes:
        index: the batch's index if it was foreseen, else None.
        rows: table name → row ids, int64 [n].
        granted: the batch's lease, once it is admitted.
        sweep: what it belongs to, alone or with others.
        arrived: whether it is no longer among the batches that are only foreseen.
    """

    index: int | None
    rows: Mapping[str, Int64Array]
    granted: asyncio.Future[Any]
    sweep: Sweep
    arrived: bool = False


class AdmissionQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def join(self, batches: Sequence[tuple[int | None, Mapping[str, Int64Array]]]) -> list[Ticket]:
        """Add the batches of one sweep, (index or None, rows by table) each."""
        loop, sweep = asyncio.get_running_loop(), Sweep(len(batches))
        tickets = [Ticket(index, rows, loop.create_future(), sweep) for index, rows in batches]
        self._tickets.extend(tickets)
        return tickets

    def head(self) -> list[Ticket]:
        """The tickets that are tried together now; none if nobody waits."""
        while self._tickets and self._tickets[0].granted.done():  # cancelled while it waited
            self._tickets.popleft().sweep.try_anew()
        tickets: list[Ticket] = []
        if self._tickets:
            sweep = self._tickets[0].sweep
            for ticket in islice(self._tickets, sweep.together):
                if ticket.sweep is not sweep:
                    break
                if ticket.granted.done():  # cancelled: what was joined holds its rows too
                    sweep.try_anew()
                    break
                tickets.append(ticket)
        return tickets

    def pop(self) -> Ticket:
        """Take the first ticket out."""
        return self._tickets.popleft()

    def remove(self, ticket: Ticket) -> None:
        """Take one out that goes away."""
        self._tickets.remove(ticket)
        ticket.sweep.try_anew()

    def fail(self, error: BaseException) -> None:
        """Tell everybody in it, and empty it."""
        while self._tickets:
            ticket = self._tickets.popleft()
            if not ticket.granted.done():
                ticket.granted.set_exception(error)
