"""A rank that sends anything, and whose arena changes at any time, does no harm to another rank."""

import asyncio
import random
from collections import Counter

import numpy as np

from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.host.arena import PAGE, Arena, ArenaShape
from gnndrive.host.group import Group
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_ranks import Barrier, Link, Rank
from gnndrive.testing.simulation import RandomSampler, Scenario, Simulation
from tests.host.spoken import some_turns
from tests.host.test_simulated_ranks import check_all, expected

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
