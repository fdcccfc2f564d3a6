"""Fixtures of the loader tests, and requests of loaders over their graph."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gnndrive import NeighborLoader
from gnndrive.buffer.items import DeviceMemory, SlotTables
from gnndrive.common.items import Shape, TableShape
from gnndrive.plan import choice
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.host_level import HostLevel
from gnndrive.plan.plan import Budget, Planner, Served, StageCounts
from gnndrive.plan.request import PlanRequest, loader_parts
from gnndrive.plan.slots import RowSlots
from gnndrive.pyg.items import batch_bytes
from gnndrive.sampling.items import Graph, Samples, sample_bytes
from gnndrive.sampling.samplers.base import Bounds
from tests.loader.conftest import Make, data, make, store

__all__ = ["data", "make", "store"]


def request_of(loader: NeighborLoader) -> PlanRequest:
    return loader._assembly().request()


def least_memory(request: PlanRequest) -> int:
    """The least `memory=` that works, in bytes."""
    return choice.least_where(
        lambda memory: choice._leanest(replace(request, memory=memory)) is not None
    )


def planner_for(
    tables: Sequence[TableShape], nodes: int, edges: int, attribute_bytes: int, seed_bytes: int,
    staging_bytes: int, index_pointer_bytes: int, *, ranked_rows: int = 0, ranks: int = 1,
    shared: bool = False, shared_graph: bool = False, served: Served | None = None,
    looks_ahead: bool = False, device_memory: int | None = None, device_given: bool = False,
    level: HostLevel | None = None,
) -> Planner:  # fmt: skip
    """The planner of a loader that is not there; with GNNDrive's samplers and queues."""
    graphs = 0 if served and shared_graph else 1 if shared or shared_graph else ranks
    shape = Shape(
        tuple(tables), nodes, edges, sample_bytes(nodes, edges, None, 8),
        batch_bytes(nodes, edges, attribute_bytes), queued=10, extracted=4, samplers=4,
        on_device=device_memory is not None, delivers=device_memory is not None,
        looks_ahead=looks_ahead, ranks=ranks, shared=shared, graphs=graphs,
    )  # fmt: skip
    parts = loader_parts(
        SlotTables(ranked_rows), Graph(index_pointer_bytes), seed_bytes, 0, staging_bytes,
        DeviceMemory(), Samples(),
    )  # fmt: skip
    budget = Budget(None, None, device_memory, device_given, served=served)
    return Planner(shape, parts, RowSlots(), budget, StageCounts(), elastic=level)


@pytest.fixture
def request_for(make: Make) -> Any:
    def made(memory: int, **arguments: Any) -> PlanRequest:
        given: dict[str, Any] = {"io_depth": 1, "buffer": None, "batch_size": 1} | arguments
        request = request_of(make((4, 3), memory=memory, **given))
        if request.drawn is not None:
            return request
        size = Bounds({None: 20}, {None: 20}, {None: 20})
        tables = {"nodes/x": (20, 38, 55, 70)}
        drawn = DrawnBatches((size,) * 4, tables, 5.0, 1e-4)
        return replace(request, drawn=drawn, planned=drawn.planned(request.bounds))

    return made
