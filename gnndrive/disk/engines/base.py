"""The Engine interface: carry planned reads out, handing over finished stretches as they come.

An engine runs the same C state machine as every other (`native/reads.c`); it differs in who talks
to the kernel. `read` enqueues at once, in the step that calls it, and returns an iterator that only
listens: dropping the iterator stops nothing, for the kernel may still write (law 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gnndrive.common.records import EngineSettings, Stretch

if TYPE_CHECKING:
    from gnndrive.disk.layouts.base import Reads


class Engine(ABC):
    """Carries reads out for the event loop that it was made in.

    Args:
        settings: depth, staging block and, for the simulated engine, seed and faults.
    """

    name: str

    @abstractmethod
    def __init__(self, settings: EngineSettings) -> None: ...

    @abstractmethod
    def read(self, reads: Reads) -> AsyncIterator[Stretch]:
        """Enqueue `reads` now and iterate over its stretches until each of its rows landed or
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
