"""`RemoteBuffer` and `RemoteLease`: the host service's feature buffer, as a rank sees it.

They stand where `FeatureBuffer` and `Lease` stand. A call writes row ids into the rank's arena and
sends a message; the answer, that a batch's rows are valid, resolves its ticket. The rank gathers by
itself, out of slots that it can only read. All methods run in the rank's event loop, except
`gather`.

A batch is announced when its place in the arena is free. The service gives a rank's batches their
turns in the order in which they join, so a batch without a place holds back those that join behind
it. It gets the next free place, and the last one is never given to a batch that has not joined. So
a place for one batch is enough; with fewer than the queues hold, the service knows of batches late.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices.base import Fence, SlotMemory
from gnndrive.common.errors import ConfigError, PeerError
from gnndrive.common.padding import Parts, padded
from gnndrive.common.records import Int64Array
from gnndrive.host.arena import COUNTERS, Arena
from gnndrive.host.messages import Kind, Message, ProtocolError, error_from


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A table of the service's feature buffer; from its slots this process can only gather. None:
    it cannot, because they are in another process (`gnndrive.exchange`)."""

    row_bytes: int
    memory: SlotMemory | None = None


@dataclass(eq=False)
class RemoteTicket:
    """A rank's batch, from its announcement to its release; `epoch` and `step` as in `Message`.

    Attributes:
        rows: table name → row ids, int64 [n].
        place: its place in the arena; None: none is free yet.
        granted: gets the lease; None: the batch has not joined.
    """

    epoch: int
    step: int
    rows: Mapping[str, Int64Array]
    place: int | None = None
    granted: asyncio.Future[RemoteLease] | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(epoch, step)."""
        return self.epoch, self.step


class RemoteBuffer:
    """The service's feature buffer; see `pipeline.epoch.BatchBuffer`. `tables` are in the order of
    the service's; `send` sends it a message and never waits."""

    missing_share = 1.0
    valid_when_granted = True
    loading = True  # the service decides how batches are read together

    def __init__(
        self, tables: Mapping[str, RemoteTable], arena: Arena, send: Callable[[Message], object]
    ) -> None:
        self.tables, self._arena, self.send = dict(tables), arena, send
        self._counters = arena.counters
        self._free = list(range(arena.shape.places))
        self._batches: dict[tuple[int, int], RemoteTicket] = {}
        self._without_place: dict[tuple[int, int], RemoteTicket] = {}
        self._joining: deque[RemoteTicket] = deque()  # the service has not been told yet
        self._epoch = -1
        self._on_passed: Callable[[int], object] | None = None  # while an epoch runs
        self._asked_for, self._elsewhere = (-1, 0), False
        self._away: dict[int, Message] = {}  # what ranks have said that wait elsewhere
        self.broken: BaseException | None = None
        self._asked: list[asyncio.Future[int]] = []
        self.windows = RemoteWindows(self)

    # ---- epochs ----

    @property
    def epoch(self) -> int:
        """The number of the rank's epoch, which counts those of this buffer."""
        return self._epoch

    def begin_epoch(self) -> None:
        """The rank begins its next epoch."""
        self._epoch += 1
        self._asked_for, self._elsewhere = (-1, 0), False

    def end_epoch(self) -> None:
        """The rank has ended its epoch; the others need not wait for its turns. Batches are left
        only if the buffer has broken."""
        for ticket in list(self._without_place.values()):
            self._give_up(ticket)
        self._on_passed = None
        self.send(Message(Kind.END, self._epoch))

    # ---- users who wait elsewhere ----

    def on_passed(self, function: Callable[[int], object]) -> None:
        """While this epoch runs: call the function, which has to end it, with the rank whose user
        goes on beyond the batch at which this rank's user has left it; see `say_away`."""
        self._on_passed = function

    def leave_epoch(self) -> None:
        """The user is about to wait elsewhere, until `ask_for`; any thread may call this, and then
        has `say_away` called."""
        self._elsewhere = True

    def say_away(self, taken: int, exchange: int) -> None:
        """The user has taken `taken` batches of this epoch, and will wait for the other ranks in
        another loader, in the ranks' exchange number `exchange`.

        Ranks that take as many before they come there need no turn of this one. A rank that asks
        for more may wait for one, and this rank waits for that rank: a deadlock, unless this rank
        gives up its turns.
        """
        if self._on_passed is not None:
            self.send(Message(Kind.AWAY, self._epoch, taken, exchange))

    def ask_for(self, step: int, exchanges: int) -> bool:
        """The user asks for batch `step`, after `exchanges` exchanges; any thread may call this.
        Returns whether `say_passed` is to be called."""
        self._asked_for, self._elsewhere = (step, exchanges), False
        return bool(self._away)

    def say_passed(self) -> None:
        """Tell ranks that wait elsewhere if this one's user passes the batches that they took."""
        step, exchanges = self._asked_for
        for rank, away in list(self._away.items()):
            if away.epoch < self._epoch or away.a <= exchanges:  # it need not wait any more
                del self._away[rank]
            elif away.epoch == self._epoch and away.step <= step:
                del self._away[rank]
                self.send(Message(Kind.PASSED, self._epoch, step, rank))

    # ---- what the stages call ----

    def row_bytes(self, table: str) -> int:
        """Bytes of a row of a table."""
        return self.tables[table].row_bytes

    def announce(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """See `BatchBuffer.announce`; the rows enter the arena as soon as a place is free.
        ConfigError: the batch has more rows than a place has room for."""
        for name, most in zip(self.tables, self._arena.shape.rows_max, strict=True):
            if len(rows[name]) > most:
                raise ConfigError(
                    f"a batch has {len(rows[name]):,} rows of {name!r}, but the host service was "
                    f"told that no batch has over {most:,}: give the loader host_service=False, "
                    "or a smaller batch_size or num_neighbors"
                )
        ticket = RemoteTicket(self._epoch, index, rows)
        self._batches[ticket.key] = self._without_place[ticket.key] = ticket
        self._go_on()

    def withdraw(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """See `BatchBuffer.withdraw`."""
        self._give_up(self._batches[self._epoch, index])

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        """See `BatchBuffer.fits_together`; the service joins the batches of all ranks."""
        return len(batches) < 2

    def join(
        self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]
    ) -> Sequence[RemoteTicket]:
        """See `BatchBuffer.join`; raises PeerError if another rank has died, HostServiceError if
        the service has ended or failed."""
        if self.broken is not None:
            raise self.broken
        tickets = [self._batches[self._epoch, index] for index, _ in batches]
        for ticket in tickets:
            ticket.granted = asyncio.get_running_loop().create_future()
        self._joining.extend(tickets)
        self._go_on()
        return tickets

    async def granted(self, ticket: RemoteTicket) -> RemoteLease:
        """See `BatchBuffer.granted`; all rows are valid when this returns. Also raises as
        `join`."""
        assert ticket.granted is not None
        try:
            return await ticket.granted
        except asyncio.CancelledError:
            self.leave(ticket)
            raise

    def leave(self, ticket: RemoteTicket) -> None:
        """See `BatchBuffer.leave`."""
        granted = ticket.granted
        if granted is not None and granted.done() and not granted.cancelled():
            if granted.exception() is None and not granted.result().released:
                granted.result().release()
            return
        if granted is not None:
            granted.cancel()
        if self._batches.get(ticket.key) is ticket:
            self._give_up(ticket)

    def fail(self, error: BaseException) -> None:
        """See `BatchBuffer.fail`."""
        self.broken = self.broken or error
        for ticket in self._batches.values():
            if ticket.granted is not None and not ticket.granted.done():
                ticket.granted.set_exception(self.broken)
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(self.broken)
        self.windows.fail(self.broken)

    async def drain(self) -> None:
        """See `BatchBuffer.drain`; the service waits for its reads."""

    def released(self, lease: RemoteLease) -> None:
        """A lease's rows have been gathered: its place is free, and the service is told."""
        self._send(Kind.RELEASE, lease.ticket)
        self._forget(lease.ticket)

    # ---- places ----

    def _go_on(self) -> None:
        """Announce batches and let them join, as far as there are places for them."""
        if self.broken is not None:
            return
        while self._joining and (self._joining[0].place is not None or self._free):
            ticket = self._joining.popleft()
            if ticket.place is None:
                self._announce_now(ticket)
            self._send(Kind.JOIN, ticket)
        while self._without_place and len(self._free) > 1:
            self._announce_now(self._without_place[min(self._without_place)])

    def _announce_now(self, ticket: RemoteTicket) -> None:
        """Give a batch a free place and announce it to the service."""
        del self._without_place[ticket.key]
        ticket.place = self._free.pop()
        self._arena.write_rows(ticket.place, [ticket.rows[name] for name in self.tables])
        self._send(Kind.ANNOUNCE, ticket, ticket.place)

    def _give_up(self, ticket: RemoteTicket) -> None:
        """Give up a batch; the service says when its place is free."""
        if ticket in self._joining:
            self._joining.remove(ticket)
        if ticket.place is not None:
            self._send(Kind.LEAVE, ticket)
        else:
            del self._without_place[ticket.key], self._batches[ticket.key]
        self._go_on()

    def _forget(self, ticket: RemoteTicket) -> None:
        del self._batches[ticket.key]
        assert ticket.place is not None
        self._free.append(ticket.place)
        self._go_on()

    @property
    def idle(self) -> bool:
        """Whether no batch is announced here or with the service, and every place is free."""
        return not self._batches and len(self._free) == self._arena.shape.places

    def _send(self, kind: Kind, ticket: RemoteTicket, a: int = 0) -> None:
        self.send(Message(kind, ticket.epoch, ticket.step, a))

    # ---- what the service says ----

    def receive(self, message: Message) -> None:
        """Take a message of the service; ProtocolError: it makes no sense."""
        match message.kind:
            case Kind.PEER_LOST:
                self.fail(PeerError(message.a))
            case Kind.BROKEN:
                self.fail(error_from(message.text))
            case Kind.AWAITED:
                if self._asked:
                    asked = self._asked.pop(0)
                    if not asked.done():
                        asked.set_result(message.a)
            case Kind.AWAY:
                self._away[message.b] = message
                self.say_passed()
            case Kind.PASSED:
                # If the user asks again meanwhile, no other rank waits for this one's turns.
                if self._on_passed is not None and message.epoch == self._epoch and self._elsewhere:
                    self._on_passed(message.b)
            case Kind.OPENED:
                self.windows.opened(message)
            case Kind.READY | Kind.FAILED | Kind.LEFT:
                ticket = self._batches.get((message.epoch, message.step))
                if ticket is None or ticket.place is None:
                    raise ProtocolError(
                        f"{message.kind.name} of batch {message.step} of epoch {message.epoch}, "
                        "which was not asked for"
                    )
                self._receive_answer(ticket, message)

    def _receive_answer(self, ticket: RemoteTicket, message: Message) -> None:
        granted = ticket.granted
        waits = granted is not None and not granted.done()
        if message.kind is Kind.READY:
            if waits:  # else it has been given up, and LEFT will follow
                assert granted is not None
                granted.set_result(RemoteLease(self, ticket, self._arena))
            return
        self._forget(ticket)
        if message.kind is Kind.FAILED and waits:
            assert granted is not None
            granted.set_exception(error_from(message.text))

    async def awaited(self) -> int:
        """Ask which rank's turn is the next one; −1: none is waited for. Raises as `join`."""
        if self.broken is not None:
            raise self.broken
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self.send(Message(Kind.ASK))
        return await asked

    def stats(self) -> Counter[str]:
        """The service's counters, for all ranks of this host together."""
        counted = zip(COUNTERS, self._counters, strict=True)
        return Counter({name: int(count) for name, count in counted})

    def close(self) -> None:
        """Use the arena and the graphs of windows no more, so that their memory can be freed."""
        self._counters = self._counters.copy()
        self.windows.places = ()
        del self._arena


@dataclass(frozen=True, slots=True)
class SharedGraph:
    """Where a window's graph is that the service has loaded: its memory, and the graph's sizes."""

    memory: npt.NDArray[np.uint8]
    sizes: Sequence[int]


class RemoteWindows:
    """The windows that the service holds for this rank and others; see `HeldWindows`. `places`: the
    memories of their graphs; (): each rank loads them."""

    def __init__(self, buffer: RemoteBuffer) -> None:
        self._buffer = buffer
        self._opening: dict[tuple[int, int], asyncio.Future[SharedGraph | None]] = {}
        self.places: Sequence[npt.NDArray[np.uint8]] = ()

    @property
    def has_graphs(self) -> bool:
        """Whether the service loads the graphs of windows, too."""
        return bool(self.places)

    def open(
        self, key: tuple[int, ...], rows: Iterable[range]
    ) -> asyncio.Future[SharedGraph | None]:
        """See `HeldWindows.open`; the result is the window's graph, None if the rank has to load
        it. If the service fails or cannot load it, it has an error."""
        (number,) = key
        buffer, epoch = self._buffer, self._buffer.epoch
        opening: asyncio.Future[SharedGraph | None] = asyncio.get_running_loop().create_future()
        self._opening[epoch, number] = opening
        if buffer.broken is not None:
            self.fail(buffer.broken)
            return opening
        for each in rows:
            buffer.send(Message(Kind.WINDOW_ROWS, epoch, number, each.start, each.stop))
        buffer.send(Message(Kind.OPEN, epoch, number))
        return opening

    def end(self, key: tuple[int, ...]) -> None:
        """See `HeldWindows.end`; once for each window, when none samples in its graph."""
        (number,) = key
        self._opening.pop((self._buffer.epoch, number), None)
        self._buffer.send(Message(Kind.SHUT, self._buffer.epoch, number))

    async def run(self) -> None:
        """See `HeldWindows.run`; the service leases the rows."""

    def opened(self, message: Message) -> None:
        """The service has opened a window, which this rank may have ended meanwhile."""
        opening = self._opening.pop((message.epoch, message.step), None)
        if opening is None or opening.done():
            return
        match message.text:
            case {"place": int(place), "sizes": list(sizes)} if 0 <= place < len(self.places):
                opening.set_result(SharedGraph(self.places[place], sizes))
            case text if text:
                _fail(opening, error_from(text))
            case _:
                opening.set_result(None)

    def fail(self, error: BaseException) -> None:
        """No window will be opened any more."""
        while self._opening:
            _, opening = self._opening.popitem()
            if not opening.done():
                _fail(opening, error)


def _fail(opening: asyncio.Future[SharedGraph | None], error: BaseException) -> None:
    opening.set_exception(error)
    opening.exception()  # retrieved, because perhaps no batch waits for it


class RemoteLease:
    """Holds the slots of one batch's rows, all of them valid, until `release`."""

    def __init__(self, buffer: RemoteBuffer, ticket: RemoteTicket, arena: Arena) -> None:
        assert ticket.place is not None
        self._buffer, self.ticket = buffer, ticket
        self._alias = {
            name: arena.alias(ticket.place, number, len(ticket.rows[name]))
            for number, name in enumerate(buffer.tables)
        }
        self._numbers = {name: number for number, name in enumerate(buffer.tables)}
        self._loop = asyncio.get_running_loop()
        self._fences: list[Fence] = []
        self.released = False

    async def ready(self) -> None:
        """See `BatchLease.ready`; they are."""

    def failures(self) -> dict[str, tuple[int, Exception]]:
        """See `BatchLease.failures`; there are none."""
        return {}

    def gather(
        self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...], parts: Parts = ()
    ) -> torch.Tensor:
        """See `BatchLease.gather`."""
        number, count = self._numbers[table], len(self._alias[table])

        def copied_from(begin: int) -> None:
            self._loop.call_soon_threadsafe(self._release_tail, number, min(begin, count))

        memory = self._buffer.tables[table].memory
        assert memory is not None
        alias = padded(self._alias[table], parts)
        rows, fence = memory.gather(alias, dtype, row_shape, copied_from)
        self._fences.append(fence)
        return rows

    def _release_tail(self, number: int, begin: int) -> None:
        if not self.released:
            ticket = self.ticket
            tail = Message(Kind.RELEASE_TAIL, ticket.epoch, ticket.step, number, begin)
            self._buffer.send(tail)

    async def gathered(self) -> None:
        """See `BatchLease.gathered`."""
        for fence in self._fences:
            await fence()

    def release(self) -> None:
        """See `BatchLease.release`."""
        assert not self.released, "this lease was released before"
        self.released = True
        self._buffer.released(self)
