"""Victim buffers: which rows the table keeps, by hand and against a model; fetches that fail."""

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gnndrive.buffer.policies.base import NO_USE
from gnndrive.common.errors import ClosedError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import EVICTED, Evicted, Int32Array, Landing
from gnndrive.disk.tiers import _victims
from gnndrive.disk.tiers.base import Fetch
from gnndrive.disk.tiers.victim import Victim
from gnndrive.disk.tiers.victim_first import VictimFirst
from gnndrive.testing.loop import run
from tests.disk.tiers.test_host_rows import CONTENT, ROW_BYTES, Below

LEAST_KEY = np.iinfo(np.int64).min + 2
"""Of a row that no known batch needs; smaller ones have meanings of their own."""


class VictimTable:
    """One gd_victims; copies are begun and ended by hand.

    Attributes:
        arriving: places by the rows whose copies are under way.
    """

    def __init__(self, rows: int, places: int, queue_rows: int = 0) -> None:
        self.rows = rows
        self.c = ffi.gc(lib.gd_victims_new(rows, places, queue_rows), lib.gd_victims_free)
        assert self.c != ffi.NULL
        self.table = lib.gd_victims_table(self.c)
        self.arriving: dict[int, int] = {}

    def offer(
        self, rows: Sequence[tuple[int, int]], now: int = 0, most: int | None = None,
        ranked: bool = True,
    ) -> list[int]:  # fmt: skip
        """Offer (row, next use), the key is minus the next use; the rows that are kept."""
        given = sorted(rows, key=lambda each: -each[1])  # the smallest key first, as they leave
        left = np.zeros(len(given), EVICTED)
        left["row"], left["slot"] = [row for row, _ in given], [100 + row for row, _ in given]
        next_use = np.array([use for _, use in given], np.int64)
        left["key"] = np.maximum(-next_use, LEAST_KEY) if ranked else np.iinfo(np.int64).min
        slots, places = np.full(len(given) + 1, -7, np.int32), np.full(len(given) + 1, -7, np.int32)
        kept = lib.gd_victims_offer(
            self.c, ffi.cast("gd_evicted *", left.ctypes.data), pointer(next_use), len(given),
            len(given) if most is None else most, now, pointer(slots), pointer(places),
        )  # fmt: skip
        assert kept >= 0
        assert set(slots[kept:]) == set(places[kept:]) == {-7}
        found = (slots[:kept] - 100).tolist()
        self.arriving |= dict(zip(found, places[:kept].tolist(), strict=True))
        self.verify()
        return sorted(found)

    def arrive(self, *rows: int) -> None:
        """The copies of these rows have ended, or of all."""
        places = [self.arriving.pop(row) for row in rows or tuple(self.arriving)]
        assert self.call(lib.gd_buffer_commit, self.table, places) == 0

    def withdraw(self, *rows: int) -> int:
        """The copies of these rows were not begun."""
        places = [self.arriving.get(row, 0) for row in rows]
        return self.call(lib.gd_victims_withdraw, self.c, places)

    def find(self, rows: Sequence[int]) -> list[int] | int:
        """The place of each row, or -errno."""
        wanted, places = np.array(rows, np.int64), np.full(len(rows), -7, np.int32)
        code = lib.gd_victims_find(self.c, pointer(wanted), len(wanted), pointer(places))
        self.verify()
        return int(code) or places.tolist()

    def take(self, *rows: int) -> tuple[list[int], int]:
        """Hold those of the rows that are here: their places, and how many are arriving."""
        found = self.find(rows)
        assert isinstance(found, list)
        places = [place for place in found if place >= 0]
        return places, self.call(lib.gd_victims_take, self.c, places)

    def drop(self, places: Sequence[int]) -> int:
        return self.call(lib.gd_victims_drop, self.c, places)

    def call(self, function: Callable[..., int], table: Any, places: Sequence[int]) -> int:
        given = np.array(places, np.int32)
        code = int(function(table, pointer(given), len(given)))
        self.verify()
        return code

    @property
    def here(self) -> set[int]:
        """The rows that are kept or arriving."""
        return {r for r in range(self.rows) if lib.gd_buffer_slot_of(self.table, r) >= 0}

    def verify(self) -> None:
        assert lib.gd_buffer_verify(self.table) == 0


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


def test_without_a_ranking_rows_leave_in_the_order_in_which_they_came() -> None:
    table = VictimTable(10, 3)
    for rows, here in (([1, 2], {1, 2}), ([3, 4], {2, 3, 4}), ([1, 5], {4, 1, 5})):
        table.offer([(row, NO_USE) for row in rows], ranked=False)
        assert table.here == here
        table.arrive()


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


@pytest.mark.parametrize(("queue_rows", "ranked"), [(0, True), (0, False), (1, True), (3, True)])
def test_any_course_of_events_is_that_of_a_model(seeds, queue_rows: int, ranked: bool) -> None:
    """Offers, arrivals, fetches of rows that have arrived or not, in any order. Some rows are
    needed by no known batch; without a ranking those leave first that came first."""
    for seed in seeds(14):
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
                uses = [now + draw.randrange(12) for _ in new]
                offered = [
                    (row, use if use % 4 else NO_USE) for row, use in zip(new, uses, strict=True)
                ]
                kept = table.offer(offered, now, ranked=ranked)
                given = places, queue_rows, ranked, now, arrived
                expected = by_model(dict(keeps), busy, offered, *given)
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
                assert table.drop(table.find(rows)) == 0
                busy -= set(rows)
                keeps = {row: use for row, use in keeps.items() if row not in rows}
            now += draw.random() < 0.2


def by_model(
    keeps: dict[int, int], busy: set[int], offered: list[tuple[int, int]], places: int,
    queue_rows: int, ranked: bool, now: int, arrived: list[int],
) -> dict[int, int]:  # fmt: skip
    """What is kept after an offer, by a search for what may leave; `arrived` are rows in the order
    in which their copies ended, with the latest time of each."""
    new: set[int] = set()
    order = sorted(offered, key=lambda each: -each[1])
    for row, use in order if queue_rows else reversed(order):
        if queue_rows and (
            use == NO_USE or sum(its == use for its in keeps.values()) >= queue_rows
        ):
            continue
        idle = [each for each in keeps if each not in busy and each not in new]
        if len(keeps) >= places:
            if queue_rows:
                idle.sort(key=lambda each: (keeps[each], arrived.index(each)))
                if not idle or keeps[idle[0]] >= now:
                    continue
            else:
                idle.sort(key=lambda each: (-keeps[each] * ranked, arrived.index(each)))
                if not idle or (ranked and keeps[idle[0]] <= use):
                    continue
            del keeps[idle[0]]
        keeps[row] = use
        new.add(row)
    return keeps


# ---- fetches that fail: nothing writes to the landing when they have ended


class Memory:
    """Victim memory whose copies out of slots, which are rows, are made at once."""

    def __init__(self, read_in_place: bool = False) -> None:
        self.rows, self.rows_max = np.zeros((4, ROW_BYTES), np.uint8), None
        self.read_in_place = read_in_place

    def copy_out(self, slots: Int32Array, places: Int32Array) -> Callable[[], Any]:
        self.rows[places] = CONTENT[slots]

        async def ended() -> None:
            pass

        return ended

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


async def make(read_in_place: bool = False) -> tuple[Victim, Below]:
    """A victim buffer that has rows 1 and 2."""
    below = Below()
    tier = Victim(below, len(CONTENT), Memory(read_in_place))
    left = np.zeros(2, EVICTED)
    left["row"] = left["slot"] = [1, 2]
    tier.offer(Evicted(left, np.array([5, 5], np.int64), 0))
    while tier._copies_out:
        await next(iter(tier._copies_out))
    return tier, below


def begin(tier: Victim) -> tuple[Fetch, np.ndarray]:
    """Begin to fetch rows 0 to 3; also their landing."""
    slots = np.zeros((4, ROW_BYTES), np.uint8)
    landing = Landing(slots.ctypes.data, ROW_BYTES, True, slots)
    return tier.fetch(np.arange(4), np.arange(4, dtype=np.int32), landing), slots


async def follow(fetch: Fetch, landed: list[list[int]]) -> None:
    """Add the places of each stretch to `landed`."""
    async for stretch in fetch:
        landed.append(stretch.slots.tolist())


def test_a_fetch_that_the_tier_below_refuses_copies_nothing_and_keeps_the_rows() -> None:
    async def main() -> None:
        tier, below = await make()
        below.errors = [ClosedError("the engine was closed")]
        with pytest.raises(ClosedError):
            begin(tier)
        assert tier._copies_back
        await asyncio.wait(tier._copies_back)
        fetch, slots = begin(tier)
        landed: list[list[int]] = []
        await follow(fetch, landed)
        assert landed == [[1, 2], [0, 3]]
        assert np.array_equal(slots[1:3], CONTENT[1:3])
        assert tier.rows_served == 2
        tier.verify()
        await tier.aclose()

    run(main())


def test_a_device_reads_rows_in_their_places_and_no_thread_copies_them() -> None:
    """They stay until it has read them."""

    async def main() -> None:
        tier, _ = await make(read_in_place=True)
        fetch, slots = begin(tier)
        first, second = [stretch async for stretch in fetch]
        assert (first.slots.tolist(), second.slots.tolist()) == ([1, 2], [0, 3])
        assert second.pinned is None
        assert first.pinned is not None
        assert np.array_equal(first.pinned.memory[first.pinned.rows], CONTENT[1:3])
        assert not slots[1:3].any()
        here = [lib.gd_buffer_slot_of(tier.table, row) for row in (1, 2)]
        assert here == first.pinned.rows.tolist()
        first.pinned.leave()
        assert lib.gd_buffer_slot_of(tier.table, 1) == lib.gd_buffer_slot_of(tier.table, 2) == -1
        tier.verify()
        await tier.aclose()

    run(main())


def test_rows_that_came_first_may_stay_until_they_are_fetched() -> None:
    async def main() -> None:
        tier = VictimFirst(Below(), len(CONTENT), Memory())
        for rows, here in (([1, 2, 3], [1, 2, 3]), ([4, 5, 6], [1, 2, 3, 6]), ([7], [1, 2, 3, 6])):
            left = np.zeros(len(rows), EVICTED)
            left["row"] = left["slot"] = rows
            left["key"] = np.iinfo(np.int64).min  # of a row without a ranking
            tier.offer(Evicted(left, np.full(len(rows), NO_USE), 0))
            slots = [lib.gd_buffer_slot_of(tier.table, row) for row in range(len(CONTENT))]
            assert np.flatnonzero(np.array(slots) >= 0).tolist() == here
        await tier.aclose()

    run(main())


@pytest.mark.parametrize("refusing", ["spread_rows", "begin_copy"])
def test_a_copy_back_that_fails_or_cannot_begin_is_reported_after_the_reads(monkeypatch, refusing):
    """Else a drain would return while the disk still writes (rule 13)."""

    async def main() -> None:
        tier, below = await make()
        monkeypatch.setattr(_victims, refusing, Mock(side_effect=MemoryError("none is left")))
        fetch, _ = begin(tier)
        landed: list[list[int]] = []
        with pytest.raises(MemoryError, match="none is left"):
            await follow(fetch, landed)
        assert landed == [[0, 3]]
        assert below.followed == 1
        await tier.aclose()

    run(main())
