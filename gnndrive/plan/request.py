"""What a loader's plan depends on, gathered from its arguments and its store; nothing is read.

On a GPU whose share was not said the plan begins with a warm-up: a small feature buffer, until it
is known what training leaves of the device's memory (`gnndrive/loader/iterator.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory, parse_size
from gnndrive.common.plugins import find
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.plan import Plan, make_plan
from gnndrive.plan.requirements import Requirements, TableRequirements
from gnndrive.pyg.attributes import PASS_ROWS
from gnndrive.pyg.labels import NAME, kept_bytes
from gnndrive.sampling.graph import RING_BYTES, choose_topology, graph_sizes
from gnndrive.sampling.samplers.base import Bounds, position_dtype
from gnndrive.sampling.schedules.shuffled import order_width
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.views import StoredEdges, StoredNodes

if TYPE_CHECKING:
    from gnndrive.loader.store_loader import StoreLoader

LEFT = "what training leaves"
MAPPED_BYTES = 1 << 20  # a file of so many bytes is always mapped
MAPPED_SHARE = 10  # of `memory=`, 1 in so many bytes for the small files that are mapped
ROOM = 2  # times its size memory has to have for a file to be mapped and stay there
FETCH_ROW_BYTES = 34  # of planning the read of a row
FETCHED_ROW_BYTES_MAX = 4096  # wider ones are mapped
WARM_UP_BATCHES = 1.5  # largest batches that the device's buffer holds in the warm-up


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What `make_plan` is asked; it holds nothing of the loader, which shall be free to go.

    Attributes:
        demand, memory, buffer, topology: its arguments.
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
        if self.topology.name != "direct":  # which has counted the ring already
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


def plan_request(loader: StoreLoader) -> PlanRequest:
    """What a loader's plan is asked.

    Raises:
        ConfigError: an argument cannot work.
    """
    data, sizes = loader.data, graph_sizes(loader.data)
    memory = None if loader.memory is None else parse_size(loader.memory, "memory")
    buffer = None if loader.buffer is None else parse_size(loader.buffer, "buffer")
    sampler, seeds, subgraphs = loader._make_sampler(), seeds_max(loader), loader._subgraphs
    types = data.info.types
    counts = {type: nodes.num_nodes for type, nodes in types.nodes.items()}
    bounds = sampler.bounds(seeds, counts, types.edges)
    tables = tuple(_table_requirements(loader, table, bounds) for table in loader._tables)
    device = find("devices", loader._device[0])
    requirements = Requirements(
        tables=tables,
        batch_nodes_max=sum(bounds.entries.values()),
        batch_edges_max=sum(bounds.edges.values()),
        attribute_bytes=_attribute_bytes(loader, bounds),
        edge_number_bytes=8 * any(table.of_edges for table in loader._tables),
        position_bytes=np.dtype(position_dtype(data.num_edges)).itemsize,
        batches_queued=loader.extracting_queue + loader.training_queue,
        batches_extracted=loader.training_queue,
        seed_bytes=loader._inputs.nbytes + _order_bytes(loader),
        samplers=min(loader.samplers, loader.extracting_queue),
        staging_bytes=loader.io_depth * loader._block_bytes(),
        index_pointer_bytes=sum(size.index_pointer_bytes for size in sizes),
        label_bytes=sum(map(kept_bytes, data.all_nodes())),
        looks_ahead=find("policies", loader._policy("belady")).looks_ahead,
        pinned_bytes=sum(device.pinned_bytes(each.row_bytes, each.rows) for each in tables),
        subgraphs=subgraphs is not None,
        graph_bytes=0 if subgraphs is None else subgraphs.graph_bytes,
        candidate_bytes=0 if subgraphs is None else subgraphs.candidate_bytes,
    )
    device_memory, warm_up = _device_memory(loader, requirements)
    given = loader.device_memory is not None
    why = "what live batches leave of device_memory=" if given else "half of what is free"
    if warm_up:
        why = "until it is known what training leaves"
    requirements = replace(
        requirements, device_memory=device_memory, device_given=given, device_why=why
    )
    kind = loader._strategy.topology if loader.topology == "auto" else loader.topology
    needed = None if subgraphs is None else subgraphs.needs_indices
    if kind == "direct" and needed is not None:
        raise ConfigError(f'topology="direct" cannot serve this loader: {needed}; say "mmap"')
    topology = choose_topology(kind, loader.neighbour_cache, sizes, requirements, memory, buffer)
    if topology.name == "direct" and needed is not None:
        topology = choose_topology("mmap", None, sizes, requirements, memory, buffer)
    return PlanRequest(requirements, memory, buffer, topology, warm_up, _attributes(loader))


def _table_requirements(
    loader: StoreLoader, table: FeatureTable, bounds: Bounds
) -> TableRequirements:
    """What a table of the feature buffer wants."""
    file, most, entries = table.file, bounds.nodes, bounds.entries
    if table.of_edges:
        most = entries = bounds.edges  # type: ignore[assignment]
    key: Any = table.type
    return TableRequirements(
        table.name, file.row_count, file.row_bytes, min(most[key], file.row_count), entries[key],
        loader._collate.converted_bytes(table),
    )  # fmt: skip


def _attribute_bytes(loader: StoreLoader, bounds: Bounds) -> int:
    """Bytes of what the largest batch has beside the rows of tables and ids."""
    data, total = loader.data, 0
    buffered = {table.name for table in loader._tables}
    views: list[tuple[StoredNodes | StoredEdges, int]] = [
        (data.nodes(type), count) for type, count in bounds.entries.items()
    ]
    views += [(data.edges(type), count) for type, count in bounds.edges.items()]
    for view, count in views:
        names = [name for name in view.names if view.name_of(name) not in buffered]
        total += count * sum(view.table(name).row_bytes for name in names)
    return total


def _attributes(loader: StoreLoader) -> tuple[tuple[str, int], ...]:
    """Arrays that batches have rows of and no table of the buffer has, and their bytes."""
    data, buffered = loader.data, {table.name for table in loader._tables}
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


def _device_memory(loader: StoreLoader, requirements: Requirements) -> tuple[int | None, bool]:
    """Bytes of the device for loading, None where it has none but the host's; whether that is for a
    warm-up only."""
    name, where = loader._device
    if loader.device_memory is not None:
        return parse_size(loader.device_memory, "device_memory"), False
    free: int | None = find("devices", name).free_bytes(where)
    if free is None or loader.buffer is not None:
        return free, False
    if not getattr(loader, "in_order", True):  # an epoch cannot go on where it was left
        return free // 2, False
    little = 2 * requirements.batch_bytes + sum(
        ceil(WARM_UP_BATCHES * table.batch_rows_max) * table.row_bytes
        for table in requirements.tables
    )
    return min(free // 2, little), True


def seeds_max(loader: StoreLoader) -> int:
    """Seeds of a batch at most."""
    count = len(loader._inputs)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return min(size or count, max(count, 1))


def _order_bytes(loader: StoreLoader) -> int:
    """Of an epoch's order of the input nodes, ours or that of torch's sampler."""
    count = len(loader._inputs)
    if loader._own_batches:
        return loader._shuffle * order_width(count) * count
    return 8 * count
