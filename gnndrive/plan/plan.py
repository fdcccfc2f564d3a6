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

from collections.abc import Callable
from dataclasses import dataclass, replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.requirements import Requirements, TableRequirements
from gnndrive.plan.slot_split import split_slots

SLOT_TABLE_BYTES = 38  # native/buffer.c, standby.c; buckets are one a distinct key, few under LRU
MAPPING_BYTES = 4  # a row's entry in the mapping table
SCRATCH_NODE_BYTES = 56  # a sampler's scratch for a node: hash entries, id, colptr, room to grow
SCRATCH_EDGE_BYTES = 24  # and for an edge: position and row, room to grow
# A row of a batch in extraction: joined 8, alias 4, pending 4, load_rows 8 and load_slots 4 (until
# its read is planned, for which there may not be staging yet), planned reads 21, and by parts its
# order 4 and its part's pending 4.
LEASE_BYTES = 57
WINDOW_BYTES = 1  # a node's entry in native/window.c
PER_EPOCH = (
    "mapping table",
    "queued samples",
    "sampler scratch",
    "leases",
    "live batches",
    "look-ahead",
    "pinned staging",
    "attributes",
)
DEFAULT_SHARE = 0.25  # of the memory available, when the user names no budget


@dataclass(frozen=True, slots=True)
class PlanItem:
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
class TablePlan:
    """What the feature buffer holds of one table.

    Attributes:
        name: the table's.
        rows: of the table.
        slots: rows that the buffer holds.
        row_bytes: bytes of one row.
        batch_rows_max: the most rows that one batch can need.
    """

    name: str
    rows: int
    slots: int
    row_bytes: int
    batch_rows_max: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a loader will use.

    Attributes:
        lines: each use of memory, the feature buffer first.
        tables: what the feature buffer holds of each.
        memory: the budget in bytes, or None.
        topology: which, or None: none was chosen.
        device_lines: each use of the device's memory; empty: the buffer is in host memory.
        device_memory: their budget in bytes, or None.
        fetched: arrays that are read with direct reads as they are wanted, for memory has no room
            for their files.
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
        """Rows that the feature buffer holds, of all tables."""
        return sum(table.slots for table in self.tables)

    @property
    def batch_rows_max(self) -> int:
        """The most rows that one batch can need, of all tables."""
        return sum(table.batch_rows_max for table in self.tables)

    @property
    def holds_everything(self) -> bool:
        """Whether the buffer has a slot for every row there is."""
        return all(table.slots >= table.rows for table in self.tables)

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
    def epoch_bytes(self) -> int:
        """What each live iterator has for itself, its buffer's slots and their books not
        counted."""
        return sum(line.nbytes for line in self.lines if line.what in PER_EPOCH)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the feature buffer's slots."""
        return sum(table.slots * table.row_bytes for table in self.tables)

    def __str__(self) -> str:
        host = _said(self.lines, self.memory, "memory")
        if not self.device_lines:
            return host
        device = _said(self.device_lines, self.device_memory, "device_memory")
        return f"{host}\non the device\n{device}"


def _said(lines: tuple[PlanItem, ...], budget: int | None, name: str) -> str:
    wide = max(len(line.what) for line in lines)
    rows = [f"{x.what:<{wide}}  {format_size(x.nbytes):>8}  {x.why}" for x in lines]
    total = f"{'total':<{wide}}  {format_size(sum(line.nbytes for line in lines)):>8}"
    return "\n".join(
        [*rows, total + ("" if budget is None else f"  of {name}={format_size(budget)}")]
    )


def make_plan(
    requirements: Requirements,
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
    rest = _rest(requirements, topology)
    live = PlanItem("live batches", 2 * requirements.batch_bytes, "one with you, one ready")
    slots, why = _slots(requirements, memory, buffer, rest, live.nbytes)
    tables = tuple(
        TablePlan(table.name, table.rows, count, table.row_bytes, table.batch_rows_max)
        for table, count in zip(requirements.tables, slots, strict=True)
    )
    plan = Plan((), tables, memory)
    if plan.holds_everything:
        why = "the whole table fits" if len(tables) == 1 else "all tables fit"
    said = f"{plan.slots:,} rows: {why}"
    if len(tables) != 1:
        parts = [f"{each.slots:,} of {each.rows:,} {each.name}" for each in tables]
        said = f"{', '.join(parts) or 'no rows'}: {why}"
    held = PlanItem("feature buffer", plan.buffer_bytes, said)
    slot_tables = PlanItem(
        "slot tables", plan.slots * SLOT_TABLE_BYTES, "reverse map, ref counts, standby list"
    )
    on_device = requirements.device_memory is not None
    plan = Plan(
        (slot_tables, *rest) if on_device else (held, slot_tables, *rest),
        tables, memory, topology,
        (held, live) if on_device else (),
        requirements.device_memory if requirements.device_given else None,
    )  # fmt: skip
    if (
        requirements.device_memory is not None
        and held.nbytes + live.nbytes > requirements.device_memory
    ):
        raise ConfigError(
            f"device_memory={format_size(requirements.device_memory)} is less than this loader can "
            f"need, {format_size(held.nbytes + live.nbytes)}; give that much or a smaller buffer="
            f"\n{plan}"
        )
    if memory is not None and plan.total_bytes > memory:
        raise ConfigError(
            f"memory={format_size(memory)} is less than this loader can need, "
            f"{format_size(plan.total_bytes)}; give that much or a smaller buffer=\n{plan}"
        )
    return plan


def _slots(
    requirements: Requirements,
    memory: int | None,
    buffer: int | None,
    rest: tuple[PlanItem, ...],
    live_bytes: int,
) -> tuple[list[int], str]:
    """How many slots of each table, and why."""
    needed, per_slot = sum(line.nbytes for line in rest), slot_bytes(requirements)
    row_bytes = [table.row_bytes for table in requirements.tables]
    if buffer is not None:
        slots, why = (
            split_slots(buffer, requirements.tables, row_bytes),
            "as asked for with buffer=",
        )
    elif requirements.device_memory is not None:
        slots = split_slots(requirements.device_memory - live_bytes, requirements.tables, row_bytes)
        why = requirements.device_why
        slot_tables = [SLOT_TABLE_BYTES] * len(requirements.tables)
        if memory is not None and (memory - needed) < SLOT_TABLE_BYTES * sum(slots):
            slots = split_slots(memory - needed, requirements.tables, slot_tables)
            why = "whose books memory= has room for"
    elif memory is not None:
        slots = split_slots(memory - needed, requirements.tables, per_slot)
        why = "what the rest leaves of memory="
    else:
        slots = split_slots(int(DEFAULT_SHARE * available_memory()), requirements.tables, per_slot)
        why = "a quarter of the memory available; set memory= or buffer="
    none = [one for one, count in zip(requirements.tables, slots, strict=True) if count < 1]
    none = [one for one in none if one.batch_rows_max > 0]
    if none:
        short = memory is not None and memory - needed < max(per_slot)
        raise ConfigError(_no_room(requirements, none[0], memory, buffer, rest, live_bytes, short))
    return slots, why


def _no_room(
    requirements: Requirements, table: TableRequirements, memory: int | None, buffer: int | None,
    rest: tuple[PlanItem, ...], live_bytes: int, short: bool,
) -> str:  # fmt: skip
    """Why a table has no slot, and what to give."""
    needed = sum(line.nbytes for line in rest)
    row = f"one row of {table.name} is" if len(requirements.tables) > 1 else "one row is"
    if buffer is not None:
        return (
            f"buffer={format_size(buffer)} holds no row: {row} {table.row_bytes:,} bytes, "
            f"and a batch has up to {table.batch_rows_max:,}"
        )
    if requirements.device_memory is not None and not short:
        budget = format_size(requirements.device_memory)
        said = f"device_memory={budget} leaves" if requirements.device_given else f"{budget} leave"
        return (
            f"{said} no room for a feature buffer on the device: two live batches take up to "
            f"{format_size(live_bytes)}; give more with device_memory=, free some of the device's "
            "memory, or give a smaller batch_size or num_neighbors"
        )
    if memory is not None:
        return (
            f"memory={format_size(memory)} leaves no room for a feature buffer: "
            f"everything else needs {format_size(needed)}; give more, or a smaller batch_size, "
            "num_neighbors or queues\n"
            + "\n".join(f"  {line.what}: {format_size(line.nbytes)} ({line.why})" for line in rest)
        )
    return (
        f"{format_size(DEFAULT_SHARE * available_memory())}, a quarter of the memory "
        f"available, hold no row of {table.row_bytes:,} bytes; set memory= or buffer="
    )


def _if_any(what: str, nbytes: int, why: str) -> list[PlanItem]:
    return [PlanItem(what, nbytes, why)] if nbytes else []


def second_buffer(plan: Plan, others: int, free: Callable[[], int | None]) -> list[TablePlan]:
    """What the feature buffer of another live iterator holds: a largest batch.

    Args:
        plan: the first iterator's.
        others: iterators beside it that have such a buffer already.
        free: bytes of the device that are free now.

    Raises:
        ConfigError: it does not fit into `memory=` or the device's memory.
    """
    held = [replace(one, slots=max(min(one.slots, one.batch_rows_max), 1)) for one in plan.tables]
    rows = sum(one.slots * one.row_bytes for one in held)
    slot_tables = SLOT_TABLE_BYTES * sum(one.slots for one in held)
    host = slot_tables + plan.epoch_bytes + (0 if plan.device_lines else rows)
    if plan.memory is not None:
        left = plan.memory - plan.total_bytes - others * host
        _refuse_more(host, left, f"memory={format_size(plan.memory)}", "left", "memory")
    if not plan.device_lines:
        return held
    device = rows + plan.live_device_bytes
    if plan.device_memory is None:
        _refuse_more(device, free() or 0, "the device", "free", "device_memory")
    else:
        left = plan.device_memory - plan.device_bytes - others * device
        budget = f"device_memory={format_size(plan.device_memory)}"
        _refuse_more(device, left, budget, "left", "device_memory")
    return held


def _refuse_more(more: int, left: int, budget: str, how: str, name: str) -> None:
    """Raise ConfigError if another iterator's `more` bytes do not fit into what is left."""
    if left < more:
        raise ConfigError(
            "a second live iterator needs a feature buffer and batches of its own, "
            f"{format_size(more)}, and {budget} has {format_size(left)} {how}: "
            f"give buffer= less, {name}= more, or close the first iterator"
        )


def slot_bytes(requirements: Requirements) -> list[int]:
    """Bytes of host memory of a slot of the feature buffer and its books, of each table."""
    on_host = requirements.device_memory is None
    return [SLOT_TABLE_BYTES + max(table.row_bytes, 1) * on_host for table in requirements.tables]


def rest_bytes(requirements: Requirements) -> int:
    """Bytes of everything but the feature buffer, its slots' books and the topology."""
    return sum(line.nbytes for line in _rest(requirements, None))


def _rest(requirements: Requirements, topology: TopologyChoice | None) -> tuple[PlanItem, ...]:
    nodes, edges = requirements.batch_nodes_max, requirements.batch_edges_max
    on_device = requirements.device_memory is not None
    live = requirements.batch_bytes - (requirements.features_bytes if on_device else 0)
    why_live = "one with you, one ready"
    if on_device:
        why_live = "without features: made here, pinned and copied"
    scratch = SCRATCH_NODE_BYTES * nodes + SCRATCH_EDGE_BYTES * edges + requirements.candidate_bytes
    wanted = (max(table.batch_entries_max, table.batch_rows_max) for table in requirements.tables)
    leases = LEASE_BYTES * sum(wanted) * requirements.batches_extracted
    look_ahead = requirements.looks_ahead * WINDOW_BYTES * requirements.table_rows
    largest = f"a batch has at most {nodes:,} nodes and {edges:,} edges"
    return (
        PlanItem(
            "mapping table",
            MAPPING_BYTES * requirements.table_rows,
            f"{requirements.table_rows:,} rows",
        ),
        PlanItem("index pointers", requirements.index_pointer_bytes, "the graph's, in memory"),
        *_if_any("times, weights", requirements.graph_bytes, "in memory"),
        *([] if topology is None else [PlanItem("topology", topology.nbytes, topology.why)]),
        *_if_any("attributes", requirements.fetch_bytes, "that are read as they are wanted"),
        *_if_any(
            "mapped files", requirements.mapped_bytes, "attributes that are little beside memory="
        ),
        PlanItem("input nodes", requirements.seed_bytes, "their ids and order"),
        PlanItem("labels", requirements.label_bytes, "of all nodes, in as few bytes as they need"),
        PlanItem("staging", requirements.staging_bytes, "reads in flight"),
        *(
            [PlanItem("pinned staging", requirements.pinned_bytes, "rows on the way")]
            if on_device
            else []
        ),
        PlanItem(
            "queued samples",
            requirements.sample_bytes * requirements.batches_queued,
            f"{requirements.batches_queued}; {largest}",
        ),
        PlanItem(
            "sampler scratch", scratch * requirements.samplers, f"{requirements.samplers} samplers"
        ),
        PlanItem(
            "leases", leases, f"aliases and reads of {requirements.batches_extracted} batches"
        ),
        PlanItem("live batches", 2 * live, why_live),
        PlanItem("look-ahead", look_ahead, "which queued samples want a node"),
    )
