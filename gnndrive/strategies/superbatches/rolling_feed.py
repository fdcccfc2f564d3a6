"""`RollingFeed`: superbatches whose rows are copied before they are replayed.

Three superbatches are alive: one is sampled and recorded, the rows of the one before are copied in
one pass (`disk/tiers/rolled.py`), and the one before that is replayed. The first superbatch of an
epoch is replayed at once, without copies. So is each batch whose copies failed or found no room:
its rows come from the table, and nothing else is different. A batch that comes again
(`Seeds.again`) keeps its copies; if it has none, the next pass makes them.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.row_table import RowTable
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.records import Sample, Seeds, Subgraph
from gnndrive.disk.distribution import Deltas
from gnndrive.disk.tiers.rolled import Rolled
from gnndrive.pipeline.epoch import Epoch
from gnndrive.sampling.schedules.base import Window
from gnndrive.strategies.superbatches.feed import AheadFeed, Source, Superbatch

ALIVE = 3


class RollingSource(Source, Protocol):
    """What the feed asks of `strategies.rolling.LoaderRolling`, or of a simulated one."""

    def pays(self, table: RowTable, counts: Sequence[int], uses: Sequence[int]) -> bool:
        """Whether it pays to copy the rows of batches that miss so many rows of a table, and are
        loaded so often."""


class RollingFeed(AheadFeed):
    """See the module and `epoch.Feed`."""

    _source: RollingSource

    def __init__(self, source: RollingSource) -> None:
        super().__init__(source, ALIVE)
        self._sampled = asyncio.Queue(1)
        self._tables: dict[str, tuple[SlotTable, Rolled]] = {}  # whose rows are copied
        self._drawn: dict[int, tuple[int, int]] = {}  # index → number, how often it comes again
        self._missed: dict[int, Mapping[str, Deltas]] = {}  # by number
        self._uses: dict[int, int] = {}  # number → how often a batch is loaded yet
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

    def drawn(self, window: Window, seeds: Seeds) -> None:
        """See `Feed.drawn`."""
        self._drawn[seeds.index] = seeds.number, seeds.again

    def released(self, index: int) -> None:
        """See `Feed.released`."""
        self._begun.set()
        self._drawn.pop(index, None)
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

    def note(self, epoch: Epoch, seeds: Seeds, sample: Sample | Subgraph) -> None:
        """See `AheadFeed.note`: which rows the batch will miss."""
        rows, missed = epoch.inputs.assembly.rows_of(sample), dict[str, Deltas]()
        for name, (table, tier) in self._tables.items():
            tier.keep(rows[name], table.slots, table.batch_rows_max)
            missed[name] = tier.missed(rows[name])
        self._missed[seeds.number] = missed

    async def _inspect(self, epoch: Epoch, number: int) -> Superbatch:
        """See `AheadFeed._inspect`; the first batch must not wait for samples of later ones."""
        if number:
            await self._begun.wait()
        return await super()._inspect(epoch, number)

    async def _copy_all(self, epoch: Epoch) -> None:
        """Have the rows of superbatch after superbatch copied."""
        while True:
            superbatch = await self._sampled.get()
            drawn = [self._drawn[index] for index in range(superbatch.first, superbatch.end)]
            self._uses |= {number: again + 1 for number, again in reversed(drawn)}
            if superbatch.first > epoch.inputs.first:
                await self._copy(epoch, superbatch.first, [number for number, _ in drawn])
            for number, again in drawn:
                self._uses[number] = again
                if not again:
                    del self._uses[number]
                    self._missed.pop(number, None)
            await self._ready.put(superbatch)
            if superbatch.last:
                return

    async def _copy(self, epoch: Epoch, first: int, numbers: Collection[int]) -> None:
        """Copy the rows of batches, those of a superbatch from index `first` on among them."""
        for name, (table, tier) in self._tables.items():
            deltas = {n: self._missed[n][name] for n in self._uses if n in self._missed}
            lacking = [number for number in deltas if not tier.has(number)]
            counts = [deltas[number][1] for number in lacking]
            uses = [self._uses[number] for number in lacking]
            if name not in self._damaged and self._source.pays(table, counts, uses):
                try:
                    await tier.copy(epoch.workers.run, deltas, first, self._uses)
                except (GNNDriveError, MemoryError, RuntimeWarning) as error:
                    if not tier.full:  # else there may be room for fewer batches
                        self._damaged.add(name)
                    self._warn(error)
            if any(map(tier.has, numbers)):
                self._left_out.discard(name)
            else:
                self._left_out.add(name)

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
            tier.expect(index, self._drawn[index][0])
        await super()._replay(epoch, superbatch, index)
