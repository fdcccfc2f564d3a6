"""Histograms, occupancies and intervals of `StageTimes`, with a clock that the test moves."""

from __future__ import annotations

import random

import pytest

from gnndrive.pipeline.batch_times import JOINED, SAMPLED
from gnndrive.pipeline.stage_times import (
    READ,
    STAGES,
    Histogram,
    StageTimes,
    bucket_of,
    middle_of,
)  # fmt: skip


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
    times.count(STAGES.index("gather"), 7_000)
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
