"""What will use how much memory, and why, before the first read: the plan behind `memory=` and
`buffer=`.

`memory=` counts everything that loading needs: the feature buffer and its books, staging, queued
samples, samplers'
scratch, the adjacency and two live batches. Python, torch and the model are the user's. Where a
batch's size is
unknown, the largest that the fanout allows is counted, so the feature buffer gets what is left in
the worst case.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gnndrive.errors import ConfigError
from gnndrive.records import TopologyChoice
from gnndrive.sizes import format_size

SLOT_BOOKS_BYTES = 37  # native/buffer.c, standby.c; buckets are one a distinct key, few under LRU
SAMPLE_NODE_BYTES = 12  # a node of a queued sample: its id, where its edges start
SUBGRAPH_NODE_BYTES = 16  # the same in PyG's form: its id, whose tree it is in
SUBGRAPH_EDGE_BYTES = 24  # source, target, position
BATCH_EDGE_BYTES = 44  # edge_index, e_id, and making them: col, positions, original numbers
MAPPING_BYTES = 4  # a row's entry in the mapping table
SCRATCH_NODE_BYTES = 56  # a sampler's scratch for a node: hash entries, id, colptr, room to grow
SCRATCH_EDGE_BYTES = 24  # and for an edge: position and row, room to grow
# A row of a batch in extraction: joined 8, alias 4, pending 4, load_rows 8, load_slots 4, planned
# reads 21; and with look-ahead its next use, which becomes its key.
LEASE_BYTES = 49
NEXT_USE_BYTES = 8
WINDOW_BYTES = 1  # a node's entry in native/window.c
PER_EPOCH = (
    "mapping table",
    "queued samples",
    "sampler scratch",
    "leases",
    "live batches",
    "look-ahead",
    "pinned staging",
)
DEFAULT_SHARE = 0.25  # of the memory available, when the user names no budget


@dataclass(frozen=True, slots=True)
class Line:
    """One use of memory.

    Attributes:
        what: its name.
        nbytes: bytes, an upper bound.
        why: how it comes about.
    """

    what: str
    nbytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a loader will use.

    Attributes:
        lines: each use of memory, the feature buffer first.
        slots: rows that the feature buffer holds.
        row_bytes: bytes of one row.
        batch_rows_max: the most rows that one batch can have.
        memory: the budget in bytes, or None.
        topology: which, or None: none was chosen.
        device_lines: each use of the device's memory; empty: the buffer is in host memory.
        device_memory: their budget in bytes, or None.
    """

    lines: tuple[Line, ...]
    slots: int
    row_bytes: int
    batch_rows_max: int
    memory: int | None
    topology: TopologyChoice | None = None
    device_lines: tuple[Line, ...] = ()
    device_memory: int | None = None

    @property
    def total_bytes(self) -> int:
        """The sum of all lines of host memory."""
        return sum(line.nbytes for line in self.lines)

    @property
    def device_bytes(self) -> int:
        """The sum of all lines of device memory."""
        return sum(line.nbytes for line in self.device_lines)

    @property
    def live_device_bytes(self) -> int:
        """Bytes of device memory for live batches."""
        return sum(line.nbytes for line in self.device_lines if line.what in PER_EPOCH)

    @property
    def slot_bytes(self) -> int:
        """Bytes of host memory that a slot and its books take."""
        return SLOT_BOOKS_BYTES + (0 if self.device_lines else self.row_bytes)

    @property
    def epoch_bytes(self) -> int:
        """What each live iterator has for itself, its buffer's slots and their books not
        counted."""
        return sum(line.nbytes for line in self.lines if line.what in PER_EPOCH)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the feature buffer's slots."""
        return self.slots * self.row_bytes

    def __str__(self) -> str:
        host = _said(self.lines, self.memory, "memory")
        if not self.device_lines:
            return host
        device = _said(self.device_lines, self.device_memory, "device_memory")
        return f"{host}\non the device\n{device}"


def _said(lines: tuple[Line, ...], budget: int | None, name: str) -> str:
    wide = max(len(line.what) for line in lines)
    rows = [f"{x.what:<{wide}}  {format_size(x.nbytes):>8}  {x.why}" for x in lines]
    total = f"{'total':<{wide}}  {format_size(sum(line.nbytes for line in lines)):>8}"
    return "\n".join(
        [*rows, total + ("" if budget is None else f"  of {name}={format_size(budget)}")]
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What the plan depends on.

    Attributes:
        nodes: nodes of the graph.
        row_bytes: bytes of a node's features.
        other_node_bytes, other_edge_bytes: bytes of a node's and an edge's other attributes.
        batch_rows_max, batch_edges_max: the largest batch's distinct nodes, and edges.
        batch_entries_max: its nodes, if they can be more, for in disjoint trees one may come often.
        subgraphs: whether samples are in PyG's own form, which is larger.
        graph_bytes: of times and weights in memory.
        candidate_bytes: of a sampling thread's scratch for the longest list, where they have a say.
        position_bytes: bytes of an edge's position in the graph, 4 or 8.
        batches_queued: samples that can be alive at once.
        batches_extracted: batches in the training window, each with its lease.
        samplers: sampling threads.
        seed_bytes: the input nodes and their order.
        staging_bytes: what the engine needs.
        index_pointer_bytes: the graph's, in memory.
        label_bytes: the labels that are kept in memory.
        looks_ahead: whether the policy wants to know rows' next uses.
        device_memory: bytes of the device for the buffer and live batches; None: they are in host
            memory.
        device_given: whether the user said so many; else the device had them free.
        device_why: why so many.
        pinned_bytes: staging before the device.
        converted_bytes: bytes of a node's features as they are delivered, if they are converted.
    """

    nodes: int
    row_bytes: int
    other_node_bytes: int
    other_edge_bytes: int
    batch_rows_max: int
    batch_edges_max: int
    position_bytes: int
    batches_queued: int
    batches_extracted: int
    samplers: int
    seed_bytes: int
    staging_bytes: int
    index_pointer_bytes: int
    label_bytes: int = 0
    looks_ahead: bool = False
    device_memory: int | None = None
    device_given: bool = False
    device_why: str = ""
    pinned_bytes: int = 0
    converted_bytes: int = 0
    batch_entries_max: int = 0
    subgraphs: bool = False
    graph_bytes: int = 0
    candidate_bytes: int = 0

    @property
    def entries(self) -> int:
        """Nodes of the largest batch."""
        return max(self.batch_entries_max, self.batch_rows_max)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the largest sample."""
        if self.subgraphs:
            return SUBGRAPH_NODE_BYTES * self.entries + SUBGRAPH_EDGE_BYTES * self.batch_edges_max
        edges = (4 + self.position_bytes) * self.batch_edges_max
        return SAMPLE_NODE_BYTES * self.entries + edges

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        features = self.row_bytes + self.converted_bytes
        nodes = (features + self.other_node_bytes + 8) * self.entries
        return nodes + (BATCH_EDGE_BYTES + self.other_edge_bytes) * self.batch_edges_max


def make_plan(
    demand: Demand,
    memory: int | None,
    buffer: int | None,
    topology: TopologyChoice | None = None,
) -> Plan:
    """Divide the memory.

    Args:
        demand: what there is to load.
        memory: the budget for everything, bytes, or None.
        buffer: the feature buffer's slots, bytes, or None: what the rest leaves, or without a
            budget a quarter of the memory available, in no case more than the table.
        topology: which, and what it takes beside the index pointers; None: nothing.

    Raises:
        ConfigError: the budget cannot hold the rest, or the buffer not a single row; names the
            least.
    """
    rest = _rest(demand, topology)
    live = Line("live batches", 2 * demand.batch_bytes, "one with you, one ready")
    slots, why = _slots(demand, memory, buffer, rest, live.nbytes)
    if slots >= demand.nodes:
        slots, why = demand.nodes, "the whole table fits"
    held = Line("feature buffer", slots * demand.row_bytes, f"{slots:,} rows: {why}")
    books = Line("slot books", slots * SLOT_BOOKS_BYTES, "reverse map, ref counts, standby list")
    on_device = demand.device_memory is not None
    plan = Plan(
        (books, *rest) if on_device else (held, books, *rest),
        slots, demand.row_bytes, demand.batch_rows_max, memory, topology,
        (held, live) if on_device else (),
        demand.device_memory if demand.device_given else None,
    )  # fmt: skip
    if demand.device_memory is not None and held.nbytes + live.nbytes > demand.device_memory:
        raise ConfigError(
            f"device_memory={format_size(demand.device_memory)} is less than this loader can need, "
            f"{format_size(held.nbytes + live.nbytes)}; give that much or a smaller buffer=\n{plan}"
        )
    if memory is not None and plan.total_bytes > memory:
        raise ConfigError(
            f"memory={format_size(memory)} is less than this loader can need, "
            f"{format_size(plan.total_bytes)}; give that much or a smaller buffer=\n{plan}"
        )
    return plan


def _slots(
    demand: Demand, memory: int | None, buffer: int | None, rest: tuple[Line, ...], live_bytes: int
) -> tuple[int, str]:
    """How many slots, more than a table needs perhaps, and why."""
    needed, per_slot = sum(line.nbytes for line in rest), slot_bytes(demand)
    if buffer is not None:
        slots = buffer // max(demand.row_bytes, 1)
        why = "as asked for with buffer="
    elif demand.device_memory is not None:
        slots = (demand.device_memory - live_bytes) // max(demand.row_bytes, 1)
        why = demand.device_why
        if memory is not None and (memory - needed) // per_slot < slots:
            slots, why = (memory - needed) // per_slot, "whose books memory= has room for"
    elif memory is not None:
        slots = (memory - needed) // per_slot
        why = "what the rest leaves of memory="
    else:
        slots = int(DEFAULT_SHARE * available_memory()) // per_slot
        why = "a quarter of the memory available; set memory= or buffer="
    if slots < 1 and buffer is not None:
        raise ConfigError(
            f"buffer={format_size(buffer)} holds no row: one row is {demand.row_bytes:,} bytes, "
            f"and a batch has up to {demand.batch_rows_max:,}"
        )
    short = memory is not None and memory - needed < per_slot
    if slots < 1 and demand.device_memory is not None and not short:
        budget = format_size(demand.device_memory)
        said = f"device_memory={budget} leaves" if demand.device_given else f"{budget} leave"
        raise ConfigError(
            f"{said} no room for a feature buffer on the device: two live batches take up to "
            f"{format_size(live_bytes)}; give more with device_memory=, free some of the device's "
            "memory, or give a smaller batch_size or num_neighbors"
        )
    if slots < 1 and memory is not None:
        raise ConfigError(
            f"memory={format_size(memory)} leaves no room for a feature buffer: "
            f"everything else needs {format_size(needed)}; give more, or a smaller batch_size, "
            "num_neighbors or queues\n"
            + "\n".join(f"  {line.what}: {format_size(line.nbytes)} ({line.why})" for line in rest)
        )
    if slots < 1:
        raise ConfigError(
            f"{format_size(DEFAULT_SHARE * available_memory())}, a quarter of the memory "
            f"available, hold no row of {demand.row_bytes:,} bytes; set memory= or buffer="
        )
    return slots, why


def slot_bytes(demand: Demand) -> int:
    """Bytes of host memory of a slot of the feature buffer and its books."""
    return SLOT_BOOKS_BYTES + (max(demand.row_bytes, 1) if demand.device_memory is None else 0)


def rest_bytes(demand: Demand) -> int:
    """Bytes of everything but the feature buffer, its slots' books and the topology."""
    return sum(line.nbytes for line in _rest(demand, None))


def _rest(demand: Demand, topology: TopologyChoice | None) -> tuple[Line, ...]:
    rows, edges = demand.entries, demand.batch_edges_max
    on_device = demand.device_memory is not None
    features = (demand.row_bytes + demand.converted_bytes) * rows
    live = demand.batch_bytes - (features if on_device else 0)
    why_live = "one with you, one ready"
    if on_device:
        why_live = "without features: made here, pinned and copied"
    scratch = SCRATCH_NODE_BYTES * rows + SCRATCH_EDGE_BYTES * edges + demand.candidate_bytes
    lease = LEASE_BYTES + demand.looks_ahead * NEXT_USE_BYTES
    leases = lease * rows * demand.batches_extracted
    look_ahead = demand.looks_ahead * WINDOW_BYTES * demand.nodes
    largest = f"a batch has at most {rows:,} nodes and {edges:,} edges"
    return (
        Line("mapping table", MAPPING_BYTES * demand.nodes, f"{demand.nodes:,} nodes"),
        Line("index pointers", demand.index_pointer_bytes, "the graph's, in memory"),
        *([Line("times, weights", demand.graph_bytes, "in memory")] * (demand.graph_bytes > 0)),
        *([] if topology is None else [Line("topology", topology.nbytes, topology.why)]),
        Line("input nodes", demand.seed_bytes, "their ids and order"),
        Line("labels", demand.label_bytes, "of all nodes, in as few bytes as they need"),
        Line("staging", demand.staging_bytes, "reads in flight"),
        *([Line("pinned staging", demand.pinned_bytes, "rows on the way")] if on_device else []),
        Line(
            "queued samples",
            demand.sample_bytes * demand.batches_queued,
            f"{demand.batches_queued}; {largest}",
        ),
        Line("sampler scratch", scratch * demand.samplers, f"{demand.samplers} samplers"),
        Line("leases", leases, f"aliases and reads of {demand.batches_extracted} batches"),
        Line("live batches", 2 * live, why_live),
        Line("look-ahead", look_ahead, "which queued samples want a node"),
    )


def available_memory() -> int:
    """Bytes that this process may still use: the machine's available memory or its cgroup's limit,
    if less.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    return min(available, _cgroup_limit())


def _cgroup_limit() -> int:
    limit = 2**63 - 1
    try:
        with open("/proc/self/cgroup", encoding="ascii") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return limit
    for _, controllers, path in groups:
        if controllers == "":
            file = f"/sys/fs/cgroup{path}/memory.max"
        elif "memory" in controllers.split(","):
            file = f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"
        else:
            continue
        try:
            with open(file, encoding="ascii") as text:
                limit = min(limit, int(text.read()))
        except (OSError, ValueError):
            continue  # no such file at the root, or "max"
    return limit
