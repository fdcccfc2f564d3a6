"""`ReadJob`: planned reads, or writes, of one file, from the plan to the last row.

A layout plans a job (`Layout.locate`), an engine carries it out (`Engine.read`), and the caller
iterates over the stretches of rows that have landed: in their places, or, of a job that writes, in
the file. The job wraps the C state machine `native/reads.c`. The engine keeps a reference to it
until the kernel can no longer use its memory, so the caller may stop iterating, or drop the job, at
any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from gnndrive.common.ffi import ffi, holding_gil, lib
from gnndrive.common.records import FAILURE, Stretch


class ReadJob(AsyncIterator[Stretch]):
    """Planned reads, or writes, of one file; an async iterator over its finished stretches, for one
    consumer.

    Args:
        handle: the C `gd_reads *`; this object frees it.
        fd: an open descriptor of the file; the layout owns it.
        path: the file's path, for errors.
        keeps: objects that must live as long as the kernel may use the file or the places: the
            owners of the open file and of the memory of the places.
    """

    def __init__(self, handle: Any, fd: int, path: str, keeps: Any = None) -> None:
        self.handle = ffi.gc(handle, lib.gd_reads_free)
        self.fd = fd
        self.path = path
        self._keeps = keeps
        self._progress = holding_gil.gd_reads_progress(self.handle)
        self._log = ffi.new("gd_log *")
        self._progress_event = asyncio.Event()
        self._landed = 0
        self._failed = 0

    # ---- the plan ----

    @property
    def rows(self) -> int:
        """The number of rows to read or write."""
        return int(lib.gd_reads_rows(self.handle))

    @property
    def requests(self) -> int:
        """The number of extents; each takes one request unless it is retried."""
        return int(lib.gd_reads_extents(self.handle))

    @property
    def nbytes(self) -> int:
        """Bytes of all extents, which are rounded out to sectors."""
        return int(lib.gd_reads_bytes(self.handle))

    # ---- for the caller ----

    def cancel(self) -> None:
        """Make extents that were not started fail with ECANCELED; requests in flight complete."""
        lib.gd_reads_cancel(self.handle)

    async def __anext__(self) -> Stretch:
        if self._has_rows():
            # If another thread runs Python code, there are new rows at every call until the last
            # row. Without this step no other task of the loop would run until then.
            await asyncio.sleep(0)
        while True:
            if (stretch := self.take()) is not None:
                return stretch
            if self.finished:
                raise StopAsyncIteration
            self._progress_event.clear()
            await self._progress_event.wait()

    def take(self) -> Stretch | None:
        """The rows that have landed or failed since the last call, without waiting; None: none."""
        return self._collect() if self._has_progress() else None

    @property
    def finished(self) -> bool:
        """Whether the last `take` has found that no more rows will land or fail."""
        return bool(self._log.finished)

    def wake_with(self, event: asyncio.Event) -> None:
        """Have `wake` set this event, which a consumer of several jobs waits for."""
        self._progress_event = event

    # ---- for the engine ----

    @property
    def unfinished(self) -> bool:
        """Whether a row has neither landed nor failed."""
        return bool(self._progress.landed + self._progress.failed < self.rows)

    def wake(self) -> bool:
        """Wake the consumer if rows have landed or failed, or the engine has released the job.
        Return whether it has; then the engine forgets the job after this call."""
        # Read once, and first: if the engine released the job between the check for progress and
        # this read, it would forget a job whose consumer was not woken.
        let_go = bool(self._progress.let_go)
        if self._has_progress():
            self._progress_event.set()
        return let_go

    def _has_progress(self) -> bool:
        return bool(self._progress.let_go) or self._has_rows()

    def _has_rows(self) -> bool:
        progress = self._progress
        return bool(progress.landed > self._landed or progress.failed > self._failed)

    def _collect(self) -> Stretch | None:
        """Return the rows that have landed or failed since the last call, or None."""
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
