"""The spans of a batch touch, and the user's wait is divided by what the batch was in."""

import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gnndrive.pipeline import batch_times
from gnndrive.pipeline.batch_times import (
    ASKED,
    CAUSES,
    FOLD_AT,
    GATHERING,
    GRANTED,
    JOINED,
    PUT,
    READY,
    SAMPLED,
    SAMPLING,
    STAGES,
    TAKEN,
    BatchTimes,
    EpochTimes,
    StageTimes,
    buckets_of,
    middle_of,
    split_wait,
    wait_seconds,
)


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
    times = BatchTimes(0, lambda: next(clock))
    for mark in range(1, len(marks)):
        times.mark(mark)
    return times


# ---- one record


def test_a_mark_that_was_left_out_is_made_with_the_next_one():
    times = BatchTimes(0, Ticking())
    times.mark(JOINED)
    times.mark(READY)
    times.mark(GRANTED)  # a call-back that comes too late
    assert times.marks[SAMPLING] == times.marks[SAMPLED] == times.marks[JOINED]
    assert times.marks[GRANTED] == times.marks[READY]
    times.end()
    times.mark(PUT)
    assert len(times.marks) == READY + 1, "it has ended"


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
        batches.append((times.index, times.marks, end))

    monkeypatch.setattr(batch_times, "_events", keep)
    return batches


def counts(times: EpochTimes) -> list[int]:
    """How many batches were counted in each stage."""
    return [int(each["count"]) for each in times.stages.summary().values()]


def present(times: EpochTimes) -> list[int]:
    """How many batches are in each stage: by how many nanoseconds the times of all together grow in
    one nanosecond."""
    stages, clock = times.stages, times.stages.clock
    now, areas_ns = clock(), []
    for stages.clock in (lambda: now, lambda: now + 1):
        areas_ns.append(stages.snapshot().areas_ns)
    stages.clock = clock
    return list(areas_ns[1] - areas_ns[0])


def test_a_batch_is_counted_when_it_is_taken_and_its_step_when_the_next_is_asked_for(kept):
    times = EpochTimes(StageTimes(Ticking()), Mock())
    one = take_one(times)
    assert counts(times) == [1] * TAKEN + [0]
    assert not kept
    asked = times.asked()
    assert counts(times) == [1] * len(STAGES)
    assert kept == [(0, one.marks, asked)]
    assert one.marks[ASKED] == asked


def take_one(times: EpochTimes, index: int = 0) -> BatchTimes:
    """A batch that goes through all stages up to the user."""
    one = times.begin(index)
    for mark in range(SAMPLING, TAKEN + 1):
        one.mark(mark)
    times.took(one)
    return one


def test_sums_do_not_change_when_records_are_forgotten():
    clock = Ticking()
    times = EpochTimes(StageTimes(clock))
    for index in range(FOLD_AT):
        begun = times.asked()
        take_one(times, index)
        times.waited(begun)
    times.begin(-1).mark(JOINED)
    times.asked()
    before = times.stages.snapshot()
    assert len(times.stages.live) == FOLD_AT + 1
    times.begin(-2)
    assert len(times.stages.live) == 2, "nothing grows with the batches"
    after = times.stages.snapshot()
    for name in ("counts", "totals_ns", "waits_ns"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    passed_ns = after.at_ns - before.at_ns
    joined, drawn = STAGES.index("admission"), STAGES.index("sampler_wait")
    grown = after.areas_ns - before.areas_ns
    assert grown[joined] == passed_ns
    assert 0 < grown[drawn] < passed_ns
    assert grown.sum() == grown[joined] + grown[drawn]


def test_no_batch_is_left_in_a_stage_if_another_thread_takes_one_meanwhile():
    times = EpochTimes(StageTimes(Ticking()))
    take_one(times, 0)
    take_one(times, 1)  # asked for before the other thread got the first one
    times.asked()
    assert counts(times) == [2] * TAKEN + [1]
    assert present(times) == [0] * len(STAGES)


def test_seeds_that_are_drawn_again_begin_a_new_record():
    times = EpochTimes(StageTimes(Ticking()))
    first = times.begin(3)
    again = times.begin(3)
    assert times.of(3) is again
    first.mark(PUT)
    assert len(first.marks) == 1, "the first record has ended"
    assert sum(present(times)) == 1


def test_the_end_gives_up_what_is_left_and_ends_the_users_step(kept):
    times = EpochTimes(StageTimes(Ticking()), Mock())
    left = times.begin(1)
    left.mark(JOINED)
    one = take_one(times)
    times.end()
    times.end()
    assert present(times) == [0] * len(STAGES)
    for _ in range(2):
        times.stages.finished.append(one)  # as if another thread had ended it, too
        times.stages.fold()
    assert counts(times) == [1] * TAKEN + [0]
    ((index, marks, end),) = kept
    assert (index, len(marks)) == (0, ASKED)
    assert end > marks[TAKEN]
    times.waited(times.stages.clock())
    assert wait_seconds(times.stages.snapshot().waits_ns)["wait_slots_s"] > 0, (
        "it waited for the batch given up"
    )


class Clock:
    """A clock that stands still until it is moved."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def test_a_buckets_middle_is_within_two_per_cent():
    times = [*range(3_000), *(7**power for power in range(20)), 10**18, *(2**p for p in range(60))]
    times += [2**power - 1 for power in range(60)]
    for ns, bucket in zip(times, buckets_of(np.array(times)), strict=True):
        assert abs(middle_of(int(bucket)) - ns) <= 0.016 * ns, ns
    buckets = buckets_of(np.arange(100_000)).tolist()
    assert buckets == sorted(buckets)
    assert set(buckets) == set(range(buckets[-1] + 1))
    assert buckets_of(np.array([2**63 - 1])) < batch_times._BUCKETS


def test_percentiles_are_those_of_the_sorted_times(seeds):
    clock = Clock()
    assert not any(StageTimes(clock).summary()["gather"].values())
    for seed in seeds(2):
        draw, times = random.Random(seed), EpochTimes(StageTimes(clock))
        spans = [int(draw.lognormvariate(15, 2)) for _ in range(3_000)]
        for index, ns in enumerate(spans):
            one = times.begin(index)
            one.mark(GATHERING)
            clock.now += ns
            one.mark(TAKEN)
            times.took(one)
            times.asked()
        summary, ordered = times.stages.summary()["gather"], sorted(spans)
        assert summary["count"] == 3_000
        assert summary["mean_s"] == pytest.approx(sum(spans) / 3_000 / 1e9)
        for name, share in (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99)):
            assert summary[name] == pytest.approx(ordered[int(share * 3_000) - 1] / 1e9, rel=0.02)


def test_occupancies_and_waits_of_an_interval():
    clock = Clock()
    times = EpochTimes(StageTimes(clock))
    times.begin(0).mark(SAMPLED)  # was there before the interval
    clock.now += 1_000
    start = times.stages.snapshot()
    clock.now += 250
    one = times.begin(1)
    one.mark(SAMPLED)
    clock.now += 500
    one.mark(GATHERING)
    clock.now += 7_000
    one.mark(TAKEN)
    times.took(one)
    times.waited(clock.now - 7_100)
    clock.now += 250
    since = times.stages.snapshot().since(start)
    assert since["extracting_queue"] == 1 + 500 / 8_000  # one all the time, another for a while
    assert since["training_queue"] == since["output_queue"] == 0
    assert since["wait_s"] == pytest.approx(7_100e-9)
    assert [since[f"wait_{cause}_s"] for cause in ("disk", "sampling", "gather", "slots")] == [
        0, 1e-7, 7e-6, 0,
    ]  # fmt: skip
    assert since["gather_s_p50"] == since["gather_s_p99"] == pytest.approx(7e-6, rel=0.02)
    assert "step_s_p50" not in since, "the user is in its step"
    again = times.stages.snapshot().since(times.stages.snapshot())
    assert again["wait_s"] == 0
    assert "gather_s_p50" not in again


@pytest.mark.parametrize("folded", [False, True])
def test_a_batch_in_the_extracting_queue_waits_for_the_reads_of_any_batch(folded):
    clock = Clock()
    stages = StageTimes(clock)
    own, other = EpochTimes(stages), EpochTimes(stages)
    one, reading = own.begin(0), [other.begin(index) for index in range(3)]
    steps = [  # at which time, the batch of the other iterator, its mark
        (100, 0, GRANTED), (150, 1, GRANTED), (200, 0, READY), (300, 1, READY), (400, 2, GRANTED),
    ]  # fmt: skip
    one.mark(SAMPLED)
    begun = clock.now
    for ns, index, mark in steps:
        clock.now = begun + ns
        reading[index].mark(mark)
    for each in reading[:2]:
        each.mark(TAKEN)
        other.took(each)
    other.asked()
    if folded:
        stages.fold()
    clock.now = begun + 450
    one.mark(TAKEN)
    own.took(one)
    own.waited(begun)
    waits = wait_seconds(stages.snapshot().waits_ns)
    assert waits["wait_disk_s"] == pytest.approx(250e-9)
    assert waits["wait_sampling_s"] == pytest.approx(200e-9)
