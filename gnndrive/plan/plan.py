"""`Plan`: what uses how much memory and why; `make_plan` divides `memory=` or `buffer=`.

`Planner` (`plan/request.py`) calls `make_plan` before the first read, and `BufferPool` calls
`second_buffer` for each further live iterator. `memory=` counts everything that loading needs: the
feature buffer and its slot tables, staging, queued samples, samplers' scratch, the adjacency and
two live batches. It does not count Python, torch and the model. Because a batch's size is unknown
before it is sampled, the plan counts the largest batch that the fanout allows, and the feature
buffer gets what remains in this worst case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.requirements import Requirements, TableRequirements
from gnndrive.plan.slot_split import split_slots

# A slot's entries in native/buffer.c and standby.c. Standby also has one bucket for each distinct
# key; these are not counted, because LRU has few.
SLOT_TABLE_BYTES = 38
MAPPING_BYTES = 4  # a row's entry in the mapping table
SCRATCH_NODE_BYTES = 56  # a sampler's scratch for a node: hash entries, id, colptr, room to grow
SCRATCH_EDGE_BYTES = 24  # a sampler's scratch for an edge: position, row, room to grow
# For each row of a batch in extraction: joined 8, alias 4, pending 4, load_rows 8 and load_slots 4
# (kept until its read is planned, which may have to wait for staging), planned reads 21; if the
# batch is admitted by parts, also its order 4 and its part's pending 4.
LEASE_BYTES = 57
WINDOW_BYTES = 1  # a row's entry in native/window.c
PER_EPOCH = (  # the items that each live iterator has for itself
    "mapping table",
    "queued samples",
    "sampler scratch",
    "leases",
    "live batches",
    "look-ahead",
    "pinned staging",
    "attributes",
)
LIVE = "one in use, one ready"
LIVE_WITHOUT_FEATURES = "without features: made on the host, then copied to the device"
DEFAULT_SHARE = 0.25  # share of the available memory that is used if the user gives no budget


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One use of memory.

    Attributes:
        what: the item's name, such as "staging".
        nbytes: an upper bound, in bytes.
        why: what it holds and why it has this size, as `plan()` prints it.
    """

    what: str
    nbytes: int
    why: str


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The feature buffer's share of one table.

    Attributes:
        name: the table's name, such as "nodes/x".
        rows: number of rows of the table.
        slots: number of rows that the buffer holds at once.
        row_bytes: bytes of one row.
        batch_rows_max: the most rows of the table that one batch can need.
    """

    name: str
    rows: int
    slots: int
    row_bytes: int
    batch_rows_max: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory that a loader will use; printing it gives a table with a line for each use.

    Attributes:
        lines: the uses of host memory, the feature buffer first.
        tables: the feature buffer's share of each table.
        memory: the budget `memory=` in bytes; None: the user gave none.
        topology: where the adjacency lives; None: not chosen yet.
        device_lines: the uses of the device's memory; empty: the buffer is in host memory.
        device_memory: the budget `device_memory=` in bytes; None: the user gave none.
        fetched: names of the arrays whose rows are read directly when batches need them, because
            memory has no room for their files.
    """

    lines: tuple[PlanItem, ...]
    tables: tuple[TablePlan, ...]
    memory: int | None
    topology: TopologyChoice | None = None
    device_lines: tuple[PlanItem, ...] = ()
    device_memory: int | None = None
    fetched: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """Number of rows that the feature buffer holds at once, over all tables."""
        return sum(table.slots for table in self.tables)

    @property
    def batch_rows_max(self) -> int:
        """The most rows that one batch can need, over all tables."""
        return sum(table.batch_rows_max for table in self.tables)

    @property
    def holds_everything(self) -> bool:
        """Whether the buffer has a slot for every row of every table."""
        return all(table.slots >= table.rows for table in self.tables)

    @property
    def total_bytes(self) -> int:
        """Bytes of host memory."""
        return sum(line.nbytes for line in self.lines)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory."""
        return sum(line.nbytes for line in self.device_lines)

    @property
    def live_device_bytes(self) -> int:
        """Bytes of device memory for live batches."""
        return sum(line.nbytes for line in self.device_lines if line.what in PER_EPOCH)

    @property
    def epoch_bytes(self) -> int:
        """Bytes of host memory that each live iterator has for itself, without its feature buffer
        and slot tables."""
        return sum(line.nbytes for line in self.lines if line.what in PER_EPOCH)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the feature buffer's slots."""
        return sum(table.slots * table.row_bytes for table in self.tables)

    def __str__(self) -> str:
        host = _format_items(self.lines, self.memory, "memory")
        if not self.device_lines:
            return host
        device = _format_items(self.device_lines, self.device_memory, "device_memory")
        return f"{host}\non the device\n{device}"


def _format_items(items: tuple[PlanItem, ...], budget: int | None, name: str) -> str:
    """One line for each item and one for their total; `name` is the argument that set `budget`."""
    width = max(len(item.what) for item in items)
    rows = [f"{item.what:<{width}}  {format_size(item.nbytes):>8}  {item.why}" for item in items]
    total = f"{'total':<{width}}  {format_size(sum(item.nbytes for item in items)):>8}"
    of_budget = "" if budget is None else f"  of {name}={format_size(budget)}"
    return "\n".join([*rows, total + of_budget])


def make_plan(
    requirements: Requirements,
    memory: int | None,
    buffer: int | None,
    topology: TopologyChoice | None = None,
) -> Plan:
    """Divide the memory among everything that loading needs.

    Args:
        requirements: the sizes that the plan depends on.
        memory: the budget for everything in bytes, or None.
        buffer: bytes for the feature buffer's slots; None: all that `memory` leaves, or without a
            budget a quarter of the available memory. The buffer never has more slots than rows.
        topology: where the adjacency lives and the bytes it takes beside the index pointers; None:
            no bytes.

    Raises:
        ConfigError: the budget is too small for the other items, or the buffer for a single row;
            the message names a size that works.
    """
    others = _other_items(requirements, topology)
    live = PlanItem("live batches", 2 * requirements.batch_bytes, LIVE)
    slots, why = _choose_slots(requirements, memory, buffer, others, live.nbytes)
    tables = tuple(
        TablePlan(table.name, table.rows, count, table.row_bytes, table.batch_rows_max)
        for table, count in zip(requirements.tables, slots, strict=True)
    )
    plan = Plan((), tables, memory)
    if plan.holds_everything:
        why = "because the whole table fits" if len(tables) == 1 else "because all tables fit"
    parts = [f"{each.slots:,} of {each.rows:,} {each.name}" for each in tables]
    count = f"{plan.slots:,} rows" if len(tables) == 1 else ", ".join(parts) or "no rows"
    slot_memory = PlanItem("feature buffer", plan.buffer_bytes, f"{count}, {why}")
    slot_tables = PlanItem(
        "slot tables", plan.slots * SLOT_TABLE_BYTES, "reverse map, ref counts, standby list"
    )
    on_device = requirements.device_memory is not None
    plan = Plan(
        (slot_tables, *others) if on_device else (slot_memory, slot_tables, *others),
        tables, memory, topology,
        (slot_memory, live) if on_device else (),
        requirements.device_memory if requirements.device_given else None,
    )  # fmt: skip
    device_memory = requirements.device_memory
    if device_memory is not None and plan.device_bytes > device_memory:
        raise ConfigError(
            f"device_memory={format_size(device_memory)} is less than this loader can need, "
            f"{format_size(plan.device_bytes)}; give that much or a smaller buffer=\n{plan}"
        )
    if memory is not None and plan.total_bytes > memory:
        raise ConfigError(
            f"memory={format_size(memory)} is less than this loader can need, "
            f"{format_size(plan.total_bytes)}; give that much or a smaller buffer=\n{plan}"
        )
    return plan


def _choose_slots(
    requirements: Requirements,
    memory: int | None,
    buffer: int | None,
    others: tuple[PlanItem, ...],
    live_bytes: int,
) -> tuple[list[int], str]:
    """Choose the number of slots of each table; returns the reason, too."""
    tables, per_slot = requirements.tables, slot_bytes(requirements)
    row_bytes = [table.row_bytes for table in tables]
    needed = sum(item.nbytes for item in others)
    if buffer is not None:
        slots, why = split_slots(buffer, tables, row_bytes), "because buffer= has room for them"
    elif requirements.device_memory is not None:
        slots = split_slots(requirements.device_memory - live_bytes, tables, row_bytes)
        why = requirements.device_why
        if memory is not None and memory - needed < SLOT_TABLE_BYTES * sum(slots):
            slots = split_slots(memory - needed, tables, [SLOT_TABLE_BYTES] * len(tables))
            why = "because memory= has room for their slot tables only"
    elif memory is not None:
        slots = split_slots(memory - needed, tables, per_slot)
        why = "because the other items leave that much of memory="
    else:
        slots = split_slots(int(DEFAULT_SHARE * available_memory()), tables, per_slot)
        why = (
            "because the default is a quarter of the available memory; set memory= or buffer= to "
            "change it"
        )
    for table, count in zip(tables, slots, strict=True):
        if count < 1 and table.batch_rows_max > 0:
            short = memory is not None and memory - needed < max(per_slot)
            raise ConfigError(
                _no_room(requirements, table, memory, buffer, others, live_bytes, short)
            )
    return slots, why


def _no_room(
    requirements: Requirements, table: TableRequirements, memory: int | None, buffer: int | None,
    others: tuple[PlanItem, ...], live_bytes: int, short: bool,
) -> str:  # fmt: skip
    """The error message for a table without a slot; `short`: host memory has no room for one."""
    needed = sum(item.nbytes for item in others)
    row = f"one row of {table.name} is" if len(requirements.tables) > 1 else "one row is"
    if buffer is not None:
        return (
            f"buffer={format_size(buffer)} holds no row: {row} {table.row_bytes:,} bytes, "
            f"and a batch has up to {table.batch_rows_max:,}"
        )
    if requirements.device_memory is not None and not short:
        budget = format_size(requirements.device_memory)
        if not requirements.device_given:
            said = f"the part of the device's free memory that loading may use, {budget}, leaves"
        else:
            said = f"device_memory={budget} leaves"
        return (
            f"{said} no room for a feature buffer on the device, because two live batches take up "
            f"to {format_size(live_bytes)}: give more with device_memory=, free some of the "
            "device's memory, or give a smaller batch_size or num_neighbors"
        )
    if memory is not None:
        return (
            f"memory={format_size(memory)} leaves no room for a feature buffer: "
            f"everything else needs {format_size(needed)}; give more, or a smaller batch_size, "
            "num_neighbors or queues\n"
            + "\n".join(
                f"  {each.what}: {format_size(each.nbytes)} ({each.why})" for each in others
            )
        )
    return (
        f"a quarter of the available memory, {format_size(DEFAULT_SHARE * available_memory())}, "
        f"holds no row of {table.row_bytes:,} bytes: set memory= or buffer="
    )


def _item_if_any(what: str, nbytes: int, why: str) -> list[PlanItem]:
    return [PlanItem(what, nbytes, why)] if nbytes else []


def second_buffer(plan: Plan, others: int, free: Callable[[], int | None]) -> list[TablePlan]:
    """Plan the feature buffer of a further live iterator: it holds one largest batch.

    Args:
        plan: the first iterator's plan.
        others: number of live iterators that have such a further buffer already.
        free: returns the bytes of the device that are free now; None: the device is the host.

    Raises:
        ConfigError: the buffer does not fit into `memory=` or the device's memory.
    """
    tables = [replace(each, slots=max(min(each.slots, each.batch_rows_max), 1))
              for each in plan.tables]  # fmt: skip
    rows_bytes = sum(each.slots * each.row_bytes for each in tables)
    slot_table_bytes = SLOT_TABLE_BYTES * sum(each.slots for each in tables)
    host = slot_table_bytes + plan.epoch_bytes + (0 if plan.device_lines else rows_bytes)
    if plan.memory is not None:
        left = plan.memory - plan.total_bytes - others * host
        _check_room(host, left, f"memory={format_size(plan.memory)}", "left", "memory")
    if not plan.device_lines:
        return tables
    device = rows_bytes + plan.live_device_bytes
    if plan.device_memory is None:
        _check_room(device, free() or 0, "the device", "free", "device_memory")
    else:
        left = plan.device_memory - plan.device_bytes - others * device
        budget = f"device_memory={format_size(plan.device_memory)}"
        _check_room(device, left, budget, "left", "device_memory")
    return tables


def _check_room(more: int, left: int, budget: str, how: str, name: str) -> None:
    """Raise ConfigError if a further iterator's `more` bytes are more than the `left` bytes."""
    if left < more:
        raise ConfigError(
            "a second live iterator needs a feature buffer and batches of its own, "
            f"{format_size(more)}, and {budget} has {format_size(left)} {how}: "
            f"give a smaller buffer=, more {name}=, or close the first iterator"
        )


def slot_bytes(requirements: Requirements) -> list[int]:
    """For each table, bytes of host memory of a slot and its entries in the slot table."""
    on_host = requirements.device_memory is None
    return [SLOT_TABLE_BYTES + max(table.row_bytes, 1) * on_host for table in requirements.tables]


def rest_bytes(requirements: Requirements) -> int:
    """Bytes of everything except the feature buffer, its slot tables and the topology."""
    return sum(item.nbytes for item in _other_items(requirements, None))


def _other_items(
    requirements: Requirements, topology: TopologyChoice | None
) -> tuple[PlanItem, ...]:
    """All items of host memory except the feature buffer and its slot tables."""
    nodes, edges = requirements.batch_nodes_max, requirements.batch_edges_max
    on_device = requirements.device_memory is not None
    live = requirements.batch_bytes - (requirements.features_bytes if on_device else 0)
    scratch = SCRATCH_NODE_BYTES * nodes + SCRATCH_EDGE_BYTES * edges + requirements.candidate_bytes
    entries = (max(table.batch_entries_max, table.batch_rows_max) for table in requirements.tables)
    leases = LEASE_BYTES * sum(entries) * requirements.batches_extracted
    look_ahead = requirements.looks_ahead * WINDOW_BYTES * requirements.table_rows
    pinned_bytes = requirements.pinned_bytes
    pinned = PlanItem("pinned staging", pinned_bytes, "for rows on their way to the device")
    largest = f"a batch has at most {nodes:,} nodes and {edges:,} edges"
    return (
        PlanItem(
            "mapping table",
            MAPPING_BYTES * requirements.table_rows,
            f"an entry for each of {requirements.table_rows:,} rows",
        ),
        PlanItem("index pointers", requirements.index_pointer_bytes, "the graph's, in memory"),
        *_item_if_any("times, weights", requirements.graph_bytes, "the graph's, in memory"),
        *([] if topology is None else [PlanItem("topology", topology.nbytes, topology.why)]),
        *_item_if_any(
            "attributes", requirements.fetch_bytes, "to read rows of files too large for memory"
        ),
        *_item_if_any("mapped files", requirements.mapped_bytes, "attributes with small files"),
        PlanItem("input nodes", requirements.seed_bytes, "their ids and order"),
        PlanItem("labels", requirements.label_bytes, "of all nodes, in the smallest dtype"),
        PlanItem("staging", requirements.staging_bytes, "for reads in flight"),
        *([pinned] if on_device else []),
        PlanItem(
            "queued samples",
            requirements.sample_bytes * requirements.batches_queued,
            f"{requirements.batches_queued} samples; {largest}",
        ),
        PlanItem(
            "sampler scratch",
            scratch * requirements.samplers,
            f"of {requirements.samplers} samplers",
        ),
        PlanItem(
            "leases", leases, f"aliases and reads of {requirements.batches_extracted} batches"
        ),
        PlanItem("live batches", 2 * live, LIVE_WITHOUT_FEATURES if on_device else LIVE),
        PlanItem("look-ahead", look_ahead, "which queued samples need a row"),
    )
