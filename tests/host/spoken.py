"""`SpokenRank`: a rank whose messages a test sends one by one, to a group on a simulated disk."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import torch

from gnndrive.common.records import Int64Array, TableFile
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.group import Group
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.host.window_graphs import WindowGraphs
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, told_rows

PLACES, ROWS_MAX = 4, 16
ANSWER_TURNS_MAX = 500
FROM_RANKS = frozenset(kind for kind in Kind if kind <= Kind.SHUT)
LATER = 9  # an epoch
OTHERS_ROWS = np.arange(100, 108)


class SpokenRank:
    """A rank that a test speaks for; `got` is what the group has sent."""

    def __init__(self, simulation: Simulation, group: Group, number: int) -> None:
        shape = ArenaShape(PLACES, (ROWS_MAX,))
        self.arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
        self._simulation, self._group = simulation, group
        self.got: list[Message] = []
        self.member = group.enter(number, self.arena, self.got.append)

    def say(self, kind: Kind, step: int = 0, a: int = 0, b: int = 0, epoch: int = 0) -> None:
        self._group.handle(self.member, Message(kind, epoch, step, a, b))

    def refused(self, kind: Kind, step: int = 0, a: int = 0, b: int = 0, epoch: int = 0) -> bool:
        try:
            self.say(kind, step, a, b, epoch)
        except ProtocolError:
            return True
        return False

    def announce(self, rows: Int64Array, step: int = 0, place: int = 0, epoch: int = 0) -> None:
        self.arena.write_rows(place, [rows])
        self.say(Kind.ANNOUNCE, step, place, epoch=epoch)

    def ask_for(self, rows: Int64Array, step: int = 0, place: int = 0, epoch: int = 0) -> None:
        self.announce(rows, step, place, epoch)
        self.say(Kind.JOIN, step, epoch=epoch)

    def heard(self, kind: Kind, step: int = 0, epoch: int = 0) -> list[Message]:
        about = kind, epoch, step
        return [each for each in self.got if (each.kind, each.epoch, each.step) == about]

    def open(self, number: int, *rows: range, epoch: int = 0) -> None:
        for each in rows:
            self.say(Kind.WINDOW_ROWS, number, each.start, each.stop, epoch)
        self.say(Kind.OPEN, number, epoch=epoch)

    async def answer(self, kind: Kind, step: int = 0, epoch: int = 0) -> Message:
        """Wait for the only message of a kind about a batch."""
        for _ in range(ANSWER_TURNS_MAX):
            if heard := self.heard(kind, step, epoch):
                (answer,) = heard
                return answer
            await asyncio.sleep(0)
        raise AssertionError(f"{kind.name} of batch {step} does not come: {self.got}")

    def check(self, rows: Int64Array, place: int = 0) -> None:
        """Compare the rows of a batch that is ready with what they should be."""
        file, memory = self._simulation.scenario.file, self._simulation.table.memory
        alias = self.arena.alias(place, 0, len(rows))
        got, _ = memory.gather(alias, torch.uint8, (file.row_bytes,))
        assert np.array_equal(got.numpy(), told_rows(rows, file.row_bytes))

    async def load(self, rows: Int64Array, step: int = 0, epoch: int = 0) -> None:
        place = PLACES - 1
        self.ask_for(rows, step, place, epoch)
        await self.answer(Kind.READY, step, epoch)
        self.check(rows, place)
        self.say(Kind.RELEASE, step, epoch=epoch)


@asynccontextmanager
async def group_of(
    rows: TableFile, *ranks: int, slots: int = 16, graphs: WindowGraphs | None = None,
    **given: Any,
) -> AsyncIterator[tuple[Simulation, Group]]:  # fmt: skip
    """A group of `ranks`; at its end every slot of the buffer must be free or on standby."""
    simulation = Simulation(Scenario(rows, slots=slots, **given), seed=0)
    stages = simulation.scenario.stages
    group = Group(ranks, simulation.buffer, stages, simulation.buffer.stats, graphs)
    yield simulation, group
    for member in list(group.members.values()):
        group.leave(member, lost=False)
    await group.aclose()
    await simulation.close()


@asynccontextmanager
async def two_ranks(
    rows: TableFile, slots: int = 16, **given: Any
) -> AsyncIterator[tuple[Simulation, Group, SpokenRank, SpokenRank]]:
    """A group of two ranks; at its end the first one dies, and the second one must get its rows in
    a later epoch."""
    async with group_of(rows, 0, 1, slots=slots, **given) as (simulation, group):
        first, second = (SpokenRank(simulation, group, number) for number in range(2))
        yield simulation, group, first, second
        simulation.engine.paused = False
        if 0 in group.members:
            group.leave(first.member, lost=True)
        heard = len(first.got)
        for epoch in range(LATER):
            second.say(Kind.END, epoch=epoch)
        for step in range(2):
            await second.load(OTHERS_ROWS + step, step, LATER)
        await some_turns()
        assert not first.member.batches, "a batch of the rank that has left is never given back"
        assert not first.member.places
        assert len(first.got) == heard, "nothing is sent to a rank that has left"
        assert not group._by_order


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in the loop that finds deadlocks."""

    @functools.wraps(test)
    def called(**fixtures: Any) -> None:
        run(test(**fixtures))

    return called


async def some_turns(count: int = ANSWER_TURNS_MAX) -> None:
    """Let the loop turn; by default so often that everything happens that can happen."""
    for _ in range(count):
        await asyncio.sleep(0)
