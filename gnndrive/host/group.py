"""`Group`: the ranks of one loader on this host, and the feature buffer that they share.

The service makes a group for its first rank and passes the ranks' messages to `handle`. The group
announces their batches to the feature buffer, has the extract stage take them in the order of their
turns (`turns.py`), and answers when a batch's rows are valid. It knows neither sockets nor disks,
so a simulation can run it.

Ranks that draw from the same windows (`strategies/windows/`) have their rows and graphs here, once
for all of them, until the last rank has shut a window (`HeldWindows`, `WindowGraphs`). Batches of a
window have their turns before those of a younger one, but for an epoch's pads, which are all in its
last window. So a rank may wait for slots that an older window holds: its ranks end that window
without it.

A batch that is given up while it is being extracted stays until its rows are valid or have failed;
then its lease is released at once. No user's code is waited for meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np

from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.buffer.held_windows import CHUNK_ROWS, HeldWindows
from gnndrive.buffer.row_table import RowTable
from gnndrive.common.records import Int64Array, NextUses
from gnndrive.host.arena import COUNTERS, Arena
from gnndrive.host.messages import Kind, Message, ProtocolError, error_text
from gnndrive.host.turns import Turns
from gnndrive.host.window_graphs import WindowGraphs
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.epoch import Counters, Extracted, Failed, Sampled, Stages
from gnndrive.pipeline.extract import extract_stage

_NO_NODES: Int64Array = np.empty(0, np.int64)
WINDOWS_MAX = 8  # that a rank has open or describes
STEP_BITS = 40  # of an order number, which is an epoch's number and a number within it


class Stage(Enum):
    """How far a batch has come."""

    ANNOUNCED = auto()
    JOINED = auto()  # it waits for its turn, or is being extracted
    READY = auto()


@dataclass(eq=False)
class Batch:
    """A rank's batch, from its announcement to its release; `epoch` and `step` as in `Message`.

    Attributes:
        place: where its ids and aliases are in the rank's arena.
        order: its number among the batches of all ranks, which increases with the turns.
        left: whether the rank has given it up, or has left.
        lease: holds its rows once it is ready.
    """

    member: Member
    epoch: int
    step: int
    place: int
    order: int
    stage: Stage = Stage.ANNOUNCED
    left: bool = False
    lease: Lease | None = None


@dataclass(eq=False)
class Member:
    """A rank of the group.

    Attributes:
        send: sends it a message; never waits.
        batches: by (epoch, step).
        places: those of its arena that are in use.
        windows: those that it describes, with their rows in chunks; and those that it has open,
            with none; by (epoch, number).
        released: how many of its batches have been gathered.
        uses: when rows are needed next, of batches that it announces now, if it knows that.
    """

    rank: int
    arena: Arena
    send: Callable[[Message], object]
    batches: dict[tuple[int, int], Batch] = field(default_factory=dict)
    places: set[int] = field(default_factory=set)
    windows: dict[tuple[int, int], list[range]] = field(default_factory=dict)
    released: int = 0
    uses: dict[tuple[int, int], Mapping[str, NextUses]] = field(default_factory=dict)


class Group:
    """The ranks of one loader on this host, which take turns from the start, and their feature
    buffer; `read_counters` returns what `COUNTERS` names. `graphs` None: ranks have their own. At
    most `most` batches are extracted or wait for `Member.send`; None: as many as find slots.

    Attributes:
        extracting, training, picking, counters, together: see `pipeline.extract.Extracting`.
        members: the ranks that have come and not left.
    """

    together = 1

    def __init__(
        self, ranks: Iterable[int], buffer: FeatureBuffer, stages: Stages,
        read_counters: Callable[[], Mapping[str, int]] = dict, graphs: WindowGraphs | None = None,
        most: int | None = None,
    ) -> None:  # fmt: skip
        self.ranks = tuple(sorted(ranks))
        self.buffer, self.stages, self.counters = buffer, stages, Counters()
        self.extracting: Turns[Sampled | Failed] = Turns(self.ranks)
        self.training: Channel[Extracted | Failed] = Channel(most, ordered=False)
        self.picking = asyncio.Lock()
        self.members: dict[int, Member] = {}
        self._read_counters = read_counters
        self._by_order: dict[int, Batch] = {}
        self._windows: HeldWindows | None = None  # once a rank opens one
        self._graphs = graphs
        self._opened: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._described: dict[tuple[int, int], list[range]] = {}  # rows of those
        self._users: dict[tuple[int, int], set[int]] = defaultdict(set)  # ranks, of a window
        self._error: BaseException | None = None
        self._lost: set[int] = set()
        stages_run = [extract_stage(self) for _ in range(stages.extractors)]
        self._tasks: list[asyncio.Task[None]] = []
        for each in (*stages_run, self._answer()):
            self._start(each)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    # ---- the ranks ----

    def enter(self, rank: int, arena: Arena, send: Callable[[Message], object]) -> Member:
        """A rank has come; ProtocolError: it is none of this group's, or has come before."""
        if rank not in self.ranks or rank in self.members or rank not in self.extracting.ranks:
            raise ProtocolError(f"rank {rank} is none of {self.ranks}, or has come before")
        member = self.members[rank] = Member(rank, arena, send)
        # Later, so that the service welcomes it first.
        asyncio.get_running_loop().call_soon(self._tell_past, member)
        return member

    def _tell_past(self, member: Member) -> None:
        """Tell a rank what has happened to the group before it came."""
        if self.members.get(member.rank) is not member:
            return
        for lost in self._lost:
            member.send(Message(Kind.PEER_LOST, a=lost))
        if self._error is not None:
            member.send(Message(Kind.BROKEN, text=error_text(self._error)))

    def leave(self, member: Member, lost: bool) -> None:
        """A rank has left; `lost`: without a word, so that the others get an error."""
        del self.members[member.rank]
        for batch in list(member.batches.values()):
            self._give_up(batch)
        for key in list(member.windows):
            self._shut_one(member, key)
        self.extracting.drop(member.rank)
        if lost:
            self._say_lost(member.rank)

    def refuse(self, rank: int) -> None:
        """A rank will not come, because the service has refused it."""
        if rank in self.extracting.ranks and rank not in self.members:
            self.extracting.drop(rank)
            self._say_lost(rank)

    def _say_lost(self, rank: int) -> None:
        self._lost.add(rank)
        for other in self.members.values():
            other.send(Message(Kind.PEER_LOST, a=rank))

    def handle(self, member: Member, message: Message) -> None:
        """Do what a rank's message says; ProtocolError: it makes no sense here."""
        handler = _HANDLERS.get(message.kind)
        if handler is None or self.members.get(member.rank) is not member:
            raise ProtocolError(f"{message.kind.name} does not belong here")
        handler(self, member, message)

    def _batch(self, member: Member, message: Message, *stages: Stage) -> Batch:
        """The batch that a message names, which must be at one of `stages`."""
        batch = member.batches.get((message.epoch, message.step))
        if batch is None or batch.stage not in stages:
            raise ProtocolError(
                f"rank {member.rank}: {message.kind.name} of batch {message.step} of epoch "
                f"{message.epoch}, which is not at that point"
            )
        return batch

    def _announce(self, member: Member, message: Message) -> None:
        epoch, step, place = message.epoch, message.step, message.a
        world = len(self.ranks)
        epochs, steps = 1 << (62 - STEP_BITS), (1 << STEP_BITS) // world
        if not (0 <= step < steps and 0 <= epoch < epochs):
            raise ProtocolError(f"there is no batch {step} of epoch {epoch}")
        if (epoch, step) in member.batches or place in member.places:
            raise ProtocolError(f"batch {step}, or place {place}, was announced before")
        if not 0 <= place < member.arena.shape.places:
            raise ProtocolError(f"there is no place {place}")
        order = (epoch << STEP_BITS) + step * world + self.ranks.index(member.rank)
        batch = Batch(member, epoch, step, place, order)
        self.buffer.announce(order, self._rows(batch), member.uses.pop((epoch, step), None))
        member.batches[epoch, step] = batch
        member.places.add(place)

    def _rows(self, batch: Batch) -> dict[str, Int64Array]:
        """Copy a batch's row ids of each table out of the arena, int64 [n], until it is ready. A
        dishonest rank may have changed them since the last time, at the price of a worse choice of
        rows that leave the buffer."""
        copied = batch.member.arena.read_rows(batch.place)
        return dict(zip(self.buffer.tables, copied, strict=True))

    def _join(self, member: Member, message: Message) -> None:
        batch = self._batch(member, message, Stage.ANNOUNCED)
        rows = self._rows(batch)
        self.extracting.join(member.rank, batch.epoch, batch.step, Sampled(batch.order, (), rows))
        batch.stage, self._by_order[batch.order] = Stage.JOINED, batch

    def _leave(self, member: Member, message: Message) -> None:
        batch = member.batches.get((message.epoch, message.step))
        if batch is not None:  # else its end, FAILED or LEFT, is on its way
            self._give_up(batch)

    def _release_tail(self, member: Member, message: Message) -> None:
        batch, names = self._batch(member, message, Stage.READY), list(self.buffer.tables)
        assert batch.lease is not None
        if not 0 <= message.a < len(names) or not batch.lease.holds(names[message.a], message.b):
            raise ProtocolError(f"batch {message.step} has no rows from {message.b} on")
        batch.lease.release_tail(names[message.a], message.b)

    def _release(self, member: Member, message: Message) -> None:
        batch = self._batch(member, message, Stage.READY)
        self._forget(batch)
        member.released += 1
        assert batch.lease is not None
        batch.lease.release()

    def _end_epoch(self, member: Member, message: Message) -> None:
        for (epoch, _), batch in list(member.batches.items()):
            if epoch == message.epoch:
                self._give_up(batch)
        for key in [key for key in member.windows if key[0] == message.epoch]:
            self._shut_one(member, key)
        self.extracting.end_epoch(member.rank, message.epoch)

    def _ask(self, member: Member, message: Message) -> None:
        awaited = self.extracting.awaited
        if awaited is None:  # every batch that can be admitted has joined: who holds the slots?
            ready = [b.order for b in self._by_order.values() if b.stage is Stage.READY]
            awaited = self._by_order[min(ready)].member.rank if ready else -1
        member.send(Message(Kind.AWAITED, a=awaited))

    def _away(self, member: Member, message: Message) -> None:
        for other in self.members.values():
            if other is not member:
                other.send(replace(message, b=member.rank))

    def _passed(self, member: Member, message: Message) -> None:
        if (other := self.members.get(message.a)) is not None:
            other.send(replace(message, b=member.rank))

    # ---- windows ----

    def _window_rows(self, member: Member, message: Message) -> None:
        key, rows = self._window(member, message), range(message.a, message.b)
        table = self._window_table()
        described = member.windows.setdefault(key, [])
        known = sum(map(len, described))
        fits = rows.start >= 0 and rows.stop <= table.rows and 0 < len(rows) <= CHUNK_ROWS
        if member.rank in self._users.get(key, ()) or not fits or known + len(rows) > table.rows:
            raise ProtocolError(f"rows {rows.start} to {rows.stop} cannot belong to a window")
        described.append(rows)

    def _window(self, member: Member, message: Message) -> tuple[int, int]:
        """The window that a rank describes or opens."""
        key = message.epoch, message.step
        if key not in member.windows and len(member.windows) >= WINDOWS_MAX:
            raise ProtocolError(f"rank {member.rank} has more than {WINDOWS_MAX} windows")
        return key

    def _window_table(self) -> RowTable:
        """The table of which windows are held."""
        tables = list(self.buffer.tables.values())
        if len(tables) != 1:
            raise ProtocolError(f"windows are of one table, and the buffer has {len(tables)}")
        return tables[0]

    def _open(self, member: Member, message: Message) -> None:
        key = self._window(member, message)
        self._window_table()
        users = self._users[key]
        if member.rank in users:
            raise ProtocolError(f"rank {member.rank} has opened window {message.step} before")
        if self._windows is None:
            self._windows = HeldWindows(self.buffer)
            self._start(self._windows.run())
        rows, member.windows[key] = member.windows.get(key, []), []
        if not users:
            graphs = [] if self._graphs is None else [self._graphs.open(key, rows)]
            self._opened[key] = asyncio.gather(self._windows.open(key, rows), *graphs)
            self._described[key] = rows
        elif rows != self._described[key]:  # it would sample in the graph of another window
            raise ProtocolError(f"rank {member.rank} has other rows in window {message.step}")
        users.add(member.rank)
        self._opened[key].add_done_callback(partial(self._say_opened, member, key))

    def _say_opened(
        self, member: Member, key: tuple[int, int], opened: asyncio.Future[Any]
    ) -> None:
        if member.rank in self._users.get(key, ()):
            _, *texts = opened.result()
            member.send(Message(Kind.OPENED, *key, text=texts[0] if texts else {}))

    def _shut(self, member: Member, message: Message) -> None:
        self._shut_one(member, (message.epoch, message.step))

    def _shut_one(self, member: Member, key: tuple[int, int]) -> None:
        member.windows.pop(key, None)
        users = self._users.get(key, set())
        users.discard(member.rank)
        if not users and self._users.pop(key, None) is not None and key in self._opened:
            assert self._windows is not None
            self._windows.end(key)
            if self._graphs is not None:
                self._graphs.end(key)
            del self._opened[key], self._described[key]

    # ---- batches ----

    def _give_up(self, batch: Batch) -> None:
        """A batch is not wanted any more, whatever it waits for."""
        batch.left = True
        rank, epoch, step = batch.member.rank, batch.epoch, batch.step
        if batch.stage is Stage.JOINED and not self.extracting.has(rank, epoch, step):
            return  # it is being extracted: `_answer` gives it back
        if batch.stage is Stage.READY:
            assert batch.lease is not None
            batch.lease.release()
        else:
            if batch.stage is Stage.JOINED:
                self.extracting.remove(rank, epoch, step)
            self._withdraw(batch)
        self._say_left(batch)

    def _withdraw(self, batch: Batch) -> None:
        rows = dict.fromkeys(self.buffer.tables, _NO_NODES)
        with suppress(ProtocolError):  # else some rows stay known as wanted, which is harmless
            rows = self._rows(batch)
        self.buffer.withdraw(batch.order, rows)

    def _say_left(self, batch: Batch) -> None:
        self._forget(batch)
        member = batch.member
        if self.members.get(member.rank) is member:
            member.send(Message(Kind.LEFT, batch.epoch, batch.step))

    def _forget(self, batch: Batch) -> None:
        batch.member.batches.pop((batch.epoch, batch.step), None)
        batch.member.places.discard(batch.place)
        self._by_order.pop(batch.order, None)

    async def _answer(self) -> None:
        """Tell ranks, batch after batch, that rows are valid or could not be read."""
        while True:
            item = await self.training.take()
            if isinstance(item, Failed):
                batch = self._by_order[item.index]
                if batch.left:
                    self._say_left(batch)
                    continue
                self._forget(batch)
                text = error_text(item.error)
                batch.member.send(Message(Kind.FAILED, batch.epoch, batch.step, text=text))
                continue
            batch = self._by_order[item.index]
            if batch.left:
                item.lease.release()
                self._say_left(batch)
                continue
            assert isinstance(item.lease, Lease)
            batch.stage, batch.lease = Stage.READY, item.lease
            arena = batch.member.arena
            for table, (name, rows) in enumerate(item.rows.items()):
                arena.alias(batch.place, table, len(rows))[:] = item.lease.alias(name)
            counted = self._read_counters()
            arena.counters[:] = [counted.get(name, 0) for name in COUNTERS]
            batch.member.send(Message(Kind.READY, batch.epoch, batch.step))

    # ---- the end ----

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        self._error = self._error or error
        assert self._error is not None
        for member in self.members.values():
            member.send(Message(Kind.BROKEN, text=error_text(self._error)))

    async def aclose(self) -> None:
        """End the tasks and wait for all reads; all members must have left."""
        assert not self.members
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self._graphs is not None:
            await self._graphs.aclose()
        for item in self.training.drain():
            if isinstance(item, Extracted):
                item.lease.release()
        await self.buffer.drain()


_HANDLERS: Mapping[Kind, Callable[[Group, Member, Message], None]] = {
    Kind.ANNOUNCE: Group._announce,
    Kind.JOIN: Group._join,
    Kind.LEAVE: Group._leave,
    Kind.RELEASE_TAIL: Group._release_tail,
    Kind.RELEASE: Group._release,
    Kind.END: Group._end_epoch,
    Kind.ASK: Group._ask,
    Kind.AWAY: Group._away,
    Kind.PASSED: Group._passed,
    Kind.WINDOW_ROWS: Group._window_rows,
    Kind.OPEN: Group._open,
    Kind.SHUT: Group._shut,
}
