"""`NeighborLoader`: PyTorch Geometric's loader of that name, reading from a store on disk.

It is a `torch.utils.data.DataLoader` with PyG's arguments, so that frameworks which rebuild or
inspect loaders find what they expect, but it starts no worker processes: iterating runs GNNDrive's
pipeline (`gnndrive/pipeline/`) in a thread of its own. Making one is cheap: rings, buffers and
threads start at the first `iter`.

When not to use it: the features fit in memory. Then PyG's own loader has less to do.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace as replaced
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from gnndrive.adjacency import mapped
from gnndrive.arguments import (
    OWN_ARGUMENTS,
    PYG_ARGUMENTS,
    checked_device,
    checked_feature_dtype,
    checked_gap,
    checked_input_nodes,
    checked_own,
    feature_table,
    refuse_unbuilt,
)
from gnndrive.blocks import Allocate
from gnndrive.budget import Plan
from gnndrive.collate import Collate
from gnndrive.errors import ClosedError
from gnndrive.iterator import BatchIterator, Closing
from gnndrive.layouts.base import block_bytes
from gnndrive.pipeline.batch import Extracted, Sampled
from gnndrive.pipeline.conduct import Running
from gnndrive.pipeline.epoch import Stages
from gnndrive.pipeline.service import CLOSED
from gnndrive.planning import wanted
from gnndrive.plugins import find
from gnndrive.records import EngineSettings, Sample, Seeds
from gnndrive.runtime import Runtime
from gnndrive.samplers.base import Sampler, batch_key, checked_fanout
from gnndrive.schedules.base import Schedule
from gnndrive.schedules.given import Given
from gnndrive.settings import RuntimeSettings
from gnndrive.store.reader import Store
from gnndrive.strategies import strategy as find_strategy


class NeighborLoader(Closing, torch.utils.data.DataLoader[Any]):
    """Samples neighbourhoods of a stored graph and loads their features from disk.

    The arguments up to `directed` and those in `kwargs` are PyG's and torch's; those that are not
    built yet raise NotImplementedError with their name.

    Args:
        data: a store, from `gnndrive.open`.
        num_neighbors: neighbours to sample for each node in each hop; -1: all.
        input_nodes: seeds: ids (int64), a mask (bool [num_nodes]) or None for all nodes.
        replace: whether to sample with replacement.
        transform: applied to each batch.
        memory: what loading may use in all, bytes or text ("8GB"); see `plan`.
        buffer: the feature buffer's size, bytes or text; by default what `memory` leaves.
        device: where the feature buffer and the batches live: "cpu", or "cuda", which one too.
        device_memory: what loading may use of a GPU's memory, bytes or text; by default what
            training leaves: after a few batches through a small buffer it is measured, and the
            epoch goes on through a large one (half of what is free if not in_order).
        feature_dtype: what x is delivered in, converted on the device, such as "float32" for rows
            stored as float16, bfloat16, or int8 with a node attribute `x_scale`.
        strategy: the published design to run, see `gnndrive.strategies`.
        topology: where the adjacency is: "resident" in memory, "mmap" in the page cache, "direct"
            on disk; "auto": by the memory there is, see `gnndrive.adjacency`.
        neighbour_cache: what "direct" keeps of the adjacency in memory, bytes or text.
        engine: "uring", "threads" or "auto": io_uring where it is allowed.
        io_depth: reads in flight at once.
        gap: rows with at most so many unwanted bytes between them on disk are read as one; 0: only
            rows that share a sector or touch, as in the paper. By default what a request costs in
            bytes on this disk, if `gnndrive bench disk` has measured it, else 8192.
        policy: what leaves the feature buffer first: "lru", as in the paper; "belady", what the
            queued samples want last; "auto": belady, unless the buffer holds everything.
        sweep: batches read in one sorted pass, if they wait already; "auto": as many as the buffer
            has room for, up to four, or one where it holds everything. 1 is the paper.
        samplers, extractors: tasks of the two stages; `num_workers`, if positive, sets `samplers`.
        extracting_queue, training_queue: bounds of the two queues, in batches.
        seed: makes every epoch's batches reproducible; by default drawn from `generator` at each
            `iter`, as torch does.
        **kwargs: torch's DataLoader arguments: batch_size, shuffle, drop_last, sampler, generator,
            …

    Raises:
        ConfigError: an argument cannot work.
        NotImplementedError: an argument that is not built yet; the message names it.
    """

    memory: str | int | None
    buffer: str | int | None
    device: str | torch.device
    device_memory: str | int | None
    feature_dtype: str | torch.dtype | None
    strategy: str
    topology: str
    neighbour_cache: str | int | None
    engine: str
    io_depth: int
    gap: str | int | None
    policy: str
    sweep: str | int
    samplers: int
    extractors: int
    extracting_queue: int
    training_queue: int
    seed: int | None
    _runtime: Runtime | None = None
    _closer: weakref.finalize[Any, Any] | None = None
    _closed = False

    def __init__(
        self,
        data: Store,
        num_neighbors: list[int],
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Data], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        memory: str | int | None = None,
        buffer: str | int | None = None,
        device: str | torch.device = "cpu",
        device_memory: str | int | None = None,
        feature_dtype: str | torch.dtype | None = None,
        strategy: str = "gnndrive",
        topology: str = "auto",
        neighbour_cache: str | int | None = None,
        engine: str = "auto",
        io_depth: int = 128,
        gap: str | int | None = None,
        policy: str = "auto",
        sweep: str | int = "auto",
        samplers: int = 4,
        extractors: int = 4,
        extracting_queue: int = 6,
        training_queue: int = 4,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        named = dict(locals())
        given = {name: named[name] for name in PYG_ARGUMENTS}
        refuse_unbuilt(given | kwargs)
        if not isinstance(data, Store):
            raise NotImplementedError(
                f"data={type(data).__name__}: only a store is loaded from so far; make one with "
                f"gnndrive.from_data(data, path), then gnndrive.open(path)"
            )
        self.__dict__.update(given)  # frameworks look for arguments under their own names
        self.data, self.transform = data, transform
        self.num_neighbors = checked_fanout(num_neighbors)
        self.replace, self.epoch, self._starting = replace, 0, threading.RLock()
        self.__dict__.update(checked_own({name: named[name] for name in OWN_ARGUMENTS}))
        self.samplers = kwargs.get("num_workers") or self.samplers
        self._features = feature_table(data)
        self._strategy = find_strategy(strategy)
        self._device = checked_device(device, device_memory)
        self._inputs = checked_input_nodes(input_nodes, data.num_nodes)
        self._own_batches = kwargs.get("sampler") is None and kwargs.get("batch_sampler") is None
        self._shuffle = bool(kwargs.get("shuffle"))
        kwargs.pop("dataset", None)
        kwargs.pop("collate_fn", None)
        positions: Any = range(len(self._inputs))
        super().__init__(positions, **kwargs)
        del self.__dict__["collate_fn"]  # torch's hides the method; the bound one makes a cycle
        if self.batch_sampler is None:
            raise NotImplementedError("batch_size=None is not built: give a number of seeds")
        dtype = checked_feature_dtype(feature_dtype)
        self._collate = Collate(data, self._features, transform, self.pin_memory, dtype)

    # ---- what the user asks ----

    def plan(self) -> Plan:
        """What will use how much memory and why; reads nothing.

        Raises:
            ConfigError: `memory`, `buffer` or `device_memory` cannot work; the message names the
                least that does.
        """
        if self._runtime is not None:
            return self._runtime.settings.plan  # after a warm-up another than before it
        return wanted(self).plan()

    def stats(self) -> dict[str, float | str]:
        """What happened since the first `iter`, before which it is empty, and what goes on now.

        Keys: batches, rows, edges; rows_hit, rows_waited, rows_loaded, evictions (distinct rows in
        the feature buffer); requests, bytes_read, bytes_wanted, retries; topology,
        topology_requests, topology_bytes_read, neighbours_wanted, neighbours_cached ("direct"
        alone counts); samples, which run ahead of the batches, and their sample_s; extract_s,
        gather_s (summed over batches), wait_s (yours, for a batch), elapsed_s; sampling,
        extracting, training (batches now); buffer_slots, buffer_bytes; engine.
        """
        return {} if self._runtime is None else self._runtime.stats()

    def close(self) -> None:
        """End all iterators, wait for reads under way, free everything. Idempotent; the loader
        cannot be used again, and an iterator in the middle of its epoch raises ClosedError."""
        self._closed = True
        with self._starting:  # a start under way in another thread; in this one a signal came in
            pass
        if self._runtime is not None and self._closer is not None:
            self._runtime.close()
            self._closer.detach()
        self._collate.close()

    # ---- iterating ----

    def __iter__(self) -> BatchIterator:  # type: ignore[override]
        """A fresh epoch's batches; several iterators may live at once, each with a feature buffer
        of its own.
        """
        return self._begin()

    def __aiter__(self) -> BatchIterator:
        """The same for `async for`, in any event loop."""
        return self._begin()

    def _begin(self) -> BatchIterator:
        runtime = self._start()
        number, seed = self.epoch, self.seed
        self.epoch += 1
        if seed is None:  # as torch's loaders draw their base seed: manual_seed repeats an epoch
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            number, seed = 0, int(drawn.item())
        windows = self._schedule(seed).windows(number)
        seeds: Iterator[Seeds] = (batch for window in windows for batch in window)
        if not self._own_batches:
            # torch's samplers draw from the global generator at their first batch. In the
            # pipeline's thread that would come in between whatever the user draws.
            seeds = chain(list(islice(seeds, 1)), seeds)
        empty = runtime.blocks.empty
        collate, features = self._collate, self._features
        dtype, shape = collate.row_type(features)

        def finish(item: Extracted) -> Any:
            rows = item.lease.gather(features, dtype, shape)
            return collate(item.seeds, item.sample, {features: rows}, empty, runtime.device)

        def start(left: Iterator[Seeds], first: int) -> Running:
            sampler = self._make_sampler(empty)
            return runtime.begin(left, seed, number, sampler, finish, first)

        return BatchIterator(runtime, start, seeds)

    def _start(self) -> Runtime:
        with self._starting:
            if self._closed:
                raise ClosedError(CLOSED)
            if self._runtime is None:
                runtime = Runtime(self.data, self._runtime_settings())
                if self._closed:  # meanwhile, by a signal's handler
                    runtime.close()
                    raise ClosedError(CLOSED)
                self._runtime = runtime
                self._closer = weakref.finalize(self, runtime.close_anywhere)
            return self._runtime

    def _runtime_settings(self) -> RuntimeSettings:
        found, sweep = wanted(self), None if self.sweep == "auto" else int(self.sweep)
        in_order = getattr(self, "in_order", True)  # torch knows it from 2.6 on
        stages = Stages(
            self.samplers, self.extractors, self.extracting_queue, self.training_queue, in_order,
            sweep,
        )  # fmt: skip
        settings = RuntimeSettings(
            strategy=self._strategy,
            features=self._features,
            plan=found.plan(),
            policy=self._policy("belady"),
            stages=stages,
            engine=self.engine,
            engine_settings=EngineSettings(self.io_depth, self._block_bytes()),
            device=self._device,
            gap_bytes_max=checked_gap(self.gap, self.data, self._block_bytes()),
        )
        nodes, lru = self.data.num_nodes, self._policy("lru")

        def fitted(plan: Plan) -> RuntimeSettings:  # knows nothing of the loader: it may go
            if plan.slots < nodes:
                return replaced(settings, plan=plan)
            # After the first epoch nothing is read, so nothing is gained by waiting.
            once = replaced(stages, sweep=sweep or 1)
            return replaced(settings, plan=plan, policy=lru, stages=once)

        begun = fitted(settings.plan)
        if not found.warm_up:
            return begun
        return replaced(begun, after_warm_up=lambda nbytes: fitted(found.plan_of(nbytes)))

    def _schedule(self, seed: int) -> Schedule:
        if not self._own_batches:
            batches: Any = self.batch_sampler
            return Given(self._inputs, batches)
        schedule: Schedule = find("schedules", self._strategy.schedule)(
            self._inputs, self.batch_size, self._shuffle, self.drop_last, seed
        )
        return schedule

    def _make_sampler(self, empty: Allocate = np.empty) -> Sampler:
        kind = find("samplers", self._strategy.sampler)
        sampler: Sampler = kind(self.num_neighbors, self.replace, empty)
        return sampler

    def _policy(self, auto: str) -> str:
        """The policy's name; `auto` if neither the user nor the strategy says which."""
        name = self._strategy.policy if self.policy == "auto" else self.policy
        return auto if name == "auto" else name

    def _block_bytes(self) -> int:
        return block_bytes(self.data.table(self._features).row_bytes)

    # ---- PyG's public parts ----

    def __call__(self, index: torch.Tensor | list[int]) -> Any:
        """One batch around positions `index` of the input nodes, read without the pipeline."""
        return self.filter_fn(self.collate_fn(index))

    def collate_fn(self, index: Any) -> Sampled:
        """Sample around positions `index` of the input nodes (int64 [n] or a list)."""
        chosen = torch.as_tensor(index, dtype=torch.int64).reshape(-1)
        seeds = self._inputs.seeds(0, chosen)
        key = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self.seed is not None:
            key = batch_key(self.seed, self.epoch, 0)
        sample: Sample = self._make_sampler().sample(seeds.node, key, mapped(self.data))
        return Sampled(seeds, sample)

    def filter_fn(self, out: Sampled) -> Any:
        """Join a sample with its features and attributes: a Data, on the loader's device."""
        return self._collate.from_map(out.seeds, out.sample, self._device[1])

    def check_worker_number_rationality(self) -> None:
        """torch's warning of too many worker processes: there are none."""

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"_starting": None, "_runtime": None, "_closer": None}  # a copy has its own
        return self.__dict__ | left_out

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._starting = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
