"""`StoreLoader`: the part of the public loaders that loads batches from a store.

`NeighborLoader`, `LinkNeighborLoader` and `HGTLoader` inherit it. It is a
`torch.utils.data.DataLoader` without worker processes: at the first `iter` it makes a `Runtime`,
whose threads, rings and buffers it keeps until it is closed; each `iter` starts an epoch there and
returns a `BatchIterator`. Making a loader is cheap, because nothing starts before the first `iter`.

When not to use it: the features fit in memory. Then PyG's own loader has less to do.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.forks import ForkLock
from gnndrive.common.interrupts import deferred_interrupts, interruptible
from gnndrive.common.limits import named_limit
from gnndrive.common.loop_thread import CLOSED, INSIDE, close_from_finalizer
from gnndrive.exchange.items import Exchange
from gnndrive.loader.arguments import (
    OWN_ARGUMENTS,
    OnStats,
    Tuning,
    checked_device,
    checked_feature_dtype,
    checked_own,
    checked_tuning,
    flat,
)
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.loader.epoch_state import VERSION, EpochState, from_state_dict, to_state_dict
from gnndrive.loader.exchanging import Exchanging, places_of
from gnndrive.loader.in_memory import GroupedIterator, comes_in_groups
from gnndrive.loader.iterator import BatchIterator, Intervals, in_thread
from gnndrive.loader.ranks import Ranks, check_same, ranks_of_group
from gnndrive.loader.runtime import Runtime
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.sharing import join_host_service
from gnndrive.loader.strategy_choice import choose, compare
from gnndrive.loader.tracing import open_timeline
from gnndrive.pipeline.timeline import Timeline
from gnndrive.plan.choice import loading_of
from gnndrive.plan.costs import Loading
from gnndrive.plan.plan import Plan, Planner
from gnndrive.plan.strategy_costs import Comparison
from gnndrive.pyg.choices import check_sampling
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.in_memory import RowsInMemory
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules.base import InputEdges, InputNodes
from gnndrive.store.reader import Store
from gnndrive.strategies.base import PLAIN, Scheme, Strategy
from gnndrive.strategies.base import strategy as find_strategy


class StoreLoader(torch.utils.data.DataLoader[Any]):
    """Base class of the public loaders. For data in memory, methods call PyG's.

    Attributes:
        epoch: the number of the next epoch, from 0. Its batches depend on `seed` and this number if
            the user gave `seed`, else on the seed that is drawn for the epoch.
    """

    data: Store
    num_neighbors: Any
    replace: bool
    transform: Callable[[Any], Any] | None
    filter_per_worker: bool | None
    _rows: RowsInMemory  # of data in memory
    memory: str | int | None  # this and other names of `OWN_ARGUMENTS`
    seed: int | None
    ranks: Any
    trace: Any
    on_stats: OnStats | None
    stats_interval: float
    tuning: Tuning
    epoch: int
    _from_store = False
    _inputs: InputNodes | InputEdges
    _subgraphs: SubgraphSampling | None = None  # see `Assembly.subgraphs`
    _shuffle: bool
    _user_samples: bool
    _device: tuple[Any, torch.device | None]
    _collate: Collate
    _strategy: Strategy
    _scheme: Scheme = PLAIN
    _why = ""  # the loader has this strategy, if "auto" chose it
    _compared: tuple[str, Comparison | None] | None = None  # the arguments, and their comparison
    _runtime: Runtime | None = None
    _start_lock: ForkLock
    _finalizer: weakref.finalize[Any, Any] | None = None  # closes the runtime
    _closed = False
    _intervals: Intervals | None = None
    _newest: weakref.ref[BatchIterator] | None = None
    _beginning: set[int]  # threads in which an epoch begins now
    _number = 0  # among the loaders that the ranks have begun
    _places: tuple[int, ...] | None = None  # see `places_of`
    _state: EpochState | None = None  # of the newest epoch
    _resumed: EpochState | None = None  # given to load_state_dict, until the next epoch begins

    def _open_store(
        self, data: Store, inputs: InputNodes | InputEdges, subgraphs: SubgraphSampling | None,
        own: dict[str, Any], kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        """Called by `__init__` of the public loaders if the data is a store; `own` has the values
        of `OWN_ARGUMENTS`, `kwargs` those of torch's arguments."""
        self._from_store, self._inputs, self._subgraphs = True, inputs, subgraphs
        self.data, self.epoch = data, 0
        self._start_lock, self._beginning = ForkLock(), set()
        check_sampling(self.__dict__)
        self.__dict__.update(checked_own(own))
        self.tuning = checked_tuning(own["tuning"], kwargs.get("num_workers"))
        self._strategy = find_strategy(own["strategy"])
        self._device = checked_device(own["device"], own["device_memory"])
        samplers = kwargs.get("sampler"), kwargs.get("batch_sampler")
        self._user_samples = any(each is not None for each in samplers)
        self._shuffle = bool(kwargs.get("shuffle"))
        self.input_id = kwargs.pop("input_id", None)
        self.custom_cls = kwargs.pop("custom_cls", None)
        given = {name: kwargs[name] for name in kwargs if name not in ("dataset", "collate_fn")}
        positions: Any = range(len(inputs))
        torch.utils.data.DataLoader.__init__(self, positions, **given)
        # torch's default hides the method, and giving torch the method would make a cycle.
        del self.__dict__["collate_fn"]
        if self.batch_sampler is None:
            raise NotImplementedError(
                "batch_size=None is not built for stores: give a number of seeds"
            )
        dtype = checked_feature_dtype(own["feature_dtype"])
        self._collate = Collate(
            data, self.transform, self.pin_memory, dtype, self.custom_cls, own["attrs"]
        )
        bare = self._bare()
        _ = bare.sampling  # checks it
        self._scheme = self._strategy.open(bare)

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
        plan = self._chosen_assembly().plan()
        if self.memory is None or plan.holds_everything:
            said = [f"strategy: {self._strategy.name}, {self._why}"] if self._why else []
        else:
            said = str(self.compare() or "").splitlines()
        return replace(plan, levels=(*plan.levels, *said))

    def compare(self, *, all: bool = True) -> Comparison | None:
        """Predict what a batch costs with each strategy; print the result to read it.

        The first time for a store and settings this draws batches, which takes some ten seconds for
        a large graph; what they need is kept beside the store. Batches are predicted as they are
        once the feature buffer is full, without training.

        Args:
            all: whether to compare all strategies; if not, only the loader's own is predicted, and
                there is no miss-ratio curve.

        Returns:
            The strategies beside each other, with those that change nothing about the batches
            first; None: batches cannot be drawn, such as those of a sampler of yours, several ranks
            load together, or the strategy is a baseline.

        Raises:
            ConfigError: the plan of the loader's own strategy does not fit; or the data is in
                memory.
            StoreError, ReadError: the graph is damaged or cannot be read.
        """
        if not self._from_store:
            raise ConfigError(
                "there is nothing to compare, because the data is in memory: give a store"
            )
        assembly = self._chosen_assembly()
        depends = repr([all, assembly.own, self._strategy, self.num_neighbors, self.batch_size])
        if self._compared is None or self._compared[0] != depends:
            self._compared = depends, compare(assembly, all)
        found = self._compared[1]
        return None if found is None else replace(found, why=self._why)

    def stats(self) -> dict[str, float | str]:
        """Counters since the first `iter`; before it, an empty dict. Times are in seconds.

        Keys: batches, rows, edges (delivered); rows_hit, rows_waited, rows_loaded, evictions
        (distinct rows in the feature buffer); requests, bytes_read, bytes_wanted, retries (of
        rows); bytes_written (copies of rows, with strategy="rolling"); rows_taken_back (loaded from
        where a tier keeps rows that were evicted); topology, topology_requests,
        topology_bytes_read (attributes that are not mapped included),
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        # A forked child that leaves the parent's block, perhaps by sys.exit, has nothing to close.
        if self._runtime is None or not self._runtime.loop_thread.guard.forked:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__(*raised)

    # ---- iterating ----

    def __len__(self) -> int:
        """Batches in an epoch; with several ranks, those that each of them yields. If ranks have
        windows of their own, epochs differ by some batches: this is the first one's, if `seed` is
        given.

        Raises:
            TypeError: the user's batch sampler has no length.
            ConfigError: an argument cannot work.
        """
        return self._assembly().steps(seed=self.seed) if self._from_store else super().__len__()

    def __iter__(self) -> Any:
        """Start an epoch. Several iterators may live, each with a feature buffer of its own."""
        return self._begin_epoch() if self._from_store else super().__iter__()

    def __aiter__(self) -> Any:
        """The same for `async for`, in any event loop."""
        return self._begin_epoch() if self._from_store else in_thread(super().__iter__())

    def _get_iterator(self) -> Any:
        """The iterator of an epoch of data in memory; torch's `__iter__` calls this."""
        own = (self.filter_fn, StoreLoader.filter_fn), (self.collate_fn, StoreLoader.collate_fn)
        replaced = any(getattr(method, "__func__", None) is not mine for method, mine in own)
        if replaced or not comes_in_groups(self, self._rows):
            return super()._get_iterator()
        return GroupedIterator(self, self._rows)

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
        epoch = EpochAssembly(assembly, runtime, ranks, state, seed)
        if self._intervals is None and self.on_stats is not None:  # which iterators share
            self._intervals = Intervals(runtime, self.on_stats, float(self.stats_interval))
        iterator = BatchIterator(self, epoch, state, self.timeout, self._intervals)
        self._newest = weakref.ref(iterator)
        return iterator

    def _agreed_seed(self, state: EpochState) -> tuple[Ranks, int]:
        """This rank, and the seed of an epoch that begins: the state's, or one that is drawn, the
        same on all ranks that the loader deals to. A rank whose epoch cannot begin tells the
        others, who would wait. ConfigError on all of them if what batches depend on differs."""
        told, seed, first = dict[str, Any](), 0, self._runtime is None
        shard = None if (found := self.data.info.shard) is None else (found.index, found.shards)
        error: Exception | None = None
        try:
            if self._closed:
                raise ClosedError(CLOSED)
            assembly = self._assembly()
            ranks = assembly.ranks
            seed = self._draw_seed() if state.seed is None else state.seed
            if ranks.group is not None:
                number = f"number {self._number} of those that were begun"
                told = {
                    "the loader": "one that was not begun before" if first else number,
                    "gnndrive's version of states": VERSION, "the store": self.data.identity,
                    "the number of parts of it": None if shard is None else shard[1],
                    "the epoch": state.epoch, "the number of batches done": state.batches,
                    "the epoch's seed": state.seed, **assembly.batch_settings,
                }  # fmt: skip
        except Exception as caught:
            ranks = ranks_of_group(self.ranks)
            if ranks.group is None:
                raise
            error = caught
        everyone = ranks.all_or_none("beginning an epoch", (told, seed, shard), error)
        check_same([told for told, _, _ in everyone])
        if ranks.group is not None:
            self._places = places_of([shard for _, _, shard in everyone])
        if first:
            ranks.history.loaders += 1
            self._number = ranks.history.loaders
        return ranks, everyone[0][1]

    def _draw_seed(self) -> int:
        """Draw a seed as torch's loaders do, so that `torch.manual_seed` determines it."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _start_runtime(self, ranks: Ranks) -> Runtime:
        """The runtime; made at the first call, by the ranks that share something together."""
        timeline: Timeline | None = None

        def make_settings() -> RuntimeSettings:
            nonlocal timeline
            if self._closed:  # meanwhile, by another thread; the other ranks have to hear of it
                raise ClosedError(CLOSED)
            with interruptible():
                settings = self._chosen_assembly().settings()
            timeline = open_timeline(self.trace, ranks)
            return settings

        if self._runtime is not None:
            self._runtime.check_caller()
        with self._start_lock, deferred_interrupts():
            if self._closed and self._runtime is not None:
                raise ClosedError(CLOSED)
            if self._runtime is None:
                host = exchanging = None
                try:
                    settings, host = join_host_service(
                        ranks, self.data, flat(vars(self)), make_settings
                    )
                    if settings.request.exchange is not None:
                        exchanging = Exchanging(ranks, settings)
                except BaseException:
                    if host is not None:
                        host.close()
                    if timeline is not None:
                        timeline.close()
                    raise
                try:
                    runtime = Runtime(self.data, settings, host, exchanging, timeline)
                except Exception as error:
                    if exchanging is not None:  # the others wait for this rank
                        exchanging.open_slots(error)
                    raise
                try:
                    runtime.open_slots()
                except BaseException:
                    runtime.close()
                    raise
                if host is not None and host.graph is not None:
                    self._collate.use_labels(host.graph.labels)
                if self._closed:  # meanwhile, by a signal handler
                    runtime.close()
                    raise ClosedError(CLOSED)
                self._runtime = runtime
                self._finalizer = weakref.finalize(
                    self, close_from_finalizer, runtime.close, runtime.loop_thread.guard
                )
            return self._runtime

    # ---- the arguments ----

    def _chosen_assembly(self) -> Assembly:
        """The assembly, with the strategy that "auto" chooses, unless it was chosen before."""
        with self._start_lock:  # an epoch may begin in another thread
            if self._strategy.name == "auto" and self._runtime is None:
                self._strategy, self._why = choose(self._assembly())
                self._scheme = self._strategy.open(self._bare())
        return self._assembly()

    def _assembly(self, bare: Assembly | None = None) -> Assembly:
        """The assembly of the arguments as they are now, because users may change attributes of
        this loader and of its store; `bare`: what `_bare` has just returned."""
        bare, state, runtime = bare or self._bare(), self._state, self._runtime
        if state is not None and state.finished and self._resumed is None and runtime is not None:
            self._scheme = self._scheme.after_epoch(runtime.counters)
        assembly = replace(bare, scheme=self._scheme)
        self._scheme = scheme = self._scheme.current(assembly, runtime is not None)
        if scheme.tables is not None:
            self._collate = self._collate.buffering(scheme.tables)
        return replace(assembly, collate=self._collate, scheme=scheme)

    def _bare(self) -> Assembly:
        """The assembly of the arguments as they are now, without a scheme."""
        self._collate = self._collate.current(self._runtime is not None)
        assembly = Assembly(
            store=self.data, strategy=self._strategy, inputs=self._inputs,
            subgraphs=self._subgraphs, collate=self._collate, num_neighbors=self.num_neighbors,
            replace=self.replace, batch_size=self.batch_size, shuffle=self._shuffle,
            drop_last=self.drop_last,
            batch_sampler=self.batch_sampler if self._user_samples else None,
            in_order=getattr(self, "in_order", True),  # torch has it from 2.6 on
            worker_init=self.worker_init_fn, device=self._device, seed=self.seed,
            own=flat({name: getattr(self, name) for name in OWN_ARGUMENTS}), places=self._places,
        )  # fmt: skip
        chosen: Assembly = self._strategy.preset(assembly)
        return replace(chosen, asked=assembly)

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """How far the newest epoch has come, for `load_state_dict` in this process or another.

        As in torchdata's StatefulDataLoader, the state counts the batches that were yielded: save
        it together with the model that was trained on them. With `ranks=` it counts those of all
        ranks, is the same on all of them after the same step, and any number of ranks goes on from
        it.

        Returns:
            A few numbers and texts that JSON can hold. {} with a warning if the data is in memory:
            Lightning asks every loader that has this method when it saves a checkpoint.

        Raises:
            ConfigError: batches come in any order (in_order=False).
        """
        if not self._from_store:
            warnings.warn(
                "state_dict() holds no position, because the data is in memory: an epoch that is "
                "resumed starts again; give a store",
                stacklevel=2,
            )
            return {}
        return self._state_of(self._assembly(self._checked_bare()))

    def _state_of(self, assembly: Assembly) -> dict[str, Any]:
        state = self._resumed or self._state or EpochState(self.epoch, self.seed)
        return to_state_dict(state, assembly)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next `iter` yield the remaining batches of the state's epoch, or those of the
        next epoch if it was finished.

        If you gave a sampler, it draws the epoch again, and the batches that were yielded are
        skipped. So it must draw the same batches, as a DistributedSampler does, whose epoch is in
        the state.

        Args:
            state: what `state_dict` returned.

        Raises:
            ConfigError: the state is from another store or other settings; or see `state_dict`.
        """
        if not self._from_store and state == {}:
            return
        bare, before = self._checked_bare(), (self._scheme, self._state)
        try:
            self._state = None  # of an epoch that does not go on
            if isinstance(state, Mapping):
                self._scheme = self._scheme.resumed(bare, state, self._runtime is not None)
            resumed = from_state_dict(state, self._assembly(bare))
        except ConfigError:
            self._scheme, self._state = before
            raise
        sampler = self._epoch_sampler()
        if sampler is not None and resumed.sampler_epoch is not None:
            sampler.set_epoch(resumed.sampler_epoch)
        self._resumed = resumed
        if resumed.finished:
            self._resumed, self.epoch = None, resumed.epoch + 1

    def _checked_bare(self) -> Assembly:
        """See `_bare`; raises ConfigError if this loader has no state."""
        if not self._from_store:
            raise ConfigError(
                "this loader cannot be resumed, because its data is in memory: give a store"
            )
        bare = self._bare()
        if not bare.in_order:
            remedy = "give in_order=True"
            if getattr(self, "in_order", True):
                remedy = f"give another strategy than {self._strategy.text}"
            raise ConfigError(
                "the number of batches does not say which were yielded, because they come in any "
                f"order: {remedy}"
            )
        return bare

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, also in a sampler of yours that has a `set_epoch`."""
        self.epoch = epoch
        sampler = self._epoch_sampler()
        if sampler is not None:
            sampler.set_epoch(epoch)

    def _epoch_sampler(self) -> Any:
        """The sampler or batch sampler that has a `set_epoch`; None: none has."""
        batches: Any = self.batch_sampler
        samplers: list[Any] = [self.sampler, batches, getattr(batches, "sampler", None)]
        return next((each for each in samplers if hasattr(each, "set_epoch")), None)

    # ---- PyG's methods that make one batch ----

    def __call__(self, index: torch.Tensor | list[int]) -> Any:
        """One batch around the seeds at positions `index` (int64 [n] or a list), read without the
        pipeline."""
        if not self._from_store:
            return super().__call__(index)  # type: ignore[misc]
        out = self.collate_fn(index)
        return out if self.filter_per_worker else self.filter_fn(out)

    def collate_fn(self, index: Any) -> Any:
        """Sample around the seeds at positions `index` (int64 [n] or a list)."""
        if not self._from_store:
            return super().collate_fn(index)
        if why := self._scheme.single:
            raise ConfigError(
                f"loader(index) and collate_fn sample around any seeds, and {why}: iterate over "
                "the loader, or make another one with strategy='gnndrive'"
            )
        chosen = torch.as_tensor(index, dtype=torch.int64).reshape(-1)
        seeds = self._inputs.seeds(0, chosen.numpy())
        key = self._draw_seed()
        if self.seed is not None:
            key = batch_key(self.seed, self.epoch, 0)
        topologies = [mapped(edges) for edges in self.data.all_edges()]
        assembly = self._assembly()
        sample = assembly.sampler().sample(seeds, key, topologies)
        out = seeds, sample if assembly.padding is None else assembly.padding.sample(sample)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a sample with its features and attributes: a Data, on the loader's device."""
        if not self._from_store:
            batch = self._rows.batch(self, out)
            return super().filter_fn(out) if batch is None else batch  # type: ignore[misc]
        return self._collate.from_map(out[0], out[1], self._device[1])

    # ---- what torch and copying ask for ----

    def check_worker_number_rationality(self) -> None:
        """Warn of too many worker processes, as torch does; a store's loader has none."""
        if not self._from_store:
            super().check_worker_number_rationality()

    def __getstate__(self) -> dict[str, Any]:
        if not self._from_store:
            return self.__dict__
        made = ("_start_lock", "_runtime", "_finalizer", "_beginning", "_newest", "_intervals")
        return self.__dict__ | dict.fromkeys(made)  # a copy makes its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_lock, self._beginning = ForkLock(), set()


class RanksPlan(NamedTuple):
    """A loader's planner and its strategy, chosen if it was to be; and what a step costs by. None:
    the loader's batches cannot be drawn, or its strategy is a baseline. `exchanging`: its planner
    if ranks, as many on each host, exchange rows."""

    planner: Planner
    loading: Loading | None
    strategy: Strategy
    exchanging: Callable[[Exchange], Planner]


def plan_for_ranks(loader: StoreLoader, ranks: int, shared: bool) -> RanksPlan:
    """Plan a loader as it is for `ranks` ranks on this host, which may have one `shared` feature
    buffer, for `gnndrive plan`. `memory=` and `buffer=` are for all of them. May draw batches."""
    assembly = loader._chosen_assembly()
    request = replace(assembly.request(), ranks=ranks, shared=shared)
    if (for_plan := assembly.drawing()) is not None:
        request = for_plan.drawn_for(request)
    planner = assembly.scheme.planner(request)
    drawing = None if assembly.strategy.baseline else assembly.drawing(for_plan=False)
    drawn = None if drawing is None else drawing.drawn(request)
    loading = None if drawn is None else loading_of(request, planner, drawn)
    exchanging = partial(assembly.planner_of_exchange, request)
    return RanksPlan(planner, loading, assembly.strategy, exchanging)
