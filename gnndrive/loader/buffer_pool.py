"""The feature buffers behind a loader: one that stays warm, and more for more iterators at once.

The first live iterator uses the warm one, epoch after epoch. A second one at the same time gets a
buffer of its own, for two iterators in one user's thread must never wait for each other's slots
(rule 12). All of it runs in the service's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.base import Policy, PolicyContext
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout
from gnndrive.disk.tiers.base import Tier, TierContext
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.plan.plan import TablePlan, second_buffer
from gnndrive.store.reader import Store


class BufferPool:
    """Makes feature buffers, lends them to epochs and ends them.

    Args:
        settings: what to make them by.
        store: whose tables.
        layouts: of the tables, by name.
        engine: reads rows.
        device: where slots are.
        empty: where the books' short-lived arrays get their memory from.

    Attributes:
        settings: others once the warm buffer has grown.
    """

    def __init__(
        self, settings: RuntimeSettings, store: Store, layouts: Mapping[str, Layout],
        engine: Engine, device: Device, empty: Allocate,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._store = store
        self._layouts, self._engine, self._device, self._empty = layouts, engine, device, empty
        self._warm: FeatureBuffer | None = None
        self._spare = device.watch() if settings.after_warm_up is not None else lambda: 0
        self._lent: list[FeatureBuffer] = []
        self._ended: Counter[str] = Counter()  # what the books of closed buffers counted

    def take(self) -> FeatureBuffer:
        """A buffer for an epoch: the warm one, if nobody has it.

        Raises:
            ConfigError: a second one does not fit into memory= or device_memory=, or there is no
                memory for the first.
        """
        if self._warm is None:
            self._warm = self._make(self.settings.plan.tables)
        buffer = self._warm
        if buffer in self._lent:
            further = len(self._lent) - 1
            free = partial(self._device.free_bytes, self.settings.device[1])
            buffer = self._make(second_buffer(self.settings.plan, further, free))
        assert not buffer.retired
        self._lent.append(buffer)
        return buffer

    def give(self, buffer: FeatureBuffer) -> None:
        """Take a buffer back from its epoch; nothing of that may be under way."""
        self._lent.remove(buffer)
        if buffer is not self._warm:
            self._end(buffer)

    async def grow(self) -> None:
        """Between two epochs: from now on a warm buffer in all that training leaves of the device's
        memory, if that is more than there was."""
        settings, old = self.settings, self.settings.plan
        if settings.after_warm_up is None or self._lent or self._warm is None:
            return
        self.settings = replace(settings, after_warm_up=None)
        spare = self._spare()
        while spare:
            larger = settings.after_warm_up(old.device_bytes + spare)
            if larger.plan.slots <= old.slots:
                break
            await self.close()
            self.settings = larger
            try:
                self._warm = self._make(larger.plan.tables)
                return
            except ConfigError:  # in pieces, or somebody else's by now
                spare //= 2
        self.settings = replace(settings, after_warm_up=None)

    def stats(self) -> Counter[str]:
        """What the books of all buffers counted together since the start."""
        counted = Counter(self._ended)
        for buffer in {self._warm, *self._lent}:
            if buffer is not None:
                counted.update(buffer.stats())
        return counted

    def retire(self) -> None:
        """No batch will come but those that are there, see `FeatureBuffer.retire`."""
        for buffer in self._lent:
            buffer.retire()

    async def drain(self) -> None:
        """Wait until no read into the warm buffer is under way."""
        if self._warm is not None:
            await self._warm.drain()

    async def close(self) -> None:
        """End the warm buffer, which nobody may have."""
        await self.drain()
        if self._warm is not None:
            self._warm.verify()
            buffer, self._warm = self._warm, None
            self._end(buffer)

    def _end(self, buffer: FeatureBuffer) -> None:
        self._ended.update(buffer.stats())
        buffer.close()

    def _make(self, held: Sequence[TablePlan]) -> FeatureBuffer:
        tables: dict[str, SlotTable] = {}
        try:
            for one in held:
                slots = max(one.slots, 1)  # a table that no batch needs has one all the same
                policy = None
                if self.settings.policy is not None:
                    kind: type[Policy] = find("policies", self.settings.policy)
                    policy = kind.make(PolicyContext(one.name, one.rows, slots, self._store))
                memory = self._device.allocate(slots, one.row_bytes)
                tables[one.name] = SlotTable(
                    one.rows, slots, one.row_bytes, memory, self._tier(one), policy,
                    one.batch_rows_max, self._empty,
                )  # fmt: skip
        except BaseException:
            for table in tables.values():
                table.memory.close()
            raise
        return FeatureBuffer(tables)

    def _tier(self, one: TablePlan) -> Tier:
        """The highest tier of the strategy's chain, over all below it."""
        below: Tier | None = None
        for part in reversed(self.settings.strategy.tiers):
            kind: type[Tier] = find("tiers", part)
            layout = self._layouts[one.name]
            below = kind.make(TierContext(layout, self._engine, below, one.rows, one.row_bytes))
        assert below is not None, "a strategy has a tier"
        return below
