"""`ReadJob`: planned reads of one file, from the plan to the last row.

A layout makes a job (`Layout.locate`), an engine carries it out (`Engine.read`), and the caller
iterates over the stretches of rows that have landed. The job is the C state machine
`native/reads.c` and what Python needs beside it; nothing here is done for each row: a stretch is
two numpy copies.

The engine holds a job until the kernel can no longer write for it, so the caller may stop
iterating, or drop the job, at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from gnndrive.common.ffi import ffi, holding_gil, lib
from gnndrive.common.records import FAILURE, Stretch


class ReadJob(AsyncIterator[Stretch]):
    """Planned reads of one file; an async iterator over its finished stretches, for one consumer.

    Args:
        handle: the C `gd_reads *`; freed together with this object.
        fd: an open descriptor; with O_DIRECT, except for the simulated engine.
        path: the file's path, for errors.
        keeps: what must live as long as the kernel may read the file or write the rows: the open
            file and the memory that rows land in.
    """

    def __init__(self, handle: Any, fd: int, path: str, keeps: Any = None) -> None:
        self.handle = ffi.gc(handle, lib.gd_reads_free)
        self.fd = fd
        self.path = path
        self._keeps = keeps
        self._progress = holding_gil.gd_reads_progress(self.handle)
        self._log = ffi.new("gd_log *")
        self._news = asyncio.Event()
        self._landed = 0
        self._failed = 0

    # ---- what was planned ----

    @property
    def rows(self) -> int:
        """Rows to read."""
        return int(lib.gd_reads_rows(self.handle))

    @property
    def requests(self) -> int:
        """Extents; each is one request when nothing is retried."""
        return int(lib.gd_reads_extents(self.handle))

    @property
    def nbytes(self) -> int:
        """Bytes that the extents ask of the device, rounded out to sectors."""
        return int(lib.gd_reads_bytes(self.handle))

    # ---- for the caller ----

    def cancel(self) -> None:
        """Let extents that were not started fail with ECANCELED; those in flight still end."""
        lib.gd_reads_cancel(self.handle)

    async def __anext__(self) -> Stretch:
        if self._has_rows():
            # Beside a thread that burns Python there are new rows at every call, up to the last
            # row. Without this step no other task would run until then.
            await asyncio.sleep(0)
        while True:
            if self._has_news():
                stretch = self._collect()
                if stretch is not None:
                    return stretch
                if self._log.finished:
                    raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    # ---- for the engine ----

    @property
    def unfinished(self) -> bool:
        """Whether a row has neither landed nor failed."""
        return bool(self._progress.landed + self._progress.failed < self.rows)

    def wake(self) -> bool:
        """Wake the consumer if there is news.

        Returns:
            Whether each row landed or failed and the engine has let go of the job.
        """
        # Read once and first: if the engine let go between looking for news and this read, the
        # engine would forget a consumer that was not woken.
        let_go = bool(self._progress.let_go)
        if self._has_news():
            self._news.set()
        return let_go

    def _has_news(self) -> bool:
        return bool(self._progress.let_go) or self._has_rows()

    def _has_rows(self) -> bool:
        progress = self._progress
        return bool(progress.landed > self._landed or progress.failed > self._failed)

    def _collect(self) -> Stretch | None:
        """The rows that were logged since the last call, or None."""
        log = self._log
        holding_gil.gd_reads_log(self.handle, log)
        if log.landed == self._landed and log.failed == self._failed:
            return None
        slots = np.empty(log.landed - self._landed, np.int32)
        failures = np.empty(log.failed - self._failed, FAILURE)
        ffi.memmove(ffi.from_buffer(slots), log.slots + self._landed, slots.nbytes)
        ffi.memmove(ffi.from_buffer(failures), log.failures + self._failed, failures.nbytes)
        self._landed, self._failed = log.landed, log.failed
        return Stretch(slots, failures)
