"""Latencies as a histogram on a log scale: the counts of the C core, and fio's figures from them.

C counts each read (`native/latency.h`, 64 buckets an octave); Python does nothing per read. Mean,
minimum and maximum are exact, the other figures are right to a bucket's width, 1.6 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int64Array

PERCENTILES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)
"""The percentiles that fio prints."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long requests took; all times are 0 if none was counted.

    Attributes:
        buckets: how many requests fell into each bucket, int64 [GD_LATENCY_BUCKETS].
    """

    count: int = 0
    sum_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    buckets: Int64Array = field(
        default_factory=lambda: np.zeros(lib.GD_LATENCY_BUCKETS, np.int64), repr=False
    )

    @classmethod
    def of(cls, counted: Any) -> Histogram:
        """What a `gd_histogram` of the C core has counted."""
        buckets = np.empty(lib.GD_LATENCY_BUCKETS, np.int64)
        ffi.memmove(pointer(buckets), counted.bucket, buckets.nbytes)
        ends = int(counted.min_ns), int(counted.max_ns)
        return cls(int(counted.count), int(counted.sum_ns), *ends, buckets)

    def __add__(self, other: Histogram) -> Histogram:
        if not (self.count and other.count):
            return self if self.count else other
        return Histogram(
            self.count + other.count,
            self.sum_ns + other.sum_ns,
            min(self.min_ns, other.min_ns),
            max(self.max_ns, other.max_ns),
            self.buckets + other.buckets,
        )

    @property
    def mean_ns(self) -> float:
        """The exact mean."""
        return self.sum_ns / self.count if self.count else 0.0

    @property
    def stddev_ns(self) -> float:
        """The standard deviation, from the buckets; 0 for fewer than two requests."""
        if self.count < 2:
            return 0.0
        squares = float((self.buckets * (_bucket_ns() - self.mean_ns) ** 2).sum())
        return float(np.sqrt(squares / (self.count - 1)))

    def percentile_ns(self, percent: float) -> int:
        """The time within which `percent` of the requests ended."""
        if not self.count:
            return 0
        wanted = max(1, int(np.ceil(self.count * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self.buckets), wanted))
        return int(min(max(int(_bucket_ns()[bucket]), self.min_ns), self.max_ns))

    def share_below(self, time_ns: float) -> float:
        """The share of requests that took at most `time_ns`, from 0 to 1."""
        within = int(self.buckets[_bucket_ns() <= time_ns].sum())
        return within / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """The three times of a request, as fio names them: `slat` from its preparation until the kernel
    has taken it, `clat` from then to its completion, `lat` their sum."""

    slat: Histogram = field(default_factory=Histogram)
    clat: Histogram = field(default_factory=Histogram)
    lat: Histogram = field(default_factory=Histogram)

    @classmethod
    def of(cls, counted: Any) -> Latency:
        """What a `gd_latency *` of the C core has counted."""
        return cls(*map(Histogram.of, (counted.slat, counted.clat, counted.lat)))

    def __add__(self, other: Latency) -> Latency:
        return Latency(self.slat + other.slat, self.clat + other.clat, self.lat + other.lat)


@cache
def _bucket_ns() -> npt.NDArray[np.float64]:
    """The middle of each bucket, in nanoseconds."""
    return np.array([lib.gd_bucket_ns(bucket) for bucket in range(lib.GD_LATENCY_BUCKETS)], float)
