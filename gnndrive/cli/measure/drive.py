"""Drive an engine at full depth: two plans of reads wait behind the one under way.

The engine is the loader's own, so its measurements are what the loader gets. Python wakes up once
for thousands of reads, and plans thousands more.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from gnndrive.cli.measure.latency import Latency
from gnndrive.common.errors import ReadError
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.threads import Threads
from gnndrive.disk.engines.uring import Uring
from gnndrive.disk.read_job import ReadJob

QUEUED = 2  # plans of reads that wait behind the oldest one under way
ENGINES: dict[str, type[Uring] | type[Threads]] = {"uring": Uring, "threads": Threads}


@dataclass(frozen=True, slots=True)
class Driven:
    """What was read, and the time and CPU that it took.

    Attributes:
        rows: rows that landed, or raw reads.
        rows_of: the same of each source.
        requests, nbytes, retries: completions, bytes they brought, and requests sent again.
        runtime_s: from the first request to the last completion, seconds.
        usr_s, sys_s, ctx, majf, minf: CPU seconds, context switches and page faults of all threads
            of this process in that time.
        latency: of the requests; if it was not measured, only `lat`, and only with uring.
    """

    rows: int
    requests: int
    nbytes: int
    retries: int
    runtime_s: float
    usr_s: float
    sys_s: float
    ctx: int
    majf: int
    minf: int
    latency: Latency
    rows_of: tuple[int, ...] = ()

    @property
    def iops(self) -> float:
        """Requests per second."""
        return self.requests / self.runtime_s

    @property
    def usr_cpu(self) -> float:
        """User CPU time in per cent of one core, as in fio."""
        return 100 * self.usr_s / self.runtime_s

    @property
    def sys_cpu(self) -> float:
        """System CPU time in per cent of one core, as in fio."""
        return 100 * self.sys_s / self.runtime_s


def drive(
    sources: list[Iterator[ReadJob]],
    engine: str,
    settings: EngineSettings,
    runtime_s: float | None = None,
) -> Driven:
    """Carry out all reads of all sources, with a separate engine for each source; runs an event
    loop.

    Args:
        sources: plans of reads; the next one is taken when fewer than `QUEUED + 1` are under way.
            The memory of a source must hold the rows of `QUEUED + 1` plans at once.
        engine: "uring" or "threads".
        runtime_s: stop after so many seconds; None: at the end of the sources.

    Raises:
        ConfigError: this machine does not allow the engine.
        ReadError: a read failed.
    """
    return asyncio.run(_drive(sources, engine, settings, runtime_s))


async def _drive(
    sources: list[Iterator[ReadJob]], engine: str, settings: EngineSettings, runtime_s: float | None
) -> Driven:
    engines: list[Uring | Threads] = []
    try:
        for _ in sources:
            engines.append(ENGINES[engine](settings))
        jobs = [_Job(one, source) for one, source in zip(engines, sources, strict=True)]
        before, started = resource.getrusage(resource.RUSAGE_SELF), perf_counter()
        if runtime_s is not None:
            for job in jobs:
                asyncio.get_running_loop().call_later(runtime_s, job.stop)
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job.run())
        elapsed = perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        for one in engines:
            await one.aclose()
    for job in jobs:
        if job.error is not None:
            raise job.error
    counted = [one.stats() for one in engines]
    return Driven(
        rows=sum(job.rows for job in jobs),
        requests=sum(stats["requests"] for stats in counted),
        nbytes=sum(stats["bytes"] for stats in counted),
        retries=sum(stats["retries"] for stats in counted),
        runtime_s=elapsed,
        usr_s=after.ru_utime - before.ru_utime,
        sys_s=after.ru_stime - before.ru_stime,
        ctx=after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw,
        majf=after.ru_majflt - before.ru_majflt,
        minf=after.ru_minflt - before.ru_minflt,
        latency=sum((Latency.of(one.latency()) for one in engines), Latency()),
        rows_of=tuple(job.rows for job in jobs),
    )


class _Job:
    """One engine and the plans that it carries out."""

    def __init__(self, engine: Uring | Threads, source: Iterator[ReadJob]) -> None:
        self._engine, self._source = engine, source
        self._live: deque[ReadJob] = deque()
        self._stopped = False
        self.rows = 0
        self.error: ReadError | None = None

    def stop(self) -> None:
        """Start no more requests; those in flight end and are counted."""
        self._stopped = True
        for job in self._live:
            job.cancel()

    async def run(self) -> None:
        for job in self._source:
            if self._stopped:
                break
            self._live.append(self._engine.read(job))
            if len(self._live) > QUEUED:
                await self._finish_oldest()
        while self._live:
            await self._finish_oldest()

    async def _finish_oldest(self) -> None:
        job = self._live[0]
        async for stretch in job:
            self.rows += len(stretch.slots)
            failed = stretch.failures[stretch.failures["error"] != errno.ECANCELED]
            if len(failed) and self.error is None:
                first = failed[0]
                self.error = ReadError(job.path, int(first["offset"]), int(first["error"]))
                self.stop()
        self._live.popleft()
