"""`Timeline`: what every batch did when, as Chrome trace events for Perfetto.

An iterator's `EpochTimes` adds what its batches did, `loader/tracing.py` adds counters, and the
fetch queue reports copies to a device. They only append to a list; a thread of the timeline makes
text of it, compresses and writes it (`TraceFile`).

A stage in which batches overlap is a track of asynchronous events, a worker thread that samples and
the user's thread are tracks of their own. Times are in microseconds since the base that
torch.profiler's traces count from, so that both can lie in one picture.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.limits import named_limit

PID_BASE = 10_000_000  # no process has such a number, and torch's traces use those of processes
EVENTS_MAX = 1 << 18  # that wait to be written; more are dropped
EVENTS_AT_ONCE = 1 << 8  # that one write makes text of; a batch, one of them, is about 16 in JSON
WRITE_EVERY_S = 1.0
_BASE_SPAN_S = 7_889_238  # a quarter of a year: torch's traces count from a multiple of it
_LEVEL = 1  # of compression: a quarter of the time of the default, for a fifth more bytes
_writing: set[str] = set()
_writing_lock = threading.Lock()


def trace_base_ns(unix_ns: int) -> int:
    """What torch.profiler writes as `baseTimeNanoseconds` at this time, in nanoseconds of 1970."""
    return unix_ns - unix_ns % (_BASE_SPAN_S * 1_000_000_000)


class Timeline:
    """The timeline of one loader, of this rank of those that train together. Any thread may add
    events. ConfigError if the file cannot be written (see `TraceFile`), or no thread be started."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self.clock, self._users, self._lock = perf_counter_ns, 1, threading.RLock()
        now = time_ns()
        self._zero = now - trace_base_ns(now) - self.clock()  # to be added to times of the clock
        self._events: deque[Iterable[str]] = deque()
        self._dropped, self._number = 0, 0
        self._lanes: set[int] = set()
        self._named: set[int] = set()
        self._pid, self._file = PID_BASE + rank, TraceFile(path)
        self._write_lock, self._closing = threading.Lock(), threading.Event()
        self._file.write([
            self._metadata("process_name", name=f"gnndrive rank {rank}"),
            self._metadata("trace_base", baseTimeNanoseconds=trace_base_ns(now)),
        ])  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="gnndrive-trace", daemon=True)
        try:
            with named_limit(), deferred_interrupts():
                self._thread.start()
        except BaseException:
            with deferred_interrupts():
                self._closing.set()
            self._file.close()
            raise

    # ---- adding events ----

    def enter(self) -> int:
        """The number of the tracks of a new iterator; those of one that has left are used again."""
        with self._lock:
            lane = next(each for each in range(len(self._lanes) + 1) if each not in self._lanes)
            self._lanes.add(lane)
        return lane

    def leave(self, lane: int) -> None:
        """Another iterator may have the tracks."""
        with self._lock:
            self._lanes.discard(lane)

    def counter(self, at: int, name: str, value: float) -> None:
        """The value of a counter from time `at` on."""
        self.add([self._text("C", name, at, f'"args": {{"value": {value}}}')])

    def copied(self, row_bytes: int, rows: int, begin: int) -> None:
        """So many rows were copied to the device, from `begin` until now."""
        args = f'{{"rows": {rows}, "bytes": {rows * row_bytes}}}'
        self.add(self.span("copy to the device", begin, self.clock(), args))

    def add(self, texts: Iterable[str]) -> None:
        """Add events; they are made, in JSON, in the timeline's thread."""
        if self._closing.is_set():
            return
        if len(self._events) >= EVENTS_MAX:
            self._dropped += 1
        else:
            self._events.append(texts)

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
            yield from self._events.popleft()

    def _dropped_text(self) -> Iterator[str]:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            name = f"{dropped} events were dropped, because they came faster than they were written"
            yield self._text("i", name, self.clock(), '"s": "p"')

    def share(self) -> Timeline:
        """The same timeline for another loader; it is closed when both have closed it."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Write what is left and close the file. After a KeyboardInterrupt, call it again."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            if self._users:
                return
        with deferred_interrupts():  # an interrupt may leave an event's lock held
            self._closing.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            with self._write_lock:
                self._file.close()

    # ---- JSON ----

    def span(self, name: str, begin: int, end: int, args: str) -> Iterator[str]:
        """A span on a track where spans may overlap; `args` is what it says of itself, in JSON."""
        self._number += 1
        number = f'"id2": {{"local": "{self._number:#x}"}}'
        yield self._text("b", name, begin, f'{number}, "args": {args}')
        yield self._text("e", name, end, number)

    def slice(
        self, name: str, tid: int, thread: str, begin: int, end: int, args: str
    ) -> Iterator[str]:
        """An event: a span on the track of a thread, all of whose spans follow each other."""
        if tid not in self._named:
            self._named.add(tid)
            yield self._metadata("thread_name", tid, name=thread)
        fields = f'"dur": {(end - begin) / 1_000:.3f}, "args": {args}'
        yield self._text("X", name, begin, fields, tid)

    def _text(self, phase: str, name: str, at: int, fields: str, tid: int = 0) -> str:
        """An event at a time of the clock; formatted by hand, because there are many."""
        return (
            f'{{"ph": "{phase}", "name": "{name}", "cat": "gnndrive", "pid": {self._pid}, '
            f'"tid": {tid}, "ts": {(at + self._zero) / 1_000:.3f}, {fields}}}'
        )

    def _metadata(self, what: str, tid: int = 0, **args: Any) -> str:
        return json.dumps({"ph": "M", "name": what, "pid": self._pid, "tid": tid, "args": args})


class TraceFile:
    """A file of Chrome trace events, one JSON array, that can be read at any moment: viewers need
    no closing bracket, and a compressed file is a row of gzip members, so what a killed process has
    written so far opens. It replaces an earlier file, and is compressed if its name ends with
    ".gz". One thread at a time may call its methods; once writing has `failed`, nothing more is
    written. ConfigError if it cannot be written, or another loader of this process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.failed = path, False
        self._key = os.path.realpath(path)
        with _writing_lock:
            if self._key in _writing:
                raise ConfigError(
                    f"trace={str(path)!r} is being written by another loader: close that one "
                    "first, or give each loader a file of its own"
                )
            _writing.add(self._key)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o666)
        except (OSError, ValueError) as error:
            self._forget()
            raise ConfigError(
                f"trace={str(path)!r} cannot be written ({error}): give a file in a folder that "
                "is there and that you may write to"
            ) from error
        self._compressed, self._end, self._empty = path.name.endswith(".gz"), 0, True
        self._closed = False

    def write(self, events: Iterable[str]) -> None:
        """Append events, each in JSON. If the disk is full, this warns and gives up."""
        text = ",\n".join(events)
        if text:
            self._append(("[\n" if self._empty else ",\n") + text)

    def close(self) -> None:
        """Close the array and the file; idempotent."""
        if self._closed:
            return
        try:
            self._append("[]\n" if self._empty else "\n]\n")
        finally:
            self._closed = self.failed = True
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._forget()

    def _append(self, text: str) -> None:
        if self.failed:
            return
        self._empty = False
        content = text.encode()
        if self._compressed:
            content = gzip.compress(content, _LEVEL)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._fd, left) :]
            self._end += len(content)
        except OSError as error:
            self.failed = True
            with contextlib.suppress(OSError):  # what was written before can be read
                os.ftruncate(self._fd, self._end)
            text = (
                f"trace={str(self.path)!r}: {error.strerror}: the timeline ends here, and loading "
                "goes on; give trace= a file on a disk with room"
            )
            try:
                warnings.warn(text, stacklevel=1)
            except Warning as warning:  # all warnings are errors, but loading goes on
                print(warning, file=sys.stderr)

    def _forget(self) -> None:
        with _writing_lock:
            _writing.discard(self._key)
