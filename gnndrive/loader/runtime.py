"""What runs behind a loader: service, engine, adjacency, layouts and buffers, until its close."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from time import perf_counter

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.array_pool import ArrayPool
from gnndrive.common.errors import ClosedError
from gnndrive.common.ffi import ffi
from gnndrive.common.loop_thread import CLOSED, LoopThread, close_from_finalizer
from gnndrive.common.plugins import find
from gnndrive.disk.engines import choose
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.counters import Counters
from gnndrive.pipeline.epoch import Epoch, EpochInputs
from gnndrive.pipeline.run import EpochRun, run_epoch
from gnndrive.pipeline.workers import ThreadWorkers, Workers
from gnndrive.pyg.attributes import Attributes
from gnndrive.sampling.graph import Adjacency
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
        self.counters = Counters()
        self.started = perf_counter()
        assert settings.plan.topology is not None
        self._adjacency = Adjacency(
            store.all_edges(), settings.plan.topology, settings.gap_bytes_max
        )
        self.array_pool = ArrayPool()
        self.attributes = Attributes(
            store,
            {name: self._adjacency.layout(store.table(name)) for name in settings.plan.fetched},
            self._adjacency.read,
        )
        self._layouts: dict[str, Layout] = {}
        # Tasks die in the service's thread: in the user's, asyncio would swallow a Ctrl-C.
        self._running: dict[EpochRun, asyncio.Task[None]] = {}
        self._shutting: asyncio.Task[None] | None = None
        self._closing = threading.Lock()
        self._process = os.getpid()
        with contextlib.ExitStack() as undo:
            undo.callback(self._adjacency.close)
            for table in settings.tables:
                kind: type[Layout] = find("layouts", settings.strategy.layout)
                layout = kind.make(
                    LayoutContext(
                        table.file,
                        settings.engine_settings.block_bytes,
                        settings.gap_bytes_max,
                        store=store,
                    )
                )
                undo.callback(layout.close)
                self._layouts[table.name] = layout
            plugin, where = settings.device
            of_device: type[Device] = find("devices", plugin)
            self.device = of_device.make(DeviceContext(self.array_pool.empty, where))
            undo.callback(self.device.close)
            self._workers = workers or ThreadWorkers(
                settings.stages.samplers + 2, settings.worker_init
            )
            undo.callback(self._workers.close)
            self.loop_thread = LoopThread()
            undo.callback(self.loop_thread.close)
            self.engine: Engine = self.loop_thread.call(self._start_engine(settings))
            self._buffers = BufferPool(
                settings, store, self._layouts, self.engine, self.device, self.array_pool.empty
            )
            undo.pop_all()

    def _together(self) -> int:
        """How many samples to draw in a round; while one is drawn the other half of the queue's
        samples are extracted."""
        stages = self.settings.stages
        if not any(topology.fetches for topology in self._adjacency.topologies):
            return 1
        return min(stages.samplers, stages.extracting_queue // 2 + 1)

    async def _start_engine(self, settings: RuntimeSettings) -> Engine:
        kind = choose(settings.engine)
        # A sample is three short sweeps, each waiting for the one before; rows are one long one.
        own = replace(settings.engine_settings, traffic=ffi.new("int32_t *"), gives_way=True)
        engine = kind.make(own)
        try:
            self._adjacency.start(kind, own)
        except BaseException:
            await engine.aclose()
            raise
        return engine

    # ---- epochs ----

    def begin(self, inputs: EpochInputs) -> EpochRun:
        """Start an epoch; its batches come out of its output queue.

        Raises:
            ConfigError: a second buffer does not fit into memory= or device_memory=, or there is no
                memory for the first.
            ClosedError: the runtime was closed.
        """

        async def start() -> EpochRun:
            await self._make_way()
            epoch = Epoch(
                inputs,
                self._adjacency.topologies,
                self._buffers.take(),
                self._workers,
                self.settings.stages,
                self.counters,
                self._together(),
            )
            running = EpochRun(epoch)
            task = asyncio.get_running_loop().create_task(run_epoch(epoch))
            self._running[running] = task
            task.add_done_callback(partial(self._ended, running))
            return running

        return self.loop_thread.call(start(), discard=self.drop)

    async def _make_way(self) -> None:
        """Wait for epochs that nobody wants any more: their buffer will be free at once."""
        for earlier, task in list(self._running.items()):
            if earlier.epoch.output.ended:
                await asyncio.wait([task])
        if self._shutting is not None:  # perhaps meanwhile: its buffer admits nobody
            raise ClosedError(CLOSED)

    def _stop(self, running: EpochRun, error: Exception | None = None) -> None:
        """In the service's loop: nobody wants more of it; `error` is what whoever asks gets."""
        ending = running.epoch.output.abandon(error)
        running.epoch.inputs.sampler.stop()
        if not ending:  # else its task ends by itself, and winding up must not be cancelled
            self._running[running].cancel()

    def _ended(self, running: EpochRun, task: asyncio.Task[None]) -> None:
        """The epoch's task is over, or was cancelled before its first step."""
        self._running.pop(running, None)
        running.epoch.output.finish(None)
        try:
            self._buffers.give(running.epoch.buffer)
            if not task.cancelled():
                task.result()  # winding up never fails, or the loop's handler says so
        finally:
            running.ended.set()

    def drop(self, running: EpochRun) -> None:
        """Have an epoch end, without waiting: a finalizer may run in any thread, also in one that
        the epoch's end waits for."""
        if os.getpid() == self._process:  # a forked child has no part in it
            self.loop_thread.call_soon(partial(self._stop, running))

    def end(self, running: EpochRun) -> None:
        """End an epoch, early if need be, and wait until nothing of it is under way."""
        self.drop(running)
        running.ended.wait()

    @property
    def settings(self) -> RuntimeSettings:
        """What it is made of by now: others after a warm-up."""
        return self._buffers.settings

    @property
    def warming_up(self) -> bool:
        """Whether the buffer is the one to begin with, until it is known what training leaves."""
        settings = self.settings
        return settings.after_warm_up is not None and not settings.plan.holds_everything

    def alone(self, running: EpochRun) -> bool:
        """Whether no other epoch runs."""
        return list(self._running) == [running]

    def grow(self) -> None:
        """Between two epochs, see `BufferPool.grow`.

        Raises:
            ClosedError: the runtime was closed.
        """
        self.loop_thread.call(self._buffers.grow())

    # ---- numbers ----

    def stats(self) -> dict[str, float | str]:
        """Counters since the start; see `NeighborLoader.stats`."""
        counters, (engine, topology, slots) = self.counters, self._looked_at()
        epochs = [running.epoch for running in list(self._running)]
        return {
            "batches": counters.batches,
            "rows": counters.rows,
            "edges": counters.edges,
            "rows_hit": slots["hits"] + slots["repeats"],
            "rows_waited": slots["waits"],
            "rows_loaded": slots["loads"],
            "evictions": slots["evictions"],
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
            return self.engine.stats(), self._adjacency.stats(), self._buffers.stats()

        async def ask() -> tuple[dict[str, int], dict[str, float | str], Counter[str]]:
            return look()

        if not self.loop_thread.inside:  # as a user's sampler that asks is
            with contextlib.suppress(ClosedError):
                return self.loop_thread.call(ask())
        return look()

    # ---- the end ----

    def close(self) -> None:
        """End all epochs, wait for the kernel, free everything; idempotent (rule 13)."""
        with self._closing:
            try:
                self.loop_thread.call(self._shut())
            except ClosedError:
                return
            except Exception:
                self._end_threads()
                raise
            self._end_threads()  # not when interrupted: the next close waits for the same end

    def close_from_finalizer(self) -> None:
        """`close` for a finalizer."""
        close_from_finalizer(self.close, self._process)

    async def _shut(self) -> None:
        # A task of its own, so that a close that was interrupted and called again waits for the
        # same one.
        if self._shutting is None:
            self._shutting = asyncio.get_running_loop().create_task(self._free())
        await asyncio.shield(self._shutting)

    async def _free(self) -> None:
        self._buffers.retire()
        for running in list(self._running):
            self._stop(running, ClosedError("the loader was closed in the middle of this epoch"))
        while self._running:
            await asyncio.wait(self._running.values())
        try:
            await self._buffers.drain()
            await self.engine.aclose()
            await self._buffers.close()
        finally:
            for layout in self._layouts.values():
                layout.close()
            self.array_pool.close()
            self.attributes.close()
            try:
                self._adjacency.close()
            finally:
                self.device.close()

    def _end_threads(self) -> None:
        self.loop_thread.close()
        self._workers.close()
