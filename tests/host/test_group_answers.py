"""What a group answers: valid rows in the order of the turns, errors, and whom a rank waits for."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.host.arena import COUNTERS
from gnndrive.host.error_text import error_from
from gnndrive.host.messages import Kind
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from tests.host.spoken import SpokenRank, group_of, some_turns, two_ranks

WANTED = np.arange(8)
LOOK_AHEAD: dict[str, Any] = {"policy": Belady()}


def test_batches_of_two_ranks_come_in_the_order_of_their_turns(rows: TableFile) -> None:
    """The buffer holds one batch; rank 0 joins with three before rank 1 does with its first."""

    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, second):
            for number, rank in enumerate((first, second)):
                for step in range(3):
                    rank.announce(np.arange(16) + 32 * step + 100 * number, step, step)
                    rank.say(Kind.JOIN, step)
            for step in range(3):
                for rank, other in ((first, second), (second, first)):
                    await rank.answer(Kind.READY, step)
                    await some_turns()
                    assert not other.heard(Kind.READY, step + (rank is second))
                    rank.say(Kind.RELEASE, step)

    run(main())


def test_batches_of_several_ranks_are_read_in_one_sweep(rows: TableFile) -> None:
    """Rows that both need are loaded once, in one admission; `fits_together` of the buffer decides
    how many batches a sweep has."""

    async def main() -> None:
        async with two_ranks(rows, slots=20, part_rows=100) as (simulation, _, first, second):
            first.announce(np.arange(12), 0, place=0)
            second.announce(np.arange(4, 16), 0, place=0)
            first.announce(np.arange(16, 28), 1, place=1)
            for rank, step in ((second, 0), (first, 0), (first, 1)):
                rank.say(Kind.JOIN, step)
            await first.answer(Kind.READY)
            await second.answer(Kind.READY)
            await some_turns()
            stats = simulation.table.stats()
            assert (stats["admitted"], stats["loads"], stats["repeats"]) == (1, 16, 8)
            assert not first.heard(Kind.READY, 1), "there is no room for a third one"

    run(main())


@pytest.mark.parametrize("wrong", [-1, 200, 2**31, 2**62, -(2**63)])
@pytest.mark.parametrize("given", [{}, LOOK_AHEAD], ids=["lru", "look-ahead"])
def test_rows_out_of_range_are_an_error_of_their_batch(
    rows: TableFile, wrong: int, given: dict[str, Any]
) -> None:
    """The batches beside it, which may be in one sweep with it, get their rows."""

    async def main() -> None:
        async with two_ranks(rows, slots=64, **given) as (_, _, first, second):
            first.announce(np.array([0, 1, wrong]), 0, place=0)
            first.announce(WANTED, 1, place=1)
            second.announce(WANTED + 20, 0, place=0)
            for rank, step in ((first, 0), (first, 1), (second, 0)):
                rank.say(Kind.JOIN, step)
            error = error_from((await first.answer(Kind.FAILED)).text)
            assert isinstance(error, IndexError)
            assert "out of range" in str(error)
            await second.answer(Kind.READY)
            second.check(WANTED + 20)
            second.say(Kind.END)
            await first.answer(Kind.READY, 1)
            first.check(WANTED, 1)

    run(main())


def test_a_batch_that_the_buffer_cannot_hold_is_an_error_of_that_batch(rows: TableFile) -> None:
    async def main() -> None:
        async with two_ranks(rows, slots=10) as (_, _, first, second):
            first.announce(np.arange(12))
            first.say(Kind.JOIN)
            await second.load(WANTED)
            error = error_from((await first.answer(Kind.FAILED)).text)
            assert isinstance(error, ConfigError)
            assert "needs 12" in str(error)

    run(main())


def test_a_bad_sector_is_an_error_of_the_batches_that_need_it(rows: TableFile) -> None:
    faults = Faults(eio_offsets=((0, 512),))  # the rows 0 to 7

    async def main() -> None:
        async with two_ranks(rows, faults=faults) as (simulation, _, first, second):
            first.announce(WANTED)
            first.say(Kind.JOIN)
            await second.load(WANTED + 20)
            error = error_from((await first.answer(Kind.FAILED)).text)
            assert isinstance(error, ReadError)
            assert (error.path, error.errno) == (rows.path, errno.EIO)
            assert simulation.table.available == 16
            await first.load(WANTED + 20, 1)

    run(main())


def test_a_batch_that_fails_after_it_was_given_up_is_answered_once(rows: TableFile) -> None:
    faults = Faults(eio_offsets=((0, 512),))

    async def main() -> None:
        async with two_ranks(rows, faults=faults) as (simulation, _, first, _):
            simulation.engine.paused = True
            first.announce(WANTED)
            first.say(Kind.JOIN)
            await some_turns()
            first.say(Kind.LEAVE)
            assert not first.got
            simulation.engine.paused = False
            await some_turns()
            assert [each.kind for each in first.got] == [Kind.LEFT]
            first.announce(WANTED + 20, 1)

    run(main())


def test_the_end_of_an_epoch_leaves_the_next_one_alone(rows: TableFile) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, second):
            for place in range(2):
                first.announce(WANTED + place, place=place, epoch=place)
                first.say(Kind.JOIN, epoch=place)
            for rank in (first, second):
                rank.say(Kind.END)
            await first.answer(Kind.LEFT)
            await first.answer(Kind.READY, epoch=1)
            first.check(WANTED + 1, 1)

    run(main())


def test_a_rank_asks_whom_it_waits_for(rows: TableFile) -> None:
    async def main() -> None:
        async with two_ranks(rows) as (_, _, first, second):

            def awaited() -> int:
                second.say(Kind.ASK)
                assert second.got[-1].kind is Kind.AWAITED
                return second.got[-1].a

            assert awaited() == 0, "it has not joined with its first batch"
            first.announce(np.arange(16))
            first.say(Kind.JOIN)
            assert awaited() == -1, "its turn has come"
            await first.answer(Kind.READY)
            assert awaited() == 1
            second.announce(np.arange(16, 32))
            second.say(Kind.JOIN)
            await some_turns()
            assert awaited() == 0, "it has not joined with its second batch"
            first.announce(np.arange(32, 48), 1, place=1)
            first.say(Kind.JOIN, 1)
            await some_turns()
            assert awaited() == 1, "the turn after that"
            first.say(Kind.END)
            assert awaited() == 1

    run(main())


def test_a_rank_that_holds_all_slots_is_named(rows: TableFile) -> None:
    """Every batch that can join has joined, and the only extractor waits for slots."""

    async def main() -> None:
        async with two_ranks(rows, stages=Stages(extractors=1)) as (_, _, first, second):
            await first.load(WANTED)
            first.say(Kind.END)
            for step in range(3):
                second.announce(np.arange(16) + 16 * step, step, place=step)
                second.say(Kind.JOIN, step)
            await second.answer(Kind.READY)
            await some_turns()
            first.say(Kind.ASK)
            assert first.got[-1].a == 1

    run(main())


def test_a_broken_buffer_is_an_error_at_all_ranks(rows: TableFile) -> None:
    async def main() -> None:
        async with group_of(rows, 0, 1, 2) as (simulation, group):
            first, second = (SpokenRank(simulation, group, number) for number in range(2))
            simulation.buffer.fail(ValueError("the device is gone"))
            first.announce(WANTED)
            first.say(Kind.JOIN)
            await some_turns()
            for rank in (first, second, SpokenRank(simulation, group, 2)):
                text = (await rank.answer(Kind.BROKEN)).text
                assert "the device is gone" in str(error_from(text))

    run(main())


def test_the_counters_are_there_when_a_batch_is_ready(rows: TableFile) -> None:
    async def main() -> None:
        async with group_of(rows, 0) as (simulation, group):
            rank = SpokenRank(simulation, group, 0)
            for step in range(2):
                await rank.load(WANTED, step)
            counted = dict(zip(COUNTERS, rank.arena.counters.tolist(), strict=True))
            assert (counted["loads"], counted["hits"]) == (8, 8)

    run(main())
