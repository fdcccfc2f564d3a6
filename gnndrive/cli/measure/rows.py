"""The reads of batches' rows: rows of a store at full depth, with no reuse between batches.

A batch is a share of all rows, drawn at random. Rows land in memory as in the loader; feature
buffer, gather and training are left out.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnndrive.cli.measure.drive import QUEUED, Driven, drive
from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EngineSettings, Int32Array, Int64Array, Landing
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.reader import Store

FEATURES = "x"  # the array whose rows are read
SEED = 1
LANDING_BYTES = 64 << 20  # of rows in one plan: as in a loader whose rows have 512 bytes
ROWS_AT_ONCE_MIN = 256
SHARE, BATCHES = 0.05, 3


@dataclass(frozen=True, slots=True)
class RowsResult:
    """What was read, in what time.

    Attributes:
        gap_bytes: the largest gap that was read over.
        predicted_s: seconds that these requests take by the store's calibration; None: the store
            is not calibrated.
    """

    driven: Driven
    row_bytes: int
    gap_bytes: int
    predicted_s: float | None

    @property
    def rows_per_s(self) -> float:
        """Rows that landed per second."""
        return self.driven.rows / self.driven.runtime_s


def run(
    store: Store, share: float = SHARE, iodepth: int = 128, ioengine: str = "uring"
) -> RowsResult:
    """Draw `BATCHES` batches of this share of the rows of x, then read and measure."""
    file = store.table(FEATURES)
    cost = load_calibration(store)
    block = block_bytes(file.row_bytes)
    gap = gap_bytes(cost, block)
    batches = list(wanted_rows(file.row_count, share))
    table = TableLayout(file, block, gap)
    try:
        plans = _Plans(table, batches)
        driven = drive([iter(plans)], ioengine, EngineSettings(iodepth, block))
    finally:
        table.close()
    predicted = None if cost is None else cost.seconds(plans.requests, plans.nbytes)
    return RowsResult(driven, file.row_bytes, gap, predicted)


def wanted_rows(count: int, share: float) -> Iterator[Int64Array]:
    """Yield the distinct rows of each batch, of `count` rows in all, sorted, int64 [rows]."""
    if not 0 < share <= 1:
        raise ConfigError(f"share={share}: give a share of the rows above 0, at most 1")
    random = np.random.default_rng(SEED)
    for _ in range(BATCHES):
        yield np.flatnonzero(random.random(count, np.float32) < share)


class _Plans:
    """Plans the reads of batches on demand, one stretch of rows at a time.

    Memory is reused once its stretch has landed. It is touched before the first read, as a loader's
    slots are after its first batches, because the first touch of a page costs more than the read of
    a row that lands in it.
    """

    def __init__(self, table: TableLayout, batches: list[Int64Array]) -> None:
        stride = table.file.row_bytes
        self._table, self._batches = table, batches
        self._at_once = max(ROWS_AT_ONCE_MIN, LANDING_BYTES // stride)
        self._at_once = min(self._at_once, max((len(rows) for rows in batches), default=1) or 1)
        parts = QUEUED + 1  # `drive` asks for the next plan when at most QUEUED are under way
        memory = np.frombuffer(private_map(parts * self._at_once * stride), np.uint8)
        memory[:: mmap.PAGESIZE] = 0
        self._landing = Landing(memory.ctypes.data, stride, direct=True, owner=memory)
        slots = np.arange(parts * self._at_once, dtype=np.int32)
        self._slots: list[Int32Array] = np.split(slots, parts)
        self.requests = self.nbytes = 0

    def __iter__(self) -> Iterator[ReadJob]:
        stretches = (
            rows[start : start + self._at_once]
            for rows in self._batches
            for start in range(0, len(rows), self._at_once)
        )
        for number, rows in enumerate(stretches):
            slots = self._slots[number % len(self._slots)][: len(rows)]
            reads = self._table.locate(rows, slots, self._landing)
            self.requests += reads.requests
            self.nbytes += reads.nbytes
            yield reads
