"""`Striped`: what the disk tier is for a table whose rows have copies on several disks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ReadError
from gnndrive.common.records import FAILURE, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts._striped import StripedFile
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.tiers.base import Tier, TierContext

_FILE_BYTES_MAX = 1 << 48


class Striped(Tier):
    """Reads rows from all disks at once, if `engine` has requests under way on each."""

    name = "striped"

    def __init__(self, layout: StripedFile, path: str, engine: Engine) -> None:
        self.path, self._layout, self._engine = path, layout, engine

    @classmethod
    def make(cls, context: TierContext) -> NoReturn:
        """`Disk.make` makes it."""
        raise NotImplementedError

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> StripedFetch:
        """See `Tier.fetch`."""
        jobs, refused = dict[int, ReadJob](), np.empty(0, FAILURE)
        for number, own, job in self._layout.locate(rows, places, landing):
            try:
                jobs[number] = self._engine.read(job)
            except Exception:
                if not jobs:
                    raise
                failed = np.zeros(len(own), FAILURE)  # others have begun, so the fetch goes on
                failed["slot"], failed["error"] = own, errno.ENOMEM
                failed["offset"] = number * _FILE_BYTES_MAX
                refused = np.concatenate([refused, failed])
        return StripedFetch(jobs, refused)

    def row_error(self, offset: int, errno: int) -> Exception:
        """See `Tier.row_error`."""
        number, at = divmod(offset, _FILE_BYTES_MAX)
        return ReadError(self._layout.path(number), at, errno)


class StripedFetch(AsyncIterator[Stretch]):
    """The stretches of the jobs of several files, by the files' numbers, as they finish. The offset
    of a failure is that in file i, plus i * `_FILE_BYTES_MAX`. `refused` are rows that failed
    before."""

    def __init__(self, jobs: Mapping[int, ReadJob], refused: npt.NDArray[np.void]) -> None:
        self._jobs, self._refused = dict(jobs), refused
        self._progress_event = asyncio.Event()
        for job in jobs.values():
            job.wake_with(self._progress_event)

    def cancel(self) -> None:
        """See `Fetch.cancel`."""
        for job in self._jobs.values():
            job.cancel()

    async def __anext__(self) -> Stretch:
        await asyncio.sleep(0)  # other tasks shall run, also if there are new rows at every call
        if len(self._refused):
            refused, self._refused = self._refused, self._refused[:0]
            return Stretch(np.empty(0, np.int32), refused)
        while True:
            for number, job in list(self._jobs.items()):
                if (stretch := job.take()) is not None:
                    self._jobs[number] = self._jobs.pop(number)  # the others come first now
                    stretch.failures["offset"] += number * _FILE_BYTES_MAX
                    return stretch
                if job.finished:
                    del self._jobs[number]
            if not self._jobs:
                raise StopAsyncIteration
            self._progress_event.clear()
            await self._progress_event.wait()
