"""`Buffers`: where a runtime's epochs get their feature buffers from; `BufferPool` makes them.

`HostBuffers` (`sharing.py`) lends the one that the host service has for all ranks; a scheme may
bring what stands in their place. `Runtime` calls them in the loop thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gnndrive.buffer.devices.base import Device, SlotMemory
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.fetch_queue import Copies
from gnndrive.buffer.items import LEASE_BYTES_STAGED
from gnndrive.buffer.place_table import PlaceTable
from gnndrive.buffer.policies.base import Policy, PolicyContext
from gnndrive.buffer.row_table import RowTable
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout
from gnndrive.disk.tiers import make_chain
from gnndrive.disk.tiers.base import EvictedRows, Tier, TierContext
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.epoch import BatchBuffer
from gnndrive.plan.plan import TablePlan
from gnndrive.plan.slots import second_buffer
from gnndrive.store.reader import Store

AHEAD_ROWS = 1 << 17  # at most so many are read at once before a batch needs them


class Buffers:
    """Lends each running epoch a feature buffer; here without any to wait for or to free. `facts`
    is what `stats()` says of them beside counters: "engine", what reads the rows."""

    settings: RuntimeSettings
    facts: Mapping[str, float | str]

    def take(self) -> BatchBuffer:
        """Lend an epoch a buffer; ConfigError if there is none."""
        raise NotImplementedError

    def give(self, buffer: BatchBuffer) -> None:
        """Take a buffer back from an epoch that has ended."""

    async def grow(self) -> None:
        """After a warm-up, use all memory of the device that training leaves."""

    async def replace_plan(self, settings: RuntimeSettings) -> None:
        """Have the next `take` lend a buffer by other settings; none may be lent."""
        self.settings = settings

    def stats(self) -> Counter[str]:
        """Counters since the start."""
        raise NotImplementedError

    async def late_reason(self) -> str:
        """Why a batch may be late, as far as it is known; "": it is made slowly."""
        return ""

    async def unneeded(self) -> None:
        """Wait until the other ranks need no rows of the buffers, which will be closed."""

    def retire(self) -> None:
        """Stop admitting batches to the buffers that are lent, because they will be closed."""

    async def drain(self) -> None:
        """Wait until no read into a buffer is under way."""

    async def closed(self) -> None:
        """Wait until the buffers that were given back and are not kept are freed."""

    async def close_tiers(self) -> None:
        """After `drain`, and before engine and layouts are closed: free what the tiers hold."""

    async def close(self) -> None:
        """Free the buffers, none of which may be lent."""


class BufferPool(Buffers):
    """Makes feature buffers, lends them to epochs, and closes them. One is kept, with its rows, for
    the only live iterator, epoch after epoch. A second live iterator gets a buffer of its own,
    because two in one user's thread must never wait for each other's slots (rule 12)."""

    def __init__(
        self, settings: RuntimeSettings, store: Store, layouts: Mapping[str, Layout],
        engine: Engine, device: Device, empty: Allocate, copies: Copies | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.facts = settings, {"engine": engine.name}
        self._store, self._copies = store, copies
        self._layouts, self._engine, self._device, self._empty = layouts, engine, device, empty
        self._kept: FeatureBuffer | None = None
        self._free_bytes = device.watch() if settings.after_warm_up is not None else lambda: 0
        self._lent: list[FeatureBuffer] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._closed_stats: Counter[str] = Counter()  # the sum over closed buffers

    def take(self) -> FeatureBuffer:
        """The kept buffer, or another if that is lent; ConfigError if the device has no memory for
        it, or the other does not fit into memory= or device_memory=."""
        if self._kept is None:
            self._kept = self._make(self.settings.plan.tables)
        buffer = self._kept
        if buffer in self._lent:
            others = len(self._lent) - 1
            free = partial(self._device.free_bytes, self.settings.request.device[1])
            buffer = self._make(second_buffer(self.settings.plan, others, free))
        assert not buffer.retired
        buffer.begin_residents()
        self._lent.append(buffer)
        return buffer

    def give(self, buffer: BatchBuffer) -> None:
        """See `Buffers.give`; `closed` waits until the buffer is freed if it is not kept."""
        assert isinstance(buffer, FeatureBuffer), "this pool lends no others"
        self._lent.remove(buffer)
        if buffer is not self._kept:
            self._close_buffer(buffer)

    async def grow(self) -> None:
        """After a warm-up, replace the kept buffer by one that uses all memory of the device that
        training leaves, if that one is larger or has a host level, which that of a warm-up lacks.
        Does nothing while a buffer is lent."""
        settings, old = self.settings, self.settings.plan
        await self.drain()
        if settings.after_warm_up is None or self._lent or self._kept is None:
            return
        self.settings = replace(settings, after_warm_up=None)
        free_bytes = self._free_bytes()
        while free_bytes:
            larger = settings.after_warm_up(old.device_bytes + free_bytes)
            larger = replace(larger, classes=settings.classes)
            if larger.plan.slots <= old.slots:
                break
            await self.close()
            self.settings = larger
            try:
                self._kept = self._make(larger.plan.tables)
                return
            except ConfigError:  # the memory is fragmented, or another process has taken it
                free_bytes = free_bytes * 9 // 10
        self.settings = replace(settings, after_warm_up=None)
        if any(table.evicted or table.kept for table in old.tables):
            await self.close()  # the next one has the same slots, and a host level below them

    async def replace_plan(self, settings: RuntimeSettings) -> None:
        """See `Buffers.replace_plan`."""
        await self.close()
        self.settings = settings

    def stats(self) -> Counter[str]:
        """The slot tables' counters, summed over all buffers since the start."""
        stats = Counter(self._closed_stats)
        for buffer in {self._kept, *self._lent}:
            if buffer is not None:
                stats.update(buffer.stats())
        return stats

    def retire(self) -> None:
        """See `FeatureBuffer.retire`."""
        for buffer in self._lent:
            buffer.retire()

    async def drain(self) -> None:
        """Wait until no read into the kept buffer is under way, and others are freed."""
        await self.closed()
        if self._kept is not None:
            await self._kept.drain()

    async def closed(self) -> None:
        """See `Buffers.closed`."""
        if self._closing:
            await asyncio.wait(self._closing)

    async def close_tiers(self) -> None:
        """See `Buffers.close_tiers`."""
        if self._kept is not None:
            await self._kept.close_tiers()

    async def close(self) -> None:
        """Close the kept buffer, which must not be lent."""
        await self.drain()
        assert self._kept not in self._lent, "its memory is in use"
        if self._kept is not None:
            self._kept.verify()
            buffer, self._kept = self._kept, None
            await asyncio.shield(self._close_buffer(buffer))

    def _close_buffer(self, buffer: FeatureBuffer) -> asyncio.Task[None]:
        """Start to free a buffer."""
        self._closed_stats.update(buffer.stats())
        return self._start_closing(buffer.aclose())

    def _start_closing(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what frees memory; `closed` waits for its end."""
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _make(self, plans: Sequence[TablePlan]) -> FeatureBuffer:
        tables: dict[str, RowTable] = {}
        try:
            for plan in plans:
                tables[plan.name] = self._make_table(plan)
        except BaseException:
            for table in tables.values():
                self._start_closing(_close_table(table.tier, table.memory))
            raise
        return FeatureBuffer(tables, buffers=self.settings.plan.buffers, copies=self._copies)

    def _make_table(self, plan: TablePlan) -> RowTable:
        slots = max(plan.slots, 1)  # a slot table has a slot even if no batch needs it
        policy = None
        if self.settings.policy is not None and not plan.places:
            kind: type[Policy] = find("policies", self.settings.policy)
            sizes = plan.rows, slots, self._store, plan.batch_rows_max, self.settings.window
            policy = kind.make(PolicyContext(plan.name, *sizes))
        memory = self._device.allocate(slots, plan.row_bytes)
        evicted: EvictedRows | None = None
        tier: Tier | None = None
        classes, exchange = self.settings.classes.get(plan.name), self.settings.request.exchange
        lowest: Callable[[Tier], Tier] | None = None
        if exchange is not None:
            classes = exchange.classes(plan.name, classes)
            lowest = partial(exchange.tier, plan.name)
        try:
            # Not in a warm-up: pinning and filling gigabytes takes seconds, for a few batches.
            beside = plan.evicted or plan.kept
            if beside and self.settings.after_warm_up is None:
                evicted = memory.evicted(beside)
            # The strategy's chain of tiers, of which this is the highest.
            context = TierContext(
                self._layouts[plan.name], self._engine, None, plan.rows, plan.row_bytes,
                (plan.residents, plan.residents + plan.kept), evicted, plan.name, classes,
            )  # fmt: skip
            scheme, tiers = self.settings.scheme, self.settings.strategy.tiers
            tier = make_chain(tiers, scheme.tier_context(context), lowest)
            if plan.places:
                return PlaceTable(
                    plan.rows, plan.residents, plan.places, plan.place_rows, plan.row_bytes,
                    memory, tier, self._empty,
                )  # fmt: skip
            return SlotTable(
                plan.rows, slots, plan.row_bytes, memory, tier, policy, plan.batch_rows_max,
                self._empty, classes,
                self.settings.foresees(plan.name), self._ahead(plan),
            )  # fmt: skip
        except BaseException:
            if tier is not None:  # it has a thread, perhaps, and the evicted rows
                self._start_closing(_close_table(tier, memory))
                raise
            if evicted is not None:
                evicted.close()
            memory.close()
            raise

    def _ahead(self, table: TablePlan) -> tuple[int, int]:
        """See `SlotTable`; what reading ahead takes is in memory that the plan leaves unused."""
        plan, most = self.settings.plan, AHEAD_ROWS
        if plan.memory is not None:
            unused = (plan.memory - plan.host_bytes) // (plan.buffers * len(plan.tables))
            most = min(max(unused, 0) // LEASE_BYTES_STAGED, most)
        return self._layouts[table.name].ahead_bytes // max(table.row_bytes, 1), most


async def _close_table(tier: Tier, memory: SlotMemory) -> None:
    await tier.aclose()
    memory.close()
