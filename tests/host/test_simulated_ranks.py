"""Ranks that share a feature buffer get one process's batches, whatever the seed decides.

If one dies, ends its epoch or fails, at any turn of the loop, the others get an error that names
it, or go on. None waits for ever, no row is wrong, and every slot and place is free at the end. A
rank that sends anything, and whose arena changes at any time, does no harm to another.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.errors import PeerError, ReadError
from gnndrive.common.records import Sample, Seeds, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.host.arena import PAGE, Arena, ArenaShape
from gnndrive.host.group import Group
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.pipeline.epoch import Stages
from gnndrive.sampling.samplers.base import Sampler, batch_key
from gnndrive.sampling.topologies.base import Topology
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import Barrier, Link, Rank, SimulatedRanks
from gnndrive.testing.simulation import RandomSampler, Scenario, Simulation
from tests.host.spoken import some_turns

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=4)
SLOW = Faults(delay_turns_max=30)
BAD_BYTES, BAD_ROWS = ((4096, 4608),), set(range(64, 72))
Batches: TypeAlias = list[tuple[int, list[int]]]
"""Of each batch its step and its nodes."""


def expected(scenario: Scenario, seed: int, ranks: int, epoch: int = 0) -> list[Batches]:
    """The batches of each rank in an epoch, computed without a pipeline."""
    sampler = RandomSampler(scenario.file.row_count, scenario.extra_max)
    batches: list[Batches] = [[] for _ in range(ranks)]
    for seeds in scenario.seeds(seed):
        step, rank = divmod(seeds.index, ranks)
        sample = sampler.sample(seeds, batch_key(seed, epoch, seeds.index))
        batches[rank].append((step, sample.node.tolist()))
    return batches


def check_first(rank: Rank, whole: list[Batches]) -> None:
    """The simulation has checked the rows of these batches."""
    delivered = [(batch.index, batch.node.tolist()) for batch in rank.delivered]
    assert delivered == whole[rank.number][: len(delivered)]


def check_all(ranks: Iterable[Rank], whole: list[Batches]) -> None:
    for rank in ranks:
        assert rank.error is None, rank.number
        check_first(rank, whole)
        assert len(rank.delivered) == len(whole[rank.number])


@asynccontextmanager
async def simulated_ranks(
    scenario: Scenario, seed: int, count: int = 2, *rest: Any,
    kind: type[SimulatedRanks] = SimulatedRanks, **given: Any,
) -> AsyncIterator[SimulatedRanks]:  # fmt: skip
    simulated = kind(scenario, seed, count, *rest, **given)
    yield simulated
    await simulated.close()


def any_scenario(rows: TableFile, seed: int) -> tuple[Scenario, dict[str, Any]]:
    """A scenario, and arguments of `SimulatedRanks`; the seed decides everything."""
    draw = random.Random(f"scenario {seed}")
    ranks = draw.choice([1, 2, 2, 3, 4])
    stages = Stages(
        samplers=draw.choice([1, 2, 4]), extractors=draw.choice([1, 2, 4]),
        extracting_queue=draw.choice([1, 3, 6]), training_queue=draw.choice([1, 2, 4]),
        sweep=draw.choice([None, 1, 2]),
    )  # fmt: skip
    scenario = Scenario(
        rows, slots=draw.choice([0, 0, 24, 40, 100]), batches=ranks * draw.randint(1, 6),
        stages=stages, faults=draw.choice([NOISE, Faults(), Faults(reorder=False)]),
        policy=draw.choice([Belady(), LRU()]), depth=draw.choice([2, 8]),
        consumer_turns_max=draw.choice([0, 3, 20]),
    )  # fmt: skip
    return scenario, {"count": ranks, "places": draw.choice([0, 0, 1, 2, 5])}


# ---- whole epochs


CORNERS: dict[str, tuple[dict[str, Any], list[dict[int, int]], int]] = {
    # A rank may have joined with its last batch before the other one has with its first.
    "queues hold an epoch": (
        {"batches": 24, "stages": Stages(4, 4, 12, 12), "consumer_turns_max": 0}, [{}], 2,
    ),
    # The third rank's turns are void when its epoch ends.
    "a rank without batches": ({"batches": 2}, [{}, {}, {}], 3),
    # The disk is slow, so that the batches that were given up keep all places for long, and
    # batches of the next epoch that were sampled out of order get theirs one by one.
    "an epoch begins while the last one's batches are read": (
        {"batches": 24, "slots": 100, "faults": Faults(delay_turns_max=80), "depth": 1,
         "stages": Stages(samplers=4, extractors=4)}, [{0: 1, 1: 1}, {}], 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "limits", "count"), CORNERS.values(), ids=CORNERS)
def test_epochs_at_the_edge(rows, seeds, given, limits, count):
    """Of the ranks those in `limits` stop after so many batches."""
    scenario = Scenario(rows, **given)

    async def main(seed):
        async with simulated_ranks(scenario, seed, count) as simulated:
            for epoch, stops in enumerate(limits):
                simulated.begin(epoch, stops)
                await simulated.end()
                whole = expected(scenario, seed, count, epoch)
                check_all(simulated.ranks, [whole[at][: stops.get(at)] for at in range(count)])

    for seed in seeds(1):
        run(main(seed))


@pytest.mark.parametrize("places", [0, 2])
def test_ranks_that_are_in_different_epochs(rows, seeds, places):
    """One rank ends its epochs early. Its batches are given up while they wait, are read or are
    ready; it begins the next epoch at once, and waits there until the others end this one."""
    scenario = Scenario(rows, batches=18, faults=NOISE)

    async def main(seed):
        early, limit, apart = seed % 3, seed // 3 % 4, 0
        at = [0, 0, 0]

        async def epochs(rank):
            nonlocal apart
            for epoch, barrier in enumerate(barriers):
                at[rank.number] = epoch
                apart = max(apart, max(at) - min(at))
                stops = limit if rank.number == early else None
                await rank.begin(epoch, barrier, stops)
                whole = expected(scenario, seed, 3, epoch)
                check_all([rank], [each[:stops] for each in whole])

        async with simulated_ranks(scenario, seed, 3, places) as simulated:
            barriers = [Barrier(set(range(3))) for _ in range(3)]
            await asyncio.gather(*map(epochs, simulated.ranks))
        return apart

    assert run(main(1)) == 2
    for seed in seeds(1):
        run(main(seed + 10))


# ---- deaths and failures


class BrokenOnPurpose(Exception):
    """Raised by a sampler."""


class FailingSampler(RandomSampler):
    """Fails at one batch, by its number among all ranks'."""

    fails_at: int

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology] = ()) -> Sample:
        if seeds.number == self.fails_at:
            raise BrokenOnPurpose
        return super().sample(seeds, key, topologies)


def failing_at(number: int) -> Callable[[int, int], Sampler]:
    def make(num_nodes: int, extra_max: int) -> Sampler:
        sampler = FailingSampler(num_nodes, extra_max)
        sampler.fails_at = number
        return sampler

    return make


def run_with_mishaps(
    rows: TableFile, seed: int, kind: type[SimulatedRanks] = SimulatedRanks
) -> Counter[str]:
    """Epochs in which ranks die or close their iterators at any turn, batches cannot be read or
    sampled, and users stop early; the seed decides all of it. Returns how epochs ended at ranks."""
    scenario, given = any_scenario(rows, seed)
    draw = random.Random(f"mishaps {seed}")
    if draw.random() < 0.3:
        scenario = replace(scenario, faults=replace(scenario.faults, eio_offsets=BAD_BYTES))
    if draw.random() < 0.5:
        given["sampler"] = failing_at(draw.randrange(scenario.batches))

    ends, dead = Counter[str](), set[int]()

    async def main() -> None:
        async with simulated_ranks(scenario, seed, kind=kind, **given) as simulated:
            for epoch in range(draw.randint(1, 3)):
                stops = [rank.number for rank in simulated.ranks if draw.random() < 0.2]
                simulated.begin(epoch, {number: draw.randint(0, 3) for number in stops})
                for _ in range(draw.randint(0, 2)):
                    await some_turns(draw.randint(0, draw.choice([50, 400])))
                    rank = draw.choice(simulated.ranks)
                    if draw.random() < 0.3:
                        dead.add(rank.number)
                        await simulated.kill(rank)
                    else:
                        rank.close()
                        stops.append(rank.number)
                await simulated.end()
                whole = expected(scenario, seed, given["count"], epoch)
                for rank in simulated.ranks:
                    if rank.alive:
                        check_first(rank, whole)
                        check_end(rank, whole[rank.number], stops, dead)

    def check_end(rank: Rank, own: Batches, stops: list[int], dead: set[int]) -> None:
        count = len(rank.delivered)
        ends[type(rank.error).__name__ if rank.error or count == len(own) else "early"] += 1
        if isinstance(rank.error, PeerError):
            assert rank.error.rank in dead
        elif isinstance(rank.error, ReadError):
            assert BAD_ROWS & set(own[count][1])
        elif isinstance(rank.error, BrokenOnPurpose):
            assert count * given["count"] + rank.number == given["sampler"](1, 1).fails_at
        else:
            assert rank.error is None
            assert rank.number in stops or count == len(own)

    run(main())
    return ends


def test_whatever_befalls_the_ranks(rows, seeds):
    ends = Counter[str]()
    for seed in seeds(60):
        ends += run_with_mishaps(rows, seed)
    assert ends.keys() == {"NoneType", "early", "PeerError", "ReadError", "BrokenOnPurpose"}


def loads(scenario: Scenario, count: int) -> int:
    """Rows that are read for so many ranks, to which the same batches are dealt."""

    async def main() -> int:
        async with simulated_ranks(scenario, 0, count) as simulated:
            simulated.begin(0)
            await simulated.end()
            assert all(rank.error is None for rank in simulated.ranks)
        return int(simulated.shared.table.stats()["loads"])

    return run(main())


@pytest.mark.parametrize(("policy", "ranks", "slots"), [(LRU(), 4, 48), (Belady(), 2, 100)])
def test_ranks_read_hardly_more_rows_than_one(rows, policy, ranks, slots):
    """Turns keep their steps together, so that a row that several need is read once. Beside one
    rank they have a training queue each, whose batches hold slots."""
    scenario = Scenario(rows, batches=32, slots=slots, policy=policy, faults=SLOW)
    one = loads(scenario, 1)
    whole = scenario.batches * (scenario.batch_size + scenario.extra_max // 2)
    assert one < 0.8 * whole, "the buffer saves nothing, so there is nothing to compare"
    assert loads(scenario, ranks) < 1.1 * one


# ---- a rank that sends anything

PLACES, ROWS_MAX, EPOCHS = 5, 40, 2
MESSAGES = 250
ODD = (-1, 0, 1, 2, 7, 16, 2**20, 2**31, 2**32, 2**39, 2**40, 2**62, 2**63 - 1, -(2**63))


class Malicious:
    """The rank that sends anything; a share of `honesty` is what a rank would send. `counts` has
    how many messages of each kind were accepted, and how many refused, by name."""

    def __init__(self, draw: random.Random, group: Group, number: int, honesty: float) -> None:
        self._draw, self._group, self._honesty = draw, group, honesty
        shape = ArenaShape(PLACES, (ROWS_MAX,))
        self._memory = np.zeros(shape.nbytes, np.uint8)
        self._arena = Arena(shape, self._memory)
        self._free = list(range(PLACES))
        self._places: dict[tuple[int, int], int] = {}
        self._joined: list[tuple[int, int]] = []
        self._ready: list[tuple[int, int]] = []
        self._next = (0, 0)
        self.counts: Counter[str] = Counter()
        self.member = group.enter(number, self._arena, self._receive)

    def _receive(self, message: Message) -> None:
        key = message.epoch, message.step
        self.counts[message.kind.name] += 1
        if message.kind is Kind.READY:
            self._ready.append(key)
        elif message.kind in (Kind.LEFT, Kind.FAILED) and key in self._places:
            self._free.append(self._places.pop(key))

    def change_arena(self, place: int) -> None:
        """Write a number over a place's count or one of its rows or aliases."""
        draw = self._draw
        at = PAGE + place * self._arena.shape.place_bytes
        at += 8 * draw.choice([0, 1, 1, draw.randrange(ROWS_MAX * 3 // 2)])
        value = draw.choice([draw.randrange(ROWS_MAX + 1), draw.randrange(200), draw.choice(ODD)])
        self._memory[at : at + 8].view(np.int64)[:] = value

    def send(self) -> None:
        honest = self._draw.random() < self._honesty
        message = self._honest() if honest else self._any()
        data = bytearray(message.encode())
        if not honest and self._draw.random() < 0.2:
            for _ in range(self._draw.randint(1, 4)):
                data[self._draw.randrange(len(data))] = self._draw.randrange(256)
        try:
            message = Message.decode(bytes(data))
            self._group.handle(self.member, message)
        except ProtocolError:
            self.counts["refused"] += 1
            raise
        self.counts[message.kind.name] += 1

    def _any(self) -> Message:
        draw = self._draw

        def number(most: int) -> int:
            return draw.randrange(most) if draw.random() < 0.8 else draw.choice(ODD)

        known = draw.choice([*self._places, self._next])
        epoch, step = known if draw.random() < 0.7 else (number(EPOCHS) & 0xFFFFFFFF, number(20))
        common = [Kind.ANNOUNCE, Kind.JOIN, Kind.LEAVE, Kind.RELEASE_TAIL, Kind.RELEASE]
        kind = draw.choice(common) if draw.random() < 0.9 else draw.choice(list(Kind))
        return Message(kind, epoch, step, number(PLACES), number(ROWS_MAX + 1))

    def _honest(self) -> Message:
        draw = self._draw
        not_joined = [key for key in self._places if key not in self._joined]
        if self._ready and draw.random() < 0.6:
            key = draw.choice(self._ready)
            if draw.random() < 0.3:
                return Message(Kind.RELEASE_TAIL, *key, 0, draw.randrange(ROWS_MAX))
            self._ready.remove(key)
            self._free.append(self._places.pop(key, 0))
            return Message(Kind.RELEASE, *key)
        if not_joined and draw.random() < 0.7:
            key = min(not_joined)
            self._joined.append(key)
            return Message(draw.choice([Kind.JOIN] * 9 + [Kind.LEAVE]), *key)
        if self._free and self._next[0] < EPOCHS:
            key, place = self._next, self._free.pop()
            self._next = (key[0], key[1] + 1)
            self._places[key] = place
            count = draw.choice([draw.randrange(16), draw.randrange(ROWS_MAX + 1)])
            self._arena.write_rows(place, [np.array(draw.sample(range(200), count), np.int64)])
            if draw.random() < 0.1:
                self.change_arena(place)
            return Message(Kind.ANNOUNCE, *key, place)
        if self._next[1] > 6 and draw.random() < 0.1:
            self._next = (self._next[0] + 1, 0)
            return Message(Kind.END, self._next[0] - 1)
        return Message(Kind.ASK)


def fuzz(rows: TableFile, seed: int) -> Counter[str]:
    """Send messages while an honest rank loads its epochs; returns what happened to them."""
    draw = random.Random(f"fuzz {seed}")
    scenario = Scenario(
        rows, batches=8, slots=draw.choice([0, 24, 64]), policy=draw.choice([Belady(), LRU()]),
        faults=draw.choice([Faults(), Faults(short=0.2, eagain=0.1, delay_turns_max=6)]),
        stages=Stages(extractors=draw.choice([1, 4])),
    )  # fmt: skip
    leaves = draw.random() < 0.5  # at the first refusal, as the service has it
    honesty = draw.choice([0.99, 0.9]) if leaves else draw.choice([0.9, 0.5, 0.0])

    async def main() -> Counter[str]:
        simulation = Simulation(scenario, seed)
        group = Group(range(2), simulation.buffer, scenario.stages)
        number = seed % 2
        honest = Rank(simulation, group, number, 2, PLACES, RandomSampler)
        receive = honest.buffer.receive
        # It goes on after the other rank's end, to see that its rows stay right.
        honest.answers = Link(
            random.Random(seed), lambda each: each.kind is Kind.PEER_LOST or receive(each)
        )
        honest.member.send = honest.answers.send
        malicious = Malicious(draw, group, 1 - number, honesty)

        async def attack() -> None:
            for _ in range(MESSAGES):
                if draw.random() < 0.2:
                    malicious.change_arena(draw.randrange(PLACES))
                try:
                    malicious.send()
                except ProtocolError:
                    if leaves:
                        break
                await some_turns(draw.choice([0, 0, 0, 1, 5, 20]))
                simulation.buffer.verify()
            group.leave(malicious.member, lost=True)

        async def load() -> None:
            for epoch in range(EPOCHS):
                await honest.begin(epoch, Barrier({number}))
                check_all([honest], expected(scenario, seed, 2, epoch))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(attack())
            tasks.create_task(load())
        await some_turns()
        assert honest.settled
        assert not malicious.member.batches
        group.leave(honest.member, lost=False)
        await group.aclose()
        await simulation.close()
        return malicious.counts

    return run(main())


def test_whatever_a_rank_sends(rows, seeds):
    counts: Counter[str] = Counter()
    for seed in range(5):
        counts += fuzz(rows, seed)
    accepted = [Kind.ANNOUNCE, Kind.JOIN, Kind.LEAVE, Kind.RELEASE_TAIL, Kind.RELEASE, Kind.END]
    answered = [Kind.READY, Kind.FAILED, Kind.LEFT, Kind.AWAITED]
    for name in ["refused", *(kind.name for kind in (*accepted, *answered))]:
        assert counts[name] > 1, name
    for seed in seeds(1):
        fuzz(rows, seed + 5)
