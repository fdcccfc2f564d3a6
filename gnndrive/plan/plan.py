"""`Plan`: what uses how much memory and why; `Slots` and `Elastic` use what other parts leave.

`Planner` (`plan/planner.py`) makes it before the first read. `memory=` counts everything that
loading needs; it does not count Python, torch and the model. Because a batch's size is unknown
before it is sampled, items count the largest batch that the fanout allows, or with a budget the
largest that is expected from a few that were drawn (`plan/drawn.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from gnndrive.buffer.items import SLOT_TABLE_BYTES
from gnndrive.common.errors import ConfigError
from gnndrive.common.host_memory import left_memory
from gnndrive.common.items import Item, Life, Owner, Part, Phase, Shape, TableShape
from gnndrive.common.memory import format_size
from gnndrive.common.records import NO_TOPOLOGY, TopologyChoice

DEFAULT_SHARE = 0.25  # share of the available memory that is used if the user gives no budget
SERVED = "service: this loader's share of the service; once: there for all loaders, not counted"
UNKNOWN = TopologyChoice(NO_TOPOLOGY, "none yet", 0)
"""Stands for a topology until one is chosen; it takes no memory."""
OF_AN_ITERATOR = (Life.EPOCH, Life.KEPT)


@dataclass(frozen=True, slots=True)
class Served:
    """What a service that a user has started (`gnndrive serve`) has left for a loader.

    Attributes:
        left: bytes that it may still use; None: it has no limit.
        graphs: the topologies whose arrays it has in memory already.
    """

    left: int | None
    graphs: frozenset[str] = frozenset()

    def graph_room(self, topology: str, given: int) -> int:
        """Bytes that the service has for the arrays of the topology of that name, beside the
        `given` bytes that the loader may use."""
        if self.left is None or topology in self.graphs:
            return 1 << 62
        return self.left - given


def default_bytes(ranks: int, served: Served | None = None) -> int:
    """Bytes for `ranks` ranks of this host together if the user gives no budget."""
    left = left_memory(ranks)
    if served is not None and served.left is not None:
        left = min(left, served.left)
    return int(DEFAULT_SHARE * left)


@dataclass(frozen=True, slots=True)
class Budget:
    """What limits a plan; bytes, or None.

    Attributes:
        memory: for everything on this host, of all its ranks.
        buffer: for the slots of all feature buffers on this host.
        device_memory: of a rank's device, for the feature buffer and live batches; None: both are
            in host memory.
        device_given: whether the user gave `device_memory`; if not, it is free memory.
        device_why: the reason for the feature buffer's size on the device, as `plan()` prints it.
        served: what a service that a user has started has left. It has the graph once for several
            loaders, so that it is no part of a loader's memory. None: there is none.
    """

    memory: int | None
    buffer: int | None = None
    device_memory: int | None = None
    device_given: bool = False
    device_why: str = ""
    served: Served | None = None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The feature buffer's share of one table.

    Attributes:
        slots: number of rows that the buffer holds at once.
        batch_rows_max: the most rows of the table that one batch can need.
        residents: rows that never leave the buffer, if it has places for whole batches.
        places: how many batches may be in the buffer at once; 0: rows have slots of their own.
        place_rows: the most rows of a batch that are not resident.
        kept: how many rows a tier keeps in host memory; with places, those behind the residents.
        evicted: how many rows that have left a device are kept in host memory.
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
    evicted: int = 0

    @classmethod
    def of(cls, table: TableShape, slots: int) -> Self:
        """The share of a table whose rows have slots of their own, so many."""
        return cls(table.name, table.rows, slots, table.row_bytes, table.batch_rows_max)


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory that a loader will use; printing it gives a table with a line for each use.

    Attributes:
        lines: the uses of host memory, the feature buffer first.
        memory, device_memory: the user's budgets in bytes, or None.
        device_lines: the uses of the device's memory; empty: the buffer is in host memory.
        fetched: names of the arrays whose rows are read when batches need them, because memory has
            no room for their files.
        levels: texts that say where a batch's rows come from, or what the loader takes of a disk.
        disk_bytes: the most bytes of disk that a live iterator takes.
        sampling_bytes: bytes of this host's memory while batches are sampled apart from
            extraction, which `lines` describe; 0: it is not.
        slot_table_bytes: bytes of a slot's entries in the slot tables.
        ranks: ranks on this host. `memory`, `host_bytes` and the messages are of all of them; a
            line's `nbytes` and the device's lines are of one.
        shared: whether the ranks share the feature buffer; `tables` are those of the shared one.
        served: whether a service that a user has started has the graph, and if `shared` the
            feature buffer.
    """

    lines: tuple[Item, ...]
    tables: tuple[TablePlan, ...]
    memory: int | None
    topology: TopologyChoice = UNKNOWN
    device_lines: tuple[Item, ...] = ()
    device_memory: int | None = None
    fetched: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    disk_bytes: int = 0
    sampling_bytes: int = 0
    slot_table_bytes: int = SLOT_TABLE_BYTES
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
        return sum(line.nbytes for line in self.device_lines if line.life in OF_AN_ITERATOR)

    @property
    def epoch_bytes(self) -> int:
        """Bytes of host memory that a live iterator has for itself on all ranks of this host,
        without its feature buffer and slot tables."""
        return sum(line.host_bytes for line in self.lines if line.life in OF_AN_ITERATOR)

    @property
    def between_epochs_bytes(self) -> int:
        """Bytes of a rank's host memory that are free while no epoch runs and the feature buffer is
        closed; the user may still have two live batches, and torch keeps its pinned memory. What
        ranks share is not counted, because other ranks may use it."""
        own = {Owner.RANK} if self.shared else {Owner.RANK, Owner.BUFFER}
        freed = (Life.BUFFER, Life.EPOCH)
        return sum(line.nbytes for line in self.lines if line.life in freed and line.owner in own)

    @property
    def share_bytes(self) -> int:
        """Bytes of the host service's memory that the loader needs for its feature buffer."""
        return sum(line.host_bytes for line in self.lines if self._in_service(line))

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the feature buffer's slots."""
        return sum(table.slots * table.row_bytes for table in self.tables)

    def __str__(self) -> str:
        host = _format(self.lines, self.memory, "memory", self.ranks, self._mark)
        if self.served:
            host += f"\n{SERVED}"
        if not self.device_lines:
            return "\n".join([host, *self.levels])
        device = _format(self.device_lines, self.device_memory, "device_memory")
        where = "on the device" if self.ranks == 1 else "on the device of each rank"
        return "\n".join([host, where, device, *self.levels])

    def _in_service(self, item: Item) -> bool:
        return self.shared and item.owner is Owner.BUFFER

    def _mark(self, item: Item) -> str:
        """Whose memory an item of the host's memory is; "": there is one process alone."""
        of_ranks = "" if self.ranks == 1 else f" × {self.ranks}"
        if self.served:
            if not item.copies:
                return "once"
            return "service" if self._in_service(item) else f"process{of_ranks}"
        if self.ranks == 1:
            return ""
        return "shared" if item.copies == 1 else f"each{of_ranks}"


def _format(
    items: Sequence[Item], budget: int | None, name: str, ranks: int = 1,
    mark: Callable[[Item], str] = lambda item: "",
) -> str:  # fmt: skip
    """One line for each item, with whose memory it is, and one for their total of the `budget`
    that the argument `name` gave."""
    width = max(len(item.what) for item in items)
    marks = [mark(item) for item in items]
    wide = max(map(len, marks)) + 2 if any(marks) else 0
    rows = [
        f"{item.what:<{width}}  {format_size(item.nbytes):>8}  {whose:<{wide}}{item.why}"
        for item, whose in zip(items, marks, strict=True)
    ]
    text = f"{format_size(sum(item.host_bytes for item in items)):>8}"
    if ranks > 1 and all(item.copies > 1 for item in items):
        of_one = format_size(sum(item.nbytes for item in items))
        text = f"{of_one:>8}  × {ranks} = {text.strip()}"
    of_budget = "" if budget is None else f"  of {name}={format_size(budget)}"
    return "\n".join([*rows, f"{'total':<{width}}  {text}{of_budget}"])


# ---- what a planner divides memory among


class Slots:
    """Decides how many rows the feature buffer holds. Here there is none."""

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """The feature buffer's share of each table, and the text of its item; "": there is none.
        `items` are all others, of the host and of the device, while batches are extracted.

        Raises:
            ConfigError: the budget is too small for the buffer.
        """
        return tuple(TablePlan.of(table, 0) for table in shape.tables), ""

    def said(self, plan: Plan) -> tuple[str, ...]:
        """What the plan prints of the feature buffer below its lines."""
        return ()

    def check(self, plan: Plan, budget: Budget) -> None:
        """Raise ConfigError if the plan does not fit the budget."""
        limits = [
            ("device_memory", budget.device_memory, plan.device_bytes),
            ("memory", budget.memory, plan.host_bytes),
        ]
        for name, limit, needed in limits:
            if limit is not None and needed > limit:
                raise ConfigError(
                    f"{name}={format_size(limit)} is less than this loader can need, "
                    f"{format_size(needed)}; give that much or a smaller buffer=\n{plan}"
                )


class Elastic(Protocol):
    """Keeps rows in host memory below the feature buffer, such as those that a device has no room
    for. `scratch_bytes` of a device are taken by a table's rows on their way there, if the policy
    looks ahead."""

    scratch_bytes: int = 0

    def items(self, shape: Shape) -> Sequence[Item]:
        """See `Part`: the items whose size is known before."""
        return ()

    def fit(
        self, shape: Shape, tables: tuple[TablePlan, ...], left: int
    ) -> tuple[tuple[TablePlan, ...], Sequence[Item]]:
        """The tables with the rows that are kept in the `left` bytes of a rank that all other items
        leave, and the items of these rows."""
        ...


def host_bytes(items: Iterable[Item], during: Phase = Phase.EXTRACTION) -> int:
    """Bytes of this host's memory that items take together in one phase."""
    return sum(item.host_bytes for item in items if during in item.during and not item.on_device)


def rest_bytes(shape: Shape, parts: Sequence[Part]) -> int:
    """Bytes of this host's memory that parts take beside the adjacency."""
    during = Phase.SAMPLING if shape.apart else Phase.EXTRACTION
    return host_bytes(shape.counted(parts), during)
