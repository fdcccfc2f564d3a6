"""`Planner`: makes a loader's plan, and decides which attributes are memory-mapped.

Each part of the loader states its items (`gnndrive.common.items`); `Planner` adds them up, and
knows no part. The feature buffer gets what remains, and beside a device what it leaves may keep
rows that have no room there. `make_planner` (`plan/choice.py`) makes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gnndrive.buffer.items import slot_table_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Life, Owner, Part, Phase, Shape, if_any
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.plan import (
    UNKNOWN,
    Budget,
    Elastic,
    Plan,
    Slots,
    default_bytes,
    host_bytes,
    rest_bytes,
)
from gnndrive.pyg.attributes import PASS_ROWS
from gnndrive.pyg.items import AttributeMemory
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.topologies.base import RING_BYTES

MAPPED_BYTES = 1 << 20  # files up to this size are always mapped
MAPPED_SHARE = 10  # small files that are mapped and counted take at most 1/10 of `memory=`
ROOM = 2  # a file is mapped if this many times its size is free, so that it stays in memory
FETCH_ROW_BYTES = 34  # bytes that planning the read of one row takes


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
class Planner:
    """Makes a loader's plan, and a second one after a warm-up.

    Attributes:
        parts: what needs memory beside the feature buffer, the topology and attributes.
        elastic: what may use the memory that the rest leaves.
        limits: the largest batch that the plan counts, if a larger one makes the loader plan again;
            None: the plan counts the most that the fanout allows.
        attributes: names of the arrays that batches have rows of and that are no table of the
            feature buffer, each with the bytes of its file.
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
    attributes: tuple[tuple[str, int], ...] = ()
    edge_numbers: bool = False
    disk_bytes: int = 0
    said: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """Decide which attributes are memory-mapped, and make the plan.

        Raises:
            ConfigError: the budget is too small for the other items, or the buffer for a single
                row; the message names a size that works.
        """
        small = self._small_files()
        try:
            plan = self._divide(AttributeMemory(mapped_bytes=sum(small.values())))
        except ConfigError:  # memory= has no room for the small files
            small = {}
            plan = self._divide(AttributeMemory())
        fetched = self._fetched(plan, small)
        if not fetched:
            return plan
        plan = self._divide(AttributeMemory(self.fetch_bytes(fetched), sum(small.values())))
        return replace(plan, fetched=fetched)

    def plan_that_fits(self) -> Plan | None:
        """The plan; None: it does not fit."""
        try:
            return self.plan()
        except ConfigError:
            return None

    def rest_bytes(self) -> int:
        """Bytes of this host's memory that everything takes but the feature buffer, its slot tables
        and the adjacency; if batches are sampled apart, while they are sampled."""
        return rest_bytes(self.shape, [*self.parts, *self._elastics])

    def _divide(self, attributes: AttributeMemory) -> Plan:
        """Add up the items of all parts, and divide what they leave."""
        shape, budget, elastic = self.shape, self.budget, self.elastic
        every = shape.counted([self.topology, *self.parts, attributes, *self._elastics])
        others = [item for item in every if Phase.EXTRACTION in item.during]
        tables, why = self.slots.fit(shape, budget, others)
        own, items = slot_table_bytes(shape), list[Item]()
        of_buffer = partial(Item, owner=Owner.BUFFER, life=Life.BUFFER, during=Phase.EXTRACTION)
        if why:
            nbytes = sum(table.slots * table.row_bytes for table in tables)
            items.append(of_buffer("feature buffer", nbytes, why, on_device=shape.on_device))
        entries = own * sum(table.slots for table in tables if not table.places)
        what = "reverse map, ref counts, standby list"
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
            served=budget.served is not None,
        )  # fmt: skip
        plan = replace(plan, levels=(*said, *self.slots.said(plan)))
        self.slots.check(plan, budget)
        return replace(plan, levels=(*plan.levels, *self.said))

    @property
    def _elastics(self) -> list[Elastic]:
        return [] if self.elastic is None else [self.elastic]

    def _small_files(self) -> dict[str, int]:
        """Attributes that are mapped and counted because their files are small beside `memory=`.
        Without this, the feature buffer would take all memory, and every batch would read these
        files again; that costs more than keeping them, even at a tenth of the size."""
        small: dict[str, int] = {}
        if self.budget.memory is None or self.budget.buffer is not None:
            return small
        for name, nbytes in sorted(self.attributes, key=lambda each: each[1]):
            if (sum(small.values()) + nbytes) * MAPPED_SHARE > self.budget.memory:
                break
            if nbytes > MAPPED_BYTES:
                small[name] = nbytes
        return small

    def _fetched(self, plan: Plan, mapped: Collection[str] = ()) -> tuple[str, ...]:
        """Names of the attributes that memory has no room for, beside the `mapped` ones."""
        budget = available_memory() if self.budget.memory is None else self.budget.memory
        room, fetched = budget - plan.host_bytes, []  # smaller files first
        for name, nbytes in sorted(self.attributes, key=lambda each: each[1]):
            if name in mapped:
                continue
            room -= ROOM * nbytes
            if room < 0 and nbytes > MAPPED_BYTES:
                fetched.append(name)
        return tuple(fetched)

    def plan_after_warm_up(self, device_bytes: int) -> Plan:
        """Make the plan for `device_bytes` of the device's memory, which the warm-up found free;
        see `plan`."""
        why = "because training leaves that much of the device's memory"
        budget = replace(self.budget, device_memory=device_bytes, device_why=why)
        return replace(self, budget=budget).plan()

    def fetch_bytes(self, fetched: Collection[str]) -> int:
        """Bytes that reading the attributes of these names directly takes. The ring of a topology
        that reads the adjacency is used for both."""
        shape = self.shape
        of_nodes = all(name.startswith("nodes/") for name in fetched)
        rows = shape.nodes if of_nodes else shape.edges
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
            f"memory={format_size(memory)} is less than sampling apart can need, "
            f"{format_size(needed)}: give that much, or tuning=Tuning(…) with fewer samplers or "
            "topology='direct'\n"
            f"{of_sampling}"
        )
    said = (
        f"while batches are sampled apart: {format_size(needed)} in all, without the feature "
        f"buffer: {of_sampling}"
    )
    return needed, (said,)
