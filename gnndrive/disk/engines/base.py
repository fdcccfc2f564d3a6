"""The Engine interface: carry out planned reads and hand over finished stretches as they come.

Every engine runs the same C state machine (`native/reads.c`); engines differ in how they talk to
the kernel. `read` enqueues the job in the call itself and the job only listens from then on:
dropping it stops nothing, because the kernel may still write (law 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from gnndrive.common.records import EngineSettings
from gnndrive.disk.read_job import ReadJob


class Engine(ABC):
    """Carries reads out for the event loop that it was made in.

    Args:
        settings: depth, staging block and, for the simulated engine, seed and faults.
    """

    name: str

    @abstractmethod
    def __init__(self, settings: EngineSettings) -> None: ...

    @classmethod
    def make(cls, context: EngineSettings) -> Self:
        """An engine for the running event loop."""
        return cls(context)

    @abstractmethod
    def read(self, job: ReadJob) -> ReadJob:
        """Enqueue `job` now; returns it, to be iterated over until each of its rows landed or
        failed.

        Raises:
            ClosedError: the engine was closed.
            ConfigError: an extent is longer than `settings.block_bytes`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Cancel what was not submitted, wait for what the kernel may still write, free
        everything."""

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Counters since the start: at least `requests`, `bytes`, `retries`."""
