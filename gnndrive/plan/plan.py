"""`Plan`: what uses how much memory and why; `make_plan` divides `memory=` or `buffer=`.

`Planner` (`plan/planner.py`) calls `make_plan` before the first read. `memory=` counts everything
that loading needs: the feature buffer and its slot tables, staging, queued samples, samplers'
scratch, the adjacency and two live batches. It does not count Python, torch and the model. Because
a batch's size is unknown before it is sampled, the plan counts the largest batch that the fanout
allows, or with a budget the largest that is expected from a few that were drawn (`plan/drawn.py`),
and the feature buffer gets what remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.host_memory import left_memory
from gnndrive.common.memory import format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.apart import sampling_apart
from gnndrive.plan.items import (
    LIVE,
    PER_EPOCH,
    SHARE,
    VICTIMS,
    PlanItem,
    extraction_items,
    format_items,
    item_if_any,
    slot_bytes,
)
from gnndrive.plan.requirements import SLOT_TABLE_BYTES as SLOT_BYTES
from gnndrive.plan.requirements import Requirements, Served, TableRequirements
from gnndrive.plan.slot_split import split_slots
from gnndrive.plan.victims import victims_left

DEFAULT_SHARE = 0.25  # share of the available memory that is used if the user gives no budget
SERVED = "service: this loader's share of the service; once: there for all loaders, not counted"


def default_bytes(ranks: int, served: Served | None = None) -> int:
    """Bytes for `ranks` ranks of this host together if the user gives no budget.

    Args:
        ranks: how many there are.
        served: see `Requirements`.
    """
    left = left_memory(ranks)
    if served is not None and served.left is not None:
        left = min(left, served.left)
    return int(DEFAULT_SHARE * left)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The feature buffer's share of one table.

    Attributes:
        name: the table's name, such as "nodes/x".
        rows: number of rows of the table.
        slots: number of rows that the buffer holds at once.
        row_bytes: bytes of one row.
        batch_rows_max: the most rows of the table that one batch can need.
        residents: rows that never leave the buffer, if it has places for whole batches.
        places: how many batches may be in the buffer at once; 0: rows have slots of their own.
        place_rows: the most rows of a batch that are not resident.
        kept: how many rows behind the residents are kept in host memory beside a device.
        victims: how many rows that have left a device are kept in host memory.
    """

    name: str
    rows: int
    slots: int
    row_bytes: int
    batch_rows_max: int
    residents: int = 0
    places: int = 0
    place_rows: int = 0
    kept: int = 0
    victims: int = 0


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
        levels: texts that say where a batch's rows come from, if the loader replays a pack, or what
            it takes of a disk.
        disk_bytes: the most bytes of disk that a live iterator takes.
        sampling_bytes: bytes of this host's memory while a superbatch is sampled apart from
            extraction, which `lines` describe; 0: it is not.
        slot_table_bytes: bytes of a slot's entries in the slot tables.
        ranks: ranks on this host. `memory`, `host_bytes` and the messages are of all of them; a
            line's `nbytes` and the device's lines are of one.
        shared: whether the ranks share the feature buffer; `tables` are those of the shared one.
        served: whether a service that a user has started has the graph, and if `shared` the
            feature buffer.
    """

    lines: tuple[PlanItem, ...]
    tables: tuple[TablePlan, ...]
    memory: int | None
    topology: TopologyChoice | None = None
    device_lines: tuple[PlanItem, ...] = ()
    device_memory: int | None = None
    fetched: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    disk_bytes: int = 0
    sampling_bytes: int = 0
    slot_table_bytes: int = SLOT_BYTES
    ranks: int = 1
    shared: bool = False
    served: bool = False

    @property
    def buffers(self) -> int:
        """Number of feature buffers on this host."""
        return 1 if self.shared else self.ranks

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
    def host_bytes(self) -> int:
        """Bytes of host memory that all ranks of this host use together."""
        return max(sum(line.host_bytes for line in self.lines), self.sampling_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of host memory that one rank uses, with its part of what the ranks share."""
        return -(-self.host_bytes // self.ranks)

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
        """Bytes of host memory that a live iterator has for itself on all ranks of this host,
        without its feature buffer and slot tables."""
        return sum(line.host_bytes for line in self.lines if line.what in PER_EPOCH)

    @property
    def between_epochs_bytes(self) -> int:
        """Bytes of a rank's host memory that are free while no epoch runs and the feature buffer is
        closed; the user may still have two live batches, and torch keeps its pinned memory. What
        ranks share is not counted, because other ranks may use it."""
        kept = {"live batches", "pinned copies"}
        freed = {"feature buffer", "slot tables", *VICTIMS, *PER_EPOCH} - kept
        if self.shared:
            freed -= set(SHARE)
        own = [line for line in self.lines if line.copies == self.ranks]
        return sum(line.nbytes for line in own if line.what in freed)

    @property
    def share_bytes(self) -> int:
        """Bytes of the host service's memory that the loader needs for its feature buffer."""
        return sum(line.host_bytes for line in self.lines if self.shared and line.what in SHARE)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the feature buffer's slots."""
        return sum(table.slots * table.row_bytes for table in self.tables)

    def __str__(self) -> str:
        host = format_items(self.lines, self.memory, "memory", self.ranks, self._mark)
        if self.served:
            host += f"\n{SERVED}"
        if not self.device_lines:
            return "\n".join([host, *self.levels])
        device = format_items(self.device_lines, self.device_memory, "device_memory")
        where = "on the device" if self.ranks == 1 else "on the device of each rank"
        return "\n".join([host, where, device, *self.levels])

    def _mark(self, item: PlanItem) -> str:
        """Whose memory an item of the host's memory is; "": there is one process alone."""
        of_ranks = "" if self.ranks == 1 else f" × {self.ranks}"
        if self.served:
            if not item.copies:
                return "once"
            in_service = self.shared and item.what in SHARE
            return "service" if in_service else f"process{of_ranks}"
        if self.ranks == 1:
            return ""
        return "shared" if item.copies == 1 else f"each{of_ranks}"


def make_plan(
    requirements: Requirements,
    memory: int | None,
    buffer: int | None,
    topology: TopologyChoice | None = None,
) -> Plan:
    """Divide the memory among everything that loading needs.

    Args:
        requirements: the sizes that the plan depends on.
        memory: the budget for everything on this host in bytes, or None.
        buffer: bytes for the slots of all feature buffers on this host; None: all that `memory`
            leaves, or without a budget a quarter of the memory that is left. A buffer never has
            more slots than rows.
        topology: where the adjacency lives and the bytes it takes beside the index pointers; None:
            no bytes.

    Raises:
        ConfigError: the budget is too small for the other items, or the buffer for a single row;
            the message names a size that works.
    """
    others = extraction_items(requirements, topology)
    live = PlanItem("live batches", 2 * requirements.batch_bytes, LIVE)
    scratch = item_if_any("scratch", requirements.device_scratch_bytes, "to put rows in order")
    slots, why = _choose_slots(requirements, memory, buffer, others, live.nbytes)
    tables = tuple(
        TablePlan(table.name, table.rows, count, table.row_bytes, table.batch_rows_max)
        for table, count in zip(requirements.tables, slots, strict=True)
    )
    plan = Plan((), tables, memory)
    if plan.holds_everything:
        why = "because the whole table fits" if len(tables) == 1 else "because all tables fit"
    copies, device_memory = requirements.buffers, requirements.device_memory
    on_device = device_memory is not None
    where = 1 if on_device else copies
    slot_memory = PlanItem("feature buffer", plan.buffer_bytes, f"{_counted(tables)}, {why}", where)
    slot_tables = PlanItem(
        "slot tables", plan.slots * requirements.slot_table_bytes,
        "reverse map, ref counts, standby list", copies,
    )  # fmt: skip
    used = sum(item.host_bytes for item in (slot_tables, *others))
    left = default_bytes(requirements.ranks) if memory is None else memory - used
    places, victims = victims_left(requirements, left, plan.holds_everything)
    tables = tuple(replace(each, victims=n) for each, n in zip(tables, places, strict=True))
    others = (*others, *victims)
    sampling, said = sampling_apart(requirements, topology, memory)
    plan = Plan(
        (slot_tables, *others) if on_device else (slot_memory, slot_tables, *others),
        tables, memory, topology,
        (slot_memory, live, *scratch) if on_device else (),
        requirements.device_memory if requirements.device_given else None,
        levels=said, sampling_bytes=sampling, slot_table_bytes=requirements.slot_table_bytes,
        ranks=requirements.ranks, shared=requirements.shared,
        served=requirements.served is not None,
    )  # fmt: skip
    if device_memory is not None and plan.device_bytes > device_memory:
        raise ConfigError(
            f"device_memory={format_size(device_memory)} is less than this loader can need, "
            f"{format_size(plan.device_bytes)}; give that much or a smaller buffer=\n{plan}"
        )
    if memory is not None and plan.host_bytes > memory:
        raise ConfigError(
            f"memory={format_size(memory)} is less than this loader can need, "
            f"{format_size(plan.host_bytes)}; give that much or a smaller buffer=\n{plan}"
        )
    return plan


def _counted(tables: Sequence[TablePlan]) -> str:
    """How many rows the slots of tables hold, as `plan()` prints it."""
    if len(tables) == 1:
        return f"{tables[0].slots:,} rows"
    parts = [f"{each.slots:,} of {each.rows:,} {each.name}" for each in tables]
    return ", ".join(parts) or "no rows"


def _choose_slots(
    requirements: Requirements,
    memory: int | None,
    buffer: int | None,
    others: tuple[PlanItem, ...],
    live_bytes: int,
) -> tuple[list[int], str]:
    """Choose the number of slots of each table in one buffer; returns the reason, too."""
    tables, per_slot = requirements.tables, slot_bytes(requirements)
    row_bytes, buffers = [table.row_bytes for table in tables], requirements.buffers
    left = None  # of memory=, for one buffer
    if memory is not None:
        left = (memory - sum(item.host_bytes for item in others)) // buffers
    if buffer is not None:
        slots = split_slots(buffer // buffers, tables, row_bytes)
        why = "because buffer= has room for them"
    elif requirements.device_memory is not None:
        room = requirements.device_memory - live_bytes - requirements.device_scratch_bytes
        slots = split_slots(room, tables, row_bytes)
        why = requirements.device_why
        own = requirements.slot_table_bytes
        if left is not None and left < own * sum(slots):
            slots = split_slots(left, tables, [own] * len(tables))
            why = "because memory= has room for their slot tables only"
    elif left is not None:
        slots = split_slots(left, tables, per_slot)
        why = "because the other items leave that much of memory="
    else:
        given = default_bytes(requirements.ranks, requirements.served)
        slots = split_slots(given // buffers, tables, per_slot)
        why = (
            "because the default is a quarter of the memory that is left; set memory= or buffer= "
            "to change it"
        )
    whole = requirements.whole_batches and buffer is None
    for table, count in zip(tables, slots, strict=True):
        least = min(table.batch_rows_max, table.rows) if whole else 1
        if count < least and table.batch_rows_max > 0:
            short = left is not None and left < max(per_slot) * least
            raise ConfigError(
                _no_room(requirements, table, memory, buffer, others, live_bytes, short)
            )
    return slots, why


def _no_room(
    requirements: Requirements, table: TableRequirements, memory: int | None, buffer: int | None,
    others: tuple[PlanItem, ...], live_bytes: int, short: bool,
) -> str:  # fmt: skip
    """The error message for a table without a slot; `short`: host memory has no room for one."""
    needed = sum(item.host_bytes for item in others)
    several = f" for {requirements.buffers} ranks" if requirements.buffers > 1 else ""
    row = f"one row of {table.name} is" if len(requirements.tables) > 1 else "one row is"
    if buffer is not None:
        return (
            f"buffer={format_size(buffer)}{several} holds no row: {row} {table.row_bytes:,} bytes, "
            f"and a batch has up to {table.batch_rows_max:,}: give it room for one batch at least"
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
            f"memory={format_size(memory)}{several} leaves no room for a feature buffer: "
            f"everything else needs {format_size(needed)}; give more, or a smaller batch_size, "
            "num_neighbors or queues\n"
            + "\n".join(
                f"  {each.what}: {format_size(each.host_bytes)} ({each.why})" for each in others
            )
        )
    given = default_bytes(requirements.ranks, requirements.served)
    quarter = f"{format_size(given)}{several}"
    return (
        f"a quarter of the memory that is left, {quarter}, holds no row of {table.row_bytes:,} "
        "bytes: set memory= or buffer="
    )
