"""`SimulatedSuperbatches`: superbatches of the simulated pipeline, on a disk that may be full.

`Simulation` makes one for each epoch of a scenario with superbatches. The traces are files in
memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Codes, Sample, Seeds
from gnndrive.pipeline.superbatch import Superbatch
from gnndrive.sampling.trace import Trace, TraceFull

if TYPE_CHECKING:
    from gnndrive.testing.simulation import Scenario

NO_ROOM = "no room for a record"


class SimulatedSuperbatches:
    """See `pipeline.epoch.SuperbatchSource`.

    Args:
        scenario: what is simulated.

    Attributes:
        records: how many records are on the simulated disk.
        recorded: see `SuperbatchSource`.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self.records = scenario, 0
        self.recorded: Superbatch | None = None
        self._last = np.empty(scenario.file.row_count, np.uint16)

    def size(self, number: int, misses: float | None) -> int:
        """See `SuperbatchSource.size`; the first superbatch has half of the batches."""
        return self._scenario.superbatch if number else -(-self._scenario.superbatch // 2)

    def open_trace(self) -> Trace:
        """See `SuperbatchSource.open_trace`."""
        return _LimitedTrace(self, self._scenario)

    def next_uses(self) -> Mapping[str, Codes]:
        """See `SuperbatchSource.next_uses`."""
        return {"x": self._last}

    def keep(self, superbatch: Superbatch) -> None:
        """See `SuperbatchSource.keep`."""
        self.recorded = superbatch

    def load_graph(self) -> None:
        """Does nothing, because there is no graph."""

    def free_graph(self) -> None:
        """Does nothing, because there is no graph."""

    def no_room(self) -> ConfigError:
        """See `SuperbatchSource.no_room`."""
        return ConfigError(NO_ROOM)


class _LimitedTrace(Trace):
    """A trace on a disk that has room for so many records of all traces."""

    def __init__(self, source: SimulatedSuperbatches, scenario: Scenario) -> None:
        super().__init__(Path(scenario.file.path).parent, scenario.file.row_count)
        self._source, self._records_max, self._own = source, scenario.records_max, 0

    @staticmethod
    def _open(folder: Path) -> tuple[int, bool]:
        """A file in memory."""
        return os.memfd_create("trace", os.MFD_CLOEXEC), False

    def _put_record(self, seeds: Seeds, sample: Sample) -> None:
        if self._records_max is not None and self._source.records >= self._records_max:
            raise TraceFull
        super()._put_record(seeds, sample)
        self._source.records += 1
        self._own += 1

    def close(self) -> None:
        """Free the file and its records."""
        self._source.records -= self._own
        self._own = 0
        super().close()
