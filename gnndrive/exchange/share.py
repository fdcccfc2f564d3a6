"""`Share`: the rows that this rank keeps, for all ranks of its loader.

A `Group` of the host service extracts what the ranks ask for, in the order of their turns. Once a
batch's rows are valid they are copied, the slots are released, and the copies are sent: no lease
waits until a rank takes its rows. The share stays when this rank's epoch has ended, because the
others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import gt
from typing import TypeAlias

import numpy as np
import torch

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.records import Int64Array
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.group import Group
from gnndrive.host.messages import Kind, Message, ProtocolError, error_text
from gnndrive.pipeline.channel import change_of
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.workers import Workers

Rows: TypeAlias = Sequence[torch.Tensor]
"""Rows of each table, uint8 [n, row_bytes]."""
Answer: TypeAlias = Callable[[Message, Rows], object]
"""Sends a rank a message, with its rows if that is READY; never waits."""
Key: TypeAlias = tuple[int, int]


class Share:
    """The rows that this rank keeps, in a feature buffer of their own.

    Args:
        world: how many ranks may ask.
        shape: how many batches a rank may have announced, and how large they can be.
        workers: copy rows.
    """

    def __init__(
        self, world: int, buffer: FeatureBuffer, stages: Stages, shape: ArenaShape,
        workers: Workers,
    ) -> None:  # fmt: skip
        self.group = Group(range(world), buffer, stages)
        self.buffer, self.shape, self.workers = buffer, shape, workers
        self.askers: dict[int, Asker] = {}

    def enter(self, rank: int, answer: Answer) -> Asker:
        """A rank will ask; `answer` gets what is said to it."""
        self.askers[rank] = Asker(self, rank, answer)
        return self.askers[rank]

    async def ended(self, epoch: int) -> None:
        """Wait until no rank needs rows in an epoch any more."""
        turns = self.group.extracting
        while not all(turns.has_ended(rank, epoch) for rank in turns.ranks):
            await change_of(turns)

    async def aclose(self) -> None:
        """Serve no rank any more; wait for all copies and reads."""
        for asker in list(self.askers.values()):
            asker.leave(lost=False)
        while copying := [task for each in self.askers.values() for task in each.tasks]:
            await asyncio.wait(copying)
        await self.group.aclose()


class Asker:
    """A rank that asks for rows, as their owner sees it."""

    def __init__(self, share: Share, rank: int, answer: Answer) -> None:
        self.rank, self.tasks = rank, set[asyncio.Task[None]]()
        self._share, self._answer = share, answer
        self._copying: set[Key] = set()
        self._given_up: set[Key] = set()  # of these
        self._answered: set[Key] = set()  # whose rows were sent, and not said to have arrived
        self._later: list[Message] = []  # when nothing is copied
        self._lost: bool | None = None
        memory = np.zeros(share.shape.nbytes, np.uint8)  # pages that are not used take no memory
        self._arena = Arena(share.shape, memory)
        self._member = share.group.enter(rank, self._arena, self._said)

    def receive(self, message: Message, rows: Sequence[Int64Array] | None = None) -> None:
        """The rank has said something, with the numbers of `rows` of each table if it announces a
        batch. ProtocolError: it makes no sense."""
        if self._lost is not None:
            return
        key, group = (message.epoch, message.step), self._share.group
        if message.kind is Kind.ANNOUNCE:
            shape = self._share.shape
            sizes = [len(each) for each in rows or ()]
            if len(sizes) != len(shape.rows_max) or any(map(gt, sizes, shape.rows_max)):
                raise ProtocolError(f"rank {self.rank} announces a batch of {sizes} rows")
            if rows is not None and 0 <= message.a < shape.places:  # else the group refuses it
                self._arena.write_rows(message.a, rows)
        elif message.kind is Kind.RELEASE:
            self._answered.discard(key)
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

    def leave(self, lost: bool) -> None:
        """The rank asks no more; `lost`: it has died. What is being copied for it is waited for."""
        if self._lost is None:
            self._lost = lost
            if not self._copying:
                self._share.group.leave(self._member, lost)

    def _said(self, message: Message) -> None:
        """The group has something to say to the rank."""
        if self._lost is not None:
            return
        if message.kind is not Kind.READY:
            self._answer(message, ())
            return
        key = message.epoch, message.step
        self._copying.add(key)
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
            await self._share.workers.run(copy)
            await lease.gathered()
        except Exception as error:
            answer = Message(Kind.FAILED, *key, text=error_text(error))
            rows.clear()
        self._copying.discard(key)
        self._share.group.handle(self._member, Message(Kind.RELEASE, *key))
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
