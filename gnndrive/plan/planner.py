"""`Planner`: makes a loader's plan, decides which attributes are memory-mapped, and plans again.

`make_planner` (`plan/choice.py`) makes it. A second plan follows a warm-up on a GPU
(`plan_after_warm_up`), or a batch that is larger than planned (`plan_again`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Part, Shape
from gnndrive.common.memory import available_memory
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.plan import UNKNOWN, Budget, Elastic, Plan, Slots, divide, rest_bytes
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


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes a loader's plan, and a second one after a warm-up.

    Attributes:
        shape, parts, slots, budget, topology, elastic: arguments of `divide`; the parts are without
            attributes.
        stages: numbers of samplers, and bounds of the queues.
        warm_up: whether the plan is for a warm-up.
        limits: the largest batch that the plan counts, if a larger one makes the loader plan again;
            None: the plan counts the most that the fanout allows.
        attributes: names of the arrays that batches have rows of and that are no table of the
            feature buffer, each with the bytes of its file.
        edge_numbers: whether samplers read edges' numbers, too.
        disk_bytes: bytes of disk that an epoch takes while it runs.
        said: texts that the plan prints below its lines.
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
            ConfigError: see `divide`.
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
        """See `plan`; None: it does not fit."""
        try:
            return self.plan()
        except ConfigError:
            return None

    def rest_bytes(self) -> int:
        """Bytes of this host's memory that everything takes but the feature buffer, its slot tables
        and the adjacency; if batches are sampled apart, while they are sampled."""
        elastic = [] if self.elastic is None else [self.elastic]
        return rest_bytes(self.shape, [*self.parts, *elastic])

    def _divide(self, attributes: AttributeMemory) -> Plan:
        plan = divide(
            self.shape, (*self.parts, attributes), self.slots, self.budget, self.topology,
            self.elastic,
        )  # fmt: skip
        return replace(plan, levels=(*plan.levels, *self.said), disk_bytes=self.disk_bytes)

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
        """Make the plan for `device_bytes` of the device's memory, which the warm-up found free.

        Raises:
            ConfigError: see `divide`.
        """
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
