"""Each message to a group, at each point of a batch's way: done as documented, or refused, and then
the other ranks go on. What the group answers: valid rows in the order of the turns, and errors."""

import asyncio

import numpy as np
import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.disk.engines.simulated import Faults
from gnndrive.host.arena import COUNTERS, PAGE
from gnndrive.host.group import WINDOWS_MAX
from gnndrive.host.messages import Kind, Message, ProtocolError, error_from
from gnndrive.host.turns import Turns
from gnndrive.pipeline.channel import change_of
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from tests.host.spoken import (
    FROM_RANKS,
    PLACES,
    SpokenRank,
    group_of,
    in_loop,
    some_turns,
    two_ranks,
)

WANTED = np.arange(8)
BAD_SECTOR = {"faults": Faults(eio_offsets=((0, 512),))}  # the rows 0 to 7


async def unknown(simulation, group, rank):
    rank.arena.write_rows(0, [WANTED])


async def announced(simulation, group, rank):
    rank.announce(WANTED)


async def waiting(simulation, group, rank):
    """It joins in epoch 1, and rank 1's turns in epoch 0 come first."""
    rank.ask_for(WANTED, epoch=1)
    await some_turns()
    assert group.extracting.has(0, 1, 0)


async def extracting(simulation, group, rank):
    simulation.engine.paused = True
    rank.ask_for(WANTED)
    await some_turns()
    assert simulation.engine.inflight


async def given_up(simulation, group, rank):
    await extracting(simulation, group, rank)
    rank.say(Kind.LEAVE)
    assert not rank.heard(Kind.LEFT), "its rows are being read"


async def ready(simulation, group, rank):
    rank.ask_for(WANTED)
    await rank.answer(Kind.READY)
    rank.check(WANTED)


async def released(simulation, group, rank):
    await ready(simulation, group, rank)
    rank.say(Kind.RELEASE)


ALLOWED = {
    unknown: (Kind.ANNOUNCE, Kind.LEAVE),
    announced: (Kind.JOIN, Kind.LEAVE),
    waiting: (Kind.LEAVE,),
    extracting: (Kind.LEAVE,),
    given_up: (Kind.LEAVE,),
    ready: (Kind.LEAVE, Kind.RELEASE_TAIL, Kind.RELEASE),
    released: (Kind.ANNOUNCE, Kind.LEAVE),
}
ALWAYS = (Kind.END, Kind.ASK, Kind.AWAY, Kind.PASSED, Kind.OPEN, Kind.SHUT)
CASES = [(way, kind) for way, kinds in ALLOWED.items() for kind in (None, *kinds, *ALWAYS)]


@pytest.mark.parametrize(("way", "kind"), CASES)
@in_loop
async def test_a_message_is_allowed_or_refused(rows, way, kind):
    """`kind`, or all that are refused; then the rank leaves, and the other one loads batches."""
    async with two_ranks(rows) as (simulation, group, first, second):
        await way(simulation, group, first)
        epoch = int(way is waiting)
        refused = set(Kind) - {*ALLOWED[way], *ALWAYS} if kind is None else set()
        assert all(first.refused(each, epoch=epoch) for each in refused)
        assert kind is None or not first.refused(kind, epoch=epoch)
        group.leave(first.member, lost=True)
        assert [each.a for each in second.heard(Kind.PEER_LOST)] == [0]


@pytest.mark.parametrize("kind", [Kind.LEAVE, Kind.END])
@pytest.mark.parametrize(
    ("way", "given"),
    [
        *((way, {}) for way in (announced, waiting, extracting, given_up, ready)),
        (extracting, BAD_SECTOR),
    ],
)
@in_loop
async def test_a_batch_that_is_given_up_is_answered_once(rows, way, given, kind):
    """Also if its rows cannot be read afterwards."""
    async with two_ranks(rows, **given) as (simulation, group, first, _):
        await way(simulation, group, first)
        epoch, later = int(way is waiting), way in (extracting, given_up)
        first.say(kind, epoch=epoch)
        assert len(first.heard(Kind.LEFT, epoch=epoch)) == (not later)
        simulation.engine.paused = False
        await some_turns()
        expected = [Kind.READY] * (way is ready) + [Kind.LEFT]
        assert [each.kind for each in first.got] == expected
        assert not first.member.batches
        assert not first.member.places
        assert simulation.table.available == 16


@in_loop
async def test_numbers_out_of_range_are_refused(rows):
    async with two_ranks(rows) as (_, _, first, _):
        first.arena.write_rows(0, [WANTED])
        for place in (-1, PLACES, 2**40, -(2**63)):
            assert first.refused(Kind.ANNOUNCE, 0, place)
        for epoch, step in ((0, -1), (0, 1 << 39), (0, 2**63 - 1), (1 << 22, 0), (-1, 0)):
            assert first.refused(Kind.ANNOUNCE, step, 0, epoch=epoch)
        first.arena._memory[PAGE : PAGE + 8].view(np.int64)[:] = 17
        assert first.refused(Kind.ANNOUNCE), "more rows than a place has room for"
        first.announce(WANTED, 1)
        assert first.refused(Kind.ANNOUNCE, 2), "the place holds another batch"
        first.say(Kind.LEAVE, 1)
        first.say(Kind.END)
        first.announce(WANTED)
        assert first.refused(Kind.JOIN), "its turn has passed"


@in_loop
async def test_the_tail_of_a_lease_is_released_from_its_end_on(rows):
    async with two_ranks(rows) as (simulation, group, first, _):
        await ready(simulation, group, first)
        for begin, available in ((8, 8), (6, 10), (6, 10), (1, 15)):
            first.say(Kind.RELEASE_TAIL, a=0, b=begin)
            assert simulation.table.available == available
        for table, begin in ((0, 2), (0, -1), (0, 2**62), (1, 0), (-1, 0), (2**40, 0)):
            assert first.refused(Kind.RELEASE_TAIL, a=table, b=begin)
        first.say(Kind.RELEASE)
        assert simulation.table.available == 16


@in_loop
async def test_orders_increase_with_the_turns(rows):
    """The last batch of an epoch comes before the first of the next, up to the largest numbers."""
    last, orders = (1 << 39) - 1, list[int]()
    async with two_ranks(rows) as (_, _, *both):
        for turn in ((0, 0), (0, 1), (0, last), (1, 0), (6, last), (7, 0), ((1 << 22) - 1, last)):
            for rank in both:
                rank.announce(WANTED, turn[1], 0, turn[0])
                orders.append(rank.member.batches[turn].order)
                rank.say(Kind.LEAVE, turn[1], epoch=turn[0])
    assert orders == sorted(set(orders))
    assert orders[-1] < 2**62


# ---- the ranks of a group


@in_loop
async def test_a_rank_enters_once_and_is_refused_when_it_has_left(rows):
    async with two_ranks(rows) as (simulation, group, first, _):
        for number in (0, 1, 2, -1):
            with pytest.raises(ProtocolError, match="none of"):
                SpokenRank(simulation, group, number)
        first.arena.write_rows(0, [WANTED])
        group.leave(first.member, lost=False)
        with pytest.raises(ProtocolError, match="has come before"):
            SpokenRank(simulation, group, 0)
        assert all(first.refused(kind) for kind in FROM_RANKS)


@in_loop
async def test_a_rank_that_comes_late_hears_what_has_happened(rows):
    async with group_of(rows, 3, 4, 5, 7) as (simulation, group):
        group.leave(SpokenRank(simulation, group, 5).member, lost=True)
        group.leave(SpokenRank(simulation, group, 7).member, lost=False)
        late, gone = SpokenRank(simulation, group, 3), SpokenRank(simulation, group, 4)
        group.leave(gone.member, lost=False)
        assert not late.got, "the service welcomes it first"
        await some_turns()
        assert [(each.kind, each.a) for each in late.got] == [(Kind.PEER_LOST, 5)]
        assert not gone.got
        await late.load(WANTED)


def test_nothing_is_left_if_a_group_ends_in_the_middle_of_a_batch(rows, seeds):
    """`group_of` has all ranks leave; then the group ends at once."""

    async def main(turns):
        async with group_of(rows, 0, 1, 2) as (simulation, group):
            for number in range(3):
                rank = SpokenRank(simulation, group, number)
                rank.ask_for(np.arange(10 * number, 10 * number + 16))
            for _ in range(turns):
                await asyncio.sleep(0)

    for seed in seeds(40):
        run(main(seed % 40))


# ---- what it answers


@in_loop
async def test_batches_of_several_ranks_are_read_in_one_sweep(rows):
    """Rows that both need are loaded once, in one admission; `fits_together` of the buffer decides
    how many batches a sweep has. The counters are there when a batch is ready."""
    async with two_ranks(rows, slots=20, part_rows=100) as (simulation, _, first, second):
        first.announce(np.arange(12), 0, place=0)
        second.announce(np.arange(4, 16), 0, place=0)
        first.announce(np.arange(16, 28), 1, place=1)
        for rank, step in ((second, 0), (first, 0), (first, 1)):
            rank.say(Kind.JOIN, step)
        await first.answer(Kind.READY)
        counted = dict(zip(COUNTERS, first.arena.counters.tolist(), strict=True))
        assert (counted["loads"], counted["repeats"]) == (16, 8)
        await second.answer(Kind.READY)
        await some_turns()
        assert simulation.table.stats()["admitted"] == 1
        assert not first.heard(Kind.READY, 1), "there is no room for a third one"


WIDE, AHEAD = {"slots": 64}, {"slots": 64, "policy": Belady()}


@pytest.mark.parametrize(
    ("wrong", "given", "kind", "said"),
    [
        ([0, 1, -1], WIDE, IndexError, "out of range"),
        ([0, 1, 200], AHEAD, IndexError, "out of range"),
        ([0, 1, 2**31], AHEAD, IndexError, "out of range"),
        ([0, 1, -(2**63)], AHEAD, IndexError, "out of range"),
        (range(12), {"slots": 10}, ConfigError, "needs 12"),
        (WANTED, BAD_SECTOR, ReadError, "x.bin"),
    ],
)
@in_loop
async def test_what_a_batch_cannot_have_is_an_error_of_that_batch(rows, wrong, given, kind, said):
    """The batches beside it, which may be in one sweep with it, get their rows."""
    async with two_ranks(rows, **given) as (_, _, first, second):
        first.announce(np.array(wrong), 0, place=0)
        first.announce(WANTED + 20, 1, place=1)
        second.announce(WANTED + 40, 0, place=0)
        for rank, step in ((first, 0), (first, 1), (second, 0)):
            rank.say(Kind.JOIN, step)
        error = error_from((await first.answer(Kind.FAILED)).text)
        assert isinstance(error, kind)
        assert said in str(error)
        await second.answer(Kind.READY)
        second.check(WANTED + 40)
        second.say(Kind.END)
        await first.answer(Kind.READY, 1)
        first.check(WANTED + 20, 1)


@in_loop
async def test_a_rank_asks_whom_it_waits_for(rows):
    async with two_ranks(rows) as (_, _, first, second):

        def awaited():
            second.say(Kind.ASK)
            assert second.got[-1].kind is Kind.AWAITED
            return second.got[-1].a

        assert awaited() == 0, "it has not joined with its first batch"
        first.ask_for(np.arange(16))
        assert awaited() == -1, "its turn has come"
        await first.answer(Kind.READY)
        assert awaited() == 1
        second.ask_for(np.arange(16, 32))
        await some_turns()
        assert awaited() == 0, "it has not joined with its second batch"
        first.ask_for(np.arange(32, 48), 1, place=1)
        await some_turns()
        assert awaited() == 1, "the turn after that"


@in_loop
async def test_what_ranks_say_to_each_other_is_passed_on(rows):
    async with two_ranks(rows) as (_, _, first, second):
        first.say(Kind.AWAY, 3, a=7, epoch=1)
        assert second.got == [Message(Kind.AWAY, 1, 3, a=7, b=0)]
        second.say(Kind.PASSED, 5, a=0, epoch=1)
        second.say(Kind.PASSED, 5, a=2, epoch=1)  # has left, or was never there
        assert first.got == [Message(Kind.PASSED, 1, 5, a=0, b=1)]


@in_loop
async def test_a_rank_that_holds_all_slots_is_named(rows):
    """Every batch that can join has joined, and the only extractor waits for slots."""
    async with two_ranks(rows, stages=Stages(extractors=1)) as (_, _, first, second):
        first.say(Kind.END)
        for step in range(3):
            second.ask_for(np.arange(16) + 16 * step, step, place=step)
        await second.answer(Kind.READY)
        await some_turns()
        first.say(Kind.ASK)
        assert first.got[-1].a == 1


@in_loop
async def test_a_broken_buffer_is_an_error_at_all_ranks(rows):
    async with group_of(rows, 0, 1, 2) as (simulation, group):
        first, second = (SpokenRank(simulation, group, number) for number in range(2))
        simulation.buffer.fail(ValueError("the device is gone"))
        first.ask_for(WANTED)
        await some_turns()
        for rank in (first, second, SpokenRank(simulation, group, 2)):
            text = (await rank.answer(Kind.BROKEN)).text
            assert "the device is gone" in str(error_from(text))


# ---- turns; tests/host/test_simulated_ranks.py shows their order


@in_loop
async def test_taking_turns_is_counted_and_wakes_who_waits_for_a_change():
    turns = Turns([0])
    for step in range(3):
        turns.join(0, 0, step, step)
    waiter = asyncio.ensure_future(change_of(turns))
    await asyncio.sleep(0)
    assert (turns.take_now(2), turns.taken) == ([0, 1], 2)
    await waiter


def test_turns_that_have_passed():
    turns = Turns(range(2))
    turns.join(1, 1, 3, "a batch")
    turns.end_epoch(1, 0)  # an earlier one
    turns.drop(0)
    for rank in range(2):
        with pytest.raises(ProtocolError, match="too late"):
            turns.join(rank, 1, 3, "another")
    turns.drop(1)
    assert (turns.peek(9), turns.awaited) == ([], None)


# ---- windows, of which ranks need the rows together


@in_loop
async def test_ranks_read_a_window_once_and_hold_it_until_the_last_shuts_it(rows):
    async with two_ranks(rows) as (simulation, _, first, second):
        for rank in (first, second):
            rank.open(0, range(30, 34), range(4))
            await rank.answer(Kind.OPENED)
        for rank in (second, first):
            assert simulation.table.available == 8
            assert simulation.buffer.stats()["loads"] == 8
            rank.ask_for(np.array([31, 2]))
        for rank in (first, second):
            await rank.answer(Kind.READY)
            rank.check(np.array([31, 2]))
            rank.say(Kind.RELEASE)
            rank.say(Kind.SHUT)
            rank.say(Kind.SHUT)  # it is shut
        assert simulation.table.available == 16
        assert simulation.buffer.stats()["loads"] == 8


@in_loop
async def test_a_window_waits_for_slots_until_an_older_one_ends(rows):
    async with two_ranks(rows) as (_, _, first, second):
        for number in range(3):
            first.open(number, range(8 * number, 8 * number + 8))
        second.open(0, range(8))
        await first.answer(Kind.OPENED, 1)
        await second.answer(Kind.OPENED, 0)
        first.say(Kind.SHUT, 0)
        await some_turns()
        assert not first.heard(Kind.OPENED, 2)
        second.say(Kind.END)
        await first.answer(Kind.OPENED, 2)


@in_loop
async def test_a_late_rank_gets_the_slots_for_its_older_window(rows):
    """And for batches, which the windows of the others would not leave it otherwise."""
    async with two_ranks(rows) as (simulation, _, first, second):
        for number in (1, 2):
            first.open(number, range(8 * number, 8 * number + 8))
            await first.answer(Kind.OPENED, number)
        assert simulation.table.available == 0
        second.open(0, range(100, 116), range(120, 125))  # more than there are slots
        await second.answer(Kind.OPENED, 0)
        first.ask_for(np.arange(8, 16))
        await second.load(np.arange(100, 108))
        await first.answer(Kind.READY)
        first.check(np.arange(8, 16))
        second.say(Kind.SHUT, 0)
        await some_turns()
        assert simulation.table.available == 0, "both windows are held again"
        assert len(first.heard(Kind.OPENED, 1)) == 1


@in_loop
async def test_a_window_ends_with_the_rank_that_dies_while_it_is_read(rows):
    async with two_ranks(rows) as (simulation, group, first, _):
        simulation.engine.paused = True
        first.open(0, range(8))
        await some_turns()
        assert simulation.engine.inflight
        group.leave(first.member, lost=True)
        simulation.engine.paused = False
        await some_turns()
        assert simulation.table.available == 16


@in_loop
async def test_windows_that_cannot_be_are_refused(rows):
    async with two_ranks(rows) as (_, _, first, second):
        for start, stop in ((-1, 3), (3, 3), (4, 3), (199, 201), (0, 2**40)):
            assert first.refused(Kind.WINDOW_ROWS, 0, start, stop)
        first.say(Kind.WINDOW_ROWS, 0, 0, 150)
        assert first.refused(Kind.WINDOW_ROWS, 0, 0, 51), "more rows than there are"
        first.open(1, range(3))
        assert first.refused(Kind.OPEN, 1), "it is open"
        assert first.refused(Kind.WINDOW_ROWS, 1, 0, 3)
        second.say(Kind.WINDOW_ROWS, 1, 0, 2)
        assert second.refused(Kind.OPEN, 1), "the other rank's graph is not this window's"
        found = [first.refused(Kind.OPEN, number) for number in range(2, 2 + WINDOWS_MAX)]
        assert (found[0], found[-1]) == (False, True)
