"""`StoreLoader`: the part of the public loaders that loads batches from a store.

`NeighborLoader` and `LinkNeighborLoader` inherit it. It is a `torch.utils.data.DataLoader` without
worker processes: at the first `iter` it makes a `Runtime`, whose threads, rings and buffers it
keeps until it is closed; each `iter` starts an epoch there and returns a `BatchIterator`. Making a
loader is cheap, because nothing starts before the first `iter`.

When not to use it: the features fit in memory. Then PyG's own loader has less to do.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.forks import ForkLock
from gnndrive.common.interrupts import deferred_interrupts, interruptible
from gnndrive.common.limits import named_limit
from gnndrive.common.loop_thread import CLOSED, INSIDE
from gnndrive.loader.arguments import (
    OWN_ARGUMENTS,
    Tuning,
    checked_device,
    checked_feature_dtype,
    checked_own,
    checked_tuning,
    flat,
)
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.compared import Compared
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.loader.epoch_state import EpochState
from gnndrive.loader.host_service import GIVEN, join_host_service
from gnndrive.loader.intervals import Intervals, OnStats
from gnndrive.loader.iterator import BatchIterator, Closeable, in_thread
from gnndrive.loader.ranks import Ranks, ranks_of_group
from gnndrive.loader.runtime import Runtime
from gnndrive.loader.sampling_choice import checked_sampling
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.single_batches import SingleBatches
from gnndrive.loader.tracing import open_timeline
from gnndrive.pipeline.timeline import Timeline
from gnndrive.plan.plan import Plan
from gnndrive.pyg.choices import check_sampling
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.schedules.base import InputEdges, InputNodes
from gnndrive.store.reader import Store
from gnndrive.strategies.base import strategy as find_strategy


class StoreLoader(Closeable, Compared, SingleBatches):
    """Base class of the public loaders. For data in memory, each method calls PyG's method."""

    memory: str | int | None
    buffer: str | int | None
    device: Any
    device_memory: str | int | None
    feature_dtype: str | torch.dtype | None
    attrs: Sequence[str] | None
    tuning: Tuning
    host_service: bool | str
    trace: Any
    on_stats: OnStats | None
    stats_interval: float
    _finalizer: weakref.finalize[Any, Any] | None = None  # closes the runtime
    _closed = False
    _intervals: Intervals | None = None
    _newest: weakref.ref[BatchIterator] | None = None
    _beginning: set[int]  # threads in which an epoch begins now
    transform: Callable[[Any], Any] | None

    def _open_store(
        self, data: Store, inputs: InputNodes | InputEdges, subgraphs: SubgraphSampling | None,
        own: dict[str, Any], kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        """Called by `__init__` of the public loaders if the data is a store.

        Args:
            data: the store.
            inputs: the nodes or edges that seeds are drawn from.
            subgraphs: see `Assembly`.
            own: the values of `OWN_ARGUMENTS`.
            kwargs: torch's arguments.
        """
        self._from_store, self._inputs, self._subgraphs = True, inputs, subgraphs
        self.data, self.epoch = data, 0
        self._start_lock, self._beginning = ForkLock(), set()
        check_sampling(self.__dict__)
        self.__dict__.update(checked_own(own))
        self.tuning = checked_tuning(self.tuning, kwargs.get("num_workers"))
        self._strategy = find_strategy(self.strategy)
        checked_sampling(self.__dict__, self._strategy, self.replace, subgraphs is not None)
        self._device = checked_device(self.device, self.device_memory)
        self._user_samples = any(
            kwargs.get(name) is not None for name in ("sampler", "batch_sampler")
        )
        self._shuffle = bool(kwargs.get("shuffle"))
        self.input_id, self.custom_cls = (
            kwargs.pop("input_id", None),
            kwargs.pop("custom_cls", None),
        )
        for name in ("dataset", "collate_fn"):
            kwargs.pop(name, None)
        positions: Any = range(len(inputs))
        torch.utils.data.DataLoader.__init__(self, positions, **kwargs)
        # torch's default hides the method, and giving torch the method would make a cycle.
        del self.__dict__["collate_fn"]
        if self.batch_sampler is None:
            raise NotImplementedError(
                "batch_size=None is not built for stores: give a number of seeds"
            )
        dtype = checked_feature_dtype(self.feature_dtype)
        self._collate = Collate(
            data, self.transform, self.pin_memory, dtype, self.custom_cls, self.attrs
        )
        self._scheme = self._strategy.open(self._bare())

    # ---- planning, counting, closing ----

    def plan(self) -> Plan:
        """What will use how much memory, and why; print it to read it.

        With `memory=`, the first plan of a store and settings samples batches, whose sizes and rows
        are kept beside the store; no other plan samples. If memory does not hold all rows, the plan
        also prints what a batch is predicted to cost with each strategy, and with more memory (see
        `compare`), which may take seconds.

        Raises:
            ConfigError: `memory`, `buffer` or `device_memory` is too small, and the message gives a
                size that works; or the data is in memory.
        """
        if not self._from_store:
            raise ConfigError(
                "there is nothing to plan, because the data is in memory: give a store"
            )
        if self._runtime is not None:
            return self._runtime.settings.plan  # after a warm-up it differs from the first
        self._choose_strategy()
        return self._with_comparison(self._assembly().plan())

    def stats(self) -> dict[str, float | str]:
        """Counters since the first `iter`; before it, an empty dict. Times are in seconds.

        Keys: batches, rows, edges (delivered); rows_hit, rows_waited, rows_loaded, evictions
        (distinct rows in the feature buffer); requests, bytes_read, bytes_wanted, retries (of
        rows); rows_taken_back (loaded from where a tier keeps rows that were evicted);
        topology, topology_requests, topology_bytes_read (attributes that are not mapped included),
        neighbours_wanted, neighbours_cached (with "direct" only); samples, sample_s (sampling runs
        ahead of the batches); extract_s, gather_s (summed over batches); wait_s (how long you
        waited for batches), of it wait_disk_s, wait_sampling_s, wait_gather_s, wait_slots_s (by
        what the batch was waiting for; docs/tasks/see.md); windows, window_load_s, window_wait_s
        (of windows that batches are sampled inside: how many were loaded, how long that took, and
        how long there was none); elapsed_s; sampling, extracting, training (batches in each stage
        now); buffer_slots, buffer_bytes; engine.
        """
        return {} if self._runtime is None else self._runtime.stats()

    def stage_stats(self) -> dict[str, dict[str, float]]:
        """How long the batches that were delivered since the first `iter` were in each stage.

        Returns:
            Stage → `count`, `mean_s`, `p50_s`, `p90_s`, `p99_s` (percentiles within 2 %). The
            stages, in order: sampler_wait, sample, extracting_queue, admission (waiting for slots),
            read, training_queue, gather, output_queue, step (yours: until you ask for the next
            one). Before the first `iter`, and for data in memory: {}.
        """
        return {} if self._runtime is None else self._runtime.counters.times.summary()

    def close(self) -> None:
        """End all iterators, wait for reads under way, free everything. Idempotent. Then the loader
        cannot be used again, and an iterator in the middle of its epoch raises ClosedError.

        Raises:
            ConfigError: the loader was started before this process was forked, or this is called
                in one of its own threads: in a transform, a sampler or worker_init_fn.
        """
        if not self._from_store:
            return
        if self._runtime is not None:
            self._runtime.check_caller()
        self._closed = True
        # Wait for a start in another thread. The lock is re-entrant, because a signal handler may
        # call this while this thread starts; `_start_runtime` then sees `_closed`.
        with self._start_lock:
            pass
        if self._runtime is not None and self._finalizer is not None:
            self._runtime.close()
            self._finalizer.detach()
        self._collate.close()

    def __exit__(self, *raised: object) -> None:
        # A forked child that leaves the parent's block, perhaps by sys.exit, has nothing to close.
        if self._runtime is None or not self._runtime.loop_thread.guard.forked:
            self.close()

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__(*raised)

    # ---- iterating ----

    def __len__(self) -> int:
        """Batches in an epoch; with several ranks, those that each of them yields. If ranks have
        windows of their own, epochs differ by some batches: this is the first one's, if `seed` is
        given.

        Raises:
            TypeError: the user's batch sampler has no length.
            ConfigError: see `resolve_ranks`.
        """
        if not self._from_store:
            return super().__len__()
        return self._assembly().steps(seed=self.seed)

    def __iter__(self) -> Any:
        """Start an epoch and iterate over its batches. Several iterators may live at once; each has
        a feature buffer of its own."""
        return self._begin_epoch() if self._from_store else super().__iter__()

    def __aiter__(self) -> Any:
        """The same for `async for`, in any event loop."""
        return self._begin_epoch() if self._from_store else in_thread(super().__iter__())

    @named_limit()
    def _begin_epoch(self) -> BatchIterator:
        """Start an epoch, but not while this thread starts one, in which a sampler asks for it."""
        if (thread := threading.get_ident()) in self._beginning:
            raise ConfigError(INSIDE)
        try:
            self._beginning.add(thread)
            return self._new_iterator()
        finally:
            self._beginning.discard(thread)

    def _new_iterator(self) -> BatchIterator:
        if self._runtime is not None:
            self._runtime.check_caller()
            newest = None if self._newest is None else self._newest()
            if self._runtime.shares_buffer and newest is not None:
                # Lightning, for one, holds its sanity check's iterator. It gives way before the
                # ranks agree, because another rank may need its turns to get there.
                newest.give_way()
        state = self._resumed or EpochState(self.epoch, self.seed)
        BatchIterator.leave_all(ranks_of_group(self.ranks))
        ranks, seed = self._agreed_seed(state)
        runtime, assembly = self._start_runtime(ranks), self._assembly()
        self._resumed, self._state, self.epoch = None, state, state.epoch + 1
        state.seed = seed
        state.sampler_epoch = getattr(self._epoch_sampler(), "epoch", None)
        numbered = self.seed is not None or assembly.scheme.numbered
        number = state.epoch if numbered else 0
        done = state.batches
        remaining = assembly.batches(ranks, seed, number, done)
        if assembly.batch_sampler is not None:
            # torch's samplers draw from the global generator at their first batch. Here, in the
            # user's thread, that happens before the user's next draw; in the loop thread, it could
            # happen before or after it.
            remaining = chain(list(islice(remaining, 1)), remaining)
        windows = assembly.windows_left(ranks, seed, number, done)
        end = None
        with contextlib.suppress(TypeError):  # a batch sampler without a length
            end = assembly.steps(done, seed, number)
        epoch = EpochAssembly(assembly, runtime, number, ranks.drawing_seed(seed), windows, end)
        iterator = BatchIterator(
            self,
            runtime,
            epoch,
            remaining,
            state,
            ranks,
            self.timeout,
            self._told_intervals(runtime),
        )
        self._newest = weakref.ref(iterator)
        return iterator

    def _told_intervals(self, runtime: Runtime) -> Intervals | None:
        """What calls `on_stats`; made once, because iterators share the intervals."""
        if self._intervals is None and self.on_stats is not None:
            self._intervals = Intervals(
                runtime.stats, runtime.counters.times, self.on_stats, float(self.stats_interval)
            )
        return self._intervals

    def _ranks_now(self) -> Ranks:
        if self._closed:
            raise ClosedError(CLOSED)
        return self._assembly().ranks

    @property
    def _begun(self) -> bool:
        return self._runtime is not None

    def _start_runtime(self, ranks: Ranks) -> Runtime:
        """The runtime; made at the first call, which the ranks that share something make together.

        Raises:
            ClosedError: the loader was closed.
            ConfigError: see `Runtime.check_caller`.
        """

        timeline: Timeline | None = None

        def make_settings() -> RuntimeSettings:
            nonlocal timeline
            if self._closed:  # meanwhile, by another thread; the other ranks have to hear of it
                raise ClosedError(CLOSED)
            with interruptible():
                self._choose_strategy()
                settings = self._assembly().settings()
            timeline = open_timeline(self.trace, ranks)
            return settings

        if self._runtime is not None:
            self._runtime.check_caller()
        with self._start_lock, deferred_interrupts():
            if self._closed and self._runtime is not None:
                raise ClosedError(CLOSED)
            if self._runtime is None:
                own = flat(vars(self))
                given = {name: own.get(name) for name in GIVEN}
                try:
                    settings, host = join_host_service(ranks, self.data, given, make_settings)
                except BaseException:
                    if timeline is not None:
                        timeline.close()
                    raise
                runtime = Runtime(self.data, settings, host=host, timeline=timeline)
                if host is not None and host.graph is not None:
                    self._collate.use_labels(host.graph.labels)
                if self._closed:  # meanwhile, by a signal handler
                    runtime.close()
                    raise ClosedError(CLOSED)
                self._runtime = runtime
                self._finalizer = weakref.finalize(self, runtime.close_from_finalizer)
            return self._runtime

    def _assembly(self) -> Assembly:
        """The assembly of the arguments as they are now, because users may change attributes of
        this loader and of its store."""
        bare, state, runtime = self._bare(), self._state, self._runtime
        if state is not None and state.finished and self._resumed is None and runtime is not None:
            self._scheme = self._scheme.after_epoch(runtime.counters)
        assembly = replace(bare, scheme=self._scheme)
        self._scheme = scheme = self._scheme.current(assembly, self._begun)
        if scheme.tables is not None:
            self._collate = self._collate.buffering(scheme.tables)
        return replace(assembly, collate=self._collate, scheme=scheme)

    def _bare(self) -> Assembly:
        """See `Resumable._bare`."""
        self._collate = self._collate.current(self._runtime is not None)
        assembly = Assembly(
            store=self.data,
            strategy=self._strategy,
            inputs=self._inputs,
            subgraphs=self._subgraphs,
            collate=self._collate,
            num_neighbors=self.num_neighbors,
            replace=self.replace,
            batch_size=self.batch_size,
            shuffle=self._shuffle,
            drop_last=self.drop_last,
            batch_sampler=self._batches(),
            in_order=getattr(self, "in_order", True),  # torch has it from 2.6 on
            worker_init=self.worker_init_fn,
            device=self._device,
            seed=self.seed,
            own=flat({name: getattr(self, name) for name in OWN_ARGUMENTS}),
        )
        chosen: Assembly = self._strategy.preset(assembly)
        return replace(chosen, asked=assembly)

    def __getstate__(self) -> dict[str, Any]:
        if not self._from_store:
            return self.__dict__
        left_out = {
            "_start_lock": None,
            "_runtime": None,
            "_finalizer": None,
            "_beginning": None,
            "_newest": None,
            "_intervals": None,
        }  # a copy makes its own
        return self.__dict__ | left_out

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_lock, self._beginning = ForkLock(), set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
