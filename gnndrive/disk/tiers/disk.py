"""The disk tier: a file below the feature buffer; a fetch is a plan carried out by an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers.base import Fetch, Tier

if TYPE_CHECKING:
    from gnndrive.disk.engines.base import Engine
    from gnndrive.disk.layouts.base import Layout, Reads


class DiskFetch(Fetch):
    """Rows on their way from disk.

    Attributes:
        reads: the planned reads, which say how many requests and bytes the rows cost.
    """

    def __init__(self, reads: Reads, stretches: AsyncIterator[Stretch]) -> None:
        self.reads = reads
        self._stretches = stretches

    def __aiter__(self) -> AsyncIterator[Stretch]:
        return self._stretches

    def cancel(self) -> None:
        """Let what was not started fail with ECANCELED."""
        self.reads.cancel()


class Disk(Tier):
    """The rows that `layout` knows, read by `engine`.

    Args:
        layout: where rows lie; not closed by this object.
        engine: who reads; not closed by this object.
    """

    name = "disk"

    def __init__(self, layout: Layout, engine: Engine) -> None:
        self.layout = layout
        self.engine = engine
        self.path = layout.path

    def fetch(self, rows: Int64Array, slots: Int32Array, landing: Landing) -> DiskFetch:
        """Plan and enqueue in one step, so that a granted slot is always being loaded.

        Raises:
            ValueError: a row is out of range or asked for twice.
            ClosedError: the engine was closed.
            ConfigError: a row does not fit a staging block.
        """
        reads = self.layout.locate(rows, slots, landing)
        return DiskFetch(reads, self.engine.read(reads))
