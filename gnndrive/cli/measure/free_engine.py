"""An engine for which the disk is free: rows land at once, as zeros, and no read is carried out.

`gnndrive bench headroom` gives it to a loader as `engine=` to measure what the disk costs. It does
all that the threads engine does but for the disk: extents are taken, rows are copied out of staging
to their places, the event loop is woken. The bytes come from /dev/zero, so a training step that
looks at them takes its usual time, but learns nothing. Never use it for anything but timing.

A loader's second engine, which reads the adjacency while samples are drawn, must give the true
bytes, because they decide what a batch is. So those reads are answered from the page cache; a pass
over the same batches beforehand fills it.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from threading import Lock

from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.threads import Threads
from gnndrive.disk.read_job import ReadJob

ZEROS = "/dev/zero"


class FreeReads(Threads):
    """Completes reads of rows without a disk, and those of the adjacency from the page cache.

    The two are told apart by `settings.gives_way`, which the engine of the rows has.
    """

    name = "free"

    def __init__(self, settings: EngineSettings) -> None:
        # No read waits, so that more threads than processors would only take turns.
        threads = min(settings.depth, os.cpu_count() or 1)
        super().__init__(replace(settings, depth=threads))
        self._opening, self._files = Lock(), dict[tuple[int, int], int]()
        if settings.gives_way:
            zeros = os.open(ZEROS, os.O_RDONLY | os.O_CLOEXEC)
            self._files[0, 0] = zeros
        self._zeros = self._files.get((0, 0))
        self._close_files = weakref.finalize(self, _close, self._files)

    def _descriptor(self, job: ReadJob) -> int:
        """A descriptor of zeros, or one of the job's file that reads through the page cache."""
        if self._zeros is not None:
            return self._zeros
        status = os.fstat(job.fd)
        key = status.st_dev, status.st_ino
        with self._opening:
            if key not in self._files:
                path = f"/proc/self/fd/{job.fd}"
                self._files[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._files[key]

    async def aclose(self) -> None:
        """See `Engine.aclose`; may be cancelled and called again."""
        await super().aclose()
        self._close_files()


def _close(files: dict[tuple[int, int], int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()
