"""`Buffers`: where a runtime's epochs get their feature buffers from.

`BufferPool` (`buffer_pool.py`) makes them in this process; `HostBuffers` (`host_buffers.py`) lends
the one that the host service has for all ranks; a scheme may bring what stands in their place
(`Scheme.buffers`). All methods are called in the loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.leases import BatchBuffer


class Buffers(Protocol):
    """Lends each running epoch a feature buffer.

    Attributes:
        settings: the runtime's settings.
        facts: what `stats()` says of them beside counters: "engine", what reads the rows.
    """

    settings: RuntimeSettings

    @property
    def facts(self) -> Mapping[str, float | str]:
        """See above."""
        ...

    def take(self) -> BatchBuffer:
        """Lend an epoch a buffer.

        Raises:
            ConfigError: there is none.
        """
        ...

    def give(self, buffer: BatchBuffer) -> None:
        """Take a buffer back from an epoch that has ended."""
        ...

    async def grow(self) -> None:
        """After a warm-up, use all memory of the device that training leaves."""
        ...

    async def replace_plan(self, settings: RuntimeSettings) -> None:
        """Have the next `take` lend a buffer by other settings."""
        ...

    def stats(self) -> Counter[str]:
        """Counters since the start."""
        ...

    async def late_reason(self) -> str:
        """Why a batch may be late, as far as it is known; "": it is not."""
        ...

    def retire(self) -> None:
        """Stop admitting batches to the buffers that are lent, because they will be closed."""
        ...

    async def drain(self) -> None:
        """Wait until no read into a buffer is under way."""
        ...

    async def closed(self) -> None:
        """Wait until the buffers that were given back and are not kept are freed."""
        ...

    async def close_tiers(self) -> None:
        """After `drain`: free what the tiers hold."""
        ...

    async def close(self) -> None:
        """Free the buffers, none of which may be lent."""
        ...
