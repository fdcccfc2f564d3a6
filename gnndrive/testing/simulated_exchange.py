"""`SimulatedExchange`: ranks whose feature buffers act as one, each on a simulated disk of its own.

As in `simulated_ranks.py`, messages take a number of turns of the loop that the seed determines,
the users meet after each step, and a rank may die at any turn, or end its epoch early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import PeerError
from gnndrive.common.owners import Owners
from gnndrive.disk.tiers import make_chain
from gnndrive.disk.tiers.base import TierContext
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.exchange.owned_rows import OwnedRows
from gnndrive.exchange.pulled_rows import PulledRows
from gnndrive.exchange.remote_rows import RemoteRows
from gnndrive.exchange.share import NOTHING, Asked, Rows, Share
from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.pipeline.epoch import Feed
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.sampling.samplers.base import Sampler
from gnndrive.strategies.superbatches.feed import AheadFeed
from gnndrive.testing.simulated_ranks import Link, RankUser, SimulatedRanks
from gnndrive.testing.simulation import (
    InlineWorkers,
    RandomSampler,
    Scenario,
    SimulatedSuperbatches,
    Simulation,
)

NOTICE_TURNS_MAX = 20  # until the others notice that a rank has died


class OwnSimulation(Simulation):
    """The feature buffer of one rank's rows."""

    def __init__(self, scenario: Scenario, seed: int, owners: Owners, rank: int) -> None:
        self._owners, self._rank = owners, rank
        super().__init__(scenario, seed)

    def _make_table(self, scenario: Scenario) -> SlotTable:
        file, count = scenario.file, max(self._owners.count(self._rank), 1)
        slots = scenario.slots or scenario.group_rows_max
        memory = self.device.allocate(slots, file.row_bytes)
        victims = memory.evicted(scenario.victims) if scenario.victims else None
        context = TierContext(
            self.layout, self.engine, None, count, file.row_bytes, evicted=victims
        )
        lowest = partial(OwnedRows, owners=self._owners, owner=self._rank)
        tier = make_chain(scenario.tiers, context, lowest)
        return SlotTable(
            count, slots, file.row_bytes, memory, tier, scenario.policy, scenario.group_rows_max,
            foreseen=scenario.foreseen,
        )  # fmt: skip


class ExchangingRank(RankUser):
    """A rank, its share, and its lanes to the others."""

    buffer: ExchangedBuffer

    def __init__(
        self, scenario: Scenario, seed: int, number: int, ranks: int, places: int, owners: Owners,
        sampler: Callable[[int, int], Sampler], remote_slots: int,
    ) -> None:  # fmt: skip
        self.own = OwnSimulation(scenario, seed, owners, number)
        super().__init__(self.own, number, ranks, sampler)
        file, most = scenario.file, scenario.batch_size + scenario.extra_max
        shape = ArenaShape(places, (most,))
        workers = InlineWorkers(seed + 100 + number)
        foreseen = ["x"] if scenario.foreseen else []
        sizes = file.row_count, number, remote_slots, file.row_bytes
        self.kept = {"x": RemoteRows(*sizes, workers)} if remote_slots and ranks > 1 else {}
        self.share = Share(ranks, self.own.buffer, scenario.stages, shape, workers, foreseen)
        self.pulls = PulledRows(self.own.device, workers)
        self._lanes: list[Link] = []
        self._lost = set[int]()
        self._make_buffer: Callable[[list[Link]], ExchangedBuffer] = lambda requests: (
            ExchangedBuffer(
                {"x": owners},
                {"x": file.row_bytes},
                shape,
                [each.send for each in requests],
                rank=number,
                foreseen=foreseen,
                device=self.own.device,
                kept=self.kept,
                workers=workers,
            )
        )

    def _feed(self) -> Feed:
        scenario = self.own.scenario
        return AheadFeed(SimulatedSuperbatches(scenario)) if scenario.superbatch else SampledFeed()

    def connect(self, others: Sequence[ExchangingRank]) -> None:
        """Make the lanes to the owners, this rank among them, and theirs to this rank."""
        requests, pulled = list[Link](), set[int]()
        for owner in others:
            answers = Link(self._random, partial(self._take, owner.number))
            asker = owner.share.enter(self.number, answers.send)
            requests.append(Link(self._random, partial(owner.serve, self, asker.receive)))
            self._lanes += answers, requests[-1]
            slots = owner.own.buffer.tables["x"].memory.shared
            if slots is not None and self._random.random() < 0.7:  # else they are on two hosts
                self.pulls.add(owner.number, [slots])
                asker.pulls = True
                pulled.add(owner.number)
        self._requests, self.buffer = requests, self._make_buffer(requests)
        self.buffer.pulled = pulled

    def serve(
        self, asking: ExchangingRank, receive: Callable[..., None], message: Message, asked: Asked
    ) -> None:
        """Take what a rank asks."""
        if self.alive:
            try:
                receive(message, asked)
            except ProtocolError as error:
                asking.refused = error

    def _take(self, owner: int, message: Message, rows: Rows) -> None:
        """Take what an owner answers, with the rows that arrive."""
        if not self.alive or owner in self._lost:
            return
        key = message.epoch, message.step
        if message.kind is Kind.SLOTS:
            there, said = self.buffer.places_of(owner, key), replace(message, kind=Kind.PULLED)
            slots = [each.numpy() for each in rows]
            self.pulls.pull(owner, there, slots, partial(self._pulled, owner, said))
            return
        if rows:
            for arriving, each in zip(self.buffer.places_of(owner, key), rows, strict=True):
                arriving.land(0, each.numpy().reshape(-1))
        self.buffer.receive(owner, message)

    def _pulled(self, owner: int, said: Message, error: Exception | None) -> None:
        assert error is None
        if self.alive:
            self._requests[owner].send(said, NOTHING)

    def die(self, deliver: bool | None = None) -> None:
        """The process ends now; the others notice it later. See `Rank.die`."""
        if not self.alive:
            return
        self.alive = False
        self.close()
        for lane in self._lanes:
            lane.end(lambda: None, deliver=self._random.random() < 0.5)
        if self._barrier is not None:
            self._barrier.leave(self.number)

    def lose(self, other: ExchangingRank, lost: bool = True) -> None:
        """The connection to a rank has ended; not `lost`: it has said goodbye."""
        if self.alive:
            self._lost.add(other.number)
            self.pulls.shut(other.number)
            self.share.askers[other.number].leave(lost)
            self.buffer.lose(other.number, PeerError(other.number))

    @property
    def settled(self) -> bool:
        """Whether nothing is asked, copied or under way."""
        if not self.alive:
            return True
        lost = self.buffer.broken is not None
        quiet = all(lane.empty for lane in self._lanes)
        copying = any(each.tasks for each in self.share.askers.values())
        return quiet and not copying and (lost or self.buffer.idle)


class SimulatedExchange(SimulatedRanks):
    """Ranks whose buffers act as one; see `SimulatedRanks`. `shift`: see `Owners`; `remote_slots`:
    how many rows of others each rank keeps."""

    ranks: list[ExchangingRank]  # type: ignore[assignment]

    def __init__(
        self, scenario: Scenario, seed: int, count: int = 2, places: int = 0, shift: int = 0,
        sampler: Callable[[int, int], Sampler] = RandomSampler, remote_slots: int = 0,
    ) -> None:  # fmt: skip
        stages = scenario.stages
        places = places or stages.extracting_queue + stages.training_queue
        owners = Owners(scenario.file.row_count, count, shift)
        self.ranks = [
            ExchangingRank(scenario, seed, number, count, places, owners, sampler, remote_slots)
            for number in range(count)
        ]
        for rank in self.ranks:
            rank.connect(self.ranks)
        self._begun: list[asyncio.Task[None]] = []

    async def kill(self, rank: ExchangingRank) -> None:
        """A rank dies, and each of the others notices after some turns."""
        rank.die()
        for other in self.ranks:
            for _ in range(rank._random.randint(0, NOTICE_TURNS_MAX)):
                await asyncio.sleep(0)
            other.lose(rank)

    async def close(self) -> None:
        """End all shares, check that every slot is free, and free everything; raise the error of a
        message that a share has refused."""
        for rank in self.ranks:
            if rank.refused is not None:
                raise rank.refused
        await self.settle()
        for rank in self.ranks:
            for kept in rank.kept.values() if rank.alive else ():
                kept.table.verify()
                assert sum(kept.table.unused()) == kept.table.slots, "a row is still held"
        for rank in self.ranks:
            await rank.pulls.aclose()
            await rank.share.aclose()
        for rank in self.ranks:
            await rank.own.close()
