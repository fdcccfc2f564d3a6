"""`BatchTimes`: when a batch went from one stage to the next.

Each batch gets a record when its seeds are drawn (`sample.py`, or another feed), and the stages
mark it. A stage of a batch begins with the mark that ends the one before, so that the spans touch,
and add up to the time from the draw of the seeds to the user's next call. `EpochTimes` keeps the
records of an iterator. Finished ones become three things: the histograms of `StageTimes`, the
causes of the user's waits (`split_wait`), and the events of a `Timeline` if there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

from gnndrive.pipeline.stage_times import CAUSES, STAGES, StageTimes

DRAWN, SAMPLING, SAMPLED, JOINED, GRANTED, READY, GATHERING, PUT, TAKEN, ASKED = range(10)
"""The marks: stage i of `STAGES` begins with mark i and ends with mark i + 1."""

_DISK, _SAMPLING, _GATHER, _SLOTS = range(len(CAUSES))
# What a user waits for who waits for a batch in a stage; but for the disk in `BatchTimes.disk`, and
# in the extracting queue while rows are read.
_CAUSE = (
    _SAMPLING, _SAMPLING, _SAMPLING, _SLOTS, _DISK, _GATHER, _GATHER, _GATHER, _GATHER,
)  # fmt: skip
_EXTRACTING = STAGES.index("extracting_queue")


class BatchTimes:
    """The times of one batch, in nanoseconds of the clock of `StageTimes`. One thread at a time
    marks it; any thread may end it.

    Attributes:
        index: the batch's index.
        marks: when each mark was made; those up to `reached` are set.
        reached: the newest mark.
        disk: intervals in which the batch waited for the disk outside of the stage "read": for its
            window, its record, a sample that is read, or in an admission that had enough slots, so
            that its first reads were under way.
        worker: the name of the thread that sampled it.
    """

    __slots__ = ("_ended", "_stages", "disk", "index", "marks", "reached", "worker")

    def __init__(self, index: int, stages: StageTimes) -> None:
        self.index, self._stages, self._ended = index, stages, False
        self.marks, self.reached = [0] * (ASKED + 1), DRAWN
        self.marks[DRAWN] = stages.move(None, DRAWN)
        self.disk: list[tuple[int, int]] = []
        self.worker = ""

    def mark(self, mark: int) -> None:
        """The stage before `mark` ends now. Marks that were left out are made at the same time; a
        mark that comes after a later one is ignored, and so are all after `end`."""
        with self._stages.lock:  # the loop's thread may end the record of a worker's batch
            if self._ended or mark <= self.reached:
                return
            entered = mark if mark < ASKED else None
            now = self._stages.move(self.reached, entered)
            for each in range(self.reached + 1, mark + 1):
                self.marks[each] = now
            self.reached, self._ended = mark, entered is None

    def granted_at_once(self) -> None:
        """The batch is admitted, and has not waited for slots."""
        self.mark(GRANTED)
        self.disk.append((self.marks[JOINED], self.marks[GRANTED]))

    def sampled(self, from_disk: bool) -> None:
        """The sample is made; `from_disk`: it was read instead of drawn."""
        self.mark(SAMPLED)
        if from_disk:
            self.disk.append((self.marks[SAMPLING], self.marks[SAMPLED]))

    def waited_for_disk(self, begin: int) -> None:
        """From `begin` until now the batch waited for the disk."""
        self.disk.append((begin, self._stages.clock()))

    def end(self) -> None:
        """The batch is given up, or the user will not ask for another one."""
        with self._stages.lock:
            if not self._ended:
                self._ended = True
                self._stages.move(self.reached, None)

    def span(self, stage: int) -> int:
        """How long it was in a stage that has ended, by its place in `STAGES`."""
        return self.marks[stage + 1] - self.marks[stage]


class BatchEvents(Protocol):
    """Takes finished records; `timeline.Timeline` has lanes of this form."""

    def batch(self, times: BatchTimes, end: int) -> None:
        """The user asks for the next batch, or ends the epoch, at time `end`."""
        ...

    def end(self) -> None:
        """No more batches will come."""
        ...


class EpochTimes:
    """The records of one iterator's batches, in all parts of its epoch.

    Args:
        stages: what all iterators of the loader report to.
        events: gets finished records; None: there is no timeline.

    Attributes:
        stages, events: the same.
    """

    def __init__(self, stages: StageTimes, events: BatchEvents | None = None) -> None:
        self.stages, self.events = stages, events
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
        self.stages.count(TAKEN, held.span(TAKEN))
        if self.events is not None:
            self.events.batch(held, held.marks[ASKED])
        return held.marks[ASKED]

    def took(self, times: BatchTimes | None) -> None:
        """The user takes a batch."""
        self._held = times
        if times is not None:
            with self._lock:
                self._live.pop(times.index, None)
            self.stages.count_taken(times.marks)

    def waited(self, begin: int) -> None:
        """The user waited from `begin` until now, for the batch that it has taken, else for the
        oldest that is not delivered."""
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
            if self.events is not None:
                self.events.batch(held, self.stages.clock())
        if self.events is not None:
            self.events.end()


def split_wait(
    times: BatchTimes | None, begin: int, end: int, reads: Iterable[tuple[int, int]]
) -> list[int]:
    """Divide the time in which the user waited for a batch by what the batch was in meanwhile.

    Before its seeds were drawn the user waited for sampling. After it was taken, or if the epoch
    had no batch left, it counts as gathering, which is what makes batches.

    Args:
        times: the batch's record; its newest stage lasts until `end`.
        begin, end: when the user waited.
        reads: intervals in which rows of any batch were being read, in order.

    Returns:
        Nanoseconds for each of `CAUSES`; their sum is `end` − `begin`.
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
        cause = _CAUSE[min(stage, TAKEN)]
        of_disk = [*times.disk, *(reads if stage == _EXTRACTING else ())]
        from_disk = _overlap(one, other, of_disk)
        waits[_DISK] += from_disk
        waits[cause] += other - one - from_disk
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
