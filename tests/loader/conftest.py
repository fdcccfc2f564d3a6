"""A small graph, in memory and as a store, and a fixture that makes loaders and closes them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from tests.given import moved

NODES = 400
Make = Callable[..., NeighborLoader]


@pytest.fixture(scope="session")
def data() -> Data:
    """400 nodes, 4,000 edges with self loops, duplicates and nodes that none of them reaches."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 3_900), generator=draw)
    edges[1] %= 380  # the others have no in-neighbours
    loops = torch.arange(50).repeat(2, 1)
    edges = torch.cat([edges, loops, edges[:, :50]], dim=1)
    return Data(
        x=torch.randn(NODES, 33, generator=draw),
        y=torch.randint(0, 7, (NODES,), generator=draw),
        edge_index=edges,
        edge_attr=torch.randn(edges.size(1), 3, generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.3,
    )


@pytest.fixture(scope="session")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The graph as a store."""
    return gnndrive.from_data(data, tmp_path_factory.mktemp("loader") / "graph.gnn")


@pytest.fixture
def make(store: Store, stack: ExitStack) -> Make:
    """Makes loaders over the store, or another as `data=`, and closes them after the test."""

    def one(num_neighbors: Any = (4, 3), **arguments: Any) -> NeighborLoader:
        given = {"data": store, "batch_size": 16, "buffer": "40KB", "io_depth": 16} | arguments
        return stack.enter_context(NeighborLoader(num_neighbors=num_neighbors, **moved(given)))

    return one
