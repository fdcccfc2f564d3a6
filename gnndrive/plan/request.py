"""`make_planner`: turns a loader's `PlanRequest` into a `Planner`, which makes its plan.

`Assembly` (`loader/assembly.py`) makes the request from the loader's arguments. `make_planner`
derives the `Requirements` and chooses the topology; `Planner.plan` then decides which attributes
are memory-mapped and calls `make_plan`. None of them reads the graph.

On a GPU, unless the user gives device_memory=, buffer= or in_order=False, the first batches are a
warm-up with a small feature buffer. After them the loader knows how much of the device's memory
training uses. `BufferPool.grow` then calls the settings' `after_warm_up`, which makes the second
plan with `Planner.plan_after_warm_up`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory
from gnndrive.common.plugins import find
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.plan import Plan, make_plan
from gnndrive.plan.requirements import Requirements, TableRequirements
from gnndrive.plan.topology_choice import choose_topology
from gnndrive.pyg.attributes import PASS_ROWS
from gnndrive.pyg.labels import NAME, kept_bytes
from gnndrive.sampling.graph import graph_sizes
from gnndrive.sampling.samplers.base import Bounds, position_dtype
from gnndrive.sampling.topologies.base import RING_BYTES
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges, StoredNodes

MAPPED_BYTES = 1 << 20  # files up to this size are always mapped
MAPPED_SHARE = 10  # small files that are mapped and counted take at most 1/10 of `memory=`
ROOM = 2  # a file is mapped if this many times its size is free, so that it stays in memory
FETCH_ROW_BYTES = 34  # bytes that planning the read of one row takes
FETCHED_ROW_BYTES_MAX = 4096  # arrays with longer rows are always mapped
WARM_UP_BATCHES = 1.5  # largest batches that the device's buffer holds in the warm-up


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything of a loader that its plan depends on.

    Attributes:
        store: the graph.
        tables: the arrays that go through the feature buffer.
        converted_bytes: for each table, bytes of a row as it is delivered; 0: rows are delivered as
            stored.
        bounds: the most nodes and edges that a sample can have.
        seed_bytes: bytes of the input nodes or edges and their order.
        subgraphs: whether samples are in PyG's own form.
        needs_indices: the reason why the adjacency's indices must be in memory or memory-mapped;
            None: they need not be.
        graph_bytes: bytes of times and weights in memory.
        candidate_bytes: bytes of a sampling thread's scratch for the longest list of neighbours, if
            times or weights are used.
        memory, buffer, device_memory: the user's budgets in bytes, or None.
        neighbour_cache: the user's argument: bytes, a text or None.
        topologies: topology plug-ins in the order of preference, or the one that the user named.
        topology_asked: whether the user named the topology.
        policy: the policy plug-in.
        device: the device plug-in, and the torch.device, or None for the host.
        in_order: whether batches are delivered by index.
        samplers, extracting_queue, training_queue: see `Stages`.
        staging_bytes: bytes of the engine's staging.
    """

    store: Store
    tables: tuple[FeatureTable, ...]
    converted_bytes: tuple[int, ...]
    bounds: Bounds
    seed_bytes: int
    subgraphs: bool
    needs_indices: str | None
    graph_bytes: int
    candidate_bytes: int
    memory: int | None
    buffer: int | None
    device_memory: int | None
    neighbour_cache: str | int | None
    topologies: tuple[Any, ...]
    topology_asked: bool
    policy: Any
    device: tuple[Any, Any]
    in_order: bool
    samplers: int
    extracting_queue: int
    training_queue: int
    staging_bytes: int


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes a loader's plan, and a second one after a warm-up.

    Attributes:
        requirements, memory, buffer, topology: arguments of `make_plan`.
        warm_up: whether the plan is for a warm-up.
        attributes: names of the arrays that batches have rows of and that are no table of the
            feature buffer, each with the bytes of its file.
    """

    requirements: Requirements
    memory: int | None
    buffer: int | None
    topology: TopologyChoice
    warm_up: bool
    attributes: tuple[tuple[str, int], ...] = ()

    def plan(self) -> Plan:
        """Decide which attributes are memory-mapped, and make the plan.

        Raises:
            ConfigError: see `make_plan`.
        """
        small = self._small_files()
        try:
            plan = self._make(mapped_bytes=sum(small.values()))
        except ConfigError:  # memory= has no room for the small files
            small = {}
            plan = self._make()
        fetched = self._fetched(plan, small)
        if not fetched:
            return plan
        of_nodes = all(name.startswith("nodes/") for name in fetched)
        rows = self.requirements.batch_nodes_max if of_nodes else self.requirements.batch_edges_max
        readers = 1 + self.requirements.samplers * (self.requirements.edge_number_bytes > 0)
        nbytes = FETCH_ROW_BYTES * min(rows, PASS_ROWS) * readers
        if not self.topology.has_ring:  # a topology's ring, which it has counted, is used for both
            nbytes += RING_BYTES
        plan = self._make(mapped_bytes=sum(small.values()), fetch_bytes=nbytes)
        return replace(plan, fetched=fetched)

    def _make(self, **more: int) -> Plan:
        requirements = replace(self.requirements, **more)  # type: ignore[arg-type]
        return make_plan(requirements, self.memory, self.buffer, self.topology)

    def _small_files(self) -> dict[str, int]:
        """Attributes that are mapped and counted because their files are small beside `memory=`.
        Without this, the feature buffer would take all memory, and every batch would read these
        files again; that costs more than keeping them, even at a tenth of the size."""
        small: dict[str, int] = {}
        if self.memory is None or self.buffer is not None:
            return small
        for name, nbytes in sorted(self.attributes, key=lambda each: each[1]):
            if (sum(small.values()) + nbytes) * MAPPED_SHARE > self.memory:
                break
            if nbytes > MAPPED_BYTES:
                small[name] = nbytes
        return small

    def _fetched(self, plan: Plan, mapped: Collection[str] = ()) -> tuple[str, ...]:
        """Names of the attributes that memory has no room for, beside the `mapped` ones."""
        budget = available_memory() if self.memory is None else self.memory
        room, fetched = budget - plan.total_bytes, []  # smaller files first
        for name, nbytes in sorted(self.attributes, key=lambda each: each[1]):
            if name in mapped:
                continue
            room -= ROOM * nbytes
            if room < 0 and nbytes > MAPPED_BYTES:
                fetched.append(name)
        return tuple(fetched)

    def plan_after_warm_up(self, device_bytes: int) -> Plan:
        """Make the plan for `device_bytes` of the device's memory, which the warm-up found free.

        Raises:
            ConfigError: see `make_plan`.
        """
        why = "because training leaves that much of the device's memory"
        requirements = replace(self.requirements, device_memory=device_bytes, device_why=why)
        return replace(self, requirements=requirements).plan()


def make_planner(request: PlanRequest) -> Planner:
    """Derive the requirements from a request, and choose the topology.

    Raises:
        ConfigError: an argument cannot work.
    """
    store, bounds = request.store, request.bounds
    sizes = graph_sizes(store)
    tables = tuple(
        _table_requirements(table, bounds, converted)
        for table, converted in zip(request.tables, request.converted_bytes, strict=True)
    )
    device: type[Device] = find("devices", request.device[0])
    policy: type[Policy] = find("policies", request.policy)
    requirements = Requirements(
        tables=tables,
        batch_nodes_max=sum(bounds.entries.values()),
        batch_edges_max=sum(bounds.edges.values()),
        attribute_bytes=_batch_attribute_bytes(request),
        edge_number_bytes=8 * any(table.of_edges for table in request.tables),
        position_bytes=np.dtype(position_dtype(store.num_edges)).itemsize,
        batches_queued=request.extracting_queue + request.training_queue,
        batches_extracted=request.training_queue,
        seed_bytes=request.seed_bytes,
        samplers=min(request.samplers, request.extracting_queue),
        staging_bytes=request.staging_bytes,
        index_pointer_bytes=sum(size.index_pointer_bytes for size in sizes),
        label_bytes=sum(map(kept_bytes, store.all_nodes())),
        looks_ahead=policy.looks_ahead,
        pinned_bytes=sum(device.pinned_bytes(each.row_bytes, each.rows) for each in tables),
        subgraphs=request.subgraphs,
        graph_bytes=request.graph_bytes,
        candidate_bytes=request.candidate_bytes,
    )
    device_memory, warm_up = _device_memory(request, requirements)
    given = request.device_memory is not None
    why = "because half of the device's free memory is used"
    if given:
        why = "because live batches leave that much of device_memory="
    if warm_up:
        why = "because it is a warm-up, until the memory that training uses is known"
    requirements = replace(
        requirements, device_memory=device_memory, device_given=given, device_why=why
    )
    topology = choose_topology(
        request.topologies, request.neighbour_cache, sizes, requirements, request.memory,
        request.buffer, request.topology_asked, request.needs_indices,
    )  # fmt: skip
    return Planner(
        requirements, request.memory, request.buffer, topology, warm_up, _attribute_files(request)
    )


def _table_requirements(
    table: FeatureTable, bounds: Bounds, converted_bytes: int
) -> TableRequirements:
    """The sizes of a table of the feature buffer."""
    file, most, entries = table.file, bounds.nodes, bounds.entries
    if table.of_edges:
        most = entries = bounds.edges  # type: ignore[assignment]
    key: Any = table.type
    return TableRequirements(
        table.name, file.row_count, file.row_bytes, min(most[key], file.row_count), entries[key],
        converted_bytes,
    )  # fmt: skip


def _batch_attribute_bytes(request: PlanRequest) -> int:
    """Bytes of the largest batch's attributes that are no table of the feature buffer."""
    store, bounds, total = request.store, request.bounds, 0
    buffered = {table.name for table in request.tables}
    views: list[tuple[StoredNodes | StoredEdges, int]] = [
        (store.nodes(type), count) for type, count in bounds.entries.items()
    ]
    views += [(store.edges(type), count) for type, count in bounds.edges.items()]
    for view, count in views:
        names = [name for name in view.names if view.name_of(name) not in buffered]
        total += count * sum(view.table(name).row_bytes for name in names)
    return total


def _attribute_files(request: PlanRequest) -> tuple[tuple[str, int], ...]:
    """See `Planner.attributes`."""
    store, buffered = request.store, {table.name for table in request.tables}
    nodes, edges = store.all_nodes(), store.all_edges()
    names = {view.name_of(name) for view in (*nodes, *edges) for name in view.names} - buffered
    names -= {each.name_of(NAME) for each in nodes if kept_bytes(each)}
    names |= {each.edge_id_name for each in edges if each.edge_id_name is not None}
    files = {name: store.info.arrays[name] for name in names}
    return tuple(
        (name, file.nbytes)
        for name, file in files.items()
        if 0 < file.row_bytes <= FETCHED_ROW_BYTES_MAX
    )


def _device_memory(request: PlanRequest, requirements: Requirements) -> tuple[int | None, bool]:
    """Bytes of the device's memory for loading, None if the device is the host; and whether they
    are for a warm-up."""
    plugin, where = request.device
    if request.device_memory is not None:
        return request.device_memory, False
    free: int | None = find("devices", plugin).free_bytes(where)
    if free is None or request.buffer is not None:
        return free, False
    # The second part of an epoch begins after the batches that the warm-up delivered. If batches
    # come in any order, their number does not tell which ones these are.
    if not request.in_order:
        return free // 2, False
    small = 2 * requirements.batch_bytes + sum(
        ceil(WARM_UP_BATCHES * table.batch_rows_max) * table.row_bytes
        for table in requirements.tables
    )
    return min(free // 2, small), True
