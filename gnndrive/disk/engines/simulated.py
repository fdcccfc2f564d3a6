"""The simulated engine, for tests: it runs the same C state machine as the engines that do I/O.

A seed decides the order of completions and their faults, at the rates of `Faults`; completions come
in turns of the event loop, never by the clock, so a test gives the same result each time. The bytes
come from the file, at the time of the completion. Until then, and behind the end of a short or
failed read, the memory of a request holds `POISON`, so that tests notice a row that was used too
early or read in part. A write, too, takes its bytes at the time of the completion, so that tests
notice memory that was changed before its write ended. Do not use it for training: it reads and
writes through the page cache, in Python.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines._shared import JobCounters, check_job, staging
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob

POISON = 0xA5
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults occur, and how often.

    Rates are probabilities for each completion, from 0 to 1; their sum is at most 1.

    Attributes:
        short: rate of completions with fewer bytes than requested, about half of which end at a
            sector.
        eagain, eintr, eio: rates of completions with that error.
        enospc: rate of completions of writes with ENOSPC.
        eio_offsets: byte ranges (start, stop) of the file; a request that touches one ends with
            EIO.
        reorder: completions come in a random order, else in the order of the requests.
        delay_turns_max: the most turns of the event loop that a request takes after its first.
    """

    short: float = 0.0
    eagain: float = 0.0
    eintr: float = 0.0
    eio: float = 0.0
    enospc: float = 0.0
    eio_offsets: tuple[tuple[int, int], ...] = ()
    reorder: bool = True
    delay_turns_max: int = 0


@dataclass(slots=True)
class Request:
    """A request in flight: bytes [offset, offset + length) of the file, for extent `extent`."""

    job: ReadJob
    extent: int
    offset: int
    length: int
    memory: Any
    write: bool
    block: Any
    due: int


class Simulated(Engine):
    """Completes up to `settings.depth` requests in an order drawn from `settings.seed`.

    Attributes:
        paused: while True, requests complete only through `step`, `complete` and `aclose`.
        inflight: the requests in flight.
    """

    name = "simulated"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._faults: Faults = settings.faults if settings.faults is not None else Faults()
        self._thresholds = _thresholds(self._faults)
        self._random = random.Random(settings.seed)
        self._loop = asyncio.get_running_loop()
        self._staging, self._blocks = staging(settings.depth, settings.block_bytes)
        self._poison = bytes([POISON]) * settings.block_bytes
        self._request = ffi.new("gd_request *")
        self._waiting: deque[ReadJob] = deque()
        self._active: dict[ReadJob, int] = {}  # each job's descriptor without O_DIRECT
        self._files: dict[tuple[int, int, int], int] = {}
        self._counters = JobCounters()
        self._turn_number = 0
        self._scheduled = False
        self._closing = False
        self._paused = False
        self.inflight: list[Request] = []
        self._finish = weakref.finalize(self, _close_files, self._files)

    # ---- the Engine interface ----
    def read(self, job: ReadJob) -> ReadJob:
        """See `Engine.read`."""
        check_job(job, self._settings, self._closing)
        self._active[job] = self._open_buffered(job.fd)
        self._waiting.append(job)
        self._fill()
        self._schedule()
        return job

    async def aclose(self) -> None:
        """See `Engine.aclose`; requests in flight complete with their faults, also while paused."""
        self._closing = True
        for job in self._active:
            job.cancel()
        while self._active:
            self._turn()
            await asyncio.sleep(0)
        self._finish()

    def stats(self) -> dict[str, int]:
        """See `Engine.stats`; includes reads under way."""
        return self._counters.with_active(self._active) | {"inflight": len(self.inflight)}

    # ---- for tests: completions by hand ----
    @property
    def paused(self) -> bool:
        """Whether completions wait for `step` or `complete`."""
        return self._paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._paused = value
        self._schedule()

    def step(self, count: int = 1) -> int:
        """Complete up to `count` requests now, chosen by the seed; return how many completed."""
        steps = 0
        while steps < count and self.inflight:
            self._complete_with_faults(self._choose(self.inflight))
            steps += 1
        self._settle()
        return steps

    def complete(self, request: Request, res: int | None = None) -> None:
        """Complete one of the requests `inflight` now, with the result `res`: -errno, or a number
        of bytes; None: all bytes that the file has, or takes."""
        self._end_request(self.inflight.index(request), res)
        self._settle()

    # ---- the simulation ----
    def _open_buffered(self, fd: int) -> int:
        """Open the same file without O_DIRECT; the engine closes the descriptor when it closes."""
        status, access = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        key = (status.st_dev, status.st_ino, access)
        if key not in self._files:
            self._files[key] = os.open(f"/proc/self/fd/{fd}", access | os.O_CLOEXEC)
        return self._files[key]

    def _schedule(self) -> None:
        if self._active and not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False
        if not self._paused:
            self._turn()
            self._schedule()

    def _turn(self) -> None:
        """Complete a random number of the requests that are due."""
        self._turn_number += 1
        count = 1 + int(self._random.random() * len(self.inflight))
        if self._faults.delay_turns_max:
            due = [request for request in self.inflight if request.due <= self._turn_number]
            for _ in range(min(count, len(due))):
                chosen = due.pop(self._choose(due))
                self._complete_with_faults(self.inflight.index(chosen))
        else:
            for _ in range(min(count, len(self.inflight))):
                self._complete_with_faults(self._choose(self.inflight))
        self._settle()

    def _choose(self, among: list[Request]) -> int:
        return int(self._random.random() * len(among)) if self._faults.reorder else 0

    def _fill(self) -> None:
        """Start extents until `depth` are in flight, in the order in which jobs were enqueued."""
        while self._blocks and self._waiting:
            job = self._waiting[0]
            extent = lib.gd_reads_take(job.handle)
            if extent < 0:
                self._waiting.popleft()
            else:
                self._submit(job, extent, self._blocks.pop())

    def _submit(self, job: ReadJob, extent: int, block: Any) -> None:
        request = self._request
        lib.gd_reads_request(job.handle, extent, block, request)
        length, memory, write, due = request.length, request.memory, bool(request.write), 0
        if not write:
            self._poison_memory(memory, length)
        if self._faults.delay_turns_max:
            span = self._faults.delay_turns_max + 1
            due = self._turn_number + 1 + int(self._random.random() * span)
        self.inflight.append(
            Request(job, extent, request.offset, length, memory, write, block, due)
        )

    def _complete_with_faults(self, index: int) -> None:
        self._end_request(index, self._draw_result(self.inflight[index]))

    def _draw_result(self, request: Request) -> int | None:
        """Draw the result of a request, in the form that `complete` takes."""
        faults = self._faults
        start, stop = request.offset, request.offset + request.length
        for bad_start, bad_stop in faults.eio_offsets:
            if start < bad_stop and bad_start < stop:
                return -errno.EIO
        if not self._thresholds:
            return None
        drawn = self._random.random()
        for threshold, code in self._thresholds:
            if drawn < threshold:
                if code == -errno.ENOSPC and not request.write:
                    return None
                return code or self._draw_short(request.length)
        return None

    def _draw_short(self, length: int) -> int:
        """Draw the number of bytes of a short request, about half of the time whole sectors."""
        drawn = self._random.randrange(1, length)
        whole = drawn - drawn % _SECTOR_BYTES
        return whole if whole and drawn & 1 else drawn

    def _end_request(self, index: int, res: int | None) -> None:
        """End request number `index`; submit its rest if the state machine wants to try again."""
        inflight = self.inflight
        request = inflight[index]
        if self._faults.reorder:
            inflight[index] = inflight[-1]
            inflight.pop()
        else:
            inflight.pop(index)
        job, block = request.job, request.block
        if res is None or res >= 0:
            res = self._put(request, res) if request.write else self._fetch(request, res)
        if lib.gd_reads_complete(job.handle, request.extent, res, block) == lib.GD_AGAIN:
            self._submit(job, request.extent, block)
        else:
            self._blocks.append(block)

    def _fetch(self, request: Request, limit: int | None) -> int:
        """Read the request's bytes from the file, at most `limit`; return the number read."""
        fd = self._active[request.job]
        memory = ffi.buffer(request.memory, request.length)
        read = os.preadv(fd, [memory], request.offset)
        if limit is None or read <= limit:
            return read
        self._poison_memory(request.memory + limit, request.length - limit)
        return limit

    def _put(self, request: Request, limit: int | None) -> int:
        """Write the request's bytes to the file, at most `limit`; return the number written, or
        -errno."""
        length = request.length if limit is None else limit
        memory = ffi.buffer(request.memory, length)
        try:
            return os.pwrite(self._active[request.job], memory, request.offset)
        except OSError as error:
            return -(error.errno or errno.EIO)

    def _poison_memory(self, memory: Any, length: int) -> None:
        if length > len(self._poison):
            self._poison = bytes([POISON]) * length
        ffi.memmove(memory, self._poison, length)

    def _settle(self) -> None:
        """Start more requests, forget jobs that have ended, and wake consumers."""
        self._fill()
        busy = {request.job for request in self.inflight} if self.inflight else set()
        for job in list(self._active):
            if job not in busy and not job.unfinished:
                lib.gd_reads_let_go(job.handle)
                del self._active[job]
                self._counters.add(job)
            job.wake()


def _thresholds(faults: Faults) -> tuple[tuple[float, int], ...]:
    """Return (cumulative rate, -errno or 0 for a short request) for each rate that is not 0."""
    rates = (
        (faults.short, 0),
        (faults.eagain, -errno.EAGAIN),
        (faults.eintr, -errno.EINTR),
        (faults.eio, -errno.EIO),
        (faults.enospc, -errno.ENOSPC),
    )
    if any(rate < 0 for rate, _ in rates) or sum(rate for rate, _ in rates) > 1:
        raise ConfigError("fault rates are between 0 and 1 and their sum is at most 1")
    thresholds, total = [], 0.0
    for rate, code in rates:
        total += rate
        if rate > 0:
            thresholds.append((total, code))
    return tuple(thresholds)


def _close_files(files: dict[tuple[int, int, int], int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()
