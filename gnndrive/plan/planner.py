"""`Planner`: makes a loader's plan, decides which attributes are memory-mapped, and plans again.

`make_planner` (`plan/choice.py`) makes it. A second plan follows a warm-up on a GPU
(`plan_after_warm_up`), or a batch that is larger than planned (`planner_for`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.plan import Plan, make_plan
from gnndrive.plan.request import StageCounts
from gnndrive.plan.requirements import Requirements
from gnndrive.pyg.attributes import PASS_ROWS
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.topologies.base import RING_BYTES

MAPPED_BYTES = 1 << 20  # files up to this size are always mapped
MAPPED_SHARE = 10  # small files that are mapped and counted take at most 1/10 of `memory=`
ROOM = 2  # a file is mapped if this many times its size is free, so that it stays in memory
FETCH_ROW_BYTES = 34  # bytes that planning the read of one row takes


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes a loader's plan, and a second one after a warm-up.

    Attributes:
        requirements, memory, buffer, topology: arguments of `make_plan`.
        warm_up: whether the plan is for a warm-up.
        stages: numbers of samplers, and bounds of the queues.
        limits: the largest batch that the plan counts, if a larger one makes the loader plan again;
            None: the plan counts the most that the fanout allows.
        attributes: names of the arrays that batches have rows of and that are no table of the
            feature buffer, each with the bytes of its file.
        disk_bytes: bytes of disk that an epoch takes while it runs.
        said: texts that the plan prints below its lines.
    """

    requirements: Requirements
    memory: int | None
    buffer: int | None
    topology: TopologyChoice
    warm_up: bool
    stages: StageCounts
    limits: Bounds | None = None
    attributes: tuple[tuple[str, int], ...] = ()
    disk_bytes: int = 0
    said: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """Decide which attributes are memory-mapped, and make the plan.

        Raises:
            ConfigError: see `make_plan`.
        """
        small = self._small_files()
        try:
            plan = self._make(mapped_bytes=sum(small.values()))
        except ConfigError:  # memory= has no room for the small files
            small = {}
            plan = self._make()
        fetched = self._fetched(plan, small)
        if not fetched:
            return plan
        nbytes = fetch_bytes(self.requirements, fetched, self.topology)
        plan = self._make(mapped_bytes=sum(small.values()), fetch_bytes=nbytes)
        return replace(plan, fetched=fetched)

    def _make(self, **more: int) -> Plan:
        requirements = replace(self.requirements, **more)  # type: ignore[arg-type]
        plan = make_plan(requirements, self.memory, self.buffer, self.topology)
        return replace(plan, levels=(*plan.levels, *self.said), disk_bytes=self.disk_bytes)

    def _small_files(self) -> dict[str, int]:
        """Attributes that are mapped and counted because their files are small beside `memory=`.
        Without this, the feature buffer would take all memory, and every batch would read these
        files again; that costs more than keeping them, even at a tenth of the size."""
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
        """Names of the attributes that memory has no room for, beside the `mapped` ones."""
        budget = available_memory() if self.memory is None else self.memory
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
            ConfigError: see `make_plan`.
        """
        why = "because training leaves that much of the device's memory"
        requirements = replace(self.requirements, device_memory=device_bytes, device_why=why)
        return replace(self, requirements=requirements).plan()


def fetch_bytes(
    requirements: Requirements, fetched: Collection[str], topology: TopologyChoice
) -> int:
    """Bytes that reading attributes directly takes, for `Requirements.fetch_bytes`.

    Args:
        requirements: of the loader.
        fetched: the names of the attributes.
        topology: where the adjacency lives; its ring, which it has counted, is used for both.
    """
    of_nodes = all(name.startswith("nodes/") for name in fetched)
    rows = requirements.batch_nodes_max if of_nodes else requirements.batch_edges_max
    readers = 1 + requirements.samplers * (requirements.edge_number_bytes > 0)
    return FETCH_ROW_BYTES * min(rows, PASS_ROWS) * readers + RING_BYTES * (not topology.has_ring)
