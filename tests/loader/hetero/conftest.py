"""A heterogeneous graph, in memory and as a store, and a fixture that makes and closes loaders."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from torch_geometric.data import HeteroData

import gnndrive
from gnndrive import NeighborLoader, Store
from tests.given import moved
from tests.loader.hetero.graph import make_data

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def data() -> HeteroData:
    return make_data()


@pytest.fixture(scope="module")
def store(data: HeteroData, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(data, tmp_path_factory.mktemp("types") / "graph.gnn")


@pytest.fixture
def make(store: Store, stack: ExitStack) -> Make:
    """Makes loaders over the store and closes them after the test."""

    def one(kind: Any = NeighborLoader, fanout: Any = (4, 3), **arguments: Any) -> Any:
        given = {"data": store, "batch_size": 16, "buffer": "100KB", "io_depth": 16, "seed": 1}
        if kind is NeighborLoader:
            given["input_nodes"] = ("paper", store["paper"].split("train"))
        return stack.enter_context(kind(num_neighbors=fanout, **moved(given | arguments)))

    return one
