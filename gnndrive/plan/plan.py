"""`Plan`: what uses how much memory and why; `Planner` makes it before the first read.

Each part of the loader states its items (`gnndrive.common.items`); `Planner` adds them up, and
knows no part. The feature buffer (`Slots`) gets what remains, and beside a device `Elastic` may
keep rows in what that leaves. `memory=` counts everything that loading needs; it does not count
Python, torch and the model. Because a batch's size is unknown before it is sampled, items count the
largest batch that the fanout allows, or with a budget the largest that is expected from a few that
were drawn (`plan/drawn.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Self

from gnndrive.buffer.items import SLOT_TABLE_BYTES, slot_table_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.host_memory import left_memory
from gnndrive.common.items import (
    BATCH_SIZE,
    Item,
    Life,
    Owner,
    Part,
    Phase,
    Shape,
    TableShape,
    Use,
    if_any,
)
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.records import NO_TOPOLOGY, EdgeKey, NodeKey, TopologyChoice
from gnndrive.pyg.attributes import PASS_ROWS
from gnndrive.pyg.items import AttributeMemory
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.topologies.base import RING_BYTES

DEFAULT_SHARE = 0.25  # share of the available memory that is used if the user gives no budget
SERVED = "service: this loader's share of the service; once: there for all loaders, not counted"
UNKNOWN = TopologyChoice(NO_TOPOLOGY, "none yet", 0)
"""Stands for a topology until one is chosen; it takes no memory."""
OF_AN_ITERATOR = (Life.EPOCH, Life.KEPT)
MAPPED_BYTES = 1 << 20  # files up to this size are always mapped
MAPPED_SHARE = 10  # small files that are mapped and counted take at most 1/10 of `memory=`
ROOM = 2  # a file is mapped if this many times its size is free, so that it stays in memory
FETCH_ROW_BYTES = 34  # bytes that planning the read of one row takes


@dataclass(frozen=True, slots=True)
class Served:
    """What a service that a user has started (`gnndrive serve`) has left for a loader: bytes that
    it may still use (None: it has no limit), and the topologies whose arrays it has already."""

    left: int | None
    graphs: frozenset[str] = frozenset()

    def graph_room(self, topology: str, given: int) -> int:
        """Bytes that the service has for a topology's arrays beside the loader's `given` ones."""
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
        device_memory: of a rank's device, for its buffer and live batches; None: on the host.
        device_given: whether the user gave `device_memory`; if not, it is free memory.
        device_why: the reason for the feature buffer's size on the device, as `plan()` prints it.
        served: what a user's service has left; the graph is no part of a loader's memory then.
    """

    memory: int | None
    buffer: int | None = None
    device_memory: int | None = None
    device_given: bool = False
    device_why: str = ""
    served: Served | None = None

    def said(self, name: str, beside: int | None = None) -> str:
        """The limit in the attribute of that name, for error messages; see `format_size`."""
        size = format_size(getattr(self, name), beside)
        if name == "device_memory" and not self.device_given:
            return f"the part of the device's free memory that loading may use, {size},"
        return f"{name}={size}"


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

    @property
    def held(self) -> int:
        """How many rows are in slots, or where rows stay that left a device: none is in both."""
        return min(self.slots + self.evicted, self.rows)

    @classmethod
    def of(cls, table: TableShape, slots: int) -> Self:
        """The share of a table whose rows have slots of their own, so many."""
        return cls(table.name, table.rows, slots, table.row_bytes, table.batch_rows_max)


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory that a loader will use. Printing it gives a line for each kind of use;
    `details()` has one for each item.

    Attributes:
        lines: the uses of host memory, the feature buffer first.
        tables: the feature buffer's share of each table.
        memory, device_memory: the user's budgets in bytes; None: there is none.
        device_lines: the uses of the device's memory; empty: batches are in host memory.
        fetched: names of the arrays that are read as batches need them, for want of memory.
        levels: texts that say where a batch's rows come from, or what the loader takes of a disk.
        disk_bytes: the most bytes of disk that a live iterator takes.
        sampling_bytes: bytes of this host's memory while batches are sampled apart from
            extraction, which `lines` describe; 0: it is not.
        slot_table_bytes: bytes of a slot's entries in the slot tables.
        ranks: ranks on this host. `memory`, `host_bytes` and the messages are of all of them; a
            line's `nbytes` and the device's lines are of one.
        shared: whether the ranks share the feature buffer; `tables` are those of the shared one.
        served: whether a user's service has the graph, and if `shared` the feature buffer.
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
    def on_device(self) -> bool:
        """Whether the feature buffer's slots are in the device's memory."""
        return any(line.use is Use.FEATURES for line in self.device_lines)

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
        """Bytes of this host's memory that a live iterator has, without buffer and slot tables."""
        return sum(line.host_bytes for line in self.lines if line.life in OF_AN_ITERATOR)

    @property
    def between_epochs_bytes(self) -> int:
        """Bytes of a rank's host memory that are free while no epoch runs and the feature buffer is
        closed: not two live batches, torch's pinned memory, and what ranks share."""
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
        host = _summary(self.lines, self.host_bytes, self.memory, "memory")
        device = self.device_lines, self.device_bytes, self.device_memory, "device_memory"
        if self.served:
            host.append("the service has the graph, for all loaders: not counted")
        return self._with_device(host, _summary(*device))

    def details(self) -> str:
        """The same with a line for each item: its bytes, and what it holds."""
        host = _format(self.lines, self.memory, "memory", self.ranks, self._mark)
        if self.served:
            host.append(SERVED)
        return self._with_device(
            host, _format(self.device_lines, self.device_memory, "device_memory")
        )

    def _with_device(self, host: list[str], device: list[str]) -> str:
        """A text of the lines of host and device, and what is printed below them."""
        if device:
            of_ranks = "" if self.ranks == 1 else " of each rank"
            without = "" if self.on_device else ", without the feature buffer (device_memory=0)"
            device.insert(0, f"on the device{of_ranks}{without}")
        return "\n".join([*host, *device, *self.levels])

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
) -> list[str]:  # fmt: skip
    """A line for each item, and one for their total of the `budget` that argument `name` gave; no
    line if there is no item."""
    if not items:
        return []
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
    return [*rows, f"{'total':<{width}}  {text}{_of_budget(budget, name)}"]


def _summary(items: Sequence[Item], total: int, budget: int | None, name: str) -> list[str]:
    """A line for each use, with its share of the budget or of all, and for what is left; and one
    for the total. See `_format`."""
    if not items:
        return []
    rows = [
        (use.name.lower(), sum(item.host_bytes for item in of_use), _why(use, of_use))
        for use in Use
        if (of_use := [item for item in items if item.use is use])
    ]
    whole = total if budget is None else budget
    if whole - total >= whole / 100:
        rows.append(("unused", whole - total, f"loading does not need this part of {name}="))
    lines = [
        f"{what:<8}  {format_size(nbytes):>8}  {round(100 * nbytes / max(whole, 1)):>3} %  {why}"
        for what, nbytes, why in rows
        if nbytes
    ]
    return [*lines, f"{'total':<8}  {format_size(total):>8}{_of_budget(budget, name)}"]


def _why(use: Use, items: Sequence[Item]) -> str:
    """What a use is, and why its largest item has its size."""
    most = max(items, key=lambda item: item.host_bytes)
    what = "" if len(items) == 1 else f"mostly {most.what}, "
    return f"{use.value}: {what}{most.why}"


def _of_budget(budget: int | None, name: str) -> str:
    return "" if budget is None else f"  of {name}={format_size(budget)}"


# ---- what a planner divides memory among


class Slots:
    """Decides how many rows the feature buffer holds. Here there is none."""

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """The feature buffer's share of each table, and the text of its item; "": there is none.
        `items` are all others, of the host and of the device, while batches are extracted.
        ConfigError if the budget is too small for the buffer."""
        return tuple(TablePlan.of(table, 0) for table in shape.tables), ""

    def said(self, plan: Plan) -> tuple[str, ...]:
        """What the plan prints of the feature buffer below its lines."""
        return ()

    def check(self, plan: Plan, budget: Budget) -> None:
        """Raise ConfigError if the plan does not fit the budget."""
        for name, needed in (("device_memory", plan.device_bytes), ("memory", plan.host_bytes)):
            limit = getattr(budget, name)
            if limit is not None and needed > limit:
                raise ConfigError(
                    f"{budget.said(name, needed)} is less than this loader can need, "
                    f"{format_size(needed, limit)}; give that much or a smaller buffer=\n{plan}"
                )


class Elastic:
    """Keeps rows in host memory below the feature buffer. `scratch_bytes` of a device are taken by
    a table's rows on their way there."""

    scratch_bytes: int = 0

    def items(self, shape: Shape) -> Sequence[Item]:
        """See `Part`: the items whose size is known before."""
        return ()

    def fit(
        self, shape: Shape, tables: tuple[TablePlan, ...], left: int
    ) -> tuple[tuple[TablePlan, ...], Sequence[Item]]:
        """The tables with the rows kept in a rank's `left` bytes, and the items of these rows."""
        raise NotImplementedError


def host_bytes(items: Iterable[Item], during: Phase = Phase.EXTRACTION) -> int:
    """Bytes of this host's memory that items take together in one phase."""
    return sum(item.host_bytes for item in items if during in item.during and not item.on_device)


# ---- what divides it


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Numbers of a pipeline's stages that need memory; see `Stages`."""

    samplers: int = 4
    extracting_queue: int = 6
    training_queue: int = 4

    @property
    def threads(self) -> int:
        """Batches that are sampled at once."""
        return min(self.samplers, self.extracting_queue)

    @property
    def queued(self) -> int:
        """Samples that can be alive at once."""
        return self.extracting_queue + self.training_queue

    @property
    def swept(self) -> int:
        """The most batches of a rank that can be read together."""
        return min(self.extracting_queue, self.training_queue)


@dataclass(frozen=True, slots=True)
class AttributeFile:
    """An array that batches have rows of and that is no table of the feature buffer.

    Attributes:
        nbytes: of its file.
        type: of its nodes or edges.
    """

    name: str
    nbytes: int
    rows: int
    row_bytes: int
    of_edges: bool
    type: NodeKey | EdgeKey


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes a loader's plan, and a second one after a warm-up.

    Attributes:
        parts: what needs memory beside the feature buffer, the topology and attributes.
        elastic: what may use the memory that the rest leaves.
        limits: the largest batch that the plan counts, if a larger one makes the loader plan again;
            None: the plan counts the most that the fanout allows.
        edge_numbers: whether samplers read edges' numbers, too.
        disk_bytes, said: what an epoch takes while it runs; what the plan prints below its lines.
    """

    shape: Shape
    parts: tuple[Part, ...]
    slots: Slots
    budget: Budget
    stages: StageCounts
    topology: TopologyChoice = UNKNOWN
    elastic: Elastic | None = None
    warm_up: bool = False
    limits: Bounds | None = None
    attributes: tuple[AttributeFile, ...] = ()
    edge_numbers: bool = False
    disk_bytes: int = 0
    said: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """Decide which attributes are memory-mapped, and make the plan. ConfigError if the budget
        is too small for the other items, or the buffer for a row; it names a size that works."""
        small = self._small_files()
        try:
            plan = self._divide(AttributeMemory(mapped_bytes=sum(small.values())))
        except ConfigError:  # memory= has no room for the small files
            small = {}
            plan = self._divide(AttributeMemory())
        fetched = self._fetched(plan, small)
        if not fetched:
            return plan
        memory = AttributeMemory(self.fetch_bytes(fetched), sum(small.values()))
        return self._divide(memory, fetched)

    def plan_that_fits(self) -> Plan | None:
        """The plan; None: it does not fit."""
        try:
            return self.plan()
        except ConfigError:
            return None

    def rest_bytes(self) -> int:
        """Bytes of this host's memory that everything takes but the feature buffer, its slot tables
        and the adjacency; if batches are sampled apart, while they are sampled."""
        during = Phase.SAMPLING if self.shape.apart else Phase.EXTRACTION
        return host_bytes(self.shape.counted([*self.parts, *self._elastics]), during)

    def _divide(self, attributes: AttributeMemory, fetched: tuple[str, ...] = ()) -> Plan:
        """Add up the items of all parts, and divide what they leave."""
        shape, budget, elastic = self.shape, self.budget, self.elastic
        every = shape.counted([self.topology, *self.parts, attributes, *self._elastics])
        others = [item for item in every if Phase.EXTRACTION in item.during]
        tables, why = self.slots.fit(shape, budget, others)
        own, items = slot_table_bytes(shape), list[Item]()
        of_buffer = partial(
            Item, owner=Owner.BUFFER, life=Life.BUFFER, during=Phase.EXTRACTION, use=Use.FEATURES
        )
        if why:
            nbytes = sum(table.slots * table.row_bytes for table in tables)
            least = BATCH_SIZE if budget.buffer is None else "buffer"
            items.append(
                of_buffer("feature buffer", nbytes, why, on_device=shape.on_device, argument=least)
            )
        entries = own * sum(table.slots for table in tables if not table.places)
        what = "which row is in each slot, who uses it, and which leaves next"
        items += if_any(of_buffer("slot tables", entries, what))
        items = [*shape.counted(items), *others]
        if elastic is not None:
            left = default_bytes(shape.ranks)
            if budget.memory is not None:
                left = budget.memory - host_bytes(items)
            tables, kept = elastic.fit(shape, tables, left // shape.ranks)
            items += shape.counted(kept)
        sampling, said = _sampling_apart(every, budget.memory)
        plan = Plan(
            tuple(item for item in items if not item.on_device), tables, budget.memory,
            self.topology, tuple(item for item in items if item.on_device),
            budget.device_memory if budget.device_given else None, disk_bytes=self.disk_bytes,
            sampling_bytes=sampling, slot_table_bytes=own, ranks=shape.ranks, shared=shape.shared,
            served=budget.served is not None, fetched=fetched,
        )  # fmt: skip
        plan = replace(plan, levels=(*said, *self.slots.said(plan)))
        self.slots.check(plan, budget)
        return replace(plan, levels=(*plan.levels, *self.said))

    @property
    def _elastics(self) -> list[Elastic]:
        return [] if self.elastic is None else [self.elastic]

    def _small_files(self) -> dict[str, int]:
        """Attributes that are mapped and counted because their files are small beside `memory=`:
        else the feature buffer would take all of it, and every batch would read them again."""
        small: dict[str, int] = {}
        if self.budget.memory is None or self.budget.buffer is not None:
            return small
        for file in sorted(self.attributes, key=attrgetter("nbytes")):
            if (sum(small.values()) + file.nbytes) * MAPPED_SHARE > self.budget.memory:
                break
            if file.nbytes > MAPPED_BYTES:
                small[file.name] = file.nbytes
        return small

    def _fetched(self, plan: Plan, mapped: Collection[str] = ()) -> tuple[str, ...]:
        """Names of the attributes that memory has no room for, beside the `mapped` ones."""
        budget = available_memory() if self.budget.memory is None else self.budget.memory
        room, fetched = budget - plan.host_bytes, []  # smaller files first
        for file in sorted(self.attributes, key=attrgetter("nbytes")):
            if file.name in mapped:
                continue
            room -= ROOM * file.nbytes
            if room < 0 and file.nbytes > MAPPED_BYTES:
                fetched.append(file.name)
        return tuple(fetched)

    def plan_after_warm_up(self, device_bytes: int) -> Plan:
        """The plan for `device_bytes`, which the warm-up found free; see `plan`."""
        why = "because training leaves that much of the device's memory"
        budget = replace(self.budget, device_memory=device_bytes, device_why=why)
        return replace(self, budget=budget).plan()

    def fetch_bytes(self, fetched: Collection[str]) -> int:
        """Bytes for reading these attributes directly, by the topology's ring if it has one."""
        shape = self.shape
        of_nodes = all(name.startswith("nodes/") for name in fetched)
        rows = (shape.nodes if of_nodes else shape.edges) // shape.group
        readers = 1 + shape.samplers * self.edge_numbers
        ring = RING_BYTES * (not self.topology.has_ring)
        return FETCH_ROW_BYTES * min(rows, PASS_ROWS) * readers + ring


def _sampling_apart(items: Sequence[Item], memory: int | None) -> tuple[int, tuple[str, ...]]:
    """The bytes of this host's memory that sampling takes before the feature buffer is made, and
    what the plan prints of it; 0 and nothing: sampling is not apart (Ginex section 4)."""
    own = [item for item in items if item.during is Phase.SAMPLING]
    if not own:
        return 0, ()
    needed = host_bytes(items, Phase.SAMPLING)
    of_sampling = ", ".join(
        f"{item.what} {format_size(item.host_bytes)} ({item.why})" for item in own
    )
    if memory is not None and needed > memory:
        raise ConfigError(
            f"memory={format_size(memory, needed)} is less than sampling apart can need, "
            f"{format_size(needed, memory)}: give that much, or tuning=Tuning(…) with fewer "
            f"samplers or topology='direct'\n{of_sampling}"
        )
    said = (
        f"while batches are sampled apart: {format_size(needed)} in all, without the feature "
        f"buffer: {of_sampling}"
    )
    return needed, (said,)
