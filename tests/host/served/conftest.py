"""A service by hand in a thread of this process, and a store for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.loop_thread import LoopThread
from gnndrive.host.names import address_of
from gnndrive.host.service import Service
from gnndrive.host.start import Listener

NODES = 200
MEMORY = 100_000_000
_numbers = itertools.count()


class Serving:
    """A service that stays, in a loop thread; `said` is what it has reported and logged."""

    def __init__(self, store: Store, memory: int | None, stays: bool = True) -> None:
        self.name = f"test-{os.getpid()}-{next(_numbers)}"
        self.address, self.said = address_of(self.name), list[str]()
        self._thread = LoopThread()
        self.service: Service = self.call(self._start, store, memory, stays)

    async def _start(self, store: Store, memory: int | None, stays: bool) -> Service:
        sock, say = Listener(self.address).sock, self.said.append
        return Service(store, sock, say, stays=stays, memory=memory, log=say)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, or a coroutine function, in the service's loop."""

        async def called() -> Any:
            found = function(*arguments)
            return await found if hasattr(found, "__await__") else found

        return self._thread.call(called())

    def close(self) -> None:
        """End the service at once; nothing may have gone wrong in it."""
        self.call(self.service.aclose)
        assert not self.service.failures
        self._thread.close()


Serve = Callable[..., Serving]
Load = Callable[..., NeighborLoader]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Nodes with features and labels."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NODES, 40, generator=draw),
        y=torch.randint(3, (NODES,), generator=draw),
        edge_index=torch.randint(NODES, (2, 2_000), generator=draw),
    )
    return gnndrive.from_data(data, tmp_path_factory.mktemp("store") / "served.gnn")


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
    """Starts services, of `store` or another, and ends them after the test."""
    with ExitStack() as started:

        def one(data: Store = store, memory: int | None = MEMORY, **more: Any) -> Serving:
            made = Serving(data, memory, **more)
            started.callback(made.close)
            return made

        yield one


@pytest.fixture
def load(serve: Serve) -> Iterator[Load]:
    """Makes loaders over a store, or a service's name, and closes them before the service ends."""
    with ExitStack() as opened:

        def one(data: Any, **arguments: Any) -> NeighborLoader:
            given = {"num_neighbors": [4, 3], "batch_size": 16, "shuffle": True, "seed": 5}
            given |= {"buffer": "40KB", "io_depth": 16}
            return opened.enter_context(NeighborLoader(data, **(given | arguments)))

        yield one
