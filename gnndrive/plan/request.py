"""What a loader's plan depends on, gathered from what the loader asks for; reads nothing.

On a GPU, unless the user gives device_memory=, the plan begins with a warm-up: a small feature
buffer until it is known what training leaves of the device's memory (`loader/iterator.py`).
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

LEFT = "what training leaves"
MAPPED_BYTES = 1 << 20  # a file of so many bytes is always mapped
MAPPED_SHARE = 10  # of `memory=`, 1 in so many bytes for the small files that are mapped
ROOM = 2  # times its size memory has to have for a file to be mapped and stay there
FETCH_ROW_BYTES = 34  # of planning the read of a row
FETCHED_ROW_BYTES_MAX = 4096  # wider ones are mapped
WARM_UP_BATCHES = 1.5  # largest batches that the device's buffer holds in the warm-up


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a loader asks a plan for.

    Attributes:
        store: the graph.
        tables: what goes through the feature buffer.
        converted_bytes: for each table, bytes of a row as it is delivered; 0: as it is stored.
        bounds: the most that a sample can hold.
        seed_bytes: of the input nodes or edges and their order.
        subgraphs: whether samples are in PyG's own form.
        needs_indices: why the adjacency's indices must be in memory or mapped; None: they need not.
        graph_bytes: of times and weights in memory.
        candidate_bytes: of a sampling thread's scratch for the longest list, where times or weights
            matter.
        memory, buffer, device_memory: budgets in bytes, or None.
        neighbour_cache: bytes or text, or None.
        topologies: plug-ins in the order of preference; or the one that the user named.
        topology_asked: whether the user named it.
        policy: the plug-in.
        device: the plug-in, and which of its kind, or None.
        in_order: whether batches are handed over by index.
        samplers, extracting_queue, training_queue: see `Stages`.
        staging_bytes: what the engine needs.
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
    """Makes a loader's plan, and another when it is known what training leaves of a device.

    Attributes:
        requirements, memory, buffer, topology: arguments of `make_plan`.
        warm_up: whether the device's memory is that of a warm-up.
        attributes: arrays that no table of the buffer has, and bytes of their files.
    """

    requirements: Requirements
    memory: int | None
    buffer: int | None
    topology: TopologyChoice
    warm_up: bool
    attributes: tuple[tuple[str, int], ...] = ()

    def plan(self) -> Plan:
        """The plan.

        Raises:
            ConfigError: see `make_plan`.
        """
        small = self._small()
        try:
            plan, mapped = self._make(mapped_bytes=sum(small.values())), set(small)
        except ConfigError:
            plan, mapped = self._make(), set()
        fetched = self._fetched(plan, mapped)
        if not fetched:
            return plan
        of_nodes = all(name.startswith("nodes/") for name in fetched)
        rows = self.requirements.batch_nodes_max if of_nodes else self.requirements.batch_edges_max
        readers = 1 + self.requirements.samplers * (self.requirements.edge_number_bytes > 0)
        nbytes = FETCH_ROW_BYTES * min(rows, PASS_ROWS) * readers
        if not self.topology.has_ring:  # else it is counted already
            nbytes += RING_BYTES
        kept = sum(size for name, size in small.items() if name in mapped)
        return replace(self._make(mapped_bytes=kept, fetch_bytes=nbytes), fetched=fetched)

    def _make(self, **more: int) -> Plan:
        requirements = replace(self.requirements, **more)  # type: ignore[arg-type]
        return make_plan(requirements, self.memory, self.buffer, self.topology)

    def _small(self) -> dict[str, int]:
        """Arrays that are little beside `memory=`, which the buffer would take all of: they are
        mapped and their files counted, for reading a tenth as much over and over costs more."""
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
        """Arrays whose files memory has no room for: the largest."""
        budget = available_memory() if self.memory is None else self.memory
        room, fetched = budget - plan.total_bytes, []
        for name, nbytes in sorted(self.attributes, key=lambda each: each[1]):
            if name in mapped:
                continue
            room -= ROOM * nbytes
            if room < 0 and nbytes > MAPPED_BYTES:
                fetched.append(name)
        return tuple(fetched)

    def plan_of(self, nbytes: int) -> Plan:
        """The plan for so many bytes of device memory, after a warm-up.

        Raises:
            ConfigError: see `make_plan`.
        """
        requirements = replace(self.requirements, device_memory=nbytes, device_why=LEFT)
        return replace(self, requirements=requirements).plan()


def planner(request: PlanRequest) -> Planner:
    """The planner for a loader.

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
        attribute_bytes=_attribute_bytes(request),
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
    why = "what live batches leave of device_memory=" if given else "half of what is free"
    if warm_up:
        why = "until it is known what training leaves"
    requirements = replace(
        requirements, device_memory=device_memory, device_given=given, device_why=why
    )
    topology = choose_topology(
        request.topologies, request.neighbour_cache, sizes, requirements, request.memory,
        request.buffer, request.topology_asked, request.needs_indices,
    )  # fmt: skip
    return Planner(
        requirements, request.memory, request.buffer, topology, warm_up, _attributes(request)
    )


def _table_requirements(
    table: FeatureTable, bounds: Bounds, converted_bytes: int
) -> TableRequirements:
    """What a table of the feature buffer wants."""
    file, most, entries = table.file, bounds.nodes, bounds.entries
    if table.of_edges:
        most = entries = bounds.edges  # type: ignore[assignment]
    key: Any = table.type
    return TableRequirements(
        table.name, file.row_count, file.row_bytes, min(most[key], file.row_count), entries[key],
        converted_bytes,
    )  # fmt: skip


def _attribute_bytes(request: PlanRequest) -> int:
    """Bytes of what the largest batch has beside the rows of tables and ids."""
    data, bounds, total = request.store, request.bounds, 0
    buffered = {table.name for table in request.tables}
    views: list[tuple[StoredNodes | StoredEdges, int]] = [
        (data.nodes(type), count) for type, count in bounds.entries.items()
    ]
    views += [(data.edges(type), count) for type, count in bounds.edges.items()]
    for view, count in views:
        names = [name for name in view.names if view.name_of(name) not in buffered]
        total += count * sum(view.table(name).row_bytes for name in names)
    return total


def _attributes(request: PlanRequest) -> tuple[tuple[str, int], ...]:
    """Arrays that batches have rows of and no table of the buffer has, and their bytes."""
    data, buffered = request.store, {table.name for table in request.tables}
    nodes, edges = data.all_nodes(), data.all_edges()
    names = {view.name_of(name) for view in (*nodes, *edges) for name in view.names} - buffered
    names -= {each.name_of(NAME) for each in nodes if kept_bytes(each)}
    names |= {each.edge_id_name for each in edges if each.edge_id_name is not None}
    files = {name: data.info.arrays[name] for name in names}
    return tuple(
        (name, file.nbytes)
        for name, file in files.items()
        if 0 < file.row_bytes <= FETCHED_ROW_BYTES_MAX
    )


def _device_memory(request: PlanRequest, requirements: Requirements) -> tuple[int | None, bool]:
    """Bytes of the device for loading, None where it has none but the host's; whether that is for a
    warm-up only."""
    plugin, where = request.device
    if request.device_memory is not None:
        return request.device_memory, False
    free: int | None = find("devices", plugin).free_bytes(where)
    if free is None or request.buffer is not None:
        return free, False
    if not request.in_order:  # an epoch cannot go on where it was left
        return free // 2, False
    little = 2 * requirements.batch_bytes + sum(
        ceil(WARM_UP_BATCHES * table.batch_rows_max) * table.row_bytes
        for table in requirements.tables
    )
    return min(free // 2, little), True
