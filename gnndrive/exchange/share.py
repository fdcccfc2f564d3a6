"""`Share`: the rows that this rank keeps, for all ranks of its loader.

A `Group` of the host service extracts what the ranks ask for, in the order of their turns. Once a
batch's rows are valid they are copied, the slots are released, and the copies are sent: no lease
waits until a rank takes its rows. A rank whose GPU reads the slots copies the rows itself
(`pulled_rows.py`): it is told the slots, and says when its copy has ended. Batches of all ranks
together hold few more slots than those of one process would (`batches_at_once`), so that W buffers
load what one of their size does. The share stays when this rank's epoch has ended, because the
others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import gt
from typing import TypeAlias

import numpy as np
import torch

from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.common.array_pool import Allocate
from gnndrive.common.records import Codes, Int32Array, Int64Array, NextUses
from gnndrive.exchange.next_uses import SharedUses
from gnndrive.exchange.slot_copies import SlotCopies
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.group import STEP_BITS, Group
from gnndrive.host.messages import Kind, Message, ProtocolError, error_text
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.workers import Workers

Rows: TypeAlias = Sequence[torch.Tensor]
"""Rows of each table, uint8 [n, row_bytes]."""
Answer: TypeAlias = Callable[[Message, Rows], object]
"""Sends a rank a message, with its rows if that is READY, or slots, int32 [n] of each table, if it
is SLOTS; never waits."""
Key: TypeAlias = tuple[int, int]
COPIED = 2  # batches whose rows are copied while others are extracted
SMALL = 1 / 4  # of the slots, which batches in flight may hold


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rank tells an owner with ANNOUNCE or FORESEE, and an owner a rank with SLOTS.

    Attributes:
        rows: the owner's numbers of a batch's rows, int64 [n] for each table.
        codes: when the batch's rows, or all of the owner's, are needed next (see `NextUses`),
            uint16 [n] for each table whose next uses are known; none: that is not known.
        slots: in which of the owner's slots a batch's rows are, int32 [n] for each table.
    """

    rows: Sequence[Int64Array]
    codes: Sequence[Codes] = ()
    slots: Sequence[Int32Array] = ()


NOTHING = Asked(())


def batches_at_once(world: int, buffer: FeatureBuffer, stages: Stages, shape: ArenaShape) -> int:
    """How many batches of all ranks hold an owner's slots at a time: as many as one process's, or
    more, up to the queue of each rank, where they are a small part of the slots."""
    tables = zip(buffer.tables.values(), shape.rows_max, strict=True)
    small = [int(SMALL * table.slots * world / max(rows, 1)) for table, rows in tables]
    least, most = stages.training_queue + COPIED, world * stages.training_queue
    return max(least, min([most, *small]))


class Share:
    """The rows that this rank keeps, in a feature buffer of their own.

    Args:
        world: how many ranks may ask.
        shape: how many batches a rank may have announced, and how large they can be.
        workers: copy rows.
        foreseen: the tables whose next uses ranks know, because they sample ahead.
        empty: allocates memory for copies out of slots that are not in host memory.
    """

    def __init__(
        self, world: int, buffer: FeatureBuffer, stages: Stages, shape: ArenaShape,
        workers: Workers, foreseen: Sequence[str] = (), empty: Allocate = np.empty,
    ) -> None:  # fmt: skip
        self._empty, self._copies = empty, dict[str, SlotCopies]()
        most = batches_at_once(world, buffer, stages, shape)
        self.group = Group(range(world), buffer, stages, most=most)
        self.foreseen, self._epoch, self._end = tuple(foreseen), -1, 0
        self._uses = SharedUses(world, {name: buffer.tables[name].rows for name in foreseen})
        self._early: list[tuple[int, Message, Sequence[Codes]]] = []  # of epochs yet to begin
        if foreseen:
            buffer.foreseen = self._uses
        self.buffer, self.shape, self.workers = buffer, shape, workers
        self.askers: dict[int, Asker] = {}
        self._moved = asyncio.Event()

    def enter(self, rank: int, answer: Answer) -> Asker:
        """A rank will ask; `answer` gets what is said to it."""
        self.askers[rank] = Asker(self, rank, answer)
        return self.askers[rank]

    def copies(self) -> Mapping[str, SlotCopies]:
        """What copies rows to host memory; none: `Lease.gather` does. ConfigError: there is no
        memory for it."""
        if not self._copies:
            with ExitStack() as undo:
                made = dict[str, SlotCopies]()
                for name, table in self.buffer.tables.items():
                    given = table.memory, table.row_bytes, table.rows, self.workers, self._empty
                    if (copies := SlotCopies.of(*given)) is not None:
                        undo.callback(copies.close)
                        made[name] = copies
                self._copies = made
                undo.pop_all()
        return self._copies

    def foresee(self, rank: int, message: Message, codes: Sequence[Codes]) -> None:
        """A rank knows what its batches from `message.step` to before `message.a` need: for each
        row of the tables the code of the first of them, uint16 [rows]."""
        self._early.append((rank, message, codes))
        self.go_on()

    def go_on(self) -> None:
        """Take what ranks know of an epoch, if no rank takes turns in an earlier one; a rank may
        have passed a batch."""
        self._moved.set()
        self._early.sort(key=lambda each: each[1].epoch)  # as they came, in an epoch
        turns = self.group.extracting
        while self._early and all(
            turns.has_passed(rank, self._early[0][1].epoch - 1) for rank in turns.ranks
        ):
            rank, message, codes = self._early.pop(0)
            if message.epoch > self._epoch:
                self._begin(message.epoch)
            if message.epoch == self._epoch:
                self._take(rank, message, codes)

    def _begin(self, epoch: int) -> None:
        """Nothing is known of an epoch that begins."""
        self._epoch, self._end = epoch, epoch << STEP_BITS
        self._uses.begin(self._end)
        for name in self.foreseen:
            self.buffer.tables[name].foresee(self._end, self._end, None)

    def _take(self, rank: int, message: Message, codes: Sequence[Codes]) -> None:
        begin, world = self._epoch << STEP_BITS, len(self.group.ranks)
        self._end = max(self._end, begin + message.a * world)
        later = self._uses.learn_of(rank, dict(zip(self.foreseen, codes, strict=True)))
        self.buffer.foresee(begin, self._end, later, anew=True)

    def behind(self, epoch: int, step: float) -> list[int]:
        """The ranks that may need rows for batches before `step` in an epoch; none if one has left,
        because the others cannot go on."""
        found = [rank for rank, e in self.askers.items() if not e.has_passed(epoch, step)]
        return [] if any(each.left for each in self.askers.values()) else found

    async def passed(self, epoch: int, step: float) -> None:
        """Wait until none is `behind`."""
        while self.behind(epoch, step):
            self._moved.clear()
            await self._moved.wait()

    async def aclose(self) -> None:
        """Serve no rank any more; wait for all copies and reads."""
        for asker in list(self.askers.values()):
            asker.leave(lost=False)
        while copying := [task for each in self.askers.values() for task in each.tasks]:
            await asyncio.wait(copying)
        await self.group.aclose()
        while self._copies:
            self._copies.popitem()[1].close()


class Asker:
    """A rank that asks for rows, as their owner sees it. `pulls`: whether it copies them itself."""

    pulls = False

    def __init__(self, share: Share, rank: int, answer: Answer) -> None:
        self.rank, self.tasks = rank, set[asyncio.Task[None]]()
        self._share, self._answer = share, answer
        self._copying: set[Key] = set()
        self._pulled: dict[Key, asyncio.Future[None]] = {}  # until the rank's copy has ended
        self._given_up: set[Key] = set()  # of these
        self._answered: set[Key] = set()  # whose rows were sent, and not said to have arrived
        self._later: list[Message] = []  # when nothing is copied
        self._lost: bool | None = None
        memory = np.zeros(share.shape.nbytes, np.uint8)  # pages that are not used take no memory
        self._arena = Arena(share.shape, memory)
        self._member = share.group.enter(rank, self._arena, self._said)

    def receive(self, message: Message, asked: Asked = NOTHING) -> None:
        """The rank has said something, with the rows of a batch that it announces, or the codes
        of a superbatch that it knows. ProtocolError: it makes no sense."""
        if self._lost is not None:
            return
        key, group = (message.epoch, message.step), self._share.group
        if message.kind is Kind.FORESEE:
            self._share.foresee(self.rank, message, asked.codes)
            return
        if message.kind is Kind.ANNOUNCE:
            shape, rows = self._share.shape, asked.rows
            sizes = [len(each) for each in rows]
            if len(sizes) != len(shape.rows_max) or any(map(gt, sizes, shape.rows_max)):
                raise ProtocolError(f"rank {self.rank} announces a batch of {sizes} rows")
            if 0 <= message.a < shape.places:  # else the group refuses it
                self._arena.write_rows(message.a, rows)
            if asked.codes:
                names = self._share.foreseen
                uses = zip(names, asked.codes, strict=True)
                self._member.uses[key] = {name: NextUses(codes, None) for name, codes in uses}
        elif message.kind is Kind.PULLS:
            self.pulls = True
            return
        elif message.kind is Kind.PULLED:
            if (pulled := self._pulled.pop(key, None)) is None:
                raise ProtocolError(f"rank {self.rank} has copied batch {key}, which was not said")
            pulled.set_result(None)
            return
        elif message.kind is Kind.RELEASE:
            self._answered.discard(key)
            self._share.go_on()
            return
        elif message.kind is Kind.LEAVE and key in self._copying:
            self._given_up.add(key)
            return
        elif message.kind is Kind.LEAVE and key in self._answered:
            self._answered.discard(key)
            self._answer(Message(Kind.LEFT, *key), ())
            return
        elif message.kind is Kind.END and self._copying:
            self._later.append(message)
            return
        group.handle(self._member, message)
        self._share.go_on()

    @property
    def left(self) -> bool:
        """Whether the rank asks no more."""
        return self._lost is not None

    def has_passed(self, epoch: int, step: float) -> bool:
        """Whether the rank has all rows of the batches before `step` in an epoch, or ended it."""
        turns, asked = self._share.group.extracting, {*self._member.batches, *self._answered}
        return turns.has_passed(self.rank, epoch) or (
            turns.has_passed(self.rank, epoch, step)
            and min(asked, default=(epoch, step)) >= (epoch, step)
        )

    def leave(self, lost: bool) -> None:
        """The rank asks no more; `lost`: it has died. What is being copied for it is waited for,
        but not what it copies: of a batch that does not become READY it uses nothing."""
        if self._lost is None:
            self._lost = lost
            while self._pulled:
                self._pulled.popitem()[1].set_result(None)
            if not self._copying:
                self._share.group.leave(self._member, lost)
                self._share.go_on()

    def _said(self, message: Message) -> None:
        """The group has something to say to the rank."""
        if self._lost is not None:
            return
        if message.kind is not Kind.READY:
            self._answer(message, ())
            return
        key = message.epoch, message.step
        self._copying.add(key)
        self._share.group.training.reserve_now(1)  # the place that it has just left
        task = asyncio.get_running_loop().create_task(self._send_rows(key))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send_rows(self, key: Key) -> None:
        answer, rows = Message(Kind.READY, *key), list[torch.Tensor]()
        lease = self._member.batches[key].lease
        assert lease is not None

        def copy() -> None:
            for name, table in self._share.buffer.tables.items():
                rows.append(lease.gather(name, torch.uint8, (table.row_bytes,)))

        try:
            if self.pulls:
                await self._pull(key, lease)
            elif found := self._share.copies():
                for name, copies in found.items():
                    rows.append(await copies.copy(lease.alias(name)))
            else:
                await self._share.workers.run(copy)
                await lease.gathered()
        except Exception as error:
            answer = Message(Kind.FAILED, *key, text=error_text(error))
            rows.clear()
        self._copying.discard(key)
        self._share.group.handle(self._member, Message(Kind.RELEASE, *key))
        self._share.group.training.give_back()
        if self._lost is None:
            if key in self._given_up:
                self._given_up.discard(key)
                self._answer(Message(Kind.LEFT, *key), ())
            else:
                if answer.kind is Kind.READY:
                    self._answered.add(key)
                self._answer(answer, rows)
        if self._copying:
            return
        later, self._later = self._later, []
        for message in later:
            self._share.group.handle(self._member, message)
        if self._lost is not None:
            self._share.group.leave(self._member, self._lost)
        self._share.go_on()

    async def _pull(self, key: Key, lease: Lease) -> None:
        """Have the rank copy rows out of their slots, and wait until it has."""
        if self._lost is not None:
            return
        pulled = self._pulled[key] = asyncio.get_running_loop().create_future()
        tables = self._share.buffer.tables
        slots = [torch.from_numpy(lease.alias(name)) for name in tables]
        self._answer(Message(Kind.SLOTS, *key), slots)
        await pulled
