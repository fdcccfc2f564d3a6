"""`SimulatedSuperbatches`: superbatches of the simulated pipeline, on a disk that may be full.

`Simulation` makes one for each epoch of a scenario with superbatches. The traces are files in
memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_file import DirectFile
from gnndrive.common.records import Codes, Sample, Seeds
from gnndrive.sampling.trace import Trace, TraceFull

NO_ROOM = "no room for a record"


class SimulatedSuperbatches:
    """See `strategies.superbatches.scheme.LoaderSuperbatches`.

    Args:
        rows: how many nodes there are.
        batches: how many batches a superbatch has; the first one has half of them.
        records_max: how many records the disk has room for; None: any number.

    Attributes:
        records: how many records are on the simulated disk.
        end: see `LoaderSuperbatches`.
    """

    def __init__(self, rows: int, batches: int, records_max: int | None) -> None:
        self._batches, self.records_max, self.records = batches, records_max, 0
        self.end: int | None = None
        self._last = np.empty(rows, np.uint16)

    def size(self, number: int, misses: float | None) -> int:
        """See `LoaderSuperbatches.size`."""
        return self._batches if number else -(-self._batches // 2)

    def open_trace(self) -> Trace:
        """See `LoaderSuperbatches.open_trace`."""
        return _LimitedTrace(self, len(self._last))

    def next_uses(self) -> Mapping[str, Codes]:
        """See `LoaderSuperbatches.next_uses`."""
        return {"x": self._last}

    def no_room(self) -> ConfigError:
        """See `LoaderSuperbatches.no_room`."""
        return ConfigError(NO_ROOM)


class _LimitedTrace(Trace):
    """A trace on a disk that has room for so many records of all traces."""

    def __init__(self, source: SimulatedSuperbatches, rows: int) -> None:
        super().__init__(Path(), rows)
        self._source, self._own = source, 0

    @staticmethod
    def _open(folder: Path) -> DirectFile:
        """A file in memory."""
        fd = os.memfd_create("trace", os.MFD_CLOEXEC)
        try:
            return DirectFile(f"/proc/self/fd/{fd}", os.O_RDWR)
        finally:
            os.close(fd)

    def _put_record(self, seeds: Seeds, sample: Sample) -> None:
        most = self._source.records_max
        if most is not None and self._source.records >= most:
            raise TraceFull
        super()._put_record(seeds, sample)
        self._source.records += 1
        self._own += 1

    def close(self) -> None:
        """Free the file and its records."""
        self._source.records -= self._own
        self._own = 0
        super().close()
