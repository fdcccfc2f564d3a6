"""Which rows a victim buffer keeps: both rules by hand, and against a model."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import EVICTED
from tests.disk.tiers.victim_table import VictimTable


def test_one_order_by_hand() -> None:
    """Twelve steps with three places: offered rows are (row, next use)."""
    table = VictimTable(20, 3)
    assert table.offer([(1, 9), (2, 5)]) == [1, 2]  # there is room
    table.arrive()
    assert table.offer([(3, 7), (4, 12)]) == [3]  # the sooner one gets the last place
    table.arrive()
    assert table.here == {1, 2, 3}
    assert table.offer([(5, 9)]) == []  # it is needed no sooner than row 1
    assert table.offer([(6, 8)]) == [6]  # it is, by one batch: row 1 leaves
    assert table.offer([(7, 6), (8, 7)]) == [7]  # for row 3; 6 is arriving, and 8 is no better
    assert table.here == {2, 6, 7}
    assert table.offer([(9, 1)]) == [9]  # 2 is all that is not arriving
    assert table.here == {6, 7, 9}
    assert table.offer([(10, 0)]) == []  # all three are arriving
    table.arrive()
    assert table.fetch(7, 11) == [7]  # which leaves
    assert table.offer([(7, 30), (12, 31)]) == [7]  # its next use is far, and a place is free
    table.arrive()
    assert table.offer([(13, 2), (14, 3), (15, 4)]) == [13, 14]  # for 7 and 6; 9 stays
    table.arrive()
    assert table.fetch(9, 13, 14) == [9, 13, 14]
    assert table.here == set()
    stats = ffi.new("gd_buffer_stats *")
    lib.gd_buffer_get_stats(table.table, stats)
    assert (stats.loads, stats.hits, stats.evictions, stats.refused) == (9, 4, 5, 6)


def test_queues_by_hand() -> None:
    """Twelve steps with five places and queues of two."""
    table = VictimTable(30, 5, queue_rows=2)
    assert table.offer([(1, 9), (2, 9), (3, 9)]) == [1, 2]  # the queue of batch 9 is full
    table.arrive()
    assert table.offer([(4, 5), (5, 12)]) == [4, 5]
    table.arrive()
    assert table.offer([(6, 2), (7, 3)]) == [7]  # one place is left, for the first that comes
    table.arrive()
    assert table.offer([(8, 1)]) == []  # sooner than all, and no place is free
    assert table.fetch(4) == [4]
    assert table.offer([(9, 9)]) == []  # a place is free, and the queue is full
    assert table.fetch(1) == [1]
    assert table.offer([(9, 9), (10, 40)]) == [9, 10]
    table.arrive()
    assert table.offer([(11, 8)], now=3) == []  # batch 3 has not passed
    assert table.offer([(11, 8), (12, 8), (13, 8)], now=4) == [11]  # for row 7
    assert table.here == {2, 5, 9, 10, 11}
    table.arrive()
    assert table.offer([(14, 20), (15, 21), (16, 22)], now=13) == [14, 15, 16]  # for 11, 2 and 9
    assert table.offer([(17, 20), (18, 20)], now=13) == [17]  # for row 5
    assert table.here == {10, 14, 15, 16, 17}


def test_a_row_may_be_taken_before_it_has_arrived() -> None:
    table = VictimTable(10, 2)
    table.offer([(1, 5), (2, 5)])
    places, arriving = table.take(1, 3)
    assert (len(places), arriving) == (1, 1)
    assert table.drop(places) == -errno.EINVAL  # its copy is under way
    table.arrive()
    assert table.offer([(4, 1), (5, 2)]) == [4], "the place of row 1 is in use"
    assert table.drop(places) == 0
    assert table.drop(places) == -errno.EINVAL
    assert table.here == {4}
    assert table.offer([(5, 9)]) == [5]


def test_two_fetches_may_have_a_row_and_it_leaves_with_the_last() -> None:
    table = VictimTable(10, 2)
    table.offer([(1, 5)])
    table.arrive()
    places, _ = table.take(1)
    assert table.take(1) == (places, 0)
    assert table.drop(places) == 0
    assert table.here == {1}
    assert table.drop(places) == 0
    assert table.here == set()


def test_an_offer_without_a_copy_is_withdrawn() -> None:
    table = VictimTable(10, 2, queue_rows=2)
    assert table.offer([(1, 5), (2, 5)]) == [1, 2]
    assert table.withdraw(1, 2) == 0
    assert table.here == set()
    assert table.withdraw(1) == -errno.EINVAL
    assert table.offer([(3, 5), (4, 5)]) == [3, 4], "the queue is empty again"


def test_what_is_offered_again_stays_and_no_more_than_allowed_is_kept() -> None:
    table = VictimTable(10, 5)
    assert table.offer([(1, 5), (2, 4), (3, 3)], most=2) == [2, 3]
    assert table.offer([(2, 1)]) == []
    assert table.offer([(4, 9)], most=0) == []
    assert table.here == {2, 3}


def test_rows_that_cannot_be_asked_for_are_refused() -> None:
    table = VictimTable(10, 5)
    table.offer([(1, 5), (2, 5)])
    for rows in ([1, 10], [-1]):
        assert table.find(rows) == -errno.ERANGE
    assert table.find([1, 3, 1]) == -errno.EINVAL
    assert table.find([1, 3, 3, 2]) == [1, -1, -1, 0]  # who has row 3 finds that it comes twice
    for rows, places, queue_rows in ((-1, 4, 0), (4, 0, 0), (4, 4, -1)):
        assert lib.gd_victims_new(rows, places, queue_rows) == ffi.NULL
        assert ffi.errno == errno.EINVAL


@pytest.mark.parametrize("queue_rows", [0, 2])
def test_an_offer_with_a_row_that_cannot_be_kept_changes_nothing(queue_rows: int) -> None:
    """Else rows before it would wait for copies that never begin."""
    table = VictimTable(10, 5, queue_rows)
    uses, out = np.zeros(3, np.int64), np.zeros(3, np.int32)
    for rows, uses[1] in (([1, 10, 2], 0), ([1, -1, 2], 0), ([1, 3, 2], -1)):
        offered = np.zeros(3, EVICTED)
        offered["row"] = rows
        given = ffi.cast("gd_evicted *", offered.ctypes.data), pointer(uses), 3, 3, 0
        code = lib.gd_victims_offer(table.c, *given, pointer(out), pointer(out.copy()))
        assert code == -errno.EINVAL
        assert table.here == set()
        table.verify()


@pytest.mark.parametrize("queue_rows", [0, 1, 3])
def test_any_course_of_events_is_that_of_a_model(queue_rows: int) -> None:
    """Offers, arrivals, fetches of rows that have arrived or not, in any order."""
    for seed in range(60):
        draw, places = random.Random(seed), 1 + seed % 7
        table = VictimTable(40, places, queue_rows)
        keeps: dict[int, int] = {}  # row → next use
        busy: set[int] = set()  # rows that are arriving, or held
        held: list[list[int]] = []
        arrived: list[int] = []
        now = 0
        for step in range(60):
            what = draw.randrange(4)
            if what == 0:
                new = [row for row in draw.sample(range(40), 6) if row not in keeps]
                offered = [(row, now + draw.randrange(12)) for row in new]
                kept = table.offer(offered, now)
                expected = by_model(dict(keeps), busy, offered, places, queue_rows, now, arrived)
                assert table.here == set(expected), (seed, step)
                assert set(kept) == set(expected) - set(keeps)
                keeps = expected
                busy |= set(kept)
            elif what == 1 and table.arriving:
                row = draw.choice(sorted(table.arriving))
                table.arrive(row)
                arrived = [each for each in arrived if each != row] + [row]
                if not any(row in rows for rows in held):
                    busy.discard(row)
            elif what == 2:
                rows = [row for row in draw.sample(sorted(keeps), len(keeps) // 2)
                        if row not in busy or row in table.arriving]  # fmt: skip
                rows = [row for row in rows if not any(row in others for others in held)]
                table.take(*rows)
                busy |= set(rows)
                held.append(rows)
            elif held and not set(held[0]) & set(table.arriving):
                rows = held.pop(0)
                found = table.find(rows)
                assert isinstance(found, list)
                assert table.drop(found) == 0
                busy -= set(rows)
                keeps = {row: use for row, use in keeps.items() if row not in rows}
            now += draw.random() < 0.2


def by_model(
    keeps: dict[int, int], busy: set[int], offered: list[tuple[int, int]], places: int,
    queue_rows: int, now: int, arrived: list[int],
) -> dict[int, int]:  # fmt: skip
    """What is kept after an offer, by a search for what may leave; `arrived` are rows in the order
    in which their copies ended, with the latest time of each."""
    new: set[int] = set()
    order = sorted(offered, key=lambda each: -each[1])
    for row, use in order if queue_rows else reversed(order):
        if queue_rows and sum(its == use for its in keeps.values()) >= queue_rows:
            continue
        idle = [each for each in keeps if each not in busy and each not in new]
        if len(keeps) >= places:
            if queue_rows:
                idle.sort(key=lambda each: (keeps[each], arrived.index(each)))
                if not idle or keeps[idle[0]] >= now:
                    continue
            else:
                idle.sort(key=lambda each: (-keeps[each], arrived.index(each)))
                if not idle or keeps[idle[0]] <= use:
                    continue
            del keeps[idle[0]]
        keeps[row] = use
        new.add(row)
    return keeps
