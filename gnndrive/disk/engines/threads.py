"""The threads engine: `pread` and `pwrite` in a few threads, for kernels that refuse io_uring.

Each thread reads or writes one extent at a time in C, without the GIL, and returns to Python after
about a thousand rows to report them to the event loop. Only as many requests are in flight as there
are threads, so use `uring` if it works.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.limits import named_limit
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines._shared import JobCounters, check_job, staging
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob

THREADS_MAX = 16


class Threads(Engine):
    """Reads with `min(settings.depth, 16)` threads; each has one staging block."""

    name = "threads"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._threads = min(settings.depth, THREADS_MAX)
        self._times = [
            ffi.new("gd_histogram *") if settings.measure else ffi.NULL
            for _ in range(self._threads)
        ]
        self._staging, blocks = staging(self._threads, settings.block_bytes)
        self._idle = list(zip(blocks, self._times, strict=True))
        self._pool = _started_pool(self._threads)
        self._active: dict[ReadJob, int] = {}  # and how many threads work on each
        self._counting = Lock()
        self._counters = JobCounters()
        self._closing = False
        self._ended = asyncio.Event()

    def read(self, job: ReadJob) -> ReadJob:
        """See `Engine.read`."""
        check_job(job, self._settings, self._closing)
        workers = min(self._threads, job.requests)
        if workers == 0:
            lib.gd_reads_let_go(job.handle)
            return job
        self._active[job] = workers
        for _ in range(workers):
            try:
                self._pool.submit(self._work, job)
            except RuntimeError:  # the interpreter shuts down and the pool takes no more work
                job.cancel()
                self._worker_ended(job)
        return job

    def _work(self, job: ReadJob) -> None:
        """In a pool thread: read extents until none is left; the last thread releases the job."""
        block, times = self._idle.pop()
        block_bytes, fd = self._settings.block_bytes, self._descriptor(job)
        try:
            while True:
                code = lib.gd_reads_pread(job.handle, fd, block, block_bytes, times)
                if check(code, "gd_reads_pread") == 0:
                    break
                self._notify_loop(job)
        finally:
            self._idle.append((block, times))
            self._worker_ended(job)

    def _descriptor(self, job: ReadJob) -> int:
        """The descriptor that a job is read from."""
        return job.fd

    def _worker_ended(self, job: ReadJob) -> None:
        with self._counting:
            self._active[job] -= 1
            is_last = not self._active[job]
        if is_last:
            lib.gd_reads_let_go(job.handle)
            self._notify_loop(job)

    def _notify_loop(self, job: ReadJob) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the job has no consumer
            self._loop.call_soon_threadsafe(self._on_progress, job)

    def _on_progress(self, job: ReadJob) -> None:
        if not job.wake() or job not in self._active:
            return
        del self._active[job]
        self._counters.add(job)
        if not self._active:
            self._ended.set()

    async def aclose(self) -> None:
        """See `Engine.aclose`; may be cancelled and called again."""
        self._closing = True
        for job in self._active:
            job.cancel()
        while self._active:
            self._ended.clear()
            await self._ended.wait()
        self._pool.shutdown()

    def stats(self) -> dict[str, int]:
        """See `Engine.stats`; includes reads under way."""
        inflight = self._threads - len(self._idle)
        return self._counters.with_active(self._active) | {"inflight": inflight}

    def latency(self) -> Any:
        """Return a C `gd_latency *` of the requests so far; empty without `settings.measure`. A
        `pread` both submits and waits, so its time counts as clat and as lat."""
        out = ffi.new("gd_latency *")
        for times in self._times:
            if times != ffi.NULL:
                lib.gd_histogram_merge(ffi.addressof(out.clat), times)
                lib.gd_histogram_merge(ffi.addressof(out.lat), times)
        return out


def _started_pool(threads: int) -> ThreadPoolExecutor:
    """A pool with all its threads, so that none is refused while reads are under way."""
    pool, all_started = ThreadPoolExecutor(threads, thread_name_prefix="gd-pread"), Event()
    try:
        with named_limit():
            for _ in range(threads):  # each starts a thread, because all earlier ones wait
                pool.submit(all_started.wait)
    except BaseException:
        all_started.set()
        pool.shutdown()
        raise
    all_started.set()
    return pool
