"""`LoaderRecording`: draws the batches that a loader's strategy draws, for a pack to record.

It uses the loader's own schedule, sampler and topologies without the pipeline. What a batch holds
depends on (seed, epoch, index) alone, so these are the batches that a loader with the same
arguments and `seed` yields. Its memory is within the loader's `memory=`: the counts of a recording
take what the loader has its mapping table for.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.items import Item
from gnndrive.common.memory import (
    available_memory,
    exact_text,
    format_size,
    least_text,
    size_or_none,
)
from gnndrive.common.records import Seeds, TopologyChoice
from gnndrive.common.threads import in_turn, thread_pool
from gnndrive.disk.engines import choose as choose_engine
from gnndrive.loader.arguments import Tuning
from gnndrive.loader.assembly import Assembly
from gnndrive.plan.choice import default_stages
from gnndrive.plan.plan import StageCounts
from gnndrive.plan.request import PlanRequest, planner_of
from gnndrive.pyg.attributes import Attributes
from gnndrive.pyg.items import Labels
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.rounds import STOPPED, CombinedFetch, Participant
from gnndrive.sampling.samplers.base import Sampler, batch_key
from gnndrive.sampling.schedules.base import InputEdges, InputNodes
from gnndrive.store.feature_tables import NODE_FEATURES
from gnndrive.store.packed.encoding import RecordedBatch
from gnndrive.store.packed.format import PackSettings
from gnndrive.store.packed.pack import least_memory

OF_REPLAYING = ("io_depth", "extracting_queue", "training_queue")
"""Arguments of `Tuning` that decide how much memory replaying a pack takes."""
COUNT_BYTES = 4  # of a row of a table: how many batches use it


def pack_settings(assembly: Assembly, seed: int, epochs: int, **placing: Any) -> PackSettings:
    """The settings of a pack of a loader's batches; see `PackSettings` for the arguments.
    ConfigError if batches of this loader cannot be recorded."""
    _check_recordable(assembly)
    assert assembly.batch_size is not None
    return PackSettings(
        assembly.inputs.identity, assembly.batch_size, bool(assembly.drop_last), assembly.shuffle,
        assembly.fanout, bool(assembly.replace),
        assembly.drawn_text, seed, epochs, **placing,
    )  # fmt: skip


def pack_command(assembly: Assembly) -> str | None:
    """The command that packs the batches of a loader; None: only Python can say which they are."""
    store = assembly.store
    if store.is_hetero:
        return None
    of = (name for name in store.split_names if _are_split(assembly.inputs, store.split(name)))
    split = next(of, None)
    plain = assembly.subgraphs is None and isinstance(assembly.num_neighbors, Sequence)
    plain &= all(table.attribute == NODE_FEATURES for table in assembly.collate.tables)
    seed = assembly.seed or 0
    if split is None or assembly.replace or assembly.drop_last or not plain or seed < 0:
        return None
    words = ["gnndrive", "pack", str(store.path)]
    words += ["--fanout", ",".join(map(str, assembly.num_neighbors))]
    words += ["--batch-size", str(assembly.batch_size), "--input", split]
    words += [] if assembly.shuffle else ["--no-shuffle"]
    words += ["--seed", str(seed)] if seed else []
    if assembly.sampling.shares:
        words += ["--sampling", f"labor:dependency={assembly.sampling.batch_dependency}"]
    sizes = {name: assembly.own[name] or 0 for name in ("memory", "device_memory")}
    sizes = {name: size_or_none(size, name) for name, size in sizes.items()}
    for name, size in sizes.items():
        words += [] if not size else [f"--{name}".replace("_", "-"), exact_text(size)]
    tuning = {name: assembly.own[name] for name in OF_REPLAYING}
    given = [f"{n}={v}" for n, v in tuning.items() if v != getattr(Tuning(), n)]
    words += ["--tuning", ",".join(given)] if given else []
    _, least = least_memory(assembly.collate.tables)
    if (sizes["memory"] or least) < least:
        words += ["--packing-memory", least_text(least)]
    return shlex.join(words)


def _are_split(inputs: InputNodes | InputEdges, nodes: torch.Tensor) -> bool:
    return len(inputs) == len(nodes) and InputNodes(len(nodes), nodes).identity == inputs.identity


def _check_recordable(assembly: Assembly) -> None:
    """Refuse what may draw other batches each time, or draws none."""
    if not assembly.scheme.whole_graph:
        raise ConfigError(
            f"strategy={assembly.strategy.name!r} replays batches that are recorded already: leave "
            "it out, so that batches are drawn"
        )
    subgraphs, named = assembly.subgraphs, ""
    if assembly.batch_sampler is not None:
        named = "sampler= or batch_sampler="
    elif subgraphs is not None and subgraphs.gnndrive_sampler is None:
        named = "neighbor_sampler="
    elif subgraphs is not None and subgraphs.transform is not None:
        named = "transform_sampler_output="
    elif subgraphs is not None and not subgraphs.can_be_drawn:
        raise ConfigError(
            "gnndrive.pack records batches of a NeighborLoader or a LinkNeighborLoader, not of an "
            'HGTLoader: train with strategy="gnndrive"'
        )
    if named:
        raise ConfigError(
            f"batches of a loader with {named} cannot be recorded, because they may differ each "
            'time: leave it out, or train with strategy="gnndrive"'
        )


class LoaderRecording:
    """Draws the batches of a loader's first epochs, for which there are `pack_settings`, in
    `memory` bytes or else the loader's; a `BatchSource` of `store/packed/record.py`."""

    def __init__(
        self, assembly: Assembly, seed: int, epochs: int, memory: int | None = None
    ) -> None:
        self._memory = memory
        self._assembly, self._seed, self._epochs = assembly, seed, epochs
        self._schedule = assembly.schedule(seed)
        self.total = epochs * len(self._schedule)
        fanout = assembly.num_neighbors
        lists = list(fanout.values()) if isinstance(fanout, dict) else [fanout]
        self.hops = max(map(len, lists), default=0)

    def draw(self, first: int) -> Iterator[RecordedBatch]:
        """Draw the batches from number `first` on, in order; a generator to close. Raises what
        `recording_memory` does, and StoreError or ReadError of the graph."""
        assembly, request, store = self._assembly, self._assembly.request(), self._assembly.store
        with ExitStack() as opened:
            with store.unchanged():
                plan = recording_memory(request, self._memory)
                adjacency = Adjacency(store.all_edges(), plan.topology, request.disk.gap_bytes)
                opened.callback(adjacency.close)
                layouts = {name: adjacency.layout(store.table(name)) for name in plan.fetched}
                attributes = Attributes(store, layouts, adjacency.read)
                opened.callback(attributes.close)
            adjacency.start(choose_engine(assembly.own["engine"]), assembly.engine_settings)
            pool = opened.enter_context(thread_pool(plan.samplers, "gnndrive record"))
            run = _Run(assembly, self._seed, adjacency, attributes, plan.samplers)
            opened.callback(run.stop)  # before the threads are joined
            yield from in_turn(pool, run.groups(islice(self._seeds(), first, None)), run.ahead)

    def _seeds(self) -> Iterator[tuple[int, Seeds]]:
        for epoch in range(self._epochs):
            for window in self._schedule.windows(epoch):
                for seeds in window.batches:
                    yield epoch, seeds


@dataclass(frozen=True, slots=True)
class RecordingMemory:
    """How memory is used while batches are recorded."""

    topology: TopologyChoice
    fetched: list[str]  # names of the arrays of edge numbers that are not memory-mapped
    samplers: int  # how many batches are sampled at once


def recording_memory(request: PlanRequest, packing_memory: int | None = None) -> RecordingMemory:
    """Choose how many batches are sampled at once, where the adjacency lives, and how edge numbers
    are read. There is no feature buffer, so the adjacency may have more room than in the loader.

    No plan is made of the loader's request, because recording needs less than drawing in training,
    and training will replay. Without `packing_memory`, recording has the loader's. ConfigError if
    that is too small; the message names the least that works.
    """
    store, memory = request.store, packing_memory or request.memory
    request = replace(request, ranks=1, shared=False)  # one process records
    for samplers in range(default_stages(request).samplers, 0, -1):
        planner = planner_of(request, StageCounts(samplers, 2 * samplers, 0))
        counts = Item("counts", COUNT_BYTES * planner.shape.rows, "of the uses of each row")
        parts = [each for each in planner.parts if not isinstance(each, Labels)]
        planner = replace(
            planner, shape=replace(planner.shape, tables=()), parts=(*parts, counts),
            budget=replace(planner.budget, memory=memory, buffer=None),
        )  # fmt: skip
        topology = request.topologies.choose(planner)
        least = planner.rest_bytes() + topology.nbytes
        if memory is None or least <= memory:
            break
    else:
        assert memory is not None
        name = "packing_memory" if packing_memory else "memory"
        raise ConfigError(
            f"{name}={format_size(memory, least)} is too little to record these batches: give at "
            f'least packing_memory="{least_text(least)}", or a smaller batch_size or num_neighbors'
        )
    numbers = [each.edge_id_name for each in store.all_edges() if each.edge_id_name is not None]
    names = sorted(numbers, key=lambda name: store.info.arrays[name].nbytes)
    room, fetched = (available_memory() if memory is None else memory) - least, []
    for name in names:  # the small ones are mapped
        room -= store.info.arrays[name].nbytes
        if room < 0:
            fetched.append(name)
    return RecordingMemory(topology, fetched, samplers)


class _Run:
    """What threads call to draw batches, at most two a thread at a time."""

    def __init__(
        self, assembly: Assembly, seed: int, adjacency: Adjacency, attributes: Attributes,
        samplers: int,
    ) -> None:  # fmt: skip
        self._assembly, self._seed, self._attributes = assembly, seed, attributes
        self._topologies, self._stopped = adjacency.topologies, False
        fetches = any(topology.fetches for topology in self._topologies)
        self._together = samplers if fetches else 1
        self.ahead = 2 * samplers - self._together
        self._samplers: dict[int, Sampler] = {}  # by epoch

    def groups(
        self, seeds: Iterator[tuple[int, Seeds]]
    ) -> Iterator[list[Callable[[], RecordedBatch]]]:
        """What samples around seeds, each with its epoch: a group is one combined fetch."""
        while group := list(islice(seeds, self._together)):
            for epoch, _ in group:
                if epoch not in self._samplers:
                    self._samplers[epoch] = self._assembly.sampler()
            combined: CombinedFetch[Any] = CombinedFetch()
            participants = [combined.join() for _ in group]
            yield [
                partial(self._sample, self._samplers[epoch], epoch, each, combined, participant)
                for (epoch, each), participant in zip(group, participants, strict=True)
            ]
            for epoch in [each for each in self._samplers if each < group[-1][0] - 1]:
                del self._samplers[epoch]

    def _sample(
        self, sampler: Sampler, epoch: int, seeds: Seeds, combined: CombinedFetch[Any],
        participant: Participant,
    ) -> RecordedBatch:  # fmt: skip
        try:
            if self._stopped:
                raise ClosedError(STOPPED)
            topologies = [topology.in_group(combined) for topology in self._topologies]
            sample = sampler.sample(seeds, batch_key(self._seed, epoch, seeds.index), topologies)
        finally:
            participant.leave()
        collate = self._assembly.collate
        return RecordedBatch(seeds, collate.numbered(sample, self._attributes))

    def stop(self) -> None:
        """End sampling; threads end soon afterwards."""
        self._stopped = True
        with deferred_interrupts():  # an interrupt may leave a lock held that they wait for
            for sampler in self._samplers.values():
                sampler.stop()
