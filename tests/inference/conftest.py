"""Small graphs, in memory and as stores, for inference over all their nodes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, Store
from gnndrive.common.memory import parse_size
from tests.loader.hetero.graph import make_data

NODES, COLUMNS = 600, 20


@pytest.fixture(scope="session")
def data() -> Data:
    """600 nodes, 5,000 edges: a hub, self-loops, duplicates, nodes without in-edges; weights."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 4_600), generator=draw)
    edges[1] %= NODES - 30
    edges[1, :300] = 17
    loops = torch.arange(100).repeat(2, 1)
    edges = torch.cat([edges, loops, edges[:, :300]], dim=1)
    return Data(
        x=torch.randn(NODES, COLUMNS, generator=draw),
        edge_index=edges,
        weight=torch.rand(edges.size(1), generator=draw),
        edge_attr=torch.randn(edges.size(1), 3, generator=draw),
    )


@pytest.fixture
def store(data: Data, tmp_path: Path) -> Store:
    return gnndrive.from_data(data, tmp_path / "graph.gnn")


@pytest.fixture(scope="session")
def hetero() -> HeteroData:
    """Four node types; topics have rows here, and no edges."""
    data = make_data()
    data["topic"].x = torch.randn(data["topic"].num_nodes, 5)
    del data["topic"].num_nodes
    data["author"].x = data["author"].x.float()
    data["venue"].x = data["venue"].x.float()
    return data


@pytest.fixture
def hetero_store(hetero: HeteroData, tmp_path: Path) -> Store:
    return gnndrive.from_data(hetero, tmp_path / "types.gnn")


def doubled(x: Any, edge_index: Any) -> Any:
    return x * 2


def interrupt(what: str, done: int, total: int) -> None:
    """`progress=` that interrupts a computation in its middle."""
    if done > total // 2:
        raise KeyboardInterrupt


def least_memory(infer: Callable[..., Any]) -> int:
    """The memory that the error names if far too little is given."""
    with pytest.raises(ConfigError) as error:
        infer(memory=1000)
    found = re.search(r'give memory="([0-9.]+[KMG]?B)"', str(error.value))
    assert found is not None
    return parse_size(found[1], "memory")
