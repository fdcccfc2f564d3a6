"""When batches went from one stage to the next, and what follows from it.

Each batch gets a record, `BatchTimes`, when its seeds are drawn (`sample.py`, or another feed), and
the stages mark it. A stage of a batch begins with the mark that ends the one before, so that the
spans add up to the time from the draw of the seeds to the user's next call. The sums of a loader's
records, `Snapshot`, have the causes of the user's waits, too (`split_wait`).

This is always on, so the stages and the user's thread only note times, without a lock. `StageTimes`
adds them up when it is asked, and so that nothing grows with the batches, in the pipeline's loop
thread now and then.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns

import numpy as np

from gnndrive.common.records import Int64Array
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

FOLD_AT = 64  # records of batches that the user is done with, which wait to be added up
READS_KEPT = 128  # intervals in which batches were read; a wait looks back at a few
_FINE = 5  # a power of two has 2**5 buckets, so a bucket's middle is at most 1.6 % wrong
_BUCKETS = 59 << _FINE  # of times below 2**63 ns
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_DISK, _SAMPLING, _GATHER, _SLOTS = range(len(CAUSES))
# What a user waits for who waits for a batch in a stage; but for the disk in `BatchTimes.disk`, and
# in the extracting queue while rows are read.
_CAUSE = 3 * (_SAMPLING,) + (_SLOTS, _DISK) + 5 * (_GATHER,)
_USER_TID, _WORKER_TID = 1, 1_000  # the first tracks of users and of workers in a timeline
# A batch's stages are counted when the user takes it, and its step when the user asks again.
_COUNTED_WITH = np.maximum(np.arange(SAMPLING, ASKED + 1), TAKEN)


# ---- the record of a batch


class BatchTimes:
    """The times of one batch, in nanoseconds of the clock of `StageTimes`. One thread at a time
    marks it; any thread may end it, or read it meanwhile.

    Attributes:
        marks: when each mark was made, up to the newest one.
        ended: when it was given up; 0: it was not.
        disk: intervals of waiting for the disk outside of the stage "read": for a window, record or
            sample, or in an admission that had enough slots, so that first reads were under way.
        wait: from when to when the user waited for it.
        worker: the name of the thread that sampled it.
    """

    __slots__ = ("_clock", "disk", "ended", "index", "marks", "wait", "worker")

    def __init__(self, index: int, clock: Callable[[], int]) -> None:
        self.index, self._clock = index, clock
        self.marks, self.ended = [clock()], 0
        self.disk: list[tuple[int, int]] = []
        self.wait, self.worker = (0, 0), ""

    def mark(self, mark: int, from_disk: bool = False) -> int:
        """The stage before `mark` ends now; `from_disk`: the batch waited for the disk in it. Marks
        that were left out are made too; one after a later one, or after `end`, is ignored. Returns
        the time."""
        now, missing = self._clock(), mark + 1 - len(self.marks)
        if missing > 0 and not self.ended:
            self.marks += [now] * missing
            if from_disk:
                self.disk.append((self.marks[mark - 1], now))
        return now

    def waited_for_disk(self, begin: int) -> None:
        """From `begin` until now the batch waited for the disk."""
        self.disk.append((begin, self._clock()))

    def end(self) -> None:
        """The batch is given up, or the user will not ask for another one."""
        self.ended = self.ended or self._clock()

    def marks_until(self, now: int) -> list[int]:
        """All marks, as if those that are to come were made now, or when it ended."""
        marks = self.marks.copy()  # another thread may mark it meanwhile
        return marks + [max(marks[-1], self.ended or now)] * (ASKED + 1 - len(marks))


# ---- the sums of all batches


def buckets_of(ns: Int64Array) -> Int64Array:
    """The buckets of times, in nanoseconds."""
    shift = np.maximum(np.frexp(ns)[1] - _FINE - 1, 0)
    buckets: Int64Array = (shift << _FINE) + (ns >> shift)
    return buckets


def middle_of(bucket: int) -> float:
    """The middle of a bucket, in nanoseconds."""
    shift = max((bucket >> _FINE) - 1, 0)
    return float((bucket - (shift << _FINE)) << shift) + ((1 << shift) - 1) / 2


def quantiles_s(counts: Int64Array) -> dict[str, float]:
    """For each of `_QUANTILES` the time, in seconds, that this share of the times in buckets does
    not exceed; within 1.6 %."""
    seen = counts.cumsum()
    places = np.searchsorted(seen, [share * seen[-1] for share in _QUANTILES.values()])
    return {
        name: middle_of(int(place)) / 1e9 for name, place in zip(_QUANTILES, places, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sums of a loader's records at one moment.

    Attributes:
        counts: how many batches were in a stage for how long, int64 [stages, buckets].
        totals_ns: how long they were there in all, int64 [stages].
        areas_ns: the number of batches in each stage, integrated over time, int64 [stages].
        waits_ns: how long the user waited for each of `CAUSES`, int64 [causes].
    """

    at_ns: int
    counts: Int64Array
    totals_ns: Int64Array
    areas_ns: Int64Array
    waits_ns: Int64Array

    def plus(
        self, records: Collection[BatchTimes], now: int, reads: Collection[tuple[int, int]]
    ) -> Snapshot:
        """With other records until `now`; for `reads` see `split_wait`."""
        marked = np.array([[len(each.marks)] for each in records], np.int64).reshape(-1, 1)
        marks = np.array([each.marks_until(now) for each in records], np.int64)
        spans = np.diff(marks.reshape(-1, ASKED + 1))
        counted = marked > _COUNTED_WITH
        counts = self.counts.copy()
        np.add.at(counts, (np.nonzero(counted)[1], buckets_of(spans[counted])), 1)
        waits = np.array([split_wait(each, *each.wait, reads) for each in records], np.int64)
        return Snapshot(
            now, counts, self.totals_ns + np.where(counted, spans, 0).sum(0),
            self.areas_ns + spans.sum(0), self.waits_ns + waits.reshape(-1, len(CAUSES)).sum(0),
        )  # fmt: skip

    def since(self, earlier: Snapshot) -> dict[str, float]:
        """What happened since an earlier moment, by the names that `on_stats` gets. The percentiles
        of a stage that no batch has left meanwhile are not there."""
        shares = (self.areas_ns - earlier.areas_ns) / max(self.at_ns - earlier.at_ns, 1)
        found = {name: float(shares[STAGES.index(name)]) for name in QUEUES}
        found |= wait_seconds(self.waits_ns - earlier.waits_ns)
        for name, counts in zip(STAGES, self.counts - earlier.counts, strict=True):
            if counts.any():
                for quantile, time_s in quantiles_s(counts).items():
                    found[f"{name}_s_{quantile}"] = time_s
        return found


def wait_seconds(waits_ns: Int64Array) -> dict[str, float]:
    """`wait_s`, and its parts as `loader.stats()` names them."""
    parts = {f"wait_{name}_s": int(ns) / 1e9 for name, ns in zip(CAUSES, waits_ns, strict=True)}
    return {"wait_s": int(waits_ns.sum()) / 1e9, **parts}


class StageTimes:
    """The records of all of a loader's batches, and their sums. Any thread may call its methods.

    Attributes:
        live: the records that are not in the sums yet.
        finished: those of them whose batches were given up, or which the user is done with.
    """

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.clock = clock
        self.live: set[BatchTimes] = set()
        self.finished: deque[BatchTimes] = deque()
        counts, waits = np.zeros((len(STAGES), _BUCKETS), np.int64), np.zeros(len(CAUSES), np.int64)
        self._sums = Snapshot(0, counts, counts.sum(1), counts.sum(1), waits)
        self._reads: deque[tuple[int, int]] = deque(maxlen=READS_KEPT)  # of records in the sums
        # Re-entrant, because a signal handler may ask for statistics.
        self._lock = threading.RLock()

    def fold(self) -> None:
        """Add the records that are finished to the sums, and forget them."""
        with self._lock:
            done = set()
            while self.finished:
                done.add(self.finished.popleft())
            done &= self.live  # two threads may have ended one
            self._sums = self._plus(done)
            self.live -= done
            self._reads.extend(_reads_of(done, 0))

    def snapshot(self) -> Snapshot:
        """The sums so far."""
        with self._lock:
            return self._plus(self.live.copy())

    def summary(self) -> dict[str, dict[str, float]]:
        """See `NeighborLoader.stage_stats`."""
        found, sums = dict[str, dict[str, float]](), self.snapshot()
        for name, counts, total_ns in zip(STAGES, sums.counts, sums.totals_ns, strict=True):
            count = int(counts.sum())
            quantiles = {f"{quantile}_s": s for quantile, s in quantiles_s(counts).items()}
            mean_s = int(total_ns) / max(count, 1) / 1e9
            found[name] = {"count": count, "mean_s": mean_s, **quantiles}
        return found

    def add_wait(self, times: BatchTimes | None, begin: int, end: int) -> None:
        """The user waited in vain, for a batch with this record or for none."""
        with self._lock:
            waits_ns = self._sums.waits_ns + split_wait(times, begin, end, self._all_reads(end))
            self._sums = replace(self._sums, waits_ns=waits_ns)

    def _plus(self, records: Collection[BatchTimes]) -> Snapshot:
        now = self.clock()
        return self._sums.plus(records, now, self._all_reads(now))

    def _all_reads(self, now: int) -> list[tuple[int, int]]:
        return [*self._reads, *_reads_of(self.live.copy(), now)]


def _reads_of(records: Iterable[BatchTimes], now: int) -> Iterator[tuple[int, int]]:
    """The intervals until `now` in which batches were read."""
    for each in records:
        marks = each.marks
        if len(marks) > READY:
            yield marks[GRANTED], marks[READY]
        elif len(marks) > GRANTED:
            yield marks[GRANTED], each.ended or now


# ---- an iterator's records


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

    # ---- the pipeline's side ----

    def begin(self, index: int) -> BatchTimes:
        """The seeds of a batch were drawn, perhaps again in another part of the epoch."""
        stages, times = self.stages, BatchTimes(index, self.stages.clock)
        before = self._live.get(index)
        self._live[index] = times
        stages.live.add(times)
        if before is not None:
            self._give_up(before)
        if len(stages.finished) >= FOLD_AT:
            stages.fold()
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
        now = held.mark(ASKED)
        self.stages.finished.append(held)
        self._trace(held, now)
        return now

    def took(self, times: BatchTimes | None) -> None:
        """The user takes a batch."""
        if self._held is not None:  # another thread, or task, has taken a batch meanwhile
            self._give_up(self._held)
        self._held = None if times is None else self._live.pop(times.index, None)

    def waited(self, begin: int) -> None:
        """The user waited from `begin` on for the batch that it took, else for the oldest one."""
        end, held = self.stages.clock(), self._held
        if held is not None:
            held.wait = begin, end
        else:
            oldest = next(iter(list(self._live.values())), self._given_up)
            self.stages.add_wait(oldest, begin, end)

    def end(self) -> None:
        """The epoch is over, or its iterator was dropped."""
        held, self._held = self._held, None
        live, self._live = self._live, {}
        left = list(live.values())
        self._given_up = left[0] if left else self._given_up
        for times in left:
            self._give_up(times)
        if held is not None:
            self._give_up(held)
            self._trace(held, held.ended)
        ended, self._ended = self._ended, True  # first: a track that is given back may be another's
        if self._timeline is not None and not ended:
            self._timeline.leave(self._lane)

    def _give_up(self, times: BatchTimes) -> None:
        times.end()
        self.stages.finished.append(times)

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
    any batch were being read. Returns nanoseconds for each of `CAUSES`, in all `end` − `begin`.
    """
    waits = [0] * len(CAUSES)
    if times is None:
        waits[_GATHER] = end - begin
        return waits
    marks = times.marks.copy()  # another thread may mark it meanwhile
    waits[_SAMPLING] += max(min(end, marks[DRAWN]) - begin, 0)
    first = max(bisect_right(marks, begin) - 1, DRAWN)
    marks.append(end)
    for stage in range(first, len(marks) - 1):
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
    for one, other in sorted(each for each in intervals if each[0] < end and each[1] > begin):
        one, other = max(one, behind), min(other, end)
        if one < other:
            covered += other - one
            behind = other
    return covered
