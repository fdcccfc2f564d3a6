"""What the engines share: checks that refuse a job, staging memory, counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi, holding_gil, lib
from gnndrive.common.io.direct_file import whole_pages
from gnndrive.common.records import EngineSettings
from gnndrive.disk.read_job import ReadJob


def check_job(job: ReadJob, settings: EngineSettings, closing: bool) -> None:
    """Refuse a job if the engine is closed or closing, or if an extent needs staging and does not
    fit a block."""
    if closing:
        raise ClosedError("the engine is closed: make a new one (a new iterator does)")
    longest = int(holding_gil.gd_reads_block_bytes(job.handle))
    if longest > settings.block_bytes:
        raise ConfigError(
            f"a read of {longest:,} bytes does not fit a staging block of "
            f"{settings.block_bytes:,} bytes: make block_bytes at least {longest:,}, or let the "
            "layout cut extents shorter (extent_bytes_max) if no single row is that long"
        )


def staging(count: int, block_bytes: int) -> tuple[Any, list[Any]]:
    """Allocate staging memory, in huge pages where the kernel has them: a C `uint8_t[]`, which the
    caller keeps, and pointers to `count` page-aligned blocks, which do not keep it alive."""
    if count < 1 or block_bytes < 1:
        raise ConfigError("depth and block_bytes must be at least 1")
    stride = whole_pages(block_bytes)
    memory = ffi.from_buffer("uint8_t[]", private_map(count * stride, huge=True))
    return memory, [memory + i * stride for i in range(count)]


class JobCounters:
    """Counts the requests, bytes and retries of an engine's jobs, from the C state of each job;
    `uring` has counters in its ring."""

    def __init__(self) -> None:
        self._ended = dict.fromkeys(dir(ffi.new("gd_reads_stats *")), 0)

    def add(self, job: ReadJob) -> None:
        """Count a job that has ended."""
        self._ended = self.with_active([job])

    def with_active(self, active: Iterable[ReadJob]) -> dict[str, int]:
        """Return `Engine.stats` of the jobs that have ended and of the `active` jobs."""
        total, out = dict(self._ended), ffi.new("gd_reads_stats *")
        for job in active:
            lib.gd_reads_get_stats(job.handle, out)
            for name in total:
                total[name] += int(getattr(out, name))
        return total
