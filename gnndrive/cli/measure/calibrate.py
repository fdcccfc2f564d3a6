"""Calibration: seconds per request, per byte and per written byte on the disk that holds a store.

It makes random reads of a few sizes, as many at once as a loader, through the loader's own ring, in
several rounds because others use the disk too and its speed varies. Then it fits a straight line
to the medians of the sizes, up to the loader's largest read: t = request_s + bytes x byte_s. The
read planner bridges a gap when reading it costs less than another request. A real disk follows such
a line only roughly, so every point is kept beside the two constants, and `gnndrive info` prints how
far the points lie from the line.

Then it reads the array in order, and once more while it writes over the blocks of a file without a
name, because strategies that write do both at once. What reads take alone counts as theirs.
"""

from __future__ import annotations

import datetime
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from statistics import median

import numpy as np

from gnndrive.cli.measure.drive import drive
from gnndrive.cli.measure.raw import IoOptions, block_count, block_numbers, planned, run
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, page_buffer
from gnndrive.common.memory import format_size
from gnndrive.common.records import INFLIGHT_BYTES, DiskCost, EngineSettings, TableFile
from gnndrive.disk.block_file import BlockFile
from gnndrive.disk.layouts.base import BLOCK_BYTES, SWEEP_BLOCK_BYTES
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.calibration import (
    calibrate_command,
    disk_identity,
    not_writable,
    save_calibration,
)
from gnndrive.store.reader import Store

READ_BYTES = (512, 4096, 16384, BLOCK_BYTES, SWEEP_BLOCK_BYTES)
FILE_BYTES_MIN = BLOCK_BYTES
DEPTH = 128
ROUNDS = 4
SECONDS_A_POINT = 0.3
LONG_BYTES, LONG_DEPTH, WRITTEN_BLOCKS = 256 << 10, 16, 1024  # of writes, and reads beside them
WARM_UP_POINTS = 8  # of time, in which a virtual disk that was idle uses up its burst credit


def calibrate(
    store: Store,
    *,
    depth: int = DEPTH,
    ioengine: str = "uring",
    reads: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> DiskCost:
    """Measure the disk that a store lies on, by the file of its largest per-node array, and write
    disk.json into the store's folder.

    Args:
        depth: reads in flight.
        ioengine: "uring" or "threads".
        reads: how many reads to make for one point; None: as many as end in `SECONDS_A_POINT`.
        progress: called as progress(points measured, points in all), those of the warm-up too.

    Raises:
        ConfigError: the file is smaller than 64 KiB.
        StoreError: the store's folder cannot be written to.

    Warns:
        RuntimeWarning: the disk is too full to measure writing.
    """
    if not os.access(store.path, os.W_OK):
        raise not_writable(store, "no permission")
    points = measure_points(store, depth, ioengine, progress, reads)
    cost = cost_of(points, store, depth, ioengine)
    cost = replace(cost, write_byte_s=measure_writes(store, ioengine, reads))
    save_calibration(store, cost)
    return cost


def cost_of(
    points: Sequence[tuple[int, float]], store: Store, depth: int, ioengine: str
) -> DiskCost:
    """Fit the cost of reading to points that were measured just now."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return DiskCost(
        *fit(points), depth, ioengine, date, disk=disk_identity(store.path), points=tuple(points)
    )


def measure_points(
    store: Store, depth: int, ioengine: str, progress: Callable[[int, int], object],
    reads: int | None,
) -> tuple[tuple[int, float], ...]:  # fmt: skip
    """Points (bytes of a read, seconds per read), in rounds over the sizes of `READ_BYTES` that the
    disk and the file allow."""
    file = _largest(store)
    table = TableLayout(file)
    sector = table.sector_bytes if table.direct else 1
    table.close()
    whole = os.path.getsize(file.path)
    if whole < FILE_BYTES_MIN:
        raise ConfigError(
            f"{file.path} has {whole:,} bytes, less than one read to measure: a store this small "
            "needs no calibration"
        )
    # A new seed for each point: caches of the drive or host may hold blocks read before.
    seeds = count(secrets.randbits(32))

    def point(nbytes: int) -> tuple[int, float]:
        """Make random reads of `nbytes` each, for a while, or as many as were asked for."""
        runtime_s = SECONDS_A_POINT if reads is None else None
        driven = run(IoOptions(
            file.path, bs=nbytes, iodepth=depth, ioengine=ioengine, runtime_s=runtime_s,
            reads=reads, slat=False, seed=next(seeds), inflight_bytes=INFLIGHT_BYTES,
        ))  # fmt: skip
        return nbytes, driven.runtime_s / max(driven.rows, 1)

    sizes = [size for size in sorted({max(each, sector) for each in READ_BYTES}) if size <= whole]
    asked, points = [FILE_BYTES_MIN] * WARM_UP_POINTS + sizes * ROUNDS, list[tuple[int, float]]()
    for done, nbytes in enumerate(asked):
        progress(done, len(asked))
        points.append(point(nbytes))
    progress(len(asked), len(asked))
    return tuple(points[WARM_UP_POINTS:])


def measure_writes(store: Store, ioengine: str, reads: int | None) -> float | None:
    """Seconds of a written byte; see the module. None: the disk is too full."""
    blocks = WRITTEN_BLOCKS if reads is None else reads
    path = _largest(store).path
    nbytes = min(LONG_BYTES, os.path.getsize(path) // PAGE_BYTES * PAGE_BYTES)
    options = IoOptions(path, rw="read", bs=nbytes, iodepth=LONG_DEPTH)
    settings = EngineSettings(LONG_DEPTH, LONG_BYTES, measure=False, inflight_bytes=INFLIGHT_BYTES)
    buffer = page_buffer(LONG_BYTES).reshape(1, -1)
    buffer[0] = np.random.default_rng().integers(0, 256, LONG_BYTES, np.uint8)
    file = BlockFile(store.path, LONG_BYTES, 1)
    array = TableLayout(
        TableFile(path, 0, block_count(options), nbytes, "uint8", (nbytes,)), nbytes, separate=True
    )
    try:
        file.grow(blocks)

        def writes(rounds: Iterable[int]) -> Iterator[ReadJob]:
            for _ in rounds:
                yield file.writes(np.arange(blocks), np.zeros(blocks, np.int32), buffer)

        drive([writes(range(1))], ioengine, settings)  # the first write of a block takes longer
        found = []
        for _ in range(ROUNDS):
            numbers = [block_numbers(options, block_count(options), reads, 0) for _ in range(2)]
            runtime_s = SECONDS_A_POINT if reads is None else None
            alone = drive([planned(array, numbers[0])], ioengine, settings, runtime_s)
            sources = [planned(array, numbers[1]), writes(count() if reads is None else range(1))]
            driven = drive(sources, ioengine, settings, runtime_s)
            read, written = driven.rows_of
            left_s = driven.runtime_s - read * alone.runtime_s / max(alone.rows_of[0], 1)
            found.append(max(left_s, 0.0) / max(written * LONG_BYTES, 1))
        return median(found)
    except StoreError:
        warnings.warn(
            f"writing is not measured, because {format_size(blocks * LONG_BYTES)} are not free in "
            f"{store.path}, so strategy='auto' takes none that writes rows: free some, then run "
            f"{calibrate_command(store)} again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    finally:
        array.close()
        file.close()


def _largest(store: Store) -> TableFile:
    """The largest per-node array."""
    of_nodes = [array for array in store.info.arrays.values() if array.name.startswith("nodes/")]
    if not of_nodes:
        raise ConfigError(f"{store.path} has no per-node array to read: import it with features")
    return store.part(max(of_nodes, key=lambda array: array.nbytes).name)


def medians(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(bytes of a read, the median of its seconds) for each size, sorted."""
    sizes = sorted({nbytes for nbytes, _ in points})
    return [(size, median(t for nbytes, t in points if nbytes == size)) for size in sizes]


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit t = request_s + bytes x byte_s to the medians of at least two sizes, by least relative
    error. If one of the two would be negative, it is 0 and the other one is fitted alone."""
    nbytes, seconds = np.array(medians(points), float).T
    terms = np.stack([np.ones_like(nbytes), nbytes]) / seconds
    solved = np.linalg.lstsq((terms * _SCALE[:, None]).T, np.ones_like(seconds), rcond=None)[0]
    request_s, byte_s = (solved * _SCALE).tolist()
    if request_s < 0:
        return 0.0, float(terms[1].sum() / (terms[1] ** 2).sum())
    if byte_s < 0:
        return float(terms[0].sum() / (terms[0] ** 2).sum()), 0.0
    return request_s, byte_s


_SCALE = np.array([1e-5, 1e-9])  # scale of the two unknowns, so that the solver is accurate


def misfit(cost: DiskCost) -> float:
    """The largest relative distance of the line from a median that it was fitted to."""
    away = (abs(cost.seconds(1, size) / t - 1) for size, t in medians(cost.points) if t)
    return max(away, default=0.0)
