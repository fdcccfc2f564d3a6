"""The disk tier: a layout plans the reads of missing rows, and an engine carries them out."""

from __future__ import annotations

from gnndrive.common.records import Int32Array, Int64Array, Landing
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.tiers._striped import Striped
from gnndrive.disk.tiers.base import Tier, TierContext


class Disk(Tier):
    """Reads rows where `layout` locates them, with `engine`; their owner closes both."""

    name = "disk"

    def __init__(self, layout: Layout, engine: Engine) -> None:
        self.layout = layout
        self.engine = engine
        self.path = layout.path

    @classmethod
    def make(cls, context: TierContext) -> Tier:  # type: ignore[override]
        """See `Tier.make`; ignores `below`, because the disk is the lowest tier."""
        if (striped := getattr(context.layout, "striped", None)) is not None:
            return Striped(striped, context.layout.path, context.engine)
        return cls(context.layout, context.engine)

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        """See `Tier.fetch`; plans and enqueues the reads in one step, without an await between."""
        return self.engine.read(self.layout.locate(rows, places, landing))
