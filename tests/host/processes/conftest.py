"""Processes that are ranks, the store that they load, and what one process loads of it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from tests.host.processes.programs import SMALL, Starter, alone

Run = Callable[..., Any]
NODES = 130  # 9 batches, the last of which is smaller


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with closing(Starter()) as made:
        yield made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Nodes with features of nodes and of edges."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NODES, 8, generator=draw),
        y=torch.randint(3, (NODES,), generator=draw),
        edge_index=torch.randint(NODES, (2, 1_500), generator=draw),
        edge_attr=torch.randn(1_500, 3, generator=draw),
    )
    return gnndrive.from_data(data, tmp_path_factory.mktemp("store") / "ranks.gnn")


@pytest.fixture(scope="module")
def whole(store) -> list[str]:
    return alone(store, **SMALL)[0]


@pytest.fixture
def run(starter: Starter, tmp_path: Path) -> Run:
    """Runs ranks; checks how they end, the `killed` one too, and that they say nothing."""

    def ran(program: str, world: int, killed: int = -1, status: int = -9, **given: Any) -> Any:
        ended = starter.run(program, world, tmp_path, **given)
        statuses = [status * (rank == killed) for rank in range(world)]
        assert ended.statuses == statuses, ended.outputs
        assert "".join(ended.outputs) == ""
        assert set(ended.orphans) <= {0}
        return ended

    return ran
