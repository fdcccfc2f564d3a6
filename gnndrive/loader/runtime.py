"""`Runtime`: what runs behind a loader, from its first iteration until it is closed.

`StoreLoader` makes one from `RuntimeSettings`. It owns the loop thread, the worker threads, the
engine, the adjacency, the layouts, the device and the feature buffers. `BatchIterator` starts and
ends epochs in it; each epoch is a task in the loop thread (`pipeline/run.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import cast

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policy_classes import policy_classes
from gnndrive.common.array_pool import ArrayPool
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.host_memory import claim, release
from gnndrive.common.interrupts import interruptible
from gnndrive.common.loop_thread import CLOSED, INSIDE, LoopThread
from gnndrive.common.memory import return_free_memory
from gnndrive.common.plugins import find
from gnndrive.common.records import Seeds
from gnndrive.disk.engines import choose, make_engine
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.loader.buffer_pool import BufferPool, Buffers
from gnndrive.loader.exchanging import ExchangeBuffers, Exchanging
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.sharing import HostService
from gnndrive.loader.tracing import TraceCounters
from gnndrive.pipeline.batch_times import EpochTimes, wait_seconds
from gnndrive.pipeline.epoch import Counters, Epoch, EpochInputs, NoBuffer
from gnndrive.pipeline.run import run_epoch
from gnndrive.pipeline.timeline import Timeline
from gnndrive.pipeline.workers import ThreadWorkers
from gnndrive.pyg.attributes import Attributes
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.store.reader import Store

LARGER = (
    "a batch is larger than the plan counts, and another iterator of this loader is running, so "
    "the plan cannot change: close the other iterator, or begin the epoch again, which counts "
    "batches of this size from its start"
)
APART = (
    "with phases='apart' batches are sampled in the feature buffer's place, and another iterator "
    "of this loader is running: close the other iterator, or give phases='overlapped', without "
    "paper=True"
)


class Runtime:
    """Owns everything that outlives an epoch, `host` and `timeline` too; `close` frees it. Make it
    within `deferred_interrupts`, until something owns it.

    Attributes:
        attributes: reads the attributes that no table of the feature buffer holds.
        larger_batch: the seeds, the sampler's key and the size (None: unknown) of a batch that is
            larger than planned, for which the plan could not change yet; None: there is none.
        engine: reads the rows of the tables; None: the host service does, or what the scheme has in
            place of feature buffers.
    """

    def __init__(
        self, store: Store, settings: RuntimeSettings, host: HostService | None = None,
        exchanging: Exchanging | None = None, timeline: Timeline | None = None,
    ) -> None:  # fmt: skip
        self.counters = Counters()
        self.started = perf_counter()
        self.array_pool = ArrayPool()
        self.larger_batch: tuple[Seeds, int, Bounds | None] | None = None
        # Only the loop thread drops tasks: in the user's thread, asyncio could lose a Ctrl-C.
        self._tasks: dict[Epoch, asyncio.Task[None]] = {}
        self._freeing: asyncio.Task[None] | None = None
        self._host, self._in_service = host, host is not None and host.has_buffer
        self._exchanging = exchanging
        self.shares_buffer = self._in_service or exchanging is not None
        self._closing, self._ended = threading.Lock(), False
        self._change_ended: asyncio.Event | None = None  # of the last change of the plan
        self.timeline, self._trace_counters = timeline, None
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            if timeline is not None:
                undo.callback(timeline.close)
            if host is not None:
                undo.callback(host.close)
            if exchanging is not None:
                undo.callback(exchanging.close)
            with interruptible():
                settings = self._with_classes(settings)
            with store.unchanged():
                undo.callback(self._files.close)
                self._open_files(store, settings)
            plugin, where = settings.request.device
            kind: type[Device] = find("devices", plugin)
            self.device = kind.make(DeviceContext(self.array_pool.empty, where))
            undo.callback(self.device.close)
            self._workers = ThreadWorkers(settings.stages.samplers + 2, settings.worker_init)
            undo.callback(self._workers.close)
            self.loop_thread = LoopThread()
            undo.callback(self.loop_thread.close)
            # Its own threads, and one that changes the plan: see `check_caller`.
            self._refused = {self.loop_thread.thread, *self._workers.threads}
            self.engine: Engine | None = None
            self._buffers = self.loop_thread.call(self._start_buffers(store, settings))
            if timeline is not None:
                self._trace_counters = TraceCounters(timeline, self.engine, self._epochs)
            undo.pop_all()
        # Until it is closed, other loaders of this process count what this one will use.
        self._claim = claim(settings.plan.total_bytes)

    def _with_classes(self, settings: RuntimeSettings) -> RuntimeSettings:
        """The settings with the classes of the rows that the policy ranks; tables of edges, and
        those whose rows all fit, have none. The first time for a store this reads its graph: not in
        the event loop, and before the feature buffer is made, for the memory that it takes."""
        if self._in_service or not settings.scheme.whole_graph:  # the service ranks its rows
            return replace(settings, classes={})
        request = settings.request
        short = {table.name for table in settings.plan.tables if table.slots < table.rows}
        leaving = [table for table in request.tables if table.name in short]
        return replace(settings, classes=policy_classes(settings.policy, request.store, leaving))

    def _open_files(self, store: Store, settings: RuntimeSettings) -> None:
        """Open the adjacency, the attributes that no table holds, and the layouts of the tables,
        unless the service or what the scheme has in place of feature buffers reads their rows."""
        scheme, plan, request = settings.scheme, settings.plan, settings.request
        graph, gap_bytes = None if self._host is None else self._host.graph, request.disk.gap_bytes
        edges = store.all_edges() if scheme.whole_graph else ()
        indices = {} if graph is None else graph.indices
        self.adjacency = Adjacency(edges, plan.topology, gap_bytes, indices)
        self._files.callback(self.adjacency.close)
        self._fetches = any(topology.fetches for topology in self.adjacency.topologies)
        fetched = {name: self.adjacency.layout(store.table(name)) for name in plan.fetched}
        self.attributes = Attributes(store, fetched, self.adjacency.read)
        self._files.callback(self.attributes.close)
        self._layouts: dict[str, Layout] = {}
        self._stripes = request.stripes
        if self._in_service or scheme.buffers is not None:
            return
        kind: type[Layout] = find("layouts", settings.strategy.layout)
        block_bytes, source = settings.engine_settings.block_bytes, scheme.source
        tables = {} if self._stripes is None else self._stripes.tables
        with contextlib.nullcontext() if source is None else source.unchanged():
            for table in request.tables:
                derived = None if source is None else source.file(table.name)
                context = LayoutContext(
                    table.file, block_bytes, gap_bytes, store=store, derived=derived,
                    stripes=tables.get(table.name),
                )  # fmt: skip
                layout = kind.make(context)
                self._layouts[table.name] = layout
                self._files.callback(layout.close)

    async def _start_buffers(self, store: Store, settings: RuntimeSettings) -> Buffers:
        """Start the engines of the rows and of the adjacency, and make the feature buffers."""
        kind, empty, scheme = choose(settings.engine), self.array_pool.empty, settings.scheme
        # Adjacency reads go first: a sample needs several short reads, a batch one long one.
        own = replace(settings.engine_settings, traffic=ffi.new("int32_t *"), gives_way=True)
        self.adjacency.start(kind, own)
        if self._host is not None and self._in_service:
            return await self._host.buffers(settings, empty)
        if scheme.buffers is not None:
            buffers: Buffers = scheme.buffers(settings, empty)
            return buffers
        folders = () if self._stripes is None else self._stripes.folders
        engine = make_engine(kind, own, store.path, folders)
        try:
            pool = BufferPool(
                settings, store, self._layouts, engine, self.device, empty, self.timeline
            )
            if self._exchanging is not None:
                self.engine = engine
                return self._exchanging.buffers(pool, self.device, empty)
        except BaseException:
            await engine.aclose()
            raise
        self.engine = engine
        return pool

    def open_slots(self) -> None:
        """See `Exchanging.open_slots`."""
        if self._exchanging is not None:
            buffers = cast(ExchangeBuffers, self._buffers)
            self._exchanging.open_slots(buffers, self.loop_thread.call)

    def check_caller(self) -> None:
        """Raise ConfigError in a thread that would wait for one that waits for it, or does not
        exist: in a forked child, in this runtime's own threads, in one that changes the plan."""
        self.loop_thread.guard.check()
        if threading.current_thread() in self._refused:
            raise ConfigError(INSIDE)

    # ---- epochs ----

    def begin(self, inputs: EpochInputs, times: EpochTimes, own: Callable[[Epoch], object]) -> None:
        """Start an epoch, or a part of it. `own`, which sees to it that the epoch ends, gets it in
        the loop thread as it begins, also if Ctrl-C interrupts the calling thread meanwhile."""
        self.check_caller()

        async def start() -> None:
            await self._idle()
            buffer = self._buffers.take() if inputs.feed.extracts else NoBuffer()
            stages, together = self.settings.stages, 1
            if self._fetches:
                # About half of the extracting queue, so that the other half is extracted meanwhile.
                together = min(stages.samplers, stages.extracting_queue // 2 + 1)
                stages = replace(stages, group=1)  # each group would wait for the disk by itself
            if isinstance(buffer, FeatureBuffer):
                fits = [
                    table.slots // max(table.batch_rows_max, 1)
                    for table in buffer.tables.values()
                    if table.slots < table.rows
                ]  # a second iterator's buffer has room for one batch
                stages = replace(stages, group=max(min([stages.group, *fits]), 1))
            epoch = Epoch(
                inputs, self.adjacency.topologies, buffer, self._workers, stages, self.counters,
                together, times=times,
            )  # fmt: skip
            task = asyncio.get_running_loop().create_task(run_epoch(epoch))
            self._tasks[epoch] = task
            task.add_done_callback(partial(self._on_end, epoch))
            own(epoch)
            if self._trace_counters is not None:
                self._trace_counters.start()

        self.loop_thread.call(start())

    async def _wait_for_abandoned_epochs(self) -> None:
        """Wait for the end of epochs whose iterators were dropped, so that their buffers are free;
        raises ClosedError if the runtime was closed, perhaps meanwhile."""
        for epoch, task in list(self._tasks.items()):
            if epoch.output.ended:
                await asyncio.wait([task])
        await self._buffers.closed()
        if self._freeing is not None:
            raise ClosedError(CLOSED)

    async def _idle(self) -> bool:
        """Wait until the plan does not change; tells whether no epoch is running."""
        await self._wait_for_abandoned_epochs()
        while self._change_ended is not None and not self._change_ended.is_set():
            await self._settled(self._change_ended)
            await self._wait_for_abandoned_epochs()
        return not self._tasks

    def stop(self, epoch: Epoch, error: Exception | None = None) -> None:
        """In the loop thread: have an epoch end soon; its iterator then raises `error`, if any."""
        ending = epoch.output.abandon(error)
        epoch.inputs.stop()
        if not ending:  # else the task is ending by itself, and must not be cancelled
            self._tasks[epoch].cancel()

    def _on_end(self, epoch: Epoch, task: asyncio.Task[None]) -> None:
        """Called when the epoch's task has ended, or was cancelled before its first step."""
        self._tasks.pop(epoch, None)
        epoch.output.finish(None)
        # What refers to the epoch still, an iterator or a traceback, shall not keep its memory.
        buffer, epoch.buffer = epoch.buffer, NoBuffer()
        if not isinstance(buffer, NoBuffer):
            self._buffers.give(buffer)
        if not task.cancelled():
            task.result()  # if ending the epoch failed, the loop's exception handler reports it

    def drop(self, epoch: Epoch) -> None:
        """Have an epoch end; a finalizer may call this in any thread, as it waits for nothing."""
        if not self.loop_thread.guard.forked:  # in a forked child there is no loop thread
            self.loop_thread.call_soon(partial(self._stop_dropped, epoch))

    def _stop_dropped(self, epoch: Epoch) -> None:
        task = self._tasks.get(epoch)
        self.stop(epoch)
        if task is None:
            epoch.times.end()
        else:  # until then the sample stage may begin batches
            task.add_done_callback(lambda _: epoch.times.end())

    def end(self, epoch: Epoch, error: Exception | None = None) -> None:
        """End an epoch and wait until it has ended; its iterator then raises `error`, if any."""
        self.check_caller()
        with contextlib.suppress(ClosedError):  # the runtime was closed: all epochs have ended
            self.loop_thread.call(self._end(epoch, error))

    async def _end(self, epoch: Epoch, error: Exception | None) -> None:
        self.stop(epoch, error)
        if task := self._tasks.get(epoch):
            await asyncio.wait([task])  # returns after `_on_end`, which is an earlier callback

    @property
    def settings(self) -> RuntimeSettings:
        """The settings in use; others than at the start after a warm-up."""
        return self._buffers.settings

    @property
    def warming_up(self) -> bool:
        """Whether the feature buffer is the small one of a warm-up."""
        settings = self.settings
        return settings.after_warm_up is not None and not settings.plan.holds_everything

    def runs_only(self, epoch: Epoch) -> bool:
        """Whether `epoch` is the only running epoch."""
        return list(self._tasks) == [epoch]

    def grow(self) -> None:
        """Replace the small feature buffer of a warm-up by a larger one; see `BufferPool.grow`."""
        self.loop_thread.call(self._buffers.grow())

    @contextlib.contextmanager
    def changing_plan(self, busy: str = LARGER) -> Iterator[None]:
        """Free the feature buffer and spare memory, because the plan is to change, or batches are
        to be sampled apart. No epoch begins within the `with` block, because it would be lent a
        buffer of the old plan. ConfigError(busy) if another epoch is running."""
        self.check_caller()
        ended = asyncio.Event()
        try:
            self.loop_thread.call(self._begin_change(ended, busy))
            self._refused.add(threading.current_thread())
            self.array_pool.trim()
            yield
        finally:
            self._refused.discard(threading.current_thread())
            self.loop_thread.call_soon(ended.set)

    async def _begin_change(self, ended: asyncio.Event, busy: str) -> None:
        if not await self._idle():
            raise ConfigError(busy)
        self._change_ended = ended
        await self._buffers.drain()
        if not ended.is_set():  # else Ctrl-C has ended the change meanwhile
            await self._buffers.close()

    async def _settled(self, change_ended: asyncio.Event) -> None:
        """Wait until the change of the plan that is under way has ended."""
        await change_ended.wait()

    def use(self, settings: RuntimeSettings) -> None:
        """Run the next epochs by other settings; call it within `changing_plan`."""
        self.loop_thread.call(self._buffers.replace_plan(self._with_classes(settings)))

    # ---- numbers ----

    def stats(self) -> dict[str, float | str]:
        """Counters since the start; see `StoreLoader.stats`."""
        counters, (buffers, topology) = self.counters, self._component_counters()
        epochs, plan = self._epochs(), self.settings.plan
        return {
            "batches": counters.batches,
            "rows": counters.rows,
            "edges": counters.edges,
            "rows_hit": buffers["hits"] + buffers["repeats"],
            "rows_waited": buffers["waits"],
            "rows_loaded": buffers["loads"],
            "evictions": buffers["evictions"],
            "rows_taken_back": buffers["served"],
            "requests": buffers["requests"],
            "bytes_read": buffers["bytes"],
            "bytes_wanted": counters.bytes_wanted,
            "bytes_written": buffers["bytes_written"],
            "retries": buffers["retries"],
            **topology,
            "samples": counters.samples,
            "sample_s": counters.sample_s,
            "extract_s": counters.extract_s,
            "gather_s": counters.gather_s,
            **wait_seconds(counters.times.snapshot().waits_ns),
            "windows": counters.windows,
            "window_load_s": counters.window_load_s,
            "window_wait_s": counters.window_wait_s,
            "elapsed_s": perf_counter() - self.started,
            "sampling": sum(e.extracting.under_way - len(e.extracting) for e in epochs),
            "extracting": sum(e.training.under_way - len(e.training) for e in epochs),
            "training": sum(len(e.training) for e in epochs),
            "buffer_slots": plan.slots,
            "buffer_bytes": plan.buffer_bytes,
            **self._buffers.facts,
        }

    def _component_counters(self) -> tuple[Counter[str], dict[str, float | str]]:
        """The counters of the buffers and their engine, and those of the adjacency."""

        def read() -> tuple[Counter[str], dict[str, float | str]]:
            counted = self._buffers.stats()
            if self.engine is not None:
                counted.update(self.engine.stats())
            return counted, self.adjacency.stats()

        async def read_in_loop() -> tuple[Counter[str], dict[str, float | str]]:
            return read()

        if not self.loop_thread.inside:  # a user's sampler may call this there
            with contextlib.suppress(ClosedError):
                return self.loop_thread.call(read_in_loop())
        return read()

    def _epochs(self) -> list[Epoch]:
        return list(self._tasks)

    def late_reason(self) -> str:
        """Why a batch may be late, as far as it is known; "": it is not."""
        return self.loop_thread.call(self._buffers.late_reason())

    # ---- closing ----

    def close(self) -> None:
        """End all epochs, wait for all reads to end, free everything; idempotent (rule 13). Ctrl-C
        ends a wait for other ranks, also where it is deferred, and is raised in the end."""
        self.check_caller()
        with self._closing:
            try:
                with interruptible(), contextlib.suppress(ClosedError):
                    self.loop_thread.call(self._buffers.unneeded())
            finally:
                self._close()

    def _close(self) -> None:
        try:
            self.loop_thread.call(self._free_once())
        except ClosedError:
            if self._ended:
                return
        except Exception:
            self._end_threads()
            raise
        self._end_threads()  # not after a KeyboardInterrupt: the next `close` waits again

    async def _free_once(self) -> None:
        # A task of its own, so that a `close` after one that was interrupted waits for the same.
        if self._freeing is None:
            self._freeing = asyncio.get_running_loop().create_task(self._free())
        await asyncio.shield(self._freeing)

    async def _free(self) -> None:
        self._buffers.retire()
        for epoch in (epochs := list(self._tasks)):
            self.stop(epoch, ClosedError("the loader was closed in the middle of this epoch"))
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        for epoch in epochs:
            epoch.times.end()
        release(self._claim)
        try:
            await self._buffers.drain()
            await self._buffers.close_tiers()
            if self.engine is not None:
                await self.engine.aclose()
            await self._buffers.close()
        finally:
            self.array_pool.close()
            try:
                self._files.close()
            finally:
                self.device.close()
                if self._host is not None:
                    self._host.close()

    def _end_threads(self) -> None:
        self.loop_thread.close()
        self._workers.close()
        if self.timeline is not None:
            self.timeline.close()
        return_free_memory()  # what the ended threads have freed
        self._ended = True  # last: what a KeyboardInterrupt left is ended by the next `close`
