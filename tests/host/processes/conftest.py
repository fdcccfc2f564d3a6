"""A process that starts ranks, and two stores for them."""

from collections.abc import Iterator

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from tests.host.processes.starter import Starter
from tests.loader.hetero.graph import make_data

NODES = 130  # 9 batches, the last of which is smaller


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    with Starter() as made:
        yield made


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def of_types(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Nodes and edges of several types, with five tables of features."""
    return gnndrive.from_data(make_data(), tmp_path_factory.mktemp("types") / "ranks.gnn")
