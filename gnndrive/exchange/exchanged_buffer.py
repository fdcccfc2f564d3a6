"""`ExchangedBuffer` and `ExchangedLease`: the feature buffers of all ranks, as one rank sees them.

They stand where `FeatureBuffer` and `Lease` stand. For each owner there is what a rank of a host
service has, a `RemoteBuffer`; a batch is asked of all of them, also of those that have none of its
rows, because a turn that a rank does not take holds up the others. The rows land in the batch's own
memory, which stays until every owner has answered (law 3): host memory, or that of a device which
copies rows out of owners' slots itself (`pulled_rows.py`). All methods run in the rank's event
loop, except `gather`, `places_of` and `land`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.feature_buffer import add_later
from gnndrive.common.array_pool import Allocate, empty_tensor
from gnndrive.common.ffi import copy_rows, lib
from gnndrive.common.owners import Owners
from gnndrive.common.padding import Parts
from gnndrive.common.records import Codes, Int32Array, Int64Array, NextUses
from gnndrive.exchange.remote_rows import Held, RemoteRows
from gnndrive.exchange.share import NOTHING, Asked
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.group import STEP_BITS
from gnndrive.host.messages import Kind, Message
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteTable, RemoteTicket
from gnndrive.pipeline.workers import Workers

Key: TypeAlias = tuple[int, int]
Send: TypeAlias = Callable[[Message, Asked], object]
"""Sends an owner a message, with what comes with ANNOUNCE and FORESEE; never waits."""
NO_PLACES: Int32Array = np.empty(0, np.int32)
ANSWERS = (Kind.READY, Kind.FAILED, Kind.LEFT)


@dataclass(frozen=True, slots=True)
class Arriving:
    """Where rows of a table go that an owner sends: `places`, int32 [n], of `rows`, uint8 [all of
    the batch, row_bytes]; `pulled`: those are on the device, which copies them."""

    rows: torch.Tensor
    places: Int32Array
    pulled: bool = False

    def land(self, begin: int, memory: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        """Copy those from number `begin` on, which lie in memory."""
        row_bytes = self.rows.shape[1]
        count = len(memory) // max(row_bytes, 1)
        places = self.places[begin : begin + count]
        copy_rows(memory.reshape(count, row_bytes), np.arange(count), places, self.rows.numpy())


@dataclass(frozen=True, slots=True)
class BatchRows:
    """A batch's rows of a table, `all`, uint8 [n, row_bytes]; if these are on a device, row i of
    `here` arrives in host memory and is to be row `places[i]` of them."""

    all: torch.Tensor
    here: torch.Tensor | None
    places: Int32Array


@dataclass(eq=False)
class ExchangedTicket:
    """A batch, from its announcement to its lease.

    Attributes:
        places: for each owner, where its rows of each table are among the batch's.
        counts: how many rows of each table it has.
        owned: the ticket at each owner, once it has joined.
        needed, uses: its rows by table, and when they are needed next, if that is known.
        held: what it holds of rows that this rank has kept, by table, until it joins.
        rows: of each table, where its rows arrive, once it has joined.
        copying: copies the rows that were held; None: there are none.
        joining: joins it, once there is memory of the device; None: it has joined at once.
        left: whether it was given up.
        error: why it could not join.
    """

    key: Key
    places: list[list[Int32Array]]
    counts: list[int]
    owned: list[RemoteTicket]
    needed: Mapping[str, Int64Array]
    uses: Mapping[str, NextUses] | None
    held: Mapping[str, Held]
    rows: Sequence[BatchRows] = ()
    copying: asyncio.Task[None] | None = None
    joining: asyncio.Task[None] | None = None
    left: bool = False
    error: Exception | None = None


class ExchangedBuffer:
    """The feature buffers of all ranks; see `pipeline.epoch.BatchBuffer`.

    Args:
        owners: of each table's rows.
        row_bytes: of each table.
        shape: how many batches may be announced at once, and how large they can be.
        send: for each owner.
        empty: allocates the memory in which rows arrive.
        rank: which of the ranks this one is, for the codes of next uses.
        foreseen: see `Share`.
        device: gets a batch's rows.
        kept: for tables of which this rank keeps rows of others; not if they are `foreseen`.
        workers: one thread, which allocates memory of the device.

    Attributes:
        pulled: the owners out of whose slots the device copies rows; it may change while no batch
            has joined.
        epoch: the number of the newest one.
        taken: how many of its batches the user has got; infinity: all. 0 while it asks for one.
        blamed: because of which rank the user has got none, until it asks again; −1: of none.
    """

    taken: float = 0
    blamed = -1
    epoch = -1
    missing_share = 1.0
    valid_when_granted = True
    loading = True  # the owners decide how batches are read together

    def __init__(
        self, owners: Mapping[str, Owners], row_bytes: Mapping[str, int], shape: ArenaShape,
        send: Sequence[Send], empty: Allocate = np.empty, rank: int = 0,
        foreseen: Sequence[str] = (), device: Device | None = None,
        kept: Mapping[str, RemoteRows] | None = None, workers: Workers | None = None,
    ) -> None:  # fmt: skip
        self._workers, self._in_order = workers, asyncio.Lock()
        self._kept, self._copies = dict(kept or {}), set[asyncio.Task[None]]()
        self._owners, self._row_bytes, self._empty = owners, row_bytes, empty
        self._send_to, self._device = tuple(send), device
        self.pulled: Collection[int] = ()
        self._tickets: dict[int, ExchangedTicket] = {}  # announced, by the batch's index
        self._known: dict[int, ExchangedTicket] = {}  # those whose superbatches are known
        self._rank, self._foreseen, self._codes = rank, tuple(foreseen), np.empty(0, np.uint16)
        self._arriving: list[dict[Key, list[Arriving]]] = [{} for _ in send]
        self._not_copied: dict[Key, Exception] = {}  # why, by batch of this epoch
        tables = {name: RemoteTable(nbytes) for name, nbytes in row_bytes.items()}
        self.parts: list[RemoteBuffer] = []
        for owner, each in enumerate(send):
            arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
            self.parts.append(RemoteBuffer(tables, arena, partial(self._send, owner, each, arena)))

    # ---- epochs ----

    def begin_epoch(self) -> None:
        """The rank begins its next epoch."""
        self.epoch += 1
        self.taken, self.blamed = 0, -1
        self._not_copied.clear()
        if self._foreseen:  # the owner numbers the batches of all ranks (`Group`)
            first = (self.epoch << STEP_BITS) + self._rank
            codes = (np.arange(lib.GD_CODES) * len(self.parts) + first) % lib.GD_NO_CODE
            codes[lib.GD_NO_CODE] = lib.GD_NO_CODE
            self._codes = codes.astype(np.uint16)
        for part in self.parts:
            part.begin_epoch()

    def end_epoch(self) -> None:
        """The rank has ended its epoch; the others need not wait for its turns."""
        self._tickets.clear()
        self._known.clear()
        for part in self.parts:
            part.end_epoch()

    # Users who wait elsewhere; see `RemoteBuffer`. One owner passes on what ranks say of them.

    def on_passed(self, function: Callable[[int], object]) -> None:
        """See `RemoteBuffer.on_passed`."""
        self.parts[0].on_passed(function)

    def leave_epoch(self) -> None:
        """See `RemoteBuffer.leave_epoch`."""
        self.parts[0].leave_epoch()

    def say_away(self, taken: int, exchange: int) -> None:
        """See `RemoteBuffer.say_away`."""
        self.parts[0].say_away(taken, exchange)

    def ask_for(self, step: int, exchanges: int) -> bool:
        """See `RemoteBuffer.ask_for`."""
        return self.parts[0].ask_for(step, exchanges)

    def say_passed(self) -> None:
        """See `RemoteBuffer.say_passed`."""
        self.parts[0].say_passed()

    # ---- what the stages call ----

    def row_bytes(self, table: str) -> int:
        """Bytes of a row of a table."""
        return self._row_bytes[table]

    def announce(
        self, index: int, rows: Mapping[str, Int64Array],
        uses: Mapping[str, NextUses] | None = None,
    ) -> None:  # fmt: skip
        """See `FeatureBuffer.announce`."""
        split = {name: owners.split(rows[name]) for name, owners in self._owners.items()}
        held = {name: kept.hold(rows[name], split[name]) for name, kept in self._kept.items()}
        places = [[split[name][rank][0] for name in split] for rank in range(len(self.parts))]
        counts = [len(rows[name]) for name in self._owners]
        ticket = ExchangedTicket((self.epoch, index), places, counts, [], rows, uses, held)
        self._tickets[index] = ticket
        if uses:
            self._known[index] = ticket
        for rank, part in enumerate(self.parts):
            part.announce(index, {name: each[rank][1] for name, each in split.items()})

    def foresee(self, first: int, last: int, later: Mapping[str, Codes] | None) -> None:
        """See `FeatureBuffer.foresee`."""
        if not later:  # owners forget at the end of an epoch
            return
        for ticket in self._known.values():
            for name, uses in (ticket.uses or {}).items():
                add_later(uses, ticket.needed[name], later[name])
        for owner, send in enumerate(self._send_to):
            selected = (self._owners[name].values_of(owner, later[name]) for name in self._foreseen)
            codes = [self._codes[each] for each in selected]
            send(Message(Kind.FORESEE, self.epoch, first, last), Asked((), codes))

    def withdraw(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """See `BatchBuffer.withdraw`."""
        self._release(self._tickets.pop(index))
        self._known.pop(index, None)
        for part in self.parts:
            part.withdraw(index, rows)

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        """See `BatchBuffer.fits_together`; the owners join the batches of all ranks."""
        return len(batches) < 2

    def join(
        self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]
    ) -> Sequence[ExchangedTicket]:
        """See `BatchBuffer.join`; what goes wrong is raised by `granted`, at the batch's turn."""
        tickets = [self._tickets.pop(index) for index, _ in batches]
        for ticket in tickets:
            if self.pulled:
                ticket.joining = self._begin(self._join_later(ticket))
                continue
            try:
                self._join(ticket, self._memories(ticket))
            except Exception as error:
                self.leave(ticket)
                ticket.error = error
        return tickets

    async def _join_later(self, ticket: ExchangedTicket) -> None:
        """Join as soon as the device has memory for the rows. Where it is short, that may wait for
        work of the user's, who may wait for another rank, which this rank's event loop serves."""
        assert self._workers is not None
        try:
            async with self._in_order:
                if not ticket.left:
                    made = await self._workers.run(self._memories, ticket)
                if not ticket.left:
                    self._join(ticket, made)
        except Exception as error:
            self.leave(ticket)
            ticket.error = error

    def _memories(self, ticket: ExchangedTicket) -> list[tuple[BatchRows, list[Arriving]]]:
        sizes = zip(ticket.counts, self._row_bytes.values(), strict=True)
        return [
            self._memory(shape, [each[table] for each in ticket.places])
            for table, shape in enumerate(sizes)
        ]

    def _join(self, ticket: ExchangedTicket, made: list[tuple[BatchRows, list[Arriving]]]) -> None:
        ticket.rows = [rows for rows, _ in made]
        if ticket.held:
            ticket.copying = self._begin(self._copy_held(ticket.held, ticket.rows))
            ticket.held = {}
        _, index = ticket.key
        for owner, arriving in enumerate(self._arriving):
            arriving[ticket.key] = [by_owner[owner] for _, by_owner in made]
        for part in self.parts:
            ticket.owned += part.join([(index, {})])

    def _memory(
        self, shape: tuple[int, int], places: Sequence[Int32Array]
    ) -> tuple[BatchRows, list[Arriving]]:
        """Memory for a batch's rows of a table, and where those of each owner go."""
        if not self.pulled:
            rows = empty_tensor(self._empty, shape, torch.uint8)
            return BatchRows(rows, None, NO_PLACES), [Arriving(rows, each) for each in places]
        assert self._device is not None
        rows = self._device.rows(*shape)
        others = [NO_PLACES if n in self.pulled else each for n, each in enumerate(places)]
        ends = np.cumsum([len(each) for each in others])
        here = empty_tensor(self._empty, (ends[-1], shape[1]), torch.uint8)
        arriving = [
            Arriving(rows, each, pulled=True)
            if n in self.pulled
            else Arriving(here, np.arange(ends[n] - len(each), ends[n], dtype=np.int32))
            for n, each in enumerate(places)
        ]
        return BatchRows(rows, here, np.concatenate(others)), arriving

    async def granted(self, ticket: ExchangedTicket) -> ExchangedLease:
        """See `BatchBuffer.granted`; all rows are valid when this returns. Also raises PeerError if
        a rank has ended, MemoryError if there is no memory for the rows."""
        if ticket.joining is not None:
            try:
                await asyncio.shield(ticket.joining)
            except asyncio.CancelledError:
                self.leave(ticket)
                raise
        if ticket.error is not None:
            raise ticket.error
        waiting = [each.granted for each in ticket.owned if each.granted is not None]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for each in waiting:
                if each.done():
                    each.result()
            if (error := self._not_copied.pop(ticket.key, None)) is not None:
                raise error
            if self._kept:
                await asyncio.shield(self._begin(self._keep(ticket, ticket.rows)))
        except BaseException:
            self.leave(ticket)
            raise
        for each in waiting:  # not before: the owner may close then
            each.result().release()  # the owner has released the slots; its place is free
        rows, ticket.rows = ticket.rows, ()
        self._known.pop(ticket.key[1], None)
        return ExchangedLease(dict(zip(self._owners, rows, strict=True)), self._device)

    def leave(self, ticket: ExchangedTicket) -> None:
        """See `BatchBuffer.leave`; the rows' memory stays until all owners have answered."""
        ticket.rows, ticket.left = (), True
        self._release(ticket)
        self._known.pop(ticket.key[1], None)
        for part, owned in zip(self.parts, ticket.owned, strict=False):
            part.leave(owned)
        for rank, arriving in enumerate(self._arriving):
            if rank >= len(ticket.owned) or ticket.owned[rank].place is None:  # it was not asked
                arriving.pop(ticket.key, None)

    # ---- the rows of other ranks that this one keeps ----

    def _release(self, ticket: ExchangedTicket) -> None:
        """Give up what a batch holds that will not join."""
        held, ticket.held = ticket.held, {}
        for name, each in held.items():
            self._kept[name].release(each)

    async def _copy_held(self, held: Mapping[str, Held], rows: Sequence[BatchRows]) -> None:
        for name, each in zip(self._owners, rows, strict=True):
            if name in held:
                await self._kept[name].copy_out(held[name], each.all)

    async def _keep(self, ticket: ExchangedTicket, rows: Sequence[BatchRows]) -> None:
        """Keep the rows of other ranks that have arrived, once those that were here are in their
        places; no user has them yet."""
        if ticket.copying is not None:
            await ticket.copying
        for at, (name, each) in enumerate(zip(self._owners, rows, strict=True)):
            if name in self._kept:
                arrived = [places[at] for places in ticket.places]
                await self._kept[name].copy_in(ticket.needed[name], arrived, each.all)

    def _begin(self, copies: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin copies, which end whatever happens to their batch."""
        task = asyncio.get_running_loop().create_task(copies)
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)
        return task

    # ---- failures and the end ----

    def fail(self, error: BaseException) -> None:
        """See `BatchBuffer.fail`."""
        for part in self.parts:
            part.fail(error)

    async def drain(self) -> None:
        """See `BatchBuffer.drain`; the owners wait for their reads."""
        if self._copies:
            await asyncio.wait(self._copies)

    def close(self) -> None:
        """Free the rows that are kept; no epoch may run."""
        self._kept.clear()

    # ---- what the owners are told ----

    def _send(self, owner: int, send: Send, arena: Arena, message: Message) -> None:
        asked = NOTHING
        if message.kind is Kind.ANNOUNCE:  # the rows are in their place
            asked = Asked(arena.read_rows(message.a), self._codes_of(owner, message.step))
        send(message, asked)

    def _codes_of(self, owner: int, index: int) -> Sequence[Codes]:
        ticket = self._known.get(index)
        if ticket is None or ticket.uses is None:
            return ()
        places = dict(zip(self._owners, ticket.places[owner], strict=True))
        return [self._codes[ticket.uses[name].codes[places[name]]] for name in self._foreseen]

    # ---- what the owners say ----

    def places_of(self, owner: int, key: Key) -> Sequence[Arriving]:
        """Where the rows of each table go that an owner is sending, in any thread. KeyError: it was
        not asked for them, or has answered before."""
        return self._arriving[owner][key]

    def receive(self, owner: int, message: Message) -> None:
        """Take what an owner says. If a batch's rows are READY, they have landed. ProtocolError: it
        makes no sense."""
        if message.kind in ANSWERS:
            self._arriving[owner].pop((message.epoch, message.step), None)
        self.parts[owner].receive(message)

    def spoil(self, key: Key, error: Exception) -> None:
        """The device could not copy a batch's rows: `granted` raises the error, once all owners
        have answered."""
        self._not_copied.setdefault(key, error)

    def lose(self, owner: int, error: BaseException) -> None:
        """An owner will answer no more, nor do rows of it arrive; perhaps because another one was
        lost before."""
        self._arriving[owner].clear()
        self.parts[owner].fail(self.broken or error)

    @property
    def late(self) -> int:
        """The owner whose rows of the first batch have not come; 0: none is late."""
        first = [(min(each), owner) for owner, each in enumerate(self._arriving) if each]
        return min(first, default=((), 0))[1]

    async def awaited(self) -> int:
        """Ask the owner that is late whose turn is the next one: see `RemoteBuffer.awaited`."""
        if self.broken is not None:
            raise self.broken
        return await self.parts[self.late].awaited()

    @property
    def broken(self) -> BaseException | None:
        """Why an owner was lost, or has failed; None: none was."""
        return next(filter(None, (part.broken for part in self.parts)), None)

    @property
    def idle(self) -> bool:
        """Whether no batch is asked for, and no rows arrive."""
        quiet = not self._copies and not any(self._arriving)
        return quiet and all(part.idle for part in self.parts)


class ExchangedLease:
    """A batch's rows, all of them valid, which have arrived in its own memory."""

    def __init__(self, rows: dict[str, BatchRows], device: Device | None) -> None:
        self._rows, self._device = rows, device

    async def ready(self) -> None:
        """See `BatchLease.ready`; they are."""

    def failures(self) -> dict[str, tuple[int, Exception]]:
        """See `BatchLease.failures`; there are none."""
        return {}

    def gather(
        self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...], parts: Parts = ()
    ) -> torch.Tensor:
        """See `BatchLease.gather`; nothing is gathered, so batches must not be padded."""
        arrived, device = self._rows.pop(table), self._device
        rows = arrived.all.view(-1).view(dtype).view(len(arrived.all), *row_shape)
        if device is None:
            return rows
        if arrived.here is None:
            return device.bring(rows)
        if len(arrived.places):
            device.put(arrived.here, arrived.all, arrived.places)
        return rows

    async def gathered(self) -> None:
        """See `BatchLease.gathered`."""

    def release(self) -> None:
        """See `BatchLease.release`; the owners have released the slots."""
        self._rows.clear()
