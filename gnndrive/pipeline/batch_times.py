"""When batches went from one stage to the next, and what follows from it.

Each batch gets a record, `BatchTimes`, when its seeds are drawn (`sample.py`, or another feed), and
the stages mark it. A stage of a batch begins with the mark that ends the one before, so that the
spans add up to the time from the draw of the seeds to the user's next call. They become the sums of
`StageTimes`, the causes of the user's waits (`split_wait`), and the events of a `Timeline`.

This is always on, so a mark costs about a microsecond, and nothing grows with the batches.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from gnndrive.pipeline.timeline import Timeline

STAGES = (
    "sampler_wait", "sample", "extracting_queue", "admission", "read", "training_queue", "gather",
    "output_queue", "step",
)  # fmt: skip
"""The stages of a batch, in order: waiting for a sampler, being sampled, waiting for an extractor,
waiting for slots, being read, waiting to be gathered, being gathered and made, waiting for the
user, and in the user's hands."""

DRAWN, SAMPLING, SAMPLED, JOINED, GRANTED, READY, GATHERING, PUT, TAKEN, ASKED = range(10)
"""The marks: stage i of `STAGES` begins with mark i and ends with mark i + 1."""

QUEUES = ("extracting_queue", "training_queue", "output_queue")
CAUSES = ("disk", "sampling", "gather", "slots")
"""What the user can wait for."""

READ = STAGES.index("read")
READS_KEPT = 256  # intervals in which batches were read; a wait looks back at a few
_FINE = 5  # a power of two has 2**5 buckets, so a bucket's middle is at most 1.6 % wrong
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_DISK, _SAMPLING, _GATHER, _SLOTS = range(len(CAUSES))
# What a user waits for who waits for a batch in a stage; but for the disk in `BatchTimes.disk`, and
# in the extracting queue while rows are read.
_CAUSE = 3 * (_SAMPLING,) + (_SLOTS, _DISK) + 5 * (_GATHER,)
_USER_TID, _WORKER_TID = 1, 1_000  # the first tracks of users and of workers in a timeline


# ---- the sums of all batches


def bucket_of(ns: int) -> int:
    """The bucket of a time, in nanoseconds."""
    shift = max(ns.bit_length() - _FINE - 1, 0)
    return (shift << _FINE) + (ns >> shift)


def middle_of(bucket: int) -> float:
    """The middle of a bucket, in nanoseconds."""
    shift = max((bucket >> _FINE) - 1, 0)
    return float((bucket - (shift << _FINE)) << shift) + ((1 << shift) - 1) / 2


@dataclass
class Histogram:
    """Counts times, `total_ns` in all, in up to some 2,000 buckets that grow with the time."""

    total_ns: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, ns: int) -> None:
        """Add a time, in nanoseconds."""
        self.buckets[bucket_of(ns)] += 1
        self.total_ns += ns

    @property
    def count(self) -> int:
        """How many times were added."""
        return self.buckets.total()

    def since(self, earlier: Histogram) -> Histogram:
        """The times that were added since `earlier`, a copy of this one."""
        return Histogram(self.total_ns - earlier.total_ns, self.buckets - earlier.buckets)

    def quantile_s(self, share: float) -> float:
        """The time, in seconds, that the given share of the times does not exceed; within 1.6 %."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return middle_of(bucket) / 1e9
        return 0.0

    def summary(self) -> dict[str, float]:
        """`count`, `mean_s`, `p50_s`, `p90_s` and `p99_s`."""
        count = self.count
        quantiles = {f"{name}_s": self.quantile_s(share) for name, share in _QUANTILES.items()}
        return {"count": count, "mean_s": self.total_ns / max(count, 1) / 1e9, **quantiles}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sums of a `StageTimes` at one moment; `areas_ns`: each stage's batches, integrated."""

    at_ns: int
    histograms: tuple[Histogram, ...]
    areas_ns: tuple[int, ...]
    waits_ns: tuple[int, ...]

    def since(self, earlier: Snapshot) -> dict[str, float]:
        """What happened since an earlier snapshot, by the names that `on_stats` gets. The
        percentiles of a stage that no batch has left meanwhile are not there."""
        passed_ns = max(self.at_ns - earlier.at_ns, 1)
        areas = zip(STAGES, self.areas_ns, earlier.areas_ns, strict=True)
        waits = [now - before for now, before in zip(self.waits_ns, earlier.waits_ns, strict=True)]
        found = {name: (now - before) / passed_ns for name, now, before in areas if name in QUEUES}
        found |= _parts_of_wait(waits) | {"wait_s": sum(waits) / 1e9}
        for name, now, before in zip(STAGES, self.histograms, earlier.histograms, strict=True):
            between = now.since(before)
            if between.count:
                for quantile, share in _QUANTILES.items():
                    found[f"{name}_s_{quantile}"] = between.quantile_s(share)
        return found


def _parts_of_wait(waits_ns: Iterable[int]) -> dict[str, float]:
    """The seconds for each of `CAUSES`, as `loader.stats()` names them."""
    return {f"wait_{name}_s": ns / 1e9 for name, ns in zip(CAUSES, waits_ns, strict=True)}


class StageTimes:
    """The times of delivered batches in each stage, how many batches are in each now, and how long
    the user waited for each of `CAUSES`. Any thread may call its methods."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.clock = clock
        self.histograms = [Histogram() for _ in STAGES]
        self.present, self._areas = [0] * len(STAGES), [0] * len(STAGES)
        self.waits_ns = [0] * len(CAUSES)
        self._reads: deque[tuple[int, int]] = deque(maxlen=READS_KEPT)
        self._reading_since = 0
        # Re-entrant, because a signal handler may ask for statistics.
        self.lock = threading.RLock()

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

    def count(self, marks: Sequence[int], stages: Iterable[int]) -> None:
        """Count how long a delivered batch, which has these marks, was in some stages."""
        with self.lock:
            for stage in stages:
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

    def wait_seconds(self) -> dict[str, float]:
        """`wait_s`, and its parts as `loader.stats()` names them."""
        waits_ns = self.waits_ns
        return {"wait_s": sum(waits_ns) / 1e9, **_parts_of_wait(waits_ns)}

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
            histograms = [Histogram(each.total_ns, each.buckets.copy()) for each in self.histograms]
            return Snapshot(now, tuple(histograms), tuple(areas), tuple(self.waits_ns))


# ---- the record of a batch, and those of an iterator


class BatchTimes:
    """The times of one batch, in nanoseconds of the clock of `StageTimes`. One thread at a time
    marks it; any thread may end it.

    Attributes:
        marks: when each mark was made; those up to `reached`, the newest, are set.
        disk: intervals of waiting for the disk outside of the stage "read": for a window, record or
            sample, or in an admission that had enough slots, so that first reads were under way.
        worker: the name of the thread that sampled it.
    """

    __slots__ = ("_ended", "_stages", "disk", "index", "marks", "reached", "worker")

    def __init__(self, index: int, stages: StageTimes) -> None:
        self.index, self._stages, self._ended = index, stages, False
        self.marks, self.reached = [0] * (ASKED + 1), DRAWN
        self.marks[DRAWN] = stages.move(None, DRAWN)
        self.disk: list[tuple[int, int]] = []
        self.worker = ""

    def mark(self, mark: int, from_disk: bool = False) -> None:
        """The stage before `mark` ends now; `from_disk`: the batch waited for the disk in it. Marks
        that were left out are made too; one after a later one, or after `end`, is ignored."""
        with self._stages.lock:  # the loop's thread may end the record of a worker's batch
            if self._ended or mark <= self.reached:
                return
            entered = mark if mark < ASKED else None
            now = self._stages.move(self.reached, entered)
            for each in range(self.reached + 1, mark + 1):
                self.marks[each] = now
            self.reached, self._ended = mark, entered is None
            if from_disk:
                self.disk.append((self.marks[mark - 1], now))

    def waited_for_disk(self, begin: int) -> None:
        """From `begin` until now the batch waited for the disk."""
        self.disk.append((begin, self._stages.clock()))

    def end(self) -> None:
        """The batch is given up, or the user will not ask for another one."""
        with self._stages.lock:
            if not self._ended:
                self._ended = True
                self._stages.move(self.reached, None)


class EpochTimes:
    """The records of one iterator's batches; all of the loader's report to `stages`."""

    def __init__(
        self, stages: StageTimes, timeline: Timeline | None = None, epoch: int = 0
    ) -> None:
        self.stages, self._timeline, self._epoch, self._ended = stages, timeline, epoch, False
        self._lane = 0 if timeline is None else timeline.enter()
        self._live: dict[int, BatchTimes] = {}
        self._held: BatchTimes | None = None  # of the batch that the user has
        self._given_up: BatchTimes | None = None  # of the oldest batch at an early end
        self._lock = threading.RLock()

    # ---- the pipeline's side ----

    def begin(self, index: int) -> BatchTimes:
        """The seeds of a batch were drawn, perhaps again in another part of the epoch."""
        with self._lock:
            before, times = self._live.get(index), BatchTimes(index, self.stages)
            self._live[index] = times
        if before is not None:
            before.end()
        return times

    def of(self, index: int) -> BatchTimes | None:
        """The record of a batch that was drawn and is not delivered; None: there is none."""
        return self._live.get(index)

    # ---- the user's side ----

    def asked(self) -> int:
        """The user asks for a batch, and is done with the one before; returns when."""
        held, self._held = self._held, None
        if held is None:
            return self.stages.clock()
        held.mark(ASKED)
        self.stages.count(held.marks, [TAKEN])
        self._trace(held, held.marks[ASKED])
        return held.marks[ASKED]

    def took(self, times: BatchTimes | None) -> None:
        """The user takes a batch."""
        self._held = times
        if times is not None:
            with self._lock:
                self._live.pop(times.index, None)
            self.stages.count(times.marks, range(TAKEN))

    def waited(self, begin: int) -> None:
        """The user waited from `begin` on for the batch that it took, else for the oldest one."""
        end = self.stages.clock()
        times = self._held
        if times is None:
            with self._lock:
                times = next(iter(self._live.values()), self._given_up)
        reads: Iterable[tuple[int, int]] = ()
        if times is not None and (times.reached < JOINED or times.marks[JOINED] > begin):
            reads = self.stages.reads_between(begin, end)
        self.stages.add_waits(split_wait(times, begin, end, reads))

    def end(self) -> None:
        """The epoch is over, or its iterator was dropped."""
        held, self._held = self._held, None
        with self._lock:
            left = list(self._live.values())
            self._given_up = left[0] if left else self._given_up
            self._live.clear()
        for times in left:
            times.end()
        if held is not None:
            held.end()
            self._trace(held, self.stages.clock())
        ended, self._ended = self._ended, True  # first: a track that is given back may be another's
        if self._timeline is not None and not ended:
            self._timeline.leave(self._lane)

    def _trace(self, times: BatchTimes, end: int) -> None:
        """Add a batch, which the user had until `end`, to the timeline."""
        if self._timeline is not None:
            self._timeline.add(_events(self._timeline, self._lane, self._epoch, times, end))


def _events(
    timeline: Timeline, lane: int, epoch: int, times: BatchTimes, end: int
) -> Iterator[str]:
    """A batch's events. The tracks of the first iterator have no number in their names."""
    suffix = f" #{lane + 1}" if lane else ""
    marks, args = times.marks, json.dumps({"batch": times.index, "epoch": epoch})
    for stage in range(TAKEN):
        if stage != SAMPLING:
            yield from timeline.span(STAGES[stage] + suffix, marks[stage], marks[stage + 1], args)
    worker = _WORKER_TID + int("0" + "".join(filter(str.isdigit, times.worker)))
    span = marks[SAMPLING], marks[SAMPLED]
    yield from timeline.slice("sample", worker, times.worker or "sampler", *span, args)
    user = _USER_TID + lane, "your steps" + suffix
    yield from timeline.slice("step", *user, marks[TAKEN], end, args)


# ---- what the user waited for


def split_wait(
    times: BatchTimes | None, begin: int, end: int, reads: Iterable[tuple[int, int]]
) -> list[int]:
    """Divide the time in which the user waited for a batch by what the batch was in meanwhile.

    Before its seeds were drawn the user waited for sampling. After it was taken, or if the epoch
    had no batch left, it counts as gathering, which is what makes batches.

    The newest stage of the record `times` lasts until `end`; `reads` are intervals in which rows of
    any batch were being read, in order. Returns nanoseconds for each of `CAUSES`, whose sum is
    `end` − `begin`.
    """
    waits = [0] * len(CAUSES)
    if times is None:
        waits[_GATHER] = end - begin
        return waits
    reached = times.reached  # another thread may mark it meanwhile
    marks = [*times.marks[: reached + 1], end]
    waits[_SAMPLING] += _overlap(begin, end, [(begin, marks[0])])
    for stage in range(reached + 1):
        one, other = max(begin, marks[stage]), min(end, marks[stage + 1])
        if one >= other:
            continue
        from_disk = _overlap(one, other, [*times.disk, *(reads if stage == SAMPLED else ())])
        waits[_DISK] += from_disk
        waits[_CAUSE[stage]] += other - one - from_disk
    return waits


def _overlap(begin: int, end: int, intervals: Sequence[tuple[int, int]]) -> int:
    """How much of the time from `begin` to `end` the intervals cover together."""
    covered, behind = 0, begin
    for one, other in sorted(intervals):
        one, other = max(one, behind), min(other, end)
        if one < other:
            covered += other - one
            behind = other
    return covered
