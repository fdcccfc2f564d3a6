"""`SimulatedRanks`: several ranks that share a feature buffer on a simulated disk, in one loop.

Each rank runs the pipeline with a `RemoteBuffer`; a `Group` of the host service extracts for all of
them. Messages take a number of turns of the loop that the seed determines. The users of all ranks
meet after each step, as in an all-reduce: no rank gets its next batch before every other rank has
its own. A rank may die at any turn, or end its epoch early. See `simulation.py` for what a seed
determines and what is checked.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gnndrive.common.records import Seeds
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.group import Group
from gnndrive.host.messages import Message, ProtocolError
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteTable
from gnndrive.host.window_graphs import WindowGraphs
from gnndrive.pipeline.epoch import Counters, Epoch, EpochInputs, Feed
from gnndrive.pipeline.output_queue import OutputEnded
from gnndrive.pipeline.run import run_epoch
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.sampling.samplers.base import Sampler
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
SETTLING_TURNS_MAX = 10_000


class Link:
    """One direction of a connection: `receive` gets messages in order, each after some turns, with
    what was sent beside it."""

    def __init__(self, random: random.Random, receive: Callable[..., object]) -> None:
        self._random, self._receive = random, receive
        self._under_way: deque[tuple[bytes, tuple[Any, ...]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ended: Callable[[], object] | None = None

    def send(self, message: Message, *beside: Any) -> None:
        """Have a message delivered later; after `end` it is dropped."""
        if self._ended is not None:
            return
        self._under_way.append((message.encode(), beside))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        while self._under_way:
            for _ in range(self._random.randint(0, LINK_TURNS_MAX)):
                await asyncio.sleep(0)
            if self._under_way:
                data, beside = self._under_way.popleft()
                self._receive(Message.decode(data), *beside)
        self._task = None
        if self._ended is not None:
            self._ended()

    def end(self, ended: Callable[[], object], deliver: bool) -> None:
        """Take no more messages; call `ended` when none is under way any more. `deliver`: whether
        those that are under way arrive."""
        if self._ended is not None:
            return
        self._ended = ended
        if not deliver:
            self._under_way.clear()
        if self._task is None:
            ended()

    @property
    def empty(self) -> bool:
        """Whether no message is under way."""
        return self._task is None


class Barrier:
    """The users of some ranks meet here after each step."""

    def __init__(self, ranks: set[int]) -> None:
        self.ranks, self._arrived = ranks, set[int]()
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def meet(self, rank: int) -> None:
        """Wait until the users of all ranks have called this."""
        self._arrived.add(rank)
        opened = self._open
        self._open_if_complete()
        await asyncio.shield(opened)

    def leave(self, rank: int) -> None:
        """Do not wait for a rank any more."""
        self.ranks.discard(rank)
        self._arrived.discard(rank)
        self._open_if_complete()

    def _open_if_complete(self) -> None:
        if self._arrived == self.ranks:
            opened, self._open = self._open, asyncio.get_running_loop().create_future()
            self._arrived.clear()
            opened.set_result(None)


class RankUser:
    """A rank's pipeline and its user. `buffer` is what it loads through.

    Args:
        shared: a buffer's simulation, and what there is to load.

    Attributes:
        delivered: the batches of the epoch that its user has got.
        error: the error that its user has got in the epoch.
        refused: the error for which it was disconnected; raised at the end.
    """

    buffer: RemoteBuffer | ExchangedBuffer

    def __init__(
        self, shared: Simulation, number: int, ranks: int, sampler: Callable[[int, int], Sampler]
    ) -> None:
        self.number, self._ranks, self._shared = number, ranks, shared
        self._random = random.Random(f"{shared.seed} rank {number}")
        self._sampler = sampler
        self._workers = InlineWorkers(shared.seed + number)
        self.alive = True
        self.delivered: list[Delivered] = []
        self.error: BaseException | None = None
        self.refused: ProtocolError | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._barrier: Barrier | None = None

    def _batches(self) -> Iterator[tuple[Window, Seeds]]:
        for seeds in self._shared.scenario.seeds(self._shared.seed):
            step, rank = divmod(seeds.index, self._ranks)
            if rank == self.number:
                own = replace(seeds, index=step, dealt=seeds.index)
                yield Window([own]), own

    def _feed(self) -> Feed:
        return SampledFeed()

    def begin(self, number: int, barrier: Barrier, limit: int | None = None) -> asyncio.Task[None]:
        """Begin the rank's part of epoch `number`, with a user who takes up to `limit` batches."""
        scenario, loop = self._shared.scenario, asyncio.get_running_loop()
        self.delivered, self.error, self._barrier = [], None, barrier
        self.buffer.begin_epoch()
        epoch = Epoch(
            self._inputs(number),
            topologies=[], buffer=self.buffer, workers=self._workers, stages=scenario.stages,
            counters=Counters(), combined=1,
        )  # fmt: skip
        running = loop.create_task(run_epoch(epoch))
        user = loop.create_task(self._use(epoch, barrier, limit))
        whole = loop.create_task(self._whole_epoch(epoch, barrier, running, user))
        self._tasks = [running, user]
        return whole

    def _inputs(self, number: int) -> EpochInputs:
        scenario, seed = self._shared.scenario, self._shared.seed
        sampler = self._sampler(scenario.file.row_count, scenario.extra_max)
        return EpochInputs(number, seed, self._batches(), sampler, self._shared, self._feed())

    async def _use(self, epoch: Epoch, barrier: Barrier, limit: int | None) -> None:
        """Be the user: take batches, check their rows and meet the other users after each."""
        try:
            while limit is None or len(self.delivered) < limit:
                batch: Delivered = await epoch.output.aget()
                self._shared.check(batch)
                self.delivered.append(batch)
                for _ in range(self._random.randint(0, self._shared.scenario.consumer_turns_max)):
                    await asyncio.sleep(0)
                await barrier.meet(self.number)
        except OutputEnded:
            pass
        except Exception as error:
            self.error = error

    async def _whole_epoch(
        self, epoch: Epoch, barrier: Barrier, running: asyncio.Task[None], user: asyncio.Task[None]
    ) -> None:
        await asyncio.wait([user])
        barrier.leave(self.number)
        epoch.output.abandon()
        running.cancel()
        await asyncio.wait([running])
        self.buffer.end_epoch()

    def close(self) -> None:
        """The user closes the rank's iterator, wherever it is, and does not meet the others any
        more in this epoch."""
        for task in self._tasks:
            task.cancel()


class Rank(RankUser):
    """A rank and its connection to the group; `places`: how many batches its arena has room for."""

    buffer: RemoteBuffer

    def __init__(
        self, shared: Simulation, group: Group, number: int, ranks: int, places: int,
        sampler: Callable[[int, int], Sampler],
    ) -> None:  # fmt: skip
        super().__init__(shared, number, ranks, sampler)
        most = shared.scenario.batch_size + shared.scenario.extra_max
        shape = ArenaShape(places, (most,))
        arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
        self.answers = Link(self._random, lambda message: self.buffer.receive(message))
        self._group, self.member = group, group.enter(number, arena, self.answers.send)
        self.requests = Link(self._random, self._handle)
        memory = RemoteTable(shared.scenario.file.row_bytes, shared.table.memory)
        self.buffer = RemoteBuffer({"x": memory}, arena, self.requests.send)

    def _handle(self, message: Message) -> None:
        if self._group.members.get(self.number) is not self.member:
            return
        try:
            self._group.handle(self.member, message)
        except ProtocolError as error:
            self.refused = error
            self.die(deliver=False)

    def die(self, deliver: bool | None = None) -> None:
        """The process ends now. `deliver`: whether messages to the service that are under way
        arrive; None: the seed says."""
        if not self.alive:
            return
        self.alive = False
        if deliver is None:
            deliver = self._random.random() < 0.5
        self.close()
        self.answers.end(lambda: None, deliver=False)
        self.requests.end(lambda: self._group.leave(self.member, lost=True), deliver)
        if self._barrier is not None:
            self._barrier.leave(self.number)

    @property
    def settled(self) -> bool:
        """Whether the group has none of its batches, and no message is under way or will come."""
        at_rest = self.requests.empty and self.answers.empty and not self.member.batches
        return at_rest and (not self.alive or self.buffer.idle)


class SimulatedRanks:
    """Ranks that share a buffer; made in the event loop that they run in.

    Args:
        scenario: what all ranks load together.
        places: how many batches each rank's arena has room for; 0: as many as the queues hold.
    """

    rank: type[Rank] = Rank

    def __init__(
        self, scenario: Scenario, seed: int, count: int = 2, places: int = 0,
        sampler: Callable[[int, int], Sampler] = RandomSampler,
    ) -> None:  # fmt: skip
        stages = scenario.stages
        places = places or stages.extracting_queue + stages.training_queue
        self.shared = Simulation(scenario, seed)
        self.group = Group(range(count), self.shared.buffer, stages, graphs=self._graphs())
        self.ranks = [
            self.rank(self.shared, self.group, number, count, places, sampler)
            for number in range(count)
        ]
        self._begun: list[asyncio.Task[None]] = []

    def _graphs(self) -> WindowGraphs | None:
        return None

    def begin(self, epoch: int, limits: Mapping[int, int | None] | None = None) -> None:
        """Begin an epoch at all ranks that are alive; `limits`: rank → batches after which its user
        stops."""
        alive = [rank for rank in self.ranks if rank.alive]
        barrier = Barrier({rank.number for rank in alive})
        self._begun = [
            rank.begin(epoch, barrier, (limits or {}).get(rank.number)) for rank in alive
        ]

    async def kill(self, rank: Any) -> None:
        """A rank dies, which the group notices; see `Rank.die`."""
        rank.die()

    @property
    def ended(self) -> bool:
        """Whether the epoch has ended at all ranks."""
        return all(task.done() for task in self._begun)

    async def end(self) -> None:
        """Wait until the epoch has ended at all ranks."""
        await asyncio.gather(*self._begun)

    async def settle(self) -> None:
        """Wait until all ranks are settled; an AssertionError if that does not come."""
        for _ in range(SETTLING_TURNS_MAX):
            if all(rank.settled for rank in self.ranks):
                return
            await asyncio.sleep(0)
        left = [rank.number for rank in self.ranks if not rank.settled]
        raise AssertionError(f"the batches of ranks {left} are never given back")

    async def close(self) -> None:
        """Disconnect all ranks, check that every slot and place is free, and free everything; raise
        the error of a message that the group has refused."""
        for rank in self.ranks:
            if rank.refused is not None:
                raise rank.refused
        await self.settle()
        for rank in self.ranks:
            if rank.alive:
                self.group.leave(rank.member, lost=False)
        await self.group.aclose()
        await self.shared.close()


def simulate_ranks(
    scenario: Scenario, seed: int, ranks: int = 2, epochs: int = 1, limit: int | None = None,
    places: int = 0, kind: Callable[..., SimulatedRanks] = SimulatedRanks,
) -> list[list[Delivered]]:  # fmt: skip
    """Run whole epochs, check every row, and return the batches of each rank.

    Args:
        scenario, places: see `SimulatedRanks`.
        kind: how the ranks share rows.
        limit: batches of an epoch after which each user stops; None: all.

    Raises:
        Exception: see `simulate`.
    """

    async def main() -> list[list[Delivered]]:
        simulated = kind(scenario, seed, ranks, places)
        delivered: list[list[Delivered]] = [[] for _ in simulated.ranks]
        for epoch in range(epochs):
            simulated.begin(epoch, dict.fromkeys(range(ranks), limit))
            await simulated.end()
            for got, rank in zip(delivered, simulated.ranks, strict=True):
                if rank.error is not None:
                    raise rank.error
                got += rank.delivered
        await simulated.close()
        return delivered

    return run(main())
