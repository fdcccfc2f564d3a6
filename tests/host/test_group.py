"""Each message to a group, at each point of a batch's way: done as documented, or refused, and then
the other ranks go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from gnndrive.common.records import TableFile
from gnndrive.host.arena import PAGE
from gnndrive.host.group import Group
from gnndrive.host.messages import Kind, ProtocolError
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Simulation
from tests.host.spoken import FROM_RANKS, PLACES, SpokenRank, group_of, some_turns, two_ranks

WANTED = np.arange(8)
Way = Callable[[Simulation, Group, SpokenRank], Awaitable[None]]


async def unknown(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    rank.arena.write_rows(0, [WANTED])


async def announced(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    rank.announce(WANTED)


async def waiting(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    """It joins in epoch 1, and rank 1's turns in epoch 0 come first."""
    rank.announce(WANTED, epoch=1)
    rank.say(Kind.JOIN, epoch=1)
    await some_turns()
    assert group.extracting.has(0, 1, 0)


async def extracting(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    simulation.engine.paused = True
    rank.announce(WANTED)
    rank.say(Kind.JOIN)
    await some_turns()
    assert simulation.engine.inflight


async def given_up(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    await extracting(simulation, group, rank)
    rank.say(Kind.LEAVE)
    assert not rank.heard(Kind.LEFT), "its rows are being read"


async def ready(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    rank.announce(WANTED)
    rank.say(Kind.JOIN)
    await rank.answer(Kind.READY)
    rank.check(WANTED)


async def released(simulation: Simulation, group: Group, rank: SpokenRank) -> None:
    await ready(simulation, group, rank)
    rank.say(Kind.RELEASE)


ALLOWED: dict[Way, tuple[Kind, ...]] = {
    unknown: (Kind.ANNOUNCE, Kind.LEAVE),
    announced: (Kind.JOIN, Kind.LEAVE),
    waiting: (Kind.LEAVE,),
    extracting: (Kind.LEAVE,),
    given_up: (Kind.LEAVE,),
    ready: (Kind.LEAVE, Kind.RELEASE_TAIL, Kind.RELEASE),
    released: (Kind.ANNOUNCE, Kind.LEAVE),
}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
@pytest.mark.parametrize("way", ALLOWED)
def test_a_message_is_allowed_or_refused(rows: TableFile, way: Way, kind: Kind) -> None:
    """After it the rank leaves, and `two_ranks` has the other one load batches."""

    async def main() -> None:
        async with two_ranks(rows) as (simulation, group, first, second):
            await way(simulation, group, first)
            allowed = (*ALLOWED[way], Kind.END, Kind.ASK)
            assert first.refused(kind, epoch=int(way is waiting)) == (kind not in allowed)
            group.leave(first.member, lost=True)
            assert [each.a for each in second.heard(Kind.PEER_LOST)] == [0]

    run(main())


@pytest.mark.parametrize("kind", [Kind.LEAVE, Kind.END], ids=lambda kind: kind.name)
@pytest.mark.parametrize("way", [announced, waiting, extracting, given_up, ready])
def test_a_batch_that_is_given_up_is_answered_once(rows: TableFile, way: Way, kind: Kind) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (simulation, group, first, _):
            await way(simulation, group, first)
            epoch, later = int(way is waiting), way in (extracting, given_up)
            first.say(kind, epoch=epoch)
            assert len(first.heard(Kind.LEFT, epoch=epoch)) == (not later)
            simulation.engine.paused = False
            await some_turns()
            assert len(first.heard(Kind.LEFT, epoch=epoch)) == 1
            assert len(first.heard(Kind.READY, epoch=epoch)) == (way is ready)
            assert not first.member.batches
            assert not first.member.places
            assert simulation.table.available == 16

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_a_place_is_free_when_its_batch_has_ended(rows: TableFile, fails: bool) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, _):
            first.announce(np.array([500]) if fails else WANTED, 0, place=0)
            for step in range(1, PLACES):
                first.announce(WANTED, step, place=step)
            assert all(first.refused(Kind.ANNOUNCE, 9, place) for place in range(PLACES))
            first.say(Kind.LEAVE, 3)
            first.announce(WANTED, 9, place=3)
            first.say(Kind.JOIN, 0)
            if fails:
                await first.answer(Kind.FAILED)
            else:
                await first.answer(Kind.READY)
                assert first.refused(Kind.ANNOUNCE, 10, 0), "it holds the aliases"
                first.say(Kind.RELEASE)
            first.announce(WANTED, 10, place=0)

    run(main())


def test_a_batch_that_joins_in_an_ended_epoch_leaves_nothing_behind(rows: TableFile) -> None:
    """It was announced after the end of its epoch, so its turn has passed."""

    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, _):
            first.say(Kind.END)
            first.announce(WANTED)
            assert first.refused(Kind.JOIN)

    run(main())


# ---- numbers out of range


@pytest.mark.parametrize("place", [-1, PLACES, 2**40, -(2**63)])
def test_a_place_that_is_not_there_is_refused(rows: TableFile, place: int) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, _):
            assert first.refused(Kind.ANNOUNCE, 0, place)

    run(main())


@pytest.mark.parametrize(
    ("epoch", "step"),
    [(0, -1), (0, 1 << 39), (0, 2**63 - 1), (1 << 22, 0), (2**32 - 1, 5), (-1, 0)],
)
def test_an_epoch_or_step_out_of_range_is_refused(rows: TableFile, epoch: int, step: int) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, _):
            first.arena.write_rows(0, [WANTED])
            assert first.refused(Kind.ANNOUNCE, step, 0, epoch=epoch)

    run(main())


@pytest.mark.parametrize("count", [-1, 17, 2**62, -(2**63)])
def test_a_count_of_rows_that_is_too_large_is_refused(rows: TableFile, count: int) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, _):
            first.arena._memory[PAGE : PAGE + 8].view(np.int64)[:] = count
            assert first.refused(Kind.ANNOUNCE)
            assert not first.member.batches

    run(main())


def test_the_tail_of_a_lease_is_released_from_its_end_on(rows: TableFile) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (simulation, group, first, _):
            await ready(simulation, group, first)
            for begin, available in ((8, 8), (6, 10), (6, 10), (1, 15)):
                first.say(Kind.RELEASE_TAIL, a=0, b=begin)
                assert simulation.table.available == available
            for table, begin in ((0, 2), (0, -1), (0, 2**62), (1, 0), (-1, 0), (2**40, 0)):
                assert first.refused(Kind.RELEASE_TAIL, a=table, b=begin)
            first.say(Kind.RELEASE)
            assert simulation.table.available == 16

    run(main())


def test_orders_increase_with_the_turns(rows: TableFile) -> None:
    """The last batch of an epoch comes before the first of the next, up to the largest numbers."""
    last = (1 << 39) - 1

    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, second):
            for at in ([(0, 0), (0, 1), (0, last), (1, 0)], [(6, 0), (6, last), (7, 0), (7, last)]):
                for place, (epoch, step) in enumerate(at):
                    first.announce(WANTED, step, place, epoch)
                    second.announce(WANTED, step, place, epoch)
                orders = [
                    each.member.batches[turn].order for turn in at for each in (first, second)
                ]
                assert orders == sorted(set(orders))
                for epoch, step in at:
                    first.say(Kind.LEAVE, step, epoch=epoch)
                    second.say(Kind.LEAVE, step, epoch=epoch)
            first.announce(WANTED, last, 0, (1 << 22) - 1)
            (batch,) = first.member.batches.values()
            assert orders[-1] < batch.order < 2**62

    run(main())


# ---- the ranks of a group


def test_a_rank_enters_once(rows: TableFile) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (simulation, group, first, _):
            for number in (0, 1, 2, -1):
                with pytest.raises(ProtocolError, match="none of"):
                    SpokenRank(simulation, group, number)
            group.leave(first.member, lost=False)
            with pytest.raises(ProtocolError, match="has come before"):
                SpokenRank(simulation, group, 0)

    run(main())


def test_a_rank_that_has_left_is_refused(rows: TableFile) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, group, first, _):
            first.arena.write_rows(0, [WANTED])
            group.leave(first.member, lost=False)
            assert all(first.refused(kind) for kind in FROM_RANKS)

    run(main())


def test_a_rank_that_comes_late_hears_what_has_happened(rows: TableFile) -> None:
    async def main() -> None:
        async with group_of(rows, 3, 5, 7) as (simulation, group):
            group.leave(SpokenRank(simulation, group, 5).member, lost=True)
            group.leave(SpokenRank(simulation, group, 7).member, lost=False)
            late = SpokenRank(simulation, group, 3)
            assert not late.got, "the service welcomes it first"
            await some_turns()
            assert [(each.kind, each.a) for each in late.got] == [(Kind.PEER_LOST, 5)]
            await late.load(WANTED)

    run(main())


def test_a_rank_that_comes_and_goes_at_once_hears_nothing(rows: TableFile) -> None:
    async def main() -> None:
        async with group_of(rows, 0, 1) as (simulation, group):
            group.leave(SpokenRank(simulation, group, 0).member, lost=True)
            late = SpokenRank(simulation, group, 1)
            group.leave(late.member, lost=False)
            await some_turns()
            assert not late.got

    run(main())


def test_nothing_is_left_if_a_group_ends_in_the_middle_of_a_batch(rows: TableFile) -> None:
    """`group_of` has all ranks leave; then the group ends at once."""

    async def main(turns: int) -> None:
        async with group_of(rows, 0, 1, 2) as (simulation, group):
            for number in range(3):
                rank = SpokenRank(simulation, group, number)
                rank.announce(np.arange(10 * number, 10 * number + 16))
                rank.say(Kind.JOIN)
            for _ in range(turns):
                await asyncio.sleep(0)

    for turns in range(40):
        run(main(turns))
