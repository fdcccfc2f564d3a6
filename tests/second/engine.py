"""An engine of one thread, which carries job after job out from its first extent to its last."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines._shared import JobCounters, refuse_closed, refuse_long_extents, staging
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob
from tests.second.use import used


class OneThread(Engine):
    """Keeps one request in flight at a time, at any depth."""

    name = "one-thread"

    def __init__(self, settings: EngineSettings) -> None:
        if settings.depth < 1 or settings.block_bytes < 1:
            raise ConfigError("depth and block_bytes must be at least 1")
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="one-thread")
        self._staging, self._blocks = staging(settings.depth, settings.block_bytes)
        self._active: set[ReadJob] = set()
        self._counters = JobCounters()
        self._closing = False
        self._ended = asyncio.Event()

    def read(self, job: ReadJob) -> ReadJob:
        refuse_closed(self._closing)
        refuse_long_extents(job, self._settings)
        used["engines"] += 1
        self._active.add(job)
        try:
            self._thread.submit(self._carry_out, job)
        except RuntimeError:  # the interpreter is ending
            job.cancel()
            lib.gd_reads_let_go(job.handle)
            self._tell(job)
        return job

    def _carry_out(self, job: ReadJob) -> None:
        """In the thread: read every extent; then nothing writes for the job any more."""
        block, size = self._blocks[0], self._settings.block_bytes
        while check(lib.gd_reads_pread(job.handle, job.fd, block, size, ffi.NULL), "pread"):
            self._tell(job)
        lib.gd_reads_let_go(job.handle)
        self._tell(job)

    def _tell(self, job: ReadJob) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake, job)

    def _wake(self, job: ReadJob) -> None:
        if job.wake() and job in self._active:
            self._active.discard(job)
            self._counters.add(job)
            self._ended.set()

    async def aclose(self) -> None:
        self._closing = True
        for job in self._active:
            job.cancel()
        while self._active:
            self._ended.clear()
            await self._ended.wait()
        self._thread.shutdown()

    def stats(self) -> dict[str, int]:
        return self._counters.with_active(self._active)
