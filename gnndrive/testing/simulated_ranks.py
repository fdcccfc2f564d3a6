"""`simulate_ranks`: several ranks that share a feature buffer on a simulated disk, in one loop.

Each rank runs the pipeline with a `RemoteBuffer`; a `Group` of the host service extracts for all of
them. Messages take a number of turns of the loop that the seed determines. The users of all ranks
meet after each step, as in an all-reduce: no rank gets its next batch before every other rank has
its own. See `simulation.py` for what a seed determines and what is checked.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gnndrive.common.records import Seeds
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.group import Group
from gnndrive.host.messages import Message
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteTable
from gnndrive.pipeline.counters import Counters
from gnndrive.pipeline.epoch import Epoch, EpochInputs
from gnndrive.pipeline.output_queue import OutputEnded
from gnndrive.pipeline.run import run_epoch
from gnndrive.sampling.schedules.base import Window
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import (
    Delivered,
    InlineWorkers,
    RandomSampler,
    Scenario,
    Simulation,
)

LINK_TURNS_MAX = 4


class Link:
    """One direction of a connection: delivers messages in their order, each after some turns.

    Args:
        random: decides how many.
        receive: gets the messages.
    """

    def __init__(self, random: random.Random, receive: Callable[[Message], object]) -> None:
        self._random, self._receive = random, receive
        self._under_way: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None

    def send(self, message: Message) -> None:
        """Have a message delivered later."""
        self._under_way.append(message.encode())
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        while self._under_way:
            for _ in range(self._random.randint(0, LINK_TURNS_MAX)):
                await asyncio.sleep(0)
            self._receive(Message.decode(self._under_way.popleft()))
        self._task = None

    async def empty(self) -> None:
        """Wait until no message is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])


@dataclass(eq=False)
class Barrier:
    """The users of all ranks meet here after each step.

    Attributes:
        ranks: how many users are waited for.
    """

    ranks: int

    def __post_init__(self) -> None:
        self._arrived = 0
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def meet(self) -> None:
        """Wait until all users have called this."""
        self._arrived += 1
        if self._arrived == self.ranks:
            self.open()
        else:
            await self._open

    def open(self) -> None:
        """Let those who wait go on."""
        opened, self._open = self._open, asyncio.get_running_loop().create_future()
        self._arrived = 0
        opened.set_result(None)


class Rank:
    """A rank: its pipeline, its user and its connection to the group.

    Args:
        shared: the buffer's simulation, and what there is to load.
        group: extracts for all ranks.
        number, ranks: which rank, of how many.
    """

    def __init__(self, shared: Simulation, group: Group, number: int, ranks: int) -> None:
        self.number, self.ranks, self._shared = number, ranks, shared
        self._random = random.Random(f"{shared.seed} rank {number}")
        stages = shared.scenario.stages
        places = stages.extracting_queue + stages.training_queue
        most = shared.scenario.batch_size + shared.scenario.extra_max
        shape = ArenaShape(places, (most,))
        arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
        self.answers = Link(self._random, lambda message: self.buffer.receive(message))
        self.group, self.member = group, group.enter(number, arena, self.answers.send)
        self.requests = Link(self._random, lambda each: group.handle(self.member, each))
        memory = RemoteTable(shared.scenario.file.row_bytes, shared.table.memory)
        self.buffer = RemoteBuffer({"x": memory}, arena, self.requests.send)
        self._workers = InlineWorkers(shared.seed + number)

    def _batches(self) -> Iterator[tuple[Window, Seeds]]:
        for seeds in self._shared.scenario.seeds(self._shared.seed):
            step, rank = divmod(seeds.index, self.ranks)
            if rank == self.number:
                own = replace(seeds, index=step, dealt=seeds.index)
                yield Window([own]), own

    def epoch(self, number: int) -> Epoch:
        """Make the rank's part of an epoch."""
        scenario = self._shared.scenario
        sampler = RandomSampler(scenario.file.row_count, scenario.extra_max)
        self.buffer.begin_epoch()
        return Epoch(
            EpochInputs(number, self._shared.seed, self._batches(), sampler, self._shared),
            topologies=[], buffer=self.buffer, workers=self._workers, stages=scenario.stages,
            counters=Counters(), together=1,
        )  # fmt: skip

    async def use(self, epoch: Epoch, barrier: Barrier, limit: int | None) -> list[Delivered]:
        """Be the user: take batches, check their rows and meet the other users after each."""
        delivered: list[Delivered] = []
        while limit is None or len(delivered) < limit:
            try:
                batch: Delivered = await epoch.output.aget()
            except OutputEnded:
                break
            self._shared.check(batch)
            delivered.append(batch)
            for _ in range(self._random.randint(0, self._shared.scenario.consumer_turns_max)):
                await asyncio.sleep(0)
            await barrier.meet()
        return delivered

    async def run(self, number: int, barrier: Barrier, limit: int | None = None) -> list[Delivered]:
        """Run the rank's part of an epoch, with its user."""
        epoch = self.epoch(number)
        running = asyncio.get_running_loop().create_task(run_epoch(epoch))
        try:
            return await self.use(epoch, barrier, limit)
        finally:
            epoch.output.abandon()
            running.cancel()
            await asyncio.wait([running])
            self.buffer.end_epoch()

    async def settled(self) -> None:
        """Wait until all of its messages, and the answers to them, have arrived."""
        await self.requests.empty()
        await self.answers.empty()


def simulate_ranks(
    scenario: Scenario, seed: int, ranks: int = 2, epochs: int = 1, limit: int | None = None
) -> list[list[Delivered]]:
    """Run whole epochs, check every row, and return the batches of each rank.

    Args:
        scenario: what all ranks load together; `batches` is a multiple of `ranks`.
        seed: determines everything that varies.
        ranks: how many.
        epochs: how many.
        limit: batches of an epoch after which each user stops; None: all.

    Raises:
        Deadlock: every task waits for another.
        AssertionError: a row is wrong, or a slot is missing at the end.
        ReadError: a batch failed.
    """

    async def main() -> list[list[Delivered]]:
        shared = Simulation(scenario, seed)
        group = Group(range(ranks), shared.buffer, scenario.stages)
        members = [Rank(shared, group, number, ranks) for number in range(ranks)]
        delivered: list[list[Delivered]] = [[] for _ in members]
        try:
            for number in range(epochs):
                barrier = Barrier(ranks)
                async with asyncio.TaskGroup() as tasks:
                    running = [
                        tasks.create_task(member.run(number, barrier, limit)) for member in members
                    ]
                for got, task in zip(delivered, running, strict=True):
                    got += task.result()
        finally:
            for member in members:
                await member.settled()
                group.leave(member.member, lost=False)
            await group.aclose()
            await shared.close()
        return delivered

    return run(main())
