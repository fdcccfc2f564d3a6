"""`RollingFeed`: superbatches whose rows are copied before they are replayed.

Three superbatches are alive: one is sampled and recorded, the rows of the one before are copied in
one pass (`disk/tiers/rolled.py`), and the one before that is replayed. The first superbatch of an
epoch is replayed at once, without copies. So is each batch whose copies failed or found no room:
its rows come from the table, and nothing else is different.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.row_table import RowTable
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.records import Sample, Subgraph
from gnndrive.disk.distribution import Deltas
from gnndrive.disk.tiers.rolled import Rolled
from gnndrive.pipeline.epoch import Epoch
from gnndrive.strategies.superbatches.feed import AheadFeed, Source, Superbatch

ALIVE = 3


class RollingSource(Source, Protocol):
    """What the feed asks of `strategies.rolling.LoaderRolling`, or of a simulated one."""

    def pays(self, table: RowTable, counts: Sequence[int]) -> bool:
        """Whether it pays to copy the rows of batches that miss so many rows of a table."""


class RollingFeed(AheadFeed):
    """See the module and `epoch.Feed`."""

    _source: RollingSource

    def __init__(self, source: RollingSource) -> None:
        super().__init__(source, ALIVE)
        self._sampled = asyncio.Queue(1)
        self._tables: dict[str, tuple[SlotTable, Rolled]] = {}  # whose rows are copied
        self._missed: dict[int, Mapping[str, Deltas]] = {}  # by batch
        self._damaged: set[str] = set()  # tables that a pass could not read, or copies not be kept
        self._left_out: set[str] = set()  # tables of which the last pass copied no row
        self._warned = False
        self._begun = asyncio.Event()  # the epoch's first batch was loaded

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`."""
        assert isinstance(epoch.buffer, FeatureBuffer)
        for name, table in epoch.buffer.tables.items():
            tier = table.tier
            if not isinstance(table, SlotTable) or not isinstance(tier, Rolled) or table.keeps:
                continue
            if tier.copies:
                self._tables[name] = table, tier
        return [*super().stages(epoch), self._copy_all(epoch)]

    def released(self, index: int) -> None:
        """See `Feed.released`."""
        self._begun.set()
        for _, tier in self._tables.values():
            tier.give(index)

    def close(self) -> None:
        """See `Feed.close`."""
        super().close()
        for _, tier in self._tables.values():
            tier.forget()

    def refuse(self, superbatch: Superbatch, error: ConfigError) -> None:
        """See `AheadFeed.refuse`: samples in memory are enough to go on without copies."""
        self._warn(error)

    def note(self, epoch: Epoch, index: int, sample: Sample | Subgraph) -> None:
        """See `AheadFeed.note`: which rows the batch will miss."""
        rows, missed = epoch.inputs.assembly.rows_of(sample), dict[str, Deltas]()
        for name, (table, tier) in self._tables.items():
            tier.keep(rows[name], table.slots, table.batch_rows_max)
            missed[name] = tier.missed(rows[name])
        self._missed[index] = missed

    async def _inspect(self, epoch: Epoch, number: int) -> Superbatch:
        """See `AheadFeed._inspect`; the first batch must not wait for samples of later ones."""
        if number:
            await self._begun.wait()
        return await super()._inspect(epoch, number)

    async def _copy_all(self, epoch: Epoch) -> None:
        """Have the rows of superbatch after superbatch copied."""
        while True:
            superbatch = await self._sampled.get()
            indices = range(superbatch.first, superbatch.end)
            missed = {index: self._missed.pop(index) for index in indices if index in self._missed}
            if superbatch.first > epoch.inputs.first:
                await self._copy(epoch, missed)
            await self._ready.put(superbatch)
            if superbatch.last:
                return

    async def _copy(self, epoch: Epoch, missed: Mapping[int, Mapping[str, Deltas]]) -> None:
        for name, (table, tier) in self._tables.items():
            deltas = {index: each[name] for index, each in missed.items()}
            counts = [count for _, count in deltas.values()]
            if name in self._damaged or not self._source.pays(table, counts):
                self._left_out.add(name)
                continue
            try:
                await tier.copy(epoch.workers.run, deltas)
                self._left_out.discard(name)
            except (GNNDriveError, MemoryError, RuntimeWarning) as error:
                self._left_out.add(name)
                if not tier.full:  # else there may be room for fewer batches
                    self._damaged.add(name)
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        with suppress(RuntimeWarning):  # if the user makes warnings errors, the epoch goes on
            warnings.warn(
                "batches are read from the table, which takes longer, because their rows cannot be "
                f"copied ahead: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    async def _replay(self, epoch: Epoch, superbatch: Superbatch, index: int) -> None:
        for name, (table, tier) in self._tables.items():
            assert tier.threshold is not None
            table.keep_from(tier.threshold if tier.keeps and name not in self._left_out else 0)
            tier.expect(index)
        await super()._replay(epoch, superbatch, index)
