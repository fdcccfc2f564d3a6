"""`PlanRequest`: everything of a loader that its plan depends on; `planner_of` names its parts.

On a GPU, unless the user gives device_memory=, buffer= or in_order=False, or the strategy's batches
need more from the first on, the first batches are a warm-up with a small feature buffer. After them
the loader knows how much of the device's memory training uses. `BufferPool.grow` then calls the
settings' `after_warm_up`, which makes the second plan with `Planner.plan_after_warm_up`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Protocol, cast

import numpy as np

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.items import DeviceMemory, SlotTables
from gnndrive.buffer.policies.base import Policy
from gnndrive.common.items import Item, Owner, Part, Shape, TableShape, Use, if_any
from gnndrive.common.plugins import find
from gnndrive.exchange.items import Exchange, OnDevice, OutOfSlots, SentRows
from gnndrive.host.arena import AnnouncedRows
from gnndrive.plan.costs import Disk
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import AttributeFile, Budget, Elastic, Planner, Served, StageCounts
from gnndrive.plan.slots import RowSlots
from gnndrive.plan.topology_choice import Topologies
from gnndrive.pyg.items import Labels, LiveBatches, batch_bytes
from gnndrive.pyg.labels import NAME, kept_bytes
from gnndrive.pyg.padding import Padding
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.items import Graph, Samples, sample_bytes
from gnndrive.sampling.samplers._native import scratch_bytes
from gnndrive.sampling.samplers.base import Bounds, position_dtype
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.reader import Store
from gnndrive.store.striped.striped import Stripes
from gnndrive.store.views import StoredEdges, StoredNodes

FETCHED_ROW_BYTES_MAX = 4096  # arrays with longer rows are always mapped
EDGE_NUMBER_BYTES = 8  # of an edge in a queued sample, if edges have a table
WARM_UP_BATCHES = 1.5  # largest batches that the device's buffer holds in the warm-up
# Copies that are made while a sample is put into PyG's own form.
CONVERTED_NODE_BYTES = 16
CONVERTED_EDGE_BYTES = 24


class Ahead(Protocol):
    """How batches are sampled ahead of extraction, and what is known of them then."""

    @property
    def apart(self) -> bool:
        """Whether they are sampled before the feature buffer is made."""

    def part(self, size: Bounds, memory: int | None) -> Part:
        """What states the memory that samples take, for batches of at most `size`; `memory` is
        `PlanRequest.rank_memory`."""

    def foreseen(self, size: Bounds) -> int | None:
        """Of how many batches the policy knows the rows at least; None: of as many as pay."""

    def window(self, size: Bounds) -> int:
        """Of how many batches the policy may know the rows at most."""

    def record_bytes(self, size: Bounds) -> int:
        """The most bytes of disk that a batch's sample takes."""

    def disk_bytes(self, size: Bounds) -> int:
        """The most bytes of disk that an epoch takes while it runs."""

    def said(self, size: Bounds) -> tuple[str, ...]:
        """What the plan prints of it below its lines."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything of a loader that its plan depends on.

    Attributes:
        converted_bytes: for each table, bytes of a row as it is delivered; 0: as it is stored.
        bounds, seed_bounds: the most nodes and edges of a sample, and of one around a single seed.
        planned: the size that the plan counts for the largest batch: `bounds`, or less if batches
            were drawn.
        seed_bytes: bytes of the input nodes or edges and their order.
        subgraphs: how samples are drawn that are in PyG's own form; None: samples are plain.
        candidate_bytes: bytes of a sampling thread's scratch for the longest list of neighbours, if
            times or weights are used, or to choose neighbours with shared numbers.
        memory, buffer, device_memory: budgets in bytes; None: not given.
        device: the device plug-in, and the torch.device, or None for the host.
        samplers, extracting_queue, training_queue: see `StageCounts`; None: the plan chooses.
        io_depth: the number of reads in flight on each disk, for which `staging_bytes` are.
        stripes: copies of the tables' rows on several disks, which are read; None: the store's own
            rows are.
        batch_size: the number of seeds of a batch; None: a user's batch sampler says it.
        sweep: the most batches that are read together; None: as many as fit.
        warms_up: whether a small buffer can serve the first batches on a GPU. It cannot if batches
            come in any order: their number does not tell where the second part of the epoch begins.
        ranks: those on this host, for all of which `memory` and `buffer` are.
        shared: whether one host service has the feature buffer and the adjacency of all of them;
            ignored if the feature buffer is on a device. `shared_graph`: at least the adjacency.
        exchange: which ranks own which rows; None: each rank reads all that it needs.
        served: what a service that a user has started has left; None: there is none.
        padding: how batches are padded; None: not at all.
        said: what the plan prints of the arguments below its lines.
    """

    store: Store
    tables: tuple[FeatureTable, ...]
    converted_bytes: tuple[int, ...]
    bounds: Bounds
    seed_bounds: Bounds
    planned: Bounds
    drawn: DrawnBatches | None
    seed_bytes: int
    subgraphs: SubgraphSampling | None
    candidate_bytes: int
    memory: int | None
    buffer: int | None
    device_memory: int | None
    topologies: Topologies
    policy: Any
    device: tuple[Any, Any]
    samplers: int | None
    extracting_queue: int | None
    training_queue: int | None
    sweep: int | None
    staging_bytes: int
    io_depth: int
    batch_size: int | None
    disk: Disk
    ahead: Ahead | None = None
    stripes: Stripes | None = None
    elastic: Elastic | None = None
    warms_up: bool = True
    ranks: int = 1
    shared: bool = False
    shared_graph: bool = False
    exchange: Exchange | None = None
    served: Served | None = None
    padding: Padding | None = None
    said: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether no rank has rows for another one, so that each may change its plan."""
        return not self.shared and self.exchange is None

    @property
    def rank_memory(self) -> int | None:
        """The part of `memory` that is for one rank of this host; None: not given."""
        return None if self.memory is None else self.memory // self.ranks


def planner_of(request: PlanRequest, stages: StageCounts) -> Planner:
    """The planner, without topology, of a loader that samples the whole graph into row slots."""
    store, size, ahead = request.store, request.planned, request.ahead
    how, drawn = request.subgraphs, request.drawn
    delivered = size if request.padding is None else request.padding.bounds(size)
    tables = tuple(
        _table_shape(table, size, converted, delivered, request.exchange)
        for table, converted in zip(request.tables, request.converted_bytes, strict=True)
    )
    device: type[Device] = find("devices", request.device[0])
    policy: type[Policy] = find("policies", request.policy)
    edge_numbers = any(table.of_edges for table in request.tables)
    counts = zip(request.tables, tables, strict=True)
    of_nodes = sum(own.rows for table, own in counts if not table.of_edges)
    shape = shape_of(
        tables, size, store.num_edges, stages, policy, _batch_attribute_bytes(request, delivered),
        how is not None, EDGE_NUMBER_BYTES * edge_numbers, delivered,
    )  # fmt: skip
    shape = replace(
        shape, foreseen_rows=0 if ahead is None else of_nodes * policy.looks_ahead,
        apart=ahead is not None and ahead.apart, ranks=request.ranks,
    )  # fmt: skip
    elastic = request.elastic
    copied_out = 0 if elastic is None else elastic.scratch_bytes
    memory = DeviceMemory(
        sum(device.pinned_bytes(each.row_bytes, each.rows) for each in tables),
        device.pinned_per_byte,
        sum(
            device.scratch_bytes(each.row_bytes, each.rows)
            + min(copied_out, each.rows * each.row_bytes)
            for each in tables
        ),
    )
    budget, warm_up = _budget(request, shape, memory.scratch_bytes)
    on_device = budget.device_memory is not None
    shared = request.shared and not on_device
    graphs = 1 if shared or request.shared_graph else request.ranks
    if request.served is not None and request.shared_graph:
        graphs = 0
    pointers = sum(each.index_pointer_bytes for each in request.topologies.sizes)
    labels = sum(map(kept_bytes, store.all_nodes()))
    return Planner(
        replace(
            shape, on_device=on_device, delivers=device.delivers, shared=shared, graphs=graphs
        ),
        (
            *loader_parts(
                SlotTables(0 if policy.score is None else of_nodes),
                Graph(pointers, 0 if how is None else how.graph_bytes), request.seed_bytes, labels,
                request.staging_bytes, memory,
                Samples(
                    _scratch_bytes(request), request.candidate_bytes,
                    None if drawn is None else drawn.said(),
                ),
            ),
            *([] if ahead is None else [ahead.part(size, request.rank_memory)]),
            *_exchange_parts(request, device),
        ),
        RowSlots(whole_batches=request.memory is not None),
        budget,
        stages,
        elastic=elastic,
        warm_up=warm_up,
        limits=None if drawn is None else size,
        attributes=attribute_files(request),
        edge_numbers=edge_numbers,
        disk_bytes=0 if ahead is None else ahead.disk_bytes(size),
        said=(*request.said, *(() if ahead is None else ahead.said(size))),
    )  # fmt: skip


def _exchange_parts(request: PlanRequest, device: type[Device]) -> list[Part]:
    exchange = request.exchange
    if exchange is None:
        return []
    parts: list[Part] = [exchange]
    pulls = device.pulls and exchange.pulls
    if sent := not pulls or exchange.world > request.ranks:
        parts.append(SentRows(exchange.world))
    scratch = device.copy_out_scratch_bytes()
    if device.delivers and sent:
        parts.append(OnDevice(device.pinned_per_byte, device.copy_out_bytes(), scratch))
    if pulls:
        parts.append(OutOfSlots(device.pinned_per_byte, scratch, sent))
    return parts


def shape_of(
    tables: tuple[TableShape, ...], size: Bounds, num_edges: int, stages: StageCounts,
    policy: type[Policy], attribute_bytes: int = 0, subgraphs: bool = False,
    edge_number_bytes: int = 0, delivered: Bounds | None = None,
) -> Shape:  # fmt: skip
    """The shape of a loader of one rank, on the host, with samples of at most `size` over a graph
    of so many edges, and batches of at most `delivered` (None: the same); for the other arguments
    see `sample_bytes` and `batch_bytes`."""
    nodes, edges = _counts(size)
    all_nodes, all_edges = _counts(delivered or size)
    position_bytes = np.dtype(position_dtype(num_edges)).itemsize
    return Shape(
        tables, nodes, edges,
        sample_bytes(nodes, edges, size.expanded, position_bytes, subgraphs, edge_number_bytes),
        batch_bytes(all_nodes, all_edges, attribute_bytes), stages.queued, stages.training_queue,
        stages.threads, looks_ahead=policy.looks_ahead, padded_edges=all_edges,
    )  # fmt: skip


def _counts(size: Bounds) -> tuple[int, int]:
    return sum(size.entries.values()), sum(size.edges.values())


def loader_parts(
    slot_tables: SlotTables, graph: Graph, seed_bytes: int, label_bytes: int, staging_bytes: int,
    device: DeviceMemory, samples: Samples,
) -> tuple[Part, ...]:  # fmt: skip
    """The parts of a loader that draws its batches."""
    staging = Item(
        "staging", staging_bytes, "for reads in flight", Owner.BUFFER, argument="io_depth",
        use=Use.READING,
    )  # fmt: skip
    return (
        slot_tables,
        graph,
        Item("input nodes", seed_bytes, "the seeds' ids and order", use=Use.GRAPH),
        Labels(label_bytes),
        *if_any(staging),
        device,
        samples,
        AnnouncedRows(),
        LiveBatches(),
    )


def _scratch_bytes(request: PlanRequest) -> int:
    size, limited = request.planned, request.drawn is not None
    how = request.subgraphs
    nbytes = scratch_bytes(size, how is not None and how.disjoint, limited)
    if how is not None:  # copies in PyG's own form are made before the next sample
        nbytes += CONVERTED_NODE_BYTES * sum(size.entries.values())
        nbytes += (CONVERTED_EDGE_BYTES + how.edge_temporaries) * sum(size.edges.values())
    return nbytes


def _table_shape(
    table: FeatureTable, bounds: Bounds, converted_bytes: int, delivered: Bounds,
    exchange: Exchange | None = None,
) -> TableShape:  # fmt: skip
    file, of_edges, key = table.file, table.of_edges, cast(Any, table.type)
    rows = table.rows if exchange is None else exchange.count(table.name)
    most: Mapping[Any, int] = bounds.edges if of_edges else bounds.nodes
    entries, padded = (each.edges if of_edges else each.entries for each in (bounds, delivered))
    return TableShape(
        table.name, rows, file.row_bytes, min(most[key], rows), entries[key], converted_bytes,
        padded[key],
    )  # fmt: skip


def batch_entries_max(request: PlanRequest, size: Bounds) -> tuple[int, ...]:
    """The most rows of each table that a batch of at most `size` can have."""
    shapes = (_table_shape(table, size, 0, size) for table in request.tables)
    return tuple(each.batch_entries_max for each in shapes)


def _batch_attribute_bytes(request: PlanRequest, size: Bounds) -> int:
    """Bytes of a batch's attributes that are no table of the feature buffer."""
    store = request.store
    buffered = {table.name for table in request.tables}
    views: list[tuple[StoredNodes | StoredEdges, int]] = [
        *((store.nodes(type), count) for type, count in size.entries.items()),
        *((store.edges(type), count) for type, count in size.edges.items()),
    ]
    return sum(
        count * view.table(name).row_bytes
        for view, count in views
        for name in view.names
        if view.name_of(name) not in buffered
    )


def attribute_files(request: PlanRequest) -> tuple[AttributeFile, ...]:
    """See `Planner.attributes`."""
    store, buffered = request.store, {table.name for table in request.tables}
    nodes, edges = store.all_nodes(), store.all_edges()
    views = {view.name_of(name): view for view in (*nodes, *edges) for name in view.names}
    for each in nodes:
        if kept_bytes(each):
            views.pop(each.name_of(NAME), None)
    views |= {each.edge_id_name: each for each in edges if each.edge_id_name is not None}
    return tuple(
        AttributeFile(
            name, file.nbytes, file.shape[0], file.row_bytes, view.group == "edges", view.type
        )
        for name, view in views.items()
        if name not in buffered
        and 0 < (file := store.info.arrays[name]).row_bytes <= FETCHED_ROW_BYTES_MAX
    )


def _budget(request: PlanRequest, shape: Shape, scratch_bytes: int) -> tuple[Budget, bool]:
    """What limits the plan, and whether the device's memory is for a warm-up."""
    budget = Budget(request.memory, request.buffer, served=request.served)
    plugin, where = request.device
    if request.device_memory:
        why = "because live batches leave that much of device_memory="
        given = request.device_memory
        return replace(budget, device_memory=given, device_given=True, device_why=why), False
    why = "because half of the device's free memory is used"
    free: int | None = find("devices", plugin).free_bytes(where)
    if free is None or request.buffer is not None:
        return replace(budget, device_memory=free, device_why=why), False
    if not request.warms_up:
        return replace(budget, device_memory=free // 2, device_why=why), False
    why = "because it is a warm-up, until the memory that training uses is known"
    small = 2 * shape.whole_batch_bytes + scratch_bytes
    small += sum(
        ceil(WARM_UP_BATCHES * each.batch_rows_max) * each.row_bytes for each in shape.tables
    )
    return replace(budget, device_memory=min(free // 2, small), device_why=why), True
