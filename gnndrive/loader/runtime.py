"""`Runtime`: what runs behind a loader, from its first iteration until it is closed.

`StoreLoader` makes one from `RuntimeSettings`. It owns the loop thread, the worker threads, the
engine, the adjacency, the layouts, the device and the feature buffers. `BatchIterator` starts and
ends epochs in it; each epoch is a task in the loop thread (`pipeline/run.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.array_pool import ArrayPool
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.host_memory import claim, release
from gnndrive.common.interrupts import interruptible
from gnndrive.common.loop_thread import CLOSED, INSIDE, LoopThread, close_from_finalizer
from gnndrive.common.malloc import return_free_memory
from gnndrive.common.plugins import find
from gnndrive.common.records import Seeds
from gnndrive.disk.engines import choose
from gnndrive.disk.engines.base import Engine
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.buffers import Buffers
from gnndrive.loader.host_service import HostService
from gnndrive.loader.open_files import OpenFiles
from gnndrive.loader.plan_change import LARGER, PlanChange
from gnndrive.loader.settings import RuntimeSettings, with_classes
from gnndrive.loader.statistics import component_stats, loader_stats, stage_stats
from gnndrive.loader.tracing import TraceCounters
from gnndrive.pipeline.batch_times import EpochTimes
from gnndrive.pipeline.counters import Counters
from gnndrive.pipeline.epoch import Epoch, EpochInputs
from gnndrive.pipeline.leases import NoBuffer
from gnndrive.pipeline.run import EpochRun, run_epoch
from gnndrive.pipeline.timeline import Timeline
from gnndrive.pipeline.workers import ThreadWorkers, Workers
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.reader import Store


class Runtime:
    """Owns everything that outlives an epoch; `close` frees it. Make it within
    `deferred_interrupts`, until something owns it.

    Args:
        store: the store to load from.
        settings: see `RuntimeSettings`.
        workers: run blocking work; None: threads.
        host: what the ranks of this host share; None: nothing. `close` closes it.
        timeline: records events; None: there is none. `close` closes it.

    Attributes:
        counters: what all epochs counted together.
        array_pool: memory of batches' arrays.
        attributes: reads the attributes that no table of the feature buffer holds.
        device: where the feature buffer and batches live.
        larger_batch: the seeds, the sampler's key and the size (None: unknown) of a batch that is
            larger than planned, for which the plan could not change yet; None: there is none.
        shares_buffer: whether the host service has the feature buffer.
        loop_thread: the thread in which epochs run.
        engine: reads the rows of the tables; None: the host service does, or what
            the scheme has in place of feature buffers.
        timeline: the same.
    """

    def __init__(
        self, store: Store, settings: RuntimeSettings, workers: Workers | None = None,
        host: HostService | None = None, timeline: Timeline | None = None,
    ) -> None:  # fmt: skip
        self.counters = Counters()
        self.started = perf_counter()
        self.array_pool = ArrayPool()
        self.larger_batch: tuple[Seeds, int, Bounds | None] | None = None
        # Only the loop thread drops tasks: in the user's thread, asyncio could lose a Ctrl-C.
        self._tasks: dict[EpochRun, asyncio.Task[None]] = {}
        self._freeing: asyncio.Task[None] | None = None
        self._host, self.shares_buffer = host, host is not None and host.has_buffer
        self._closing, self._ended = threading.Lock(), False
        self.timeline, self._trace_counters = timeline, None
        with contextlib.ExitStack() as undo:
            if timeline is not None:
                undo.callback(timeline.close)
            if host is not None:
                undo.callback(host.close)
            with interruptible():
                settings = with_classes(settings, self.shares_buffer)
            with store.unchanged():
                graph = None if host is None else host.graph
                indices = {} if graph is None else graph.indices
                elsewhere = self.shares_buffer or settings.scheme.buffers is not None
                self._files = OpenFiles(store, settings, indices, elsewhere)
                undo.callback(self._files.close)
                self.attributes = self._files.attributes
            kind: type[Device] = find("devices", settings.request.device[0])
            self.device = kind.make(
                DeviceContext(self.array_pool.empty, settings.request.device[1])
            )
            undo.callback(self.device.close)
            self._workers = workers or ThreadWorkers(
                settings.stages.samplers + 2, settings.worker_init
            )
            undo.callback(self._workers.close)
            self.loop_thread = LoopThread()
            undo.callback(self.loop_thread.close)
            self.engine: Engine | None = None
            self._buffers = self.loop_thread.call(self._start_buffers(store, settings))
            self._change = PlanChange(self.loop_thread, self._buffers)
            if timeline is not None:
                self._trace_counters = TraceCounters(timeline, self.engine, self._epochs)
            undo.pop_all()
        # Until it is closed, other loaders of this process count what this one will use.
        self._claim = claim(settings.plan.total_bytes)

    def _samples_per_round(self) -> int:
        """The number of samples that fetch adjacency together; 1 if the topology reads nothing. It
        is about half of the extracting queue, so that the other half is extracted meanwhile."""
        stages = self.settings.stages
        if not self._files.fetches:
            return 1
        return min(stages.samplers, stages.extracting_queue // 2 + 1)

    async def _start_buffers(self, store: Store, settings: RuntimeSettings) -> Buffers:
        """Start the engines of the rows and of the adjacency, and make the feature buffers."""
        kind, empty = choose(settings.engine), self.array_pool.empty
        # Adjacency reads go first: a sample needs several short reads, a batch one long one.
        own = replace(settings.engine_settings, traffic=ffi.new("int32_t *"), gives_way=True)
        if self._host is not None and self.shares_buffer:
            self._files.adjacency.start(kind, own)
            return await self._host.buffers(settings, empty)
        if settings.scheme.buffers is not None:
            self._files.adjacency.start(kind, own)
            buffers: Buffers = settings.scheme.buffers(settings, empty)
            return buffers
        engine = kind.make(own)
        layouts, copies = self._files.layouts, self.timeline
        try:
            self._files.adjacency.start(kind, own)
            pool = BufferPool(settings, store, layouts, engine, self.device, empty, copies)
        except BaseException:
            await engine.aclose()
            raise
        self.engine = engine
        return pool

    def check_caller(self) -> None:
        """Refuse a caller that would wait for a thread that waits for it, or does not exist.

        Raises:
            ConfigError: this is a forked child, one of this runtime's own threads, or one that is
                changing the plan.
        """
        self.loop_thread.guard.check()
        if self.loop_thread.inside or self._workers.inside or self._change.inside:
            raise ConfigError(INSIDE)

    # ---- epochs ----

    def begin(
        self, inputs: EpochInputs, times: EpochTimes, own: Callable[[EpochRun], object]
    ) -> None:
        """Start an epoch, or a part of it, whose batches arrive in its output queue.

        Args:
            inputs: what it loads.
            times: gets the times of its batches.
            own: gets the epoch as it begins, in the loop thread, also if the calling thread was
                interrupted (Ctrl-C) meanwhile; it has to see to it that the epoch ends.

        Raises:
            ConfigError: see `BufferPool.take` and `check_caller`.
            ClosedError: the runtime was closed.
        """
        self.check_caller()

        async def start() -> None:
            await self._idle()
            apart = not inputs.feed.extracts
            epoch = Epoch(
                inputs,
                self._files.adjacency.topologies,
                NoBuffer() if apart else self._buffers.take(),
                self._workers,
                self.settings.stages,
                self.counters,
                self._samples_per_round(),
                times=times,
            )
            run = EpochRun(epoch)
            task = asyncio.get_running_loop().create_task(run_epoch(epoch))
            self._tasks[run] = task
            task.add_done_callback(partial(self._on_end, run))
            own(run)
            if self._trace_counters is not None:
                self._trace_counters.start()

        self.loop_thread.call(start())

    async def _wait_for_abandoned_epochs(self) -> None:
        """Wait for the end of epochs whose iterators were dropped, so that their buffers are free.

        Raises:
            ClosedError: the runtime was closed, perhaps meanwhile.
        """
        for run, task in list(self._tasks.items()):
            if run.epoch.output.ended:
                await asyncio.wait([task])
        await self._buffers.closed()
        if self._freeing is not None:
            raise ClosedError(CLOSED)

    async def _idle(self) -> bool:
        """Wait until the plan does not change, and as `_wait_for_abandoned_epochs` does.

        Returns:
            Whether no epoch is running.
        """
        await self._wait_for_abandoned_epochs()
        while self._change.under_way:
            await self._change.settled()
            await self._wait_for_abandoned_epochs()
        return not self._tasks

    def stop(self, run: EpochRun, error: Exception | None = None) -> None:
        """In the loop thread: have an epoch end soon; its iterator then raises `error`, if any."""
        ending = run.epoch.output.abandon(error)
        run.epoch.inputs.stop()
        if not ending:  # else the task is ending by itself, and must not be cancelled
            self._tasks[run].cancel()

    def _on_end(self, run: EpochRun, task: asyncio.Task[None]) -> None:
        """Called when the epoch's task has ended, or was cancelled before its first step."""
        self._tasks.pop(run, None)
        run.epoch.output.finish(None)
        try:
            # What refers to the epoch still, an iterator or a traceback, shall not keep its memory.
            buffer, run.epoch.buffer = run.epoch.buffer, NoBuffer()
            if not isinstance(buffer, NoBuffer):
                self._buffers.give(buffer)
            if not task.cancelled():
                task.result()  # if ending the epoch failed, the loop's exception handler reports it
        finally:
            run.ended.set()

    def drop(self, run: EpochRun) -> None:
        """Have an epoch end, without waiting for it. A finalizer may call this in any thread, also
        in one that the epoch's end waits for."""
        if not self.loop_thread.guard.forked:  # in a forked child there is no loop thread
            self.loop_thread.call_soon(partial(self._stop_dropped, run))

    def _stop_dropped(self, run: EpochRun) -> None:
        task = self._tasks.get(run)
        self.stop(run)
        if task is None:
            run.epoch.times.end()
        else:  # until then the sample stage may begin batches
            task.add_done_callback(lambda _: run.epoch.times.end())

    def end(self, run: EpochRun, error: Exception | None = None) -> None:
        """End an epoch and wait until all its reads and tasks have ended; its iterator then raises
        `error`, if any.

        Raises:
            ConfigError: see `check_caller`.
        """
        self.check_caller()
        self.loop_thread.call_soon(partial(self.stop, run, error))
        run.ended.wait()

    @property
    def settings(self) -> RuntimeSettings:
        """The settings in use; others than at the start after a warm-up."""
        return self._buffers.settings

    @property
    def warming_up(self) -> bool:
        """Whether the feature buffer is the small one of a warm-up."""
        settings = self.settings
        return settings.after_warm_up is not None and not settings.plan.holds_everything

    def runs_only(self, run: EpochRun) -> bool:
        """Whether `run` is the only running epoch."""
        return list(self._tasks) == [run]

    def grow(self) -> None:
        """Replace the small feature buffer of a warm-up by a larger one; see `BufferPool.grow`.

        Raises:
            ClosedError: the runtime was closed.
        """
        self.loop_thread.call(self._buffers.grow())

    @contextlib.contextmanager
    def changing_plan(self, busy: str = LARGER) -> Iterator[None]:
        """Free the feature buffer and spare memory, because the plan is to change, or batches
        are to be sampled apart; no epoch begins within the `with` block. See
        `PlanChange.changing`."""
        self.check_caller()
        with self._change.changing(self._idle, busy):
            self.array_pool.trim()
            yield

    def use(self, settings: RuntimeSettings) -> None:
        """Run the next epochs by other settings; call it within `changing_plan`.

        Raises:
            ClosedError: the runtime was closed.
        """
        settings = with_classes(settings, self.shares_buffer)
        self.loop_thread.call(self._buffers.replace_plan(settings))

    @property
    def topologies(self) -> Sequence[Topology]:
        """The adjacency, one for each edge type; blocks if it has to be read again."""
        self.load_graph()
        return self._files.adjacency.topologies

    def load_graph(self) -> None:
        """Have the adjacency in memory; blocks. See `Adjacency.load`."""
        self._files.adjacency.load()

    def free_graph(self) -> None:
        """Free the adjacency, which no sampler uses now; see `Adjacency.free`."""
        self._files.adjacency.free()

    # ---- numbers ----

    def stats(self) -> dict[str, float | str]:
        """Counters since the start; see `NeighborLoader.stats`."""
        parts = self._buffers, self.engine, self._files.adjacency
        buffers, topology = component_stats(self.loop_thread, *parts)
        stages = stage_stats(self._epochs())
        elapsed_s = perf_counter() - self.started
        return loader_stats(
            self.counters, buffers, topology, stages, self.settings.plan, elapsed_s,
            self._buffers.facts,
        )  # fmt: skip

    def _epochs(self) -> list[Epoch]:
        return [run.epoch for run in list(self._tasks)]

    def late_reason(self) -> str:
        """Why a batch may be late, as far as it is known; "": it is not."""
        return self.loop_thread.call(self._buffers.late_reason())

    # ---- closing ----

    def close(self) -> None:
        """End all epochs, wait for all reads to end, free everything; idempotent (rule 13).

        Raises:
            ConfigError: see `check_caller`.
        """
        self.check_caller()
        with self._closing:
            try:
                self.loop_thread.call(self._free_once())
            except ClosedError:
                if self._ended:
                    return
            except Exception:
                self._end_threads()
                raise
            self._end_threads()  # not after a KeyboardInterrupt: the next `close` waits again

    def close_from_finalizer(self) -> None:
        """`close` for a finalizer."""
        close_from_finalizer(self.close, self.loop_thread.guard)

    async def _free_once(self) -> None:
        # A separate task, so that a second `close`, after one that was interrupted, waits for the
        # same one.
        if self._freeing is None:
            self._freeing = asyncio.get_running_loop().create_task(self._free())
        await asyncio.shield(self._freeing)

    async def _free(self) -> None:
        self._buffers.retire()
        for run in (runs := list(self._tasks)):
            self.stop(run, ClosedError("the loader was closed in the middle of this epoch"))
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        for run in runs:
            run.epoch.times.end()
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
