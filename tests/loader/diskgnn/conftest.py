"""A small graph as a store, with a pack of two shuffled epochs of its batches."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from tests.loader.diskgnn.packs import loader_of, make_pack
from tests.store.packed.packs import make_graph

ARGUMENTS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 32, "shuffle": True}
BATCHES, EPOCHS = 10, 2
Replay = Callable[..., NeighborLoader]


@pytest.fixture(scope="session")
def graph() -> Data:
    return make_graph()


@pytest.fixture(scope="session")
def store(graph: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The graph as a store, which has one pack."""
    made = gnndrive.from_data(graph, tmp_path_factory.mktemp("diskgnn") / "graph.gnn")
    make_pack(made, ARGUMENTS, epochs=EPOCHS)
    return made


@pytest.fixture
def replay(store: Store, stack: ExitStack) -> Replay:
    """Makes loaders that replay the store's pack, and closes them after the test."""

    def one(**more: Any) -> NeighborLoader:
        return stack.enter_context(loader_of(store, ARGUMENTS, **more))

    return one
