"""The Engine interface: carry out planned reads and writes, and report stretches of rows as they
finish.

Every engine runs the same C state machine (`native/reads.c`); engines differ in how they talk to
the kernel. A tier (`tiers/disk.py`), the row reader and the adjacency call `read`, which enqueues
the job before it returns. Iterating over the job only waits for results: a caller that drops the
job stops nothing, because the kernel may still write into its rows, or read what it has to write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from gnndrive.common.records import EngineSettings
from gnndrive.disk.read_job import ReadJob


class Engine(ABC):
    """Carries out reads and writes for the event loop in which it was made.

    Args:
        settings: depth, staging block and, for the simulated engine, seed and faults.
    """

    name: str

    @abstractmethod
    def __init__(self, settings: EngineSettings) -> None: ...

    @classmethod
    def make(cls, context: EngineSettings) -> Self:
        """Make an engine for the running event loop."""
        return cls(context)

    @abstractmethod
    def read(self, job: ReadJob) -> ReadJob:
        """Enqueue `job` and return it; the caller iterates over its stretches.

        The iteration ends when each row has landed or failed.

        Raises:
            ClosedError: the engine was closed.
            ConfigError: an extent is longer than `settings.block_bytes`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Cancel requests that were not submitted, wait for those in flight, free everything."""

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Return counters since the start: at least `requests` and `bytes` of reads, `writes` and
        `bytes_written`, and `retries` of both; and `inflight`, the requests that are in flight now,
        if the engine knows them."""
