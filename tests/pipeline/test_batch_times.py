"""The spans of a batch touch, and the user's wait is divided by what the batch was in."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from gnndrive.pipeline import batch_times
from gnndrive.pipeline.batch_times import (
    ASKED,
    CAUSES,
    DRAWN,
    GRANTED,
    JOINED,
    PUT,
    READ,
    READY,
    SAMPLED,
    SAMPLING,
    STAGES,
    TAKEN,
    BatchTimes,
    EpochTimes,
    Histogram,
    StageTimes,
    bucket_of,
    middle_of,
    split_wait,
)  # fmt: skip


class Ticking:
    """A clock that moves on by a random time at each reading."""

    def __init__(self, seed: int = 0) -> None:
        self.now, self._random = 10**12, random.Random(seed)

    def __call__(self) -> int:
        self.now += self._random.randrange(1, 1_000)
        return self.now


def record(*marks: int, more: Sequence[int] = ()) -> BatchTimes:
    """A record with the given marks; its clock shows `more` after them."""
    clock = iter([*marks, *more])
    times = BatchTimes(0, StageTimes(lambda: next(clock)))
    for mark in range(1, len(marks)):
        times.mark(mark)
    return times


# ---- one record


def test_a_mark_that_was_left_out_is_made_with_the_next_one():
    clock = Ticking()
    stages = StageTimes(clock)
    times = BatchTimes(0, stages)
    times.mark(JOINED)
    times.mark(READY)
    times.mark(GRANTED)  # a call-back that comes too late
    assert times.marks[SAMPLING] == times.marks[SAMPLED] == times.marks[JOINED]
    assert times.marks[GRANTED] == times.marks[READY]
    times.end()
    times.mark(PUT)
    times.end()
    assert times.reached == READY
    assert stages.present == [0] * len(STAGES)


@pytest.mark.parametrize("then", ["mark", "end"])
@pytest.mark.parametrize("first", ["last mark", "end"])
def test_a_record_ends_once_though_two_threads_end_it(monkeypatch, first, then):
    stages = StageTimes(Ticking())
    times = BatchTimes(0, stages)
    times.mark(JOINED)
    calls: dict[str, Callable[[], None]] = {
        "mark": lambda: times.mark(READY),
        "last mark": lambda: times.mark(ASKED),
        "end": times.end,
    }
    lock, others = threading.RLock(), [calls[first]]

    @contextmanager
    def overtaken() -> Iterator[None]:
        """A lock that another thread has had, just before the first one got it."""
        if others:
            others.pop()()
        with lock:
            yield

    monkeypatch.setattr(type(stages), "lock", property(lambda _: overtaken()), raising=False)
    calls[then]()
    assert times.reached == (JOINED if first == "end" else ASKED)
    assert stages.present == [0] * len(STAGES)


# ---- the split


def causes(*wait: Any) -> dict[str, int]:
    return {name: ns for name, ns in zip(CAUSES, split_wait(*wait), strict=True) if ns}


MARKS = (100, 110, 130, 200, 250, 400, 410, 480, 490)  # drawn … taken


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (40, 100, {"sampling": 60}),  # its seeds were not drawn yet
        (100, 130, {"sampling": 30}),
        (120, 210, {"sampling": 80, "slots": 10}),
        (200, 250, {"slots": 50}),
        (240, 405, {"slots": 10, "disk": 150, "gather": 5}),
        (400, 495, {"gather": 95}),
        (0, 500, {"sampling": 200, "slots": 50, "disk": 150, "gather": 100}),
        (300, 300, {}),
    ],
)
def test_a_wait_is_divided_by_the_stages(begin, end, expected):
    assert causes(record(*MARKS), begin, end, ()) == expected


def test_what_is_read_meanwhile_counts_as_disk():
    """In the extracting queue while any rows are read; in other stages what the batch reads."""
    reads = [(120, 150), (170, 300)]
    found = causes(record(*MARKS), 100, 250, reads)
    assert found == {"sampling": 50, "disk": 50, "slots": 50}
    times = record(*MARKS)
    times.disk = [(100, 105), (103, 108), (190, 240)]
    found = causes(times, 100, 250, ())
    assert found == {"disk": 8 + 50, "sampling": 100 - 8 - 10, "slots": 10}
    times = record(0, 1, 2, 10, more=(30, 40))
    times.mark(GRANTED, from_disk=True)  # it has its slots
    assert causes(times, 10, 35, ()) == {"disk": 25}


def test_the_newest_stage_lasts_until_the_end_of_the_wait():
    stages = ((1, "sampling"), (3, "sampling"), (4, "slots"), (5, "disk"), (6, "gather"))
    for reached, name in stages:
        assert causes(record(*MARKS[:reached]), 500, 600, ()) == {name: 100}
    assert causes(None, 500, 600, ()) == {"gather": 100}


def test_the_parts_of_any_wait_add_up(seeds):
    for seed in seeds(50):
        draw = random.Random(seed)

        def intervals(count: int, draw: random.Random = draw) -> list[tuple[int, int]]:
            ends = sorted(draw.sample(range(1_000), 2 * count))
            return list(zip(ends[::2], ends[1::2], strict=True))

        times = record(*sorted(draw.choices(range(1_000), k=draw.randint(1, 9))))
        times.disk = [(a, a + draw.randrange(200)) for a, _ in intervals(draw.randint(0, 4))]
        begin, end = sorted(draw.choices(range(1_200), k=2))
        waits = split_wait(times, begin, end, intervals(draw.randint(0, 5)))
        assert sum(waits) == end - begin
        assert min(waits) >= 0


# ---- an iterator's records


Kept = list[tuple[int, list[int], int]]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The index and marks of each batch of a timeline, and when its step ended."""
    batches: Kept = []

    def keep(_: Any, lane: int, epoch: int, times: BatchTimes, end: int) -> None:
        batches.append((times.index, times.marks[: times.reached + 1], end))

    monkeypatch.setattr(batch_times, "_events", keep)
    return batches


def test_a_batch_is_counted_when_it_is_taken_and_its_step_when_the_next_is_asked_for(kept):
    times = EpochTimes(StageTimes(Ticking()), Mock())
    one = take_one(times)
    assert [each.count for each in times.stages.histograms] == [1] * TAKEN + [0]
    assert not kept
    asked = times.asked()
    assert [each.count for each in times.stages.histograms] == [1] * len(STAGES)
    assert kept == [(0, one.marks, asked)]
    assert one.marks[ASKED] == asked


def take_one(times: EpochTimes, index: int = 0) -> BatchTimes:
    """A batch that goes through all stages up to the user."""
    one = times.begin(index)
    for mark in range(SAMPLING, TAKEN + 1):
        one.mark(mark)
    times.took(one)
    return one


def test_seeds_that_are_drawn_again_begin_a_new_record():
    times = EpochTimes(StageTimes(Ticking()))
    first = times.begin(3)
    again = times.begin(3)
    assert times.of(3) is again
    first.mark(PUT)
    assert first.reached == DRAWN, "the first record has ended"
    assert sum(times.stages.present) == 1


def test_the_end_gives_up_what_is_left_and_ends_the_users_step(kept):
    times = EpochTimes(StageTimes(Ticking()), Mock())
    left = times.begin(1)
    left.mark(JOINED)
    take_one(times)
    times.end()
    times.end()
    assert times.stages.present == [0] * len(STAGES)
    ((index, marks, end),) = kept
    assert (index, len(marks)) == (0, ASKED)
    assert end > marks[TAKEN]
    times.waited(times.stages.clock())
    assert times.stages.waits_ns[CAUSES.index("slots")] > 0, "it waited for the batch given up"


class Clock:
    """A clock that stands still until it is moved."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def test_a_buckets_middle_is_within_two_per_cent():
    times = [*range(3_000), *(7**power for power in range(20)), 10**18, *(2**p for p in range(60))]
    for ns in times:
        assert abs(middle_of(bucket_of(ns)) - ns) <= 0.016 * ns, ns
    buckets = [bucket_of(ns) for ns in range(100_000)]
    assert buckets == sorted(buckets)
    assert set(buckets) == set(range(buckets[-1] + 1))
    assert bucket_of(1 << 50) < 2_000, "memory does not grow with the times"


def test_percentiles_are_those_of_the_sorted_times(seeds):
    assert not any(Histogram().summary().values())
    for seed in seeds(2):
        draw = random.Random(seed)
        times = [int(draw.lognormvariate(15, 2)) for _ in range(3_000)]
        histogram = Histogram()
        for ns in times:
            histogram.add(ns)
        summary, ordered = histogram.summary(), sorted(times)
        assert summary["count"] == 3_000
        assert summary["mean_s"] == pytest.approx(sum(times) / 3_000 / 1e9)
        for name, share in (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99)):
            assert summary[name] == pytest.approx(ordered[int(share * 3_000) - 1] / 1e9, rel=0.02)


def test_occupancies_and_waits_of_an_interval():
    clock = Clock()
    times = StageTimes(clock)
    times.move(None, SAMPLED)  # was there before the interval
    clock.now += 1_000
    start = times.snapshot()
    clock.now += 250
    times.move(None, SAMPLED)
    clock.now += 500
    times.move(SAMPLED, JOINED)
    clock.now += 250
    times.histograms[STAGES.index("gather")].add(7_000)
    times.add_waits([1_000, 200, 30, 4])
    since = times.snapshot().since(start)
    assert since["extracting_queue"] == 1.5  # one all the time, another for half of it
    assert since["training_queue"] == since["output_queue"] == 0
    assert since["wait_s"] == pytest.approx(1_234e-9)
    assert [since[f"wait_{cause}_s"] for cause in ("disk", "sampling", "gather", "slots")] == [
        1e-6, 2e-7, 3e-8, 4e-9,
    ]  # fmt: skip
    assert since["gather_s_p50"] == since["gather_s_p99"] == pytest.approx(7e-6, rel=0.02)
    assert "read_s_p50" not in since, "no batch was read in this interval"
    again = times.snapshot().since(times.snapshot())
    assert again["wait_s"] == 0
    assert "gather_s_p50" not in again


def test_reads_are_known_as_intervals():
    clock = Clock()
    times = StageTimes(clock)

    for ns, begins in ((100, True), (150, True), (200, False), (300, False), (400, True)):
        clock.now = ns
        times.move(*((None, READ) if begins else (READ, None)))
    assert times.reads_between(0, 1_000) == [(100, 300), (400, 1_000)]
    assert times.reads_between(250, 350) == [(250, 300)]
    assert times.reads_between(300, 400) == []
