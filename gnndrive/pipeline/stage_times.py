"""`StageTimes`: how long batches are in each stage, how many are there, what the user waits for.

The records of batches (`batch_times.py`) report each change of stage here. It is always on, so it
must be cheap: a change costs about a microsecond, and nothing grows with the number of batches. A
`Snapshot` holds the sums so far; the difference of two snapshots says what happened between them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

STAGES = (
    "sampler_wait", "sample", "extracting_queue", "admission", "read", "training_queue", "gather",
    "output_queue", "step",
)  # fmt: skip
"""The stages of a batch, in order: waiting for a sampler, being sampled, waiting for an extractor,
waiting for slots, being read, waiting to be gathered, being gathered and made, waiting for the
user, and in the user's hands."""

QUEUES = ("extracting_queue", "training_queue", "output_queue")
CAUSES = ("disk", "sampling", "gather", "slots")
"""What the user can wait for."""

READ = STAGES.index("read")
READS_KEPT = 256  # intervals in which batches were read; a wait looks back at a few
_FINE = 5  # a power of two has 2**5 buckets, so a bucket's middle is at most 1.6 % wrong
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def bucket_of(ns: int) -> int:
    """The bucket of a time, in nanoseconds."""
    shift = max(ns.bit_length() - _FINE - 1, 0)
    return (shift << _FINE) + (ns >> shift)


def middle_of(bucket: int) -> float:
    """The middle of a bucket, in nanoseconds."""
    shift = max((bucket >> _FINE) - 1, 0)
    return float((bucket - (shift << _FINE)) << shift) + ((1 << shift) - 1) / 2


class Histogram:
    """Counts times in buckets that grow with the time; at most some 2,000 buckets are in use.

    Attributes:
        count: how many times were added.
        total_ns: their sum.
    """

    def __init__(self) -> None:
        self.count, self.total_ns = 0, 0
        self._buckets: dict[int, int] = {}

    def add(self, ns: int) -> None:
        """Add a time, in nanoseconds."""
        bucket = bucket_of(ns)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.total_ns += ns

    def copy(self) -> Histogram:
        """A copy, which later times do not change."""
        copied = Histogram()
        copied.count, copied.total_ns, copied._buckets = (
            self.count, self.total_ns, dict(self._buckets),
        )  # fmt: skip
        return copied

    def since(self, earlier: Histogram) -> Histogram:
        """The times that were added since `earlier`, a copy of this one."""
        between = Histogram()
        between.count = self.count - earlier.count
        between.total_ns = self.total_ns - earlier.total_ns
        for bucket, count in self._buckets.items():
            if more := count - earlier._buckets.get(bucket, 0):
                between._buckets[bucket] = more
        return between

    def quantile_s(self, share: float) -> float:
        """The time, in seconds, that the given share of the times does not exceed; within 1.6 %."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return middle_of(bucket) / 1e9
        return 0.0

    def summary(self) -> dict[str, float]:
        """`count`, `mean_s`, `p50_s`, `p90_s` and `p99_s`."""
        mean_s = self.total_ns / max(self.count, 1) / 1e9
        quantiles = {f"{name}_s": self.quantile_s(share) for name, share in _QUANTILES.items()}
        return {"count": self.count, "mean_s": mean_s, **quantiles}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sums of a `StageTimes` at one moment.

    Attributes:
        at_ns: when, by its clock.
        histograms: the times in each stage.
        areas_ns: for each stage the integral of the number of batches in it, over time.
        waits_ns: see `StageTimes.waits_ns`.
    """

    at_ns: int
    histograms: tuple[Histogram, ...]
    areas_ns: tuple[int, ...]
    waits_ns: tuple[int, ...]

    def since(self, earlier: Snapshot) -> dict[str, float]:
        """What happened since an earlier snapshot, by the names that `on_stats` gets. The
        percentiles of a stage that no batch has left meanwhile are not there."""
        found: dict[str, float] = {}
        passed_ns = max(self.at_ns - earlier.at_ns, 1)
        for name, now, before in zip(STAGES, self.areas_ns, earlier.areas_ns, strict=True):
            if name in QUEUES:
                found[name] = (now - before) / passed_ns
        for name, ns, ns_before in zip(CAUSES, self.waits_ns, earlier.waits_ns, strict=True):
            found[f"wait_{name}_s"] = (ns - ns_before) / 1e9
        found["wait_s"] = (sum(self.waits_ns) - sum(earlier.waits_ns)) / 1e9
        for name, times, times_before in zip(
            STAGES, self.histograms, earlier.histograms, strict=True
        ):
            between = times.since(times_before)
            if between.count:
                for quantile, share in _QUANTILES.items():
                    found[f"{name}_s_{quantile}"] = between.quantile_s(share)
        return found


@dataclass(eq=False)
class StageTimes:
    """What the batches of a loader's epochs report. Any thread may call its methods.

    Attributes:
        clock: returns nanoseconds; `perf_counter_ns` outside of tests.
        histograms: the times of delivered batches in each stage.
        present: how many batches are in each stage now.
        waits_ns: how long the user waited for each of `CAUSES`.
        lock: is held while a batch moves.
    """

    clock: Callable[[], int] = perf_counter_ns
    histograms: list[Histogram] = field(default_factory=lambda: [Histogram() for _ in STAGES])
    present: list[int] = field(default_factory=lambda: [0] * len(STAGES))
    waits_ns: list[int] = field(default_factory=lambda: [0] * len(CAUSES))
    _areas: list[int] = field(default_factory=lambda: [0] * len(STAGES))
    _reads: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=READS_KEPT))
    _reading_since: int = 0
    # Re-entrant, because a signal handler may ask for statistics.
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def move(self, left: int | None, entered: int | None) -> int:
        """A batch leaves a stage and enters another, by their places in `STAGES`; returns when."""
        with self.lock:
            now = self.clock()
            if left is not None:
                self.present[left] -= 1
                self._areas[left] += now
                if left == READ and not self.present[READ]:
                    self._reads.append((self._reading_since, now))
            if entered is not None:
                self.present[entered] += 1
                self._areas[entered] -= now
                if entered == READ and self.present[READ] == 1:
                    self._reading_since = now
            return now

    def count(self, stage: int, ns: int) -> None:
        """A delivered batch was in a stage for so long."""
        with self.lock:
            self.histograms[stage].add(ns)

    def count_taken(self, marks: Sequence[int]) -> None:
        """The user has taken a batch, whose stage i lasted from mark i to mark i + 1."""
        with self.lock:
            for stage in range(len(STAGES) - 1):
                self.histograms[stage].add(marks[stage + 1] - marks[stage])

    def add_waits(self, waits_ns: Iterable[int]) -> None:
        """The user waited so long for each of `CAUSES`."""
        with self.lock:
            self.waits_ns = [a + b for a, b in zip(self.waits_ns, waits_ns, strict=True)]

    def reads_between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The intervals between two times in which rows of any batch were being read."""
        found: list[tuple[int, int]] = []
        with self.lock:
            if self.present[READ] and self._reading_since < end:
                found.append((max(begin, self._reading_since), end))
            for one, other in reversed(self._reads):
                if other <= begin:
                    break
                if one < end:
                    found.append((max(begin, one), min(end, other)))
        return found[::-1]

    @property
    def wait_s(self) -> float:
        """Seconds that the user waited."""
        return sum(self.waits_ns) / 1e9

    def wait_seconds(self) -> dict[str, float]:
        """`wait_s`, and its parts as `loader.stats()` names them."""
        waits_ns = self.waits_ns
        parts = {f"wait_{name}_s": ns / 1e9 for name, ns in zip(CAUSES, waits_ns, strict=True)}
        return {"wait_s": sum(waits_ns) / 1e9, **parts}

    def summary(self) -> dict[str, dict[str, float]]:
        """See `NeighborLoader.stage_stats`."""
        histograms = self.snapshot().histograms
        return {name: each.summary() for name, each in zip(STAGES, histograms, strict=True)}

    def snapshot(self) -> Snapshot:
        """The sums so far."""
        with self.lock:
            now = self.clock()
            areas = [
                area + count * now for area, count in zip(self._areas, self.present, strict=True)
            ]
            histograms = tuple(each.copy() for each in self.histograms)
            return Snapshot(now, histograms, tuple(areas), tuple(self.waits_ns))
