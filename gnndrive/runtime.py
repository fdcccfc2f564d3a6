"""What runs behind a loader: service, engine, adjacency, layouts and buffers, until its close.

The first live iterator uses the loader's feature buffer, which stays warm from epoch to epoch. A
second one at the same time gets a buffer of its own, for two iterators in one user's thread must
never wait for each other's slots (rule 12).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gnndrive._ffi import ffi
from gnndrive.adjacency import Adjacency
from gnndrive.attributes import Attributes
from gnndrive.blocks import Blocks
from gnndrive.books import Table
from gnndrive.budget import Held, second_buffer
from gnndrive.buffer import FeatureBuffer
from gnndrive.devices.base import Device
from gnndrive.engines import choose
from gnndrive.engines.base import Engine
from gnndrive.errors import ClosedError, ConfigError
from gnndrive.layouts.base import Layout
from gnndrive.metrics import Counters
from gnndrive.pipeline.batch import Extracted
from gnndrive.pipeline.conduct import Running, run_epoch
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.handover import References
from gnndrive.pipeline.service import CLOSED, Service, close_anywhere
from gnndrive.pipeline.workers import ThreadWorkers, Workers
from gnndrive.plugins import find
from gnndrive.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.samplers.base import Sampler
from gnndrive.settings import RuntimeSettings

if TYPE_CHECKING:
    from gnndrive.store.reader import Store


class Runtime:
    """Owns what outlives an epoch; made at the first iteration, ended by `close`.

    Args:
        store: what to load from.
        settings: see `RuntimeSettings`.
        workers: where blocking work runs; threads, unless a test wants otherwise.
    """

    def __init__(
        self, store: Store, settings: RuntimeSettings, workers: Workers | None = None
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.started = perf_counter()
        parts = settings.strategy
        assert settings.plan.topology is not None
        self._adjacency = Adjacency(
            store.all_edges(), settings.plan.topology, parts.layout, settings.gap_bytes_max
        )
        self.blocks = Blocks()
        self.attributes = Attributes(
            store,
            {name: self._adjacency.layout(store.table(name)) for name in settings.plan.fetched},
            self._adjacency.read,
        )
        self._layouts: dict[str, Layout] = {}
        self._buffer: FeatureBuffer | None = None
        self._buffer_used = False
        self._secondary = 0  # buffers of further live iterators
        self._retired: Counter[str] = Counter()  # what the books of closed buffers counted
        # Tasks die in the service's thread: in the user's, asyncio would swallow a Ctrl-C.
        self._running: dict[Running, asyncio.Task[None]] = {}
        self._shutting: asyncio.Task[None] | None = None
        self._closing = threading.Lock()
        self._process = os.getpid()
        with contextlib.ExitStack() as undo:
            undo.callback(self._adjacency.close)
            for table in settings.tables:
                layout: Layout = find("layouts", parts.layout)(
                    table.file,
                    extent_bytes_max=settings.engine_settings.block_bytes,
                    gap_bytes_max=settings.gap_bytes_max,
                )
                undo.callback(layout.close)
                self._layouts[table.name] = layout
            kind, where = settings.device
            self.device: Device = find("devices", kind)(self.blocks.empty, where)
            undo.callback(self.device.close)
            if self.warming_up:
                self.device.watch()
            self._workers = workers or ThreadWorkers(
                settings.stages.samplers + 2, settings.worker_init
            )
            undo.callback(self._workers.close)
            self.service = Service()
            undo.callback(self.service.close)
            self.engine: Engine = self.service.call(self._start_engine())
            undo.pop_all()

    def _together(self) -> int:
        """How many samples to draw in a round; while one is drawn the other half of the queue's
        samples are extracted."""
        stages = self.settings.stages
        if not any(topology.fetches for topology in self._adjacency.topologies):
            return 1
        return min(stages.samplers, stages.extracting_queue // 2 + 1)

    async def _start_engine(self) -> Engine:
        kind = choose(self.settings.engine)
        # A sample is three short sweeps, each waiting for the one before; rows are one long one.
        settings = replace(
            self.settings.engine_settings, traffic=ffi.new("int32_t *"), gives_way=True
        )
        engine = kind(settings)
        try:
            self._adjacency.start(kind, settings)
        except BaseException:
            await engine.aclose()
            raise
        return engine

    # ---- epochs ----

    def begin(
        self,
        seeds: Iterator[Seeds],
        seed: int,
        number: int,
        sampler: Sampler,
        rows_of: Callable[[Sample | Subgraph], Mapping[str, Int64Array]],
        collate: Callable[[Extracted], tuple[Any, References]],
        first: int = 0,
    ) -> Running:
        """Start an epoch at batch `first`; its batches come out of the hand-over.

        Raises:
            ConfigError: a second buffer does not fit into memory= or device_memory=, or there is no
                memory for the first.
            ClosedError: the runtime was closed.
        """

        async def start() -> Running:
            await self._make_way()
            epoch = Epoch(
                number=number,
                seed=seed,
                seeds=seeds,
                sampler=sampler,
                topologies=self._adjacency.topologies,
                rows_of=rows_of,
                buffer=self._take_buffer(),
                workers=self._workers,
                collate=collate,
                stages=self.settings.stages,
                counters=self.counters,
                first=first,
                together=self._together(),
            )
            running = Running(epoch)
            task = asyncio.get_running_loop().create_task(run_epoch(epoch))
            self._running[running] = task
            task.add_done_callback(partial(self._ended, running))
            return running

        return self.service.call(start(), unwanted=self.drop)

    async def _make_way(self) -> None:
        """Wait for epochs that nobody wants any more: their buffer will be free at once."""
        if self._shutting is not None:
            raise ClosedError(CLOSED)
        for earlier, task in list(self._running.items()):
            if earlier.epoch.handover.ended:
                await asyncio.wait([task])

    def _stop(self, running: Running, error: Exception | None = None) -> None:
        """In the service's loop: nobody wants more of it; `error` is what whoever asks gets."""
        ending = running.epoch.handover.abandon(error)
        running.epoch.sampler.stop()
        if not ending:  # else its task ends by itself, and winding up must not be cancelled
            self._running[running].cancel()

    def _ended(self, running: Running, task: asyncio.Task[None]) -> None:
        """The epoch's task is over, or was cancelled before its first step."""
        self._running.pop(running, None)
        running.epoch.handover.finish(None)
        try:
            self._give_buffer(running.epoch.buffer)
            if not task.cancelled():
                task.result()  # winding up never fails, or the loop's handler says so
        finally:
            running.ended.set()

    def drop(self, running: Running) -> None:
        """Have an epoch end, without waiting: a finalizer may run in any thread, also in one that
        the epoch's end waits for."""
        if os.getpid() == self._process:  # a forked child has no part in it
            self.service.soon(partial(self._stop, running))

    def end(self, running: Running) -> None:
        """End an epoch, early if need be, and wait until nothing of it is under way."""
        self.drop(running)
        running.ended.wait()

    # ---- feature buffers ----

    @property
    def warming_up(self) -> bool:
        """Whether the buffer is the one to begin with, until it is known what training leaves."""
        settings = self.settings
        return settings.after_warm_up is not None and not settings.plan.holds_everything

    def alone(self, running: Running) -> bool:
        """Whether no other epoch runs."""
        return list(self._running) == [running]

    def grow(self) -> None:
        """Between two epochs: from now on a feature buffer in all that training leaves of the
        device's memory, if that is more than there was.

        Raises:
            ClosedError: the runtime was closed.
        """

        async def renew() -> None:
            settings, old = self.settings, self.settings.plan
            if settings.after_warm_up is None or self._running or self._buffer is None:
                return
            self.settings = replace(settings, after_warm_up=None)
            spare = self.device.spare_bytes() or 0
            while spare:
                larger = settings.after_warm_up(old.device_bytes + spare)
                if larger.plan.slots <= old.slots:
                    break
                await self._close_buffer()
                self.settings = larger
                try:
                    self._buffer = self._make_buffer(larger.plan.tables)
                    return
                except ConfigError:  # in pieces, or somebody else's by now
                    spare //= 2
            self.settings = replace(settings, after_warm_up=None)

        self.service.call(renew())

    async def _close_buffer(self) -> None:
        if self._buffer is None:
            return
        await self._buffer.drain()
        self._buffer.verify()
        buffer, self._buffer = self._buffer, None
        self._retired.update(buffer.stats())
        buffer.close()

    def _take_buffer(self) -> FeatureBuffer:
        if self._buffer is None:
            self._buffer = self._make_buffer(self.settings.plan.tables)
        if not self._buffer_used:
            self._buffer_used = True
            return self._buffer
        free = partial(self.device.free_bytes, self.settings.device[1])
        second = self._make_buffer(second_buffer(self.settings.plan, self._secondary, free))
        self._secondary += 1
        return second

    def _give_buffer(self, buffer: FeatureBuffer) -> None:
        if buffer is self._buffer:
            self._buffer_used = False
        else:
            self._secondary -= 1
            self._retired.update(buffer.stats())
            buffer.close()

    def _make_buffer(self, held: Sequence[Held]) -> FeatureBuffer:
        tables: dict[str, Table] = {}
        try:
            for one in held:
                make = find("tiers", self.settings.strategy.tier)
                tier = make(self._layouts[one.name], self.engine)
                slots = max(one.slots, 1)  # one that no batch needs is there all the same
                memory = self.device.allocate(slots, one.row_bytes)
                tables[one.name] = Table(
                    one.rows, slots, one.row_bytes, memory, tier,
                    find("policies", self.settings.policy)(), one.batch_rows_max, self.blocks.empty,
                )  # fmt: skip
        except BaseException:
            for table in tables.values():
                table.memory.close()
            raise
        return FeatureBuffer(tables)

    # ---- numbers ----

    def stats(self) -> dict[str, float | str]:
        """Counters since the start; see `NeighborLoader.stats`."""
        counters, (engine, topology, books) = self.counters, self._looked_at()
        epochs = [running.epoch for running in list(self._running)]
        return {
            "batches": counters.batches,
            "rows": counters.rows,
            "edges": counters.edges,
            "rows_hit": books["hits"] + books["repeats"],
            "rows_waited": books["waits"],
            "rows_loaded": books["loads"],
            "evictions": books["evictions"],
            "requests": engine["requests"],
            "bytes_read": engine["bytes"],
            "bytes_wanted": counters.bytes_wanted,
            "retries": engine["retries"],
            **topology,
            "samples": counters.samples,
            "sample_s": counters.sample_s,
            "extract_s": counters.extract_s,
            "gather_s": counters.gather_s,
            "wait_s": counters.wait_s,
            "elapsed_s": perf_counter() - self.started,
            "sampling": sum(e.extracting.under_way - len(e.extracting) for e in epochs),
            "extracting": sum(e.training.under_way - len(e.training) for e in epochs),
            "training": sum(len(e.training) for e in epochs),
            "buffer_slots": self.settings.plan.slots,
            "buffer_bytes": self.settings.plan.buffer_bytes,
            "engine": self.engine.name,
        }

    def _looked_at(self) -> tuple[dict[str, int], dict[str, float | str], Counter[str]]:
        """What the features' engine, the adjacency and the books counted: in the loop, where
        buffers come and go."""

        def look() -> tuple[dict[str, int], dict[str, float | str], Counter[str]]:
            books = Counter(self._retired)
            for buffer in {self._buffer, *(running.epoch.buffer for running in self._running)}:
                if buffer is not None:
                    books.update(buffer.stats())
            return self.engine.stats(), self._adjacency.stats(), books

        async def ask() -> tuple[dict[str, int], dict[str, float | str], Counter[str]]:
            return look()

        if not self.service.inside:  # as a user's sampler that asks is
            with contextlib.suppress(ClosedError):
                return self.service.call(ask())
        return look()

    # ---- the end ----

    def close(self) -> None:
        """End all epochs, wait for the kernel, free everything; idempotent (rule 13)."""
        with self._closing:
            try:
                self.service.call(self._shut())
            except ClosedError:
                return
            except Exception:
                self._end_threads()
                raise
            self._end_threads()  # not when interrupted: the next close waits for the same end

    def close_anywhere(self) -> None:
        """`close` for a finalizer."""
        close_anywhere(self.close, self._process)

    async def _shut(self) -> None:
        # A task of its own, so that a close that was interrupted and called again waits for the
        # same one.
        if self._shutting is None:
            self._shutting = asyncio.get_running_loop().create_task(self._free())
        await asyncio.shield(self._shutting)

    async def _free(self) -> None:
        for running in list(self._running):
            self._stop(running, ClosedError("the loader was closed in the middle of this epoch"))
        while self._running:
            await asyncio.wait(self._running.values())
        try:
            if self._buffer is not None:
                await self._buffer.drain()
            await self.engine.aclose()
            await self._close_buffer()
        finally:
            for layout in self._layouts.values():
                layout.close()
            self.blocks.close()
            self.attributes.close()
            try:
                self._adjacency.close()
            finally:
                self.device.close()

    def _end_threads(self) -> None:
        self.service.close()
        self._workers.close()
