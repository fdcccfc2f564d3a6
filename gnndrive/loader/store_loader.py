"""`StoreLoader`: what a loader does if its data is a store on disk.

It is a `torch.utils.data.DataLoader` that starts no worker processes: iterating runs GNNDrive's
pipeline (`gnndrive/pipeline/`) in a thread of its own. Making one is cheap: rings, buffers and
threads start at the first `iter`.

When not to use it: the features fit in memory. Then PyG's own loader has less to do.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.loop_thread import CLOSED
from gnndrive.common.records import Seeds
from gnndrive.loader.arguments import (
    OWN_ARGUMENTS,
    checked_device,
    checked_feature_dtype,
    checked_own,
)
from gnndrive.loader.assembly import Assembly, EpochAssembly
from gnndrive.loader.epoch_state import EpochState, by_name, from_state_dict, to_state_dict
from gnndrive.loader.iterator import BatchIterator, Closeable, in_thread
from gnndrive.loader.runtime import Runtime
from gnndrive.plan.plan import Plan
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules.base import InputEdges, InputNodes, Window
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.reader import Store
from gnndrive.strategies import Strategy
from gnndrive.strategies import strategy as find_strategy


class StoreLoader(Closeable, torch.utils.data.DataLoader[Any]):
    """A loader whose data may be a store; with other data it leaves all to the class behind it,
    PyTorch Geometric's.

    Attributes:
        epoch: the number of the next epoch, from 0: with `seed`, what its order and its draws
            depend on.
    """

    memory: str | int | None
    buffer: str | int | None
    device: Any
    device_memory: str | int | None
    feature_dtype: str | torch.dtype | None
    strategy: str | Strategy
    topology: Any
    neighbour_cache: str | int | None
    engine: Any
    io_depth: int
    gap: str | int | None
    policy: Any
    sweep: str | int
    samplers: int
    extractors: int
    extracting_queue: int
    training_queue: int
    seed: int | None
    _runtime: Runtime | None = None
    _closer: weakref.finalize[Any, Any] | None = None
    _closed = False
    _state: EpochState | None = None  # of the newest epoch
    _resumed: EpochState | None = None  # of the next, if it is one that was begun before
    _stored = False
    _inputs: InputNodes | InputEdges
    _subgraphs: SubgraphSampling | None = None  # None: plain neighbour sampling
    num_neighbors: Any
    replace: bool
    transform: Callable[[Any], Any] | None
    filter_per_worker: bool | None

    def _open_store(
        self,
        data: Store,
        inputs: InputNodes | InputEdges,
        subgraphs: SubgraphSampling | None,
        own: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Be a loader of `inputs` from a store, drawn with `subgraphs` or plainly; `own` are the
        arguments of `OWN_ARGUMENTS`, and `kwargs` torch's."""
        self._stored, self._inputs, self._subgraphs = True, inputs, subgraphs
        self.data, self.epoch, self._starting = data, 0, threading.RLock()
        self.__dict__.update(checked_own(own))
        self.samplers = kwargs.get("num_workers") or self.samplers
        self._strategy = find_strategy(self.strategy)
        self._device = checked_device(self.device, self.device_memory)
        self._own_batches = kwargs.get("sampler") is None and kwargs.get("batch_sampler") is None
        self._shuffle = bool(kwargs.get("shuffle"))
        for name in ("input_id", "custom_cls"):
            if kwargs.get(name) is not None:
                raise NotImplementedError(f"{name}= is not built for stores: leave it out")
        for name in ("input_id", "custom_cls", "dataset", "collate_fn"):
            kwargs.pop(name, None)
        positions: Any = range(len(inputs))
        torch.utils.data.DataLoader.__init__(self, positions, **kwargs)
        del self.__dict__["collate_fn"]  # torch's hides the method; the bound one makes a cycle
        if self.batch_sampler is None:
            raise NotImplementedError("batch_size=None is not built: give a number of seeds")
        dtype = checked_feature_dtype(self.feature_dtype)
        self._collate = Collate(data, feature_tables(data), self.transform, self.pin_memory, dtype)

    # ---- what the user asks ----

    def plan(self) -> Plan:
        """What will use how much memory and why; reads nothing.

        Raises:
            ConfigError: `memory`, `buffer` or `device_memory` cannot work; the message names the
                least that does.
        """
        if not self._stored:
            raise ConfigError("there is nothing to plan: the data is in memory already")
        if self._runtime is not None:
            return self._runtime.settings.plan  # after a warm-up it differs from the first
        return self._assembly().plan()

    def stats(self) -> dict[str, float | str]:
        """What happened since the first `iter`, before which it is empty, and what goes on now.

        Keys: batches, rows, edges; rows_hit, rows_waited, rows_loaded, evictions (distinct rows in
        the feature buffer); requests, bytes_read, bytes_wanted, retries; topology,
        topology_requests, topology_bytes_read (of attributes that are not mapped too),
        neighbours_wanted, neighbours_cached ("direct" alone counts); samples, which run ahead of
        the batches, and their sample_s; extract_s, gather_s (summed over batches), wait_s (yours,
        for a batch), elapsed_s; sampling, extracting, training (batches now); buffer_slots,
        buffer_bytes; engine.
        """
        return {} if self._runtime is None else self._runtime.stats()

    def close(self) -> None:
        """End all iterators, wait for reads under way, free everything. Idempotent; the loader
        cannot be used again, and an iterator in the middle of its epoch raises ClosedError."""
        if not self._stored:
            return
        self._closed = True
        with self._starting:  # a start under way in another thread; in this one a signal came in
            pass
        if self._runtime is not None and self._closer is not None:
            self._runtime.close()
            self._closer.detach()
        self._collate.close()

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Where the newest epoch stands, for `load_state_dict` in this process or another: a few
        numbers that JSON can hold. As in torchdata's StatefulDataLoader the batches that were
        yielded count, so save it with the model that has seen them.

        Raises:
            ConfigError: batches come in no order (in_order=False), or the data is in memory.
        """
        self._refuse_resuming()
        state = self._resumed or self._state or EpochState(self.epoch, self.seed)
        return to_state_dict(state, self.data.identity, self._batch_settings())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next `iter` yield exactly the batches that were left; after the last batch of an
        epoch, the next epoch.

        The batches of a sampler of yours are drawn again and those that were yielded passed over:
        it is to draw what it drew, as a DistributedSampler does, whose epoch is in the state.

        Raises:
            ConfigError: the state is of another store or of other settings; or see `state_dict`.
        """
        self._refuse_resuming()
        resumed = from_state_dict(state, self.data.identity, self._batch_settings())
        sampler = self._with("set_epoch")
        if sampler is not None and resumed.sampler_epoch is not None:
            sampler.set_epoch(resumed.sampler_epoch)
        self._resumed = resumed
        if resumed.finished:
            self._resumed, self.epoch = None, resumed.epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, and tell a sampler that has a `set_epoch`, such as torch's
        DistributedSampler."""
        self.epoch = epoch
        sampler = self._with("set_epoch")
        if sampler is not None:
            sampler.set_epoch(epoch)

    def _with(self, name: str) -> Any:
        """The sampler, or batch sampler, of the user's that has an attribute; None: neither."""
        batches: Any = self.batch_sampler
        samplers: list[Any] = [self.sampler, batches, getattr(batches, "sampler", None)]
        return next((each for each in samplers if hasattr(each, name)), None)

    def _refuse_resuming(self) -> None:
        if not self._stored:
            raise ConfigError("only a store's loader can be resumed, and this data is in memory")
        if not getattr(self, "in_order", True):
            raise ConfigError("batches that come in any order cannot be counted: say in_order=True")

    def _batch_settings(self) -> dict[str, Any]:
        """What a batch depends on beside the store, the seed and its place."""
        batches: Any = None if self._own_batches else self.batch_sampler
        sampler = None
        if batches is not None:
            inner = type(getattr(batches, "sampler", None)).__name__
            size = getattr(batches, "batch_size", None)
            sampler = f"{type(batches).__name__} of {inner}, {size} at once"
        return {
            "batch_size": self.batch_size, "shuffle": self._shuffle, "drop_last": self.drop_last,
            "sampler": sampler, "inputs": self._inputs.identity, "strategy": self._strategy.name,
            "num_neighbors": by_name(self.num_neighbors), "replace": self.replace,
            "seed": self.seed,
            "drawing": None if self._subgraphs is None else self._subgraphs.identity,
        }  # fmt: skip

    # ---- iterating ----

    def __iter__(self) -> Any:
        """A fresh epoch's batches; several iterators may live at once, each with its own buffer."""
        return self._begin() if self._stored else super().__iter__()

    def __aiter__(self) -> Any:
        """The same for `async for`, in any event loop."""
        return self._begin() if self._stored else in_thread(super().__iter__())

    def _begin(self) -> BatchIterator:
        runtime, state = self._start(), self._resumed or EpochState(self.epoch, self.seed)
        self._resumed, self._state, self.epoch = None, state, state.epoch + 1
        if state.seed is None:  # as torch's loaders draw their base seed, which manual_seed sets
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            state.seed = int(drawn.item())
        state.sampler_epoch = getattr(self._with("set_epoch"), "epoch", None)
        assembly = self._assembly()
        seed, number = state.seed, 0 if self.seed is None else state.epoch
        windows = assembly.schedule(seed).windows(number)
        batches = ((window, seeds) for window in windows for seeds in window.batches)
        left: Iterator[tuple[Window, Seeds]] = islice(batches, state.batches, None)
        if assembly.batch_sampler is not None:
            # torch's samplers draw from the global generator at their first batch. In the
            # pipeline's thread that would come in between whatever the user draws.
            left = chain(list(islice(left, 1)), left)
        epoch = EpochAssembly(assembly, runtime, number, seed)
        return BatchIterator(self, runtime, epoch, left, state, self.timeout)

    def _start(self) -> Runtime:
        with self._starting:
            if self._closed:
                raise ClosedError(CLOSED)
            if self._runtime is None:
                runtime = Runtime(self.data, self._assembly().settings())
                if self._closed:  # meanwhile, by a signal's handler
                    runtime.close()
                    raise ClosedError(CLOSED)
                self._runtime = runtime
                self._closer = weakref.finalize(self, runtime.close_from_finalizer)
            return self._runtime

    def _assembly(self) -> Assembly:
        """What the arguments say by now."""
        batches: Any = self.batch_sampler
        return Assembly(
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
            batch_sampler=None if self._own_batches else batches,
            in_order=getattr(self, "in_order", True),  # torch has it from 2.6 on
            worker_init=self.worker_init_fn,
            device=self._device,
            own={name: getattr(self, name) for name in OWN_ARGUMENTS},
        )

    # ---- PyG's public parts ----

    def __call__(self, index: torch.Tensor | list[int]) -> Any:
        """One batch around positions `index` of the seeds, read without the pipeline."""
        if not self._stored:
            return super().__call__(index)  # type: ignore[misc]
        out = self.collate_fn(index)
        return out if self.filter_per_worker else self.filter_fn(out)

    def collate_fn(self, index: Any) -> Any:
        """Sample around positions `index` of the seeds (int64 [n] or a list)."""
        if not self._stored:
            return super().collate_fn(index)
        chosen = torch.as_tensor(index, dtype=torch.int64).reshape(-1)
        seeds = self._inputs.seeds(0, chosen.numpy())
        key = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self.seed is not None:
            key = batch_key(self.seed, self.epoch, 0)
        topologies = [mapped(edges) for edges in self.data.all_edges()]
        out = seeds, self._assembly().sampler().sample(seeds, key, topologies)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a sample with its features and attributes: a Data, on the loader's device."""
        if not self._stored:
            return super().filter_fn(out)  # type: ignore[misc]
        return self._collate.from_map(out[0], out[1], self._device[1])

    def check_worker_number_rationality(self) -> None:
        """torch's warning of too many worker processes: a store's loader has none."""
        if not self._stored:
            super().check_worker_number_rationality()

    def __getstate__(self) -> dict[str, Any]:
        if not self._stored:
            return self.__dict__
        left_out = {"_starting": None, "_runtime": None, "_closer": None}  # a copy has its own
        return self.__dict__ | left_out

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._starting = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
