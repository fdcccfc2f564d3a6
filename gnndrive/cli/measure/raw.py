"""Raw reads of a file through a real engine, with fio's options, for `gnndrive bench io`.

It answers the question "does the ring reach the speed of the disk?" beside fio
(`gnndrive/cli/measure/fio.py`), so a request is the same in both: one read of `bs` bytes, whose
data is dropped. The file is never written. `gnndrive/cli/measure/rows.py` measures what a store's
rows cost.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnndrive.cli.measure.drive import Driven, drive
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EngineSettings, Int64Array, Landing, TableFile
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob

READS_AT_ONCE = 4096  # in one plan: some 20 ms of a fast disk's work


@dataclass(frozen=True, slots=True)
class IoOptions:
    """What to read, in fio's words.

    Attributes:
        rw: "randread": blocks drawn with replacement; "read": one block after the other.
        bs: bytes of a read; whole sectors if `direct`.
        iodepth: reads in flight at once in each job.
        numjobs: jobs at once, each with its own engine.
        direct: whether to bypass the page cache (O_DIRECT).
        runtime_s: seconds to read; None: until each job has read `size` bytes.
        size: bytes of the file to use, from its start; None: all.
        ioengine: "uring" or "threads".
        slat: whether to measure slat and clat apart, which takes one more system call; otherwise
            only lat is measured, as in the loader.
        reads: reads of each job; None: `runtime_s` or `size` decides.
        inflight_bytes: uring starts no read while so many bytes are in flight; 0: no limit but
            `iodepth`, as in fio.
    """

    filename: str
    rw: str = "randread"
    bs: int = 4096
    iodepth: int = 128
    numjobs: int = 1
    direct: bool = True
    runtime_s: float | None = None
    size: int | None = None
    ioengine: str = "uring"
    slat: bool = True
    reads: int | None = None
    seed: int = 1
    inflight_bytes: int = 0

    def words(self) -> dict[str, Any]:
        """The options under fio's names; None: not given."""
        names = ("filename", "rw", "bs", "iodepth", "numjobs", "ioengine", "size")
        given = {name: getattr(self, name) for name in names}
        return {"name": "gnndrive", **given, "direct": int(self.direct), "runtime": self.runtime_s}


def run(options: IoOptions) -> Driven:
    """Read and measure; a ConfigError if an option cannot work, a ReadError if a read failed."""
    blocks = block_count(options)
    file = TableFile(options.filename, 0, blocks, options.bs, "uint8", (options.bs,))
    table = TableLayout(file, options.bs, direct=options.direct, separate=True)
    try:
        if table.direct and options.bs % table.sector_bytes:
            raise ConfigError(
                f"bs={options.bs} is no multiple of the {table.sector_bytes} bytes that direct "
                f"reads of {options.filename} must be aligned to: choose a multiple, or direct=0"
            )
        total = options.reads
        if total is None and options.runtime_s is None:
            total = blocks
        sources = [
            planned(table, block_numbers(options, blocks, total, job))
            for job in range(options.numjobs)
        ]
        settings = EngineSettings(
            options.iodepth, options.bs, measure=options.slat, inflight_bytes=options.inflight_bytes
        )
        return drive(sources, options.ioengine, settings, options.runtime_s)
    finally:
        table.close()


def block_count(options: IoOptions) -> int:
    """Count the whole blocks of `bs` bytes in the file, or in its first `size` bytes."""
    if options.runtime_s is not None and options.runtime_s <= 0:
        raise ConfigError("runtime must be more than 0")
    try:
        with open(options.filename, "rb") as file:
            if not stat.S_ISREG(mode := os.fstat(file.fileno()).st_mode) and not stat.S_ISBLK(mode):
                raise ConfigError(
                    f"{options.filename} is no file or block device: give one to read"
                )
            nbytes = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise ConfigError(
            f"{options.filename} cannot be read ({error.strerror}): give the file to read as "
            "filename; it is never written to"
        ) from error
    blocks = min(nbytes, options.size or nbytes) // options.bs
    if blocks < 1:
        raise ConfigError(
            f"{options.filename} has {nbytes:,} bytes and size={options.size or nbytes:,}: not one "
            f"block of bs={options.bs:,}; choose a smaller bs or a larger file"
        )
    return blocks


def block_numbers(
    options: IoOptions, blocks: int, total: int | None, job: int
) -> Iterator[Int64Array]:
    """Yield the numbers of the blocks that a job reads, as int64 [n] arrays of up to READS_AT_ONCE
    numbers, or twice `iodepth` if that is more; `total`: how many; None: without end."""
    random = np.random.default_rng([options.seed, job])
    done, at_once = 0, max(READS_AT_ONCE, 2 * options.iodepth)
    while total is None or done < total:
        count = at_once if total is None else min(at_once, total - done)
        if options.rw == "read":
            yield np.arange(done, done + count, dtype=np.int64) % blocks
        else:
            yield random.integers(0, blocks, count)
        done += count


def planned(table: TableLayout, numbers: Iterator[Int64Array]) -> Iterator[ReadJob]:
    """Plan reads of the blocks with these numbers, whose data is dropped."""
    nowhere = Landing(0, table.file.row_bytes, direct=False)
    for rows in numbers:
        yield table.locate(rows, np.zeros(len(rows), np.int32), nowhere)
