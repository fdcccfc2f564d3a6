"""The reads of real batches: rows of a store at full depth, with no reuse between batches.

It answers the question "how many rows per second does the read planner get out of this disk?",
beside one request per row and beside fio's IOPS at the row's size. A batch is a sampled
neighbourhood, or a share of all rows drawn at random. Rows land in memory as in the loader; feature
buffer, gather and training are left out.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnndrive.cli.measure.calibrate import Disk, cost_of
from gnndrive.cli.measure.drive import QUEUED, Driven, drive
from gnndrive.common.array_pool import private_map
from gnndrive.common.distinct import distinct
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import DiskCost, EngineSettings, Int32Array, Int64Array, Landing
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.reader import Store

FEATURES = "x"  # the array whose rows are read
SEED = 1
LANDING_BYTES = 64 << 20  # of rows in one plan: as in a loader whose rows have 512 bytes
ROWS_AT_ONCE_MIN = 256
SECONDS_A_POINT = 0.1  # of a recalibration: less than reading one stretch of rows takes


@dataclass(frozen=True, slots=True)
class RowsOptions:
    """Which rows to read, and how.

    Attributes:
        share: share of all rows, drawn at random for each batch; None: sample neighbourhoods.
        batches: number of batches.
        batch_size: seeds in a sampled batch, drawn from all nodes.
        fanout: neighbours to sample for a node in each hop of a sampled batch.
        gap: largest gap between rows, in bytes, that is read over; None: from the store's
            calibration, or the default without one.
        separate: whether to send one request per row and merge none: the naive ring.
        iodepth, ioengine, submit_batch, complete_min: as in `IoOptions`.
        recalibrate: whether to measure the disk before each stretch of rows and predict by that.
            The speed of a disk that others use too changes within seconds.
    """

    share: float | None = None
    batches: int = 3
    batch_size: int = 1000
    fanout: tuple[int, ...] = (10, 10, 10)
    gap: int | None = None
    separate: bool = False
    iodepth: int = 128
    ioengine: str = "uring"
    submit_batch: int = 0
    complete_min: int = 1
    recalibrate: bool = False


@dataclass(frozen=True, slots=True)
class RowsResult:
    """What was read, in what time.

    Attributes:
        gap_bytes: the largest gap that was read over.
        predicted_s: seconds that these requests take by the store's calibration or by the
            recalibration; None: the store is not calibrated.
    """

    driven: Driven
    row_bytes: int
    gap_bytes: int
    predicted_s: float | None

    @property
    def rows_per_s(self) -> float:
        """Rows that landed per second."""
        return self.driven.rows / self.driven.runtime_s


def run(store: Store, options: RowsOptions) -> RowsResult:
    """Draw the batches, then read and measure.

    Raises:
        ConfigError: an option cannot work.
        StoreError: the store is damaged.
        ReadError: a read failed.
    """
    file = store.table(FEATURES)
    cost = load_calibration(store)
    block = block_bytes(file.row_bytes)
    gap = gap_bytes(cost, block) if options.gap is None else options.gap
    batches = list(wanted_rows(store, options))
    table = TableLayout(file, block, gap, separate=options.separate)
    try:
        settings = EngineSettings(
            options.iodepth,
            block,
            submit_batch=options.submit_batch,
            complete_min=options.complete_min,
        )
        plans = _Plans(table, batches)
        if options.recalibrate:
            driven, cost = _drive_in_turn(plans, store, options, settings)
        else:
            driven = drive([iter(plans)], options.ioengine, settings)
    finally:
        table.close()
    predicted = None if cost is None else cost.seconds(plans.requests, plans.nbytes)
    return RowsResult(driven, file.row_bytes, gap, predicted)


def _drive_in_turn(
    plans: _Plans, store: Store, options: RowsOptions, settings: EngineSettings
) -> tuple[Driven, DiskCost | None]:
    """Read stretch by stretch, measuring the disk before each; return the sums and the cost."""
    depth, engine = options.iodepth, options.ioengine
    disk = Disk(store, FEATURES, depth, engine)
    driven, points = drive([iter(())], engine, settings), []
    for reads in plans:
        points += [disk.point(nbytes, SECONDS_A_POINT) for nbytes in disk.sizes]
        driven += drive([iter((reads,))], engine, settings)
    return driven, cost_of(points, store, depth, engine) if points else None


def wanted_rows(store: Store, options: RowsOptions) -> Iterator[Int64Array]:
    """Yield the distinct rows of each batch, sorted, int64 [rows]."""
    if options.share is not None and not 0 < options.share <= 1:
        raise ConfigError(f"share={options.share}: give a share of the rows above 0, at most 1")
    if options.batches < 1 or options.batch_size < 1:
        raise ConfigError("batches and batch_size must be at least 1")
    random = np.random.default_rng(SEED)
    if options.share is not None:
        count = store.table(FEATURES).row_count
        for _ in range(options.batches):
            yield np.flatnonzero(random.random(count, np.float32) < options.share)
        return
    topology = Mmap(store.index_pointers, store.indices, str(store.indices_path))
    sampler = Uniform(options.fanout)
    for batch in range(options.batches):
        seeds = random.choice(store.num_nodes, min(options.batch_size, store.num_nodes), False)
        key = batch_key(SEED, 0, batch)
        yield distinct(sampler.sample_nodes(seeds, key, topology).node)


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
