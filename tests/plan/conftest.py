"""Fixtures of the loader tests, and requests of loaders over their graph."""

from dataclasses import replace
from typing import Any

import pytest

from gnndrive import NeighborLoader
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.request import PlanRequest
from gnndrive.sampling.samplers.base import Bounds
from tests.loader.conftest import Make, data, make, store

__all__ = ["data", "make", "store"]


def request_of(loader: NeighborLoader) -> PlanRequest:
    return loader._assembly().request()


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
