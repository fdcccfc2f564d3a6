"""`Timeline`: what every batch did when, as Chrome trace events for Perfetto.

`loader/tracing.py` makes one if `trace=` is given. The stages know nothing of it: an iterator's
`EpochTimes` hands finished records to a `Lane`, `loader/tracing.py` adds counters, and the fetch
queue reports copies to a device. They only append to a list; a thread of the timeline makes text
of it, compresses and writes it.

A stage in which batches overlap is a track of asynchronous events, a worker thread that samples and
the user's thread are tracks of their own. Times are in microseconds since the base that
torch.profiler's traces count from, so that both can lie in one picture. When not to use it:
`StageTimes` has percentiles of all batches at no cost.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any

from gnndrive.common.limits import named_limit
from gnndrive.pipeline.batch_times import SAMPLED, SAMPLING, TAKEN, BatchTimes
from gnndrive.pipeline.stage_times import STAGES
from gnndrive.pipeline.trace_file import TraceFile

PID_BASE = 10_000_000  # no process has such a number, and torch's traces use those of processes
EVENTS_MAX = 1 << 18  # that wait to be written; more are dropped
EVENTS_AT_ONCE = 1 << 8  # that one write makes text of; a batch, one of them, is about 16 in JSON
WRITE_EVERY_S = 1.0
_BASE_SPAN_S = 7_889_238  # a quarter of a year: torch's traces count from a multiple of it
_USER_TID, _WORKER_TID = 1, 1_000
_SAMPLE = STAGES.index("sample")


def trace_base_ns(unix_ns: int) -> int:
    """What torch.profiler writes as `baseTimeNanoseconds` at this time, in nanoseconds of 1970."""
    return unix_ns - unix_ns % (_BASE_SPAN_S * 1_000_000_000)


class Timeline:
    """The timeline of one loader. Any thread may add events.

    Args:
        path: the file; see `TraceFile`.
        rank: this process's number among those that train together.
        clock: returns nanoseconds, as that of `StageTimes`.
        unix: returns nanoseconds since 1970.
        write: whether a thread writes the events; else only `flush` and `close` do.

    Raises:
        ConfigError: the file cannot be written, or no thread can be started.
    """

    def __init__(
        self, path: Path, rank: int = 0, clock: Callable[[], int] = perf_counter_ns,
        unix: Callable[[], int] = time_ns, write: bool = True,
    ) -> None:  # fmt: skip
        self.clock, self._users, self._lock = clock, 1, threading.RLock()
        now = unix()
        self._zero = now - trace_base_ns(now) - clock()  # to be added to times of the clock
        self._events: deque[Any] = deque()
        self._dropped, self._number = 0, 0
        self._lanes: set[int] = set()
        self._named: set[int] = set()
        self._pid, self._file = PID_BASE + rank, TraceFile(path)
        self._write_lock, self._closing = threading.Lock(), threading.Event()
        self._file.write([
            self._metadata("process_name", name=f"gnndrive rank {rank}"),
            self._metadata("trace_base", baseTimeNanoseconds=trace_base_ns(now)),
        ])  # fmt: skip
        self._thread: threading.Thread | None = None
        if not write:
            return
        self._thread = threading.Thread(target=self._run, name="gnndrive-trace", daemon=True)
        try:
            with named_limit():
                self._thread.start()
        except BaseException:
            self._thread = None
            self.close()
            raise

    # ---- adding events ----

    def lane(self, epoch: int) -> Lane:
        """The tracks of a new iterator, which are those of one that has ended if there are such."""
        with self._lock:
            number = next(each for each in range(len(self._lanes) + 1) if each not in self._lanes)
            self._lanes.add(number)
        return Lane(self, number, epoch)

    def leave(self, lane: int) -> None:
        """Another iterator may have the tracks."""
        with self._lock:
            self._lanes.discard(lane)

    def counter(self, at: int, name: str, value: float) -> None:
        """The value of a counter from time `at` on."""
        self.add((_counter_text, at, name, value))

    def copied(self, row_bytes: int, rows: int, begin: int) -> None:
        """So many rows were copied to the device, from `begin` until now."""
        self.add((_copy_text, row_bytes, rows, begin, self.clock()))

    def add(self, event: tuple[Any, ...]) -> None:
        """Add an event: a function that yields its texts, and what it is called with after the
        timeline."""
        if self._closing.is_set():
            return
        if len(self._events) >= EVENTS_MAX:
            self._dropped += 1
        else:
            self._events.append(event)

    # ---- writing ----

    def _run(self) -> None:
        while not self._closing.wait(WRITE_EVERY_S):
            self.flush()

    def flush(self) -> None:
        """Write the events so far."""
        with self._write_lock:
            for left in range(len(self._events), 0, -EVENTS_AT_ONCE):
                if not self._file.failed:
                    self._file.write(self._texts(min(left, EVENTS_AT_ONCE)))
            self._file.write(self._dropped_text())
            if self._file.failed:
                self._events.clear()

    def _texts(self, count: int) -> Iterator[str]:
        for _ in range(count):
            make, *arguments = self._events.popleft()
            yield from make(self, *arguments)

    def _dropped_text(self) -> Iterator[str]:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            name = f"{dropped} events were dropped, because they came faster than they were written"
            yield self.text("i", name, self.clock(), s="p")

    def share(self) -> Timeline:
        """The same timeline for another loader; it is closed when both have closed it."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Write what is left and close the file; nothing is written afterwards. After a
        KeyboardInterrupt, call it again."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            if self._users:
                return
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
        finally:
            with self._write_lock:
                self._file.close()

    # ---- JSON ----

    def text(self, phase: str, name: str, at: int, tid: int = 0, **fields: Any) -> str:
        """An event in JSON; `at` is a time of the clock."""
        event = {"ph": phase, "name": name, "cat": "gnndrive", "pid": self._pid, "tid": tid}
        return json.dumps(event | {"ts": self.micros(at)} | fields)

    def micros(self, at: int) -> float:
        """A time of the clock in microseconds since the base."""
        return (at + self._zero) / 1_000

    def span(self, name: str, begin: int, end: int, args: str) -> Iterator[str]:
        """Two events: a span on a track with others of its name, which may overlap it.

        Args:
            name: the track's, and the span's.
            begin, end: times of the clock.
            args: what the span says of itself, in JSON.
        """
        self._number += 1
        # Formatted by hand, because most events are of this kind.
        head = f'"name": "{name}", "cat": "gnndrive", "pid": {self._pid}, "tid": 0'
        number = f'"id2": {{"local": "{self._number:#x}"}}'
        begin_us, end_us = self.micros(begin), self.micros(end)
        yield f'{{"ph": "b", {head}, "ts": {begin_us:.3f}, {number}, "args": {args}}}'
        yield f'{{"ph": "e", {head}, "ts": {end_us:.3f}, {number}}}'

    def slice(
        self, name: str, tid: int, thread: str, begin: int, end: int, args: str
    ) -> Iterator[str]:
        """An event: a span on the track of a thread, all of whose spans follow each other."""
        if tid not in self._named:
            self._named.add(tid)
            yield self._metadata("thread_name", tid, name=thread)
        head = f'"name": "{name}", "cat": "gnndrive", "pid": {self._pid}, "tid": {tid}'
        times = f'"ts": {self.micros(begin):.3f}, "dur": {(end - begin) / 1_000:.3f}'
        yield f'{{"ph": "X", {head}, {times}, "args": {args}}}'

    def _metadata(self, what: str, tid: int = 0, **args: Any) -> str:
        return json.dumps({"ph": "M", "name": what, "pid": self._pid, "tid": tid, "args": args})


class Lane:
    """The tracks of one iterator; see `batch_times.BatchEvents`.

    Args:
        timeline: has them.
        number: which tracks; those of the first iterator have no number in their names.
        epoch: the epoch's number.
    """

    def __init__(self, timeline: Timeline, number: int, epoch: int) -> None:
        self._timeline, self.number, self._epoch, self._ended = timeline, number, epoch, False

    def batch(self, times: BatchTimes, end: int) -> None:
        """See `BatchEvents.batch`."""
        self._timeline.add((_batch_texts, self.number, self._epoch, times, end))

    def end(self) -> None:
        """See `BatchEvents.end`."""
        if not self._ended:
            self._ended = True
            self._timeline.leave(self.number)


def _batch_texts(
    timeline: Timeline, lane: int, epoch: int, times: BatchTimes, end: int
) -> Iterator[str]:
    """A batch's events."""
    suffix = f" #{lane + 1}" if lane else ""
    marks, args = times.marks, json.dumps({"batch": times.index, "epoch": epoch})
    for stage in range(TAKEN):
        if stage != _SAMPLE:
            yield from timeline.span(STAGES[stage] + suffix, marks[stage], marks[stage + 1], args)
    worker = _WORKER_TID + int("0" + "".join(filter(str.isdigit, times.worker)))
    span = marks[SAMPLING], marks[SAMPLED]
    yield from timeline.slice("sample", worker, times.worker or "sampler", *span, args)
    user = _USER_TID + lane, "your steps" + suffix
    yield from timeline.slice("step", *user, marks[TAKEN], end, args)


def _counter_text(timeline: Timeline, at: int, name: str, value: float) -> Iterator[str]:
    yield timeline.text("C", name, at, args={"value": value})


def _copy_text(
    timeline: Timeline, row_bytes: int, rows: int, begin: int, end: int
) -> Iterator[str]:
    args = json.dumps({"rows": rows, "bytes": rows * row_bytes})
    yield from timeline.span("copy to the device", begin, end, args)
