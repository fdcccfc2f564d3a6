"""Histograms: fio's figures from known latencies."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.cli.measure.latency import Histogram, merged
from gnndrive.common.ffi import ffi, lib


def histogram(*parts):
    """The histogram `lat` of all parts, each counted separately and then merged."""
    latencies = []
    for part in parts:
        latencies.append(ffi.new("gd_latency *"))
        for ns in part:
            lib.gd_histogram_add(ffi.addressof(latencies[-1].lat), ns)
    return merged(latencies).lat


def test_small_times_are_exact():
    counted = histogram(range(1, 101))
    assert [counted.percentile_ns(p) for p in (1, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert counted.stddev_ns == pytest.approx(statistics.stdev(range(1, 101)))
    shares = histogram([10, 20, 30, 5000])
    assert [shares.share_below(ns) for ns in (9, 20, 1000, 10**6)] == [0, 0.5, 0.75, 1]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**10), min_size=2, max_size=200))
def test_figures_are_right_to_a_buckets_width(times):
    counted = histogram(times[::2], times[1::2])
    assert counted.count == len(times)
    assert (counted.min_ns, counted.max_ns) == (min(times), max(times))
    assert counted.mean_ns == pytest.approx(statistics.fmean(times))
    for percent in (1, 50, 90, 99, 100):
        exact = sorted(times)[max(1, int(np.ceil(len(times) * percent / 100))) - 1]
        assert counted.percentile_ns(percent) == pytest.approx(exact, rel=0.016, abs=1)
    spread = statistics.stdev(times)
    assert counted.stddev_ns == pytest.approx(spread, rel=0.05, abs=0.02 * max(times))


def test_buckets_cover_all_times_in_order():
    middles = [lib.gd_bucket_ns(bucket) for bucket in range(lib.GD_LATENCY_BUCKETS)]
    assert middles == sorted(set(middles))
    assert middles[:130] == [*range(128), 129, 131]
    assert (histogram(middles).buckets == 1).all()
    beyond = histogram([-5, 2**62])
    assert beyond.buckets[0] == beyond.buckets[-1] == 1
    empty = histogram([])
    assert empty.count == empty.mean_ns == empty.stddev_ns == empty.percentile_ns(99) == 0
    assert (Histogram().share_below(10), histogram([], [7], []).min_ns) == (0, 7)
