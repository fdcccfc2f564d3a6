"""A small graph as a partitioned store, and a fixture that makes loaders of its windows."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from torch_geometric.data import Data

from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from tests.given import moved
from tests.loader.ranks.conftest import as_rank
from tests.loader.windows.stores import ARGUMENTS, make_graph, make_store

__all__ = ["as_rank"]

Make = Callable[..., NeighborLoader]


@pytest.fixture(scope="session")
def graph() -> Data:
    return make_graph()


@pytest.fixture(scope="session")
def store(graph: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The graph as a store in twelve random partitions. No test may change it."""
    return make_store(graph, tmp_path_factory.mktemp("windows"))


@pytest.fixture
def make(store: Store, stack: ExitStack) -> Make:
    """Makes loaders over the store, or another as `data=`, and closes them after the test; link
    loaders if `edge_label_index=` is given."""

    def one(**more: Any) -> NeighborLoader:
        kind: Any = LinkNeighborLoader if "edge_label_index" in more else NeighborLoader
        given = {"data": store, **ARGUMENTS, **more}
        if given["strategy"] == "gnndrive":
            del given["megabatch"]
        made: NeighborLoader = kind(**moved(given))
        return stack.enter_context(made)

    return one
