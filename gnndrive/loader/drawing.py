"""Draws a few of a loader's batches for its plan, or finds them in batches.json."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.memory import available_memory, return_free_memory
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.plan.choice import holds_everything, with_drawn
from gnndrive.plan.costs import processors
from gnndrive.plan.drawn import DRAWN_BATCHES, DrawnBatches, draw_batches
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.sampled_trace import SampledTrace, draw_traces
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers.base import Bounds, Sampler
from gnndrive.sampling.schedules.base import InputEdges, InputNodes, Schedule
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.cache import entry_key, load_entry, load_trace, save_entry, save_trace
from gnndrive.store.reader import Store

SPREAD_MAX = 10_000  # batches of an epoch in order, from all of which some are drawn
ENTRY_BYTES = 64  # of a node or an edge while a batch is drawn, its share of the limit


@dataclass(frozen=True)
class Drawing:
    """How a loader's batches are drawn, which `settings` identify beside the store. Without
    `schedule` the user's sampler draws seeds, which it must not do for a plan. With `spread`,
    batches are of the whole epoch. StoreError or ReadError if the graph cannot be read."""

    store: Store
    settings: str
    inputs: InputNodes | InputEdges
    size: int
    schedule: Schedule | None
    spread: bool
    sampler: Callable[[Bounds], Sampler]
    rows_of: Callable[[Sample | Subgraph], Mapping[str, Int64Array]]

    def drawn_for(self, request: PlanRequest) -> PlanRequest:
        """The request with what is known of the batches; draws some if nothing is known, but not
        without a budget, or if the feature buffer holds all rows anyway."""
        if request.memory is None or holds_everything(request):
            return request
        drawn = self.drawn(request)
        return request if drawn is None else with_drawn(request, drawn)

    def drawn(self, request: PlanRequest) -> DrawnBatches | None:
        """What is known of the batches; draws some if nothing is known. None: there is no batch, or
        not even its sample fits into memory."""
        (key, settings), rows = self._entry(request), _row_counts(request)
        drawn = DrawnBatches.from_json(load_entry(self.store, key), request.bounds, rows)
        if drawn is None:
            with contextlib.suppress(BatchTooLarge):
                sampler, topologies = self._to_draw(request)
                drawn = draw_batches(
                    self._some_seeds(), sampler, topologies, self.rows_of, rows, request.bounds
                )
            return_free_memory()
            if drawn is not None:
                save_entry(self.store, key, drawn.to_json(settings))
        return drawn

    def traces(self, request: PlanRequest) -> dict[str, SampledTrace]:
        """The traces of the tables, which are drawn unless they are kept beside the store; empty:
        there is no batch, or not even its sample fits into memory. Takes up to ten seconds."""
        tables = _row_counts(request)
        keys = {name: entry_key(self.store, f"{self.settings}\n{name}") for name in tables}
        found: dict[str, SampledTrace] = {}
        for name, rows in tables.items():
            kept = load_trace(self.store, keys[name])
            trace = None if kept is None else SampledTrace.from_array(kept, rows)
            if trace is not None:
                found[name] = trace
        if len(found) == len(tables):
            return found
        found = {}
        with contextlib.suppress(BatchTooLarge):
            threads = processors()
            sampler, topologies = self._to_draw(request, threads)
            found = draw_traces(
                self._many_seeds(), sampler, topologies, self.rows_of, tables, request.bounds,
                threads,
            )  # fmt: skip
        for name, trace in found.items():
            save_trace(self.store, keys[name], trace.to_array())
        return found

    def keep_larger(self, request: PlanRequest, size: Bounds) -> PlanRequest:
        """The request with the size of a batch that was larger than planned, which is kept."""
        assert request.drawn is not None
        drawn = request.drawn.with_larger(size)
        key, settings = self._entry(request)
        save_entry(self.store, key, drawn.to_json(settings))
        return with_drawn(request, drawn)

    def _entry(self, request: PlanRequest) -> tuple[str, str]:
        """The key and the settings of what is kept. They have the tables, whose rows were counted:
        a loader with other `attrs=` has an entry of its own."""
        tables = ", ".join(table.name for table in request.tables)
        settings = f"{self.settings}; rows of {tables}"
        return entry_key(self.store, settings), settings

    def _to_draw(self, request: PlanRequest, threads: int = 1) -> tuple[Sampler, list[Topology]]:
        """A sampler that gives up samples for which there is no memory, and the adjacency."""
        # Nothing else of the loader is in memory yet, so drawing may take what half of `memory=`
        # holds. It may also take a part of what is free: a `memory=` that is too small for a batch
        # must not hinder drawing, because the error then names the least that works.
        # Ranks may draw at the same time.
        bounds, memory = request.bounds, request.memory or 0
        most = max(memory // 2, available_memory() // 8) // request.ranks // ENTRY_BYTES // threads
        edges = {type: max(min(count, most), 1) for type, count in bounds.edges.items()}
        entries = {type: max(min(count, most), 1) for type, count in bounds.entries.items()}
        limits = Bounds(bounds.nodes, edges, entries)
        topologies: list[Topology] = [mapped(each) for each in self.store.all_edges()]
        return self.sampler(limits), topologies

    def _some_seeds(self) -> Iterator[Seeds]:
        """Yield the seeds of a few batches."""
        if self.schedule is None:
            yield from islice(self._random_seeds(), DRAWN_BATCHES)
            return
        step = max(min(len(self.schedule), SPREAD_MAX) // DRAWN_BATCHES, 1) if self.spread else 1
        yield from islice(_seeds_of(self.schedule, 0), 0, DRAWN_BATCHES * step, step)

    def _many_seeds(self) -> Iterator[Seeds]:
        """Yield the seeds of batches without end, each with its index; none without inputs."""
        if self.schedule is None:
            yield from self._random_seeds()
            return
        index = 0
        for epoch in count():
            first = index
            for seeds in _seeds_of(self.schedule, epoch):
                yield replace(seeds, index=index)
                index += 1
            if index == first:
                return

    def _random_seeds(self) -> Iterator[Seeds]:
        random, length = np.random.default_rng(0), len(self.inputs)
        for index in count() if length else ():
            chosen = random.choice(length, min(self.size, length), replace=False, shuffle=False)
            yield self.inputs.seeds(index, chosen.astype(np.int64))


def _row_counts(request: PlanRequest) -> dict[str, int]:
    return {table.name: table.rows for table in request.tables}


def _seeds_of(schedule: Schedule, epoch: int) -> Iterator[Seeds]:
    return (seeds for window in schedule.windows(epoch) for seeds in window.batches)
