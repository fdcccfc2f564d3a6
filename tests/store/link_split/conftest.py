"""A homogeneous graph with attributes of edges, in memory and as a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from tests.store.link_split.graphs import EDGES, NODES, distinct, graph


@pytest.fixture
def data() -> Data:
    return graph(distinct(NODES, EDGES))


@pytest.fixture
def store(data: Data, tmp_path: Path) -> Store:
    return gnndrive.from_data(data, tmp_path / "s.gnn")
