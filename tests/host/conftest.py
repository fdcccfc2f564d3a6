"""Stores, services and loaders in this process, and a table whose rows tell their number."""

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
from gnndrive.buffer.devices import host
from gnndrive.common.loop_thread import LoopThread
from gnndrive.common.records import TableFile
from gnndrive.host.hello import BufferSettings, Hello
from gnndrive.host.names import address_of
from gnndrive.host.service import Service
from gnndrive.host.start import Listener
from gnndrive.testing.simulation import write_told_rows
from tests.given import moved

NODES, MEMORY = 200, 100_000_000
SETTINGS = BufferSettings(
    ("nodes/x",), ("nodes/x.npy",), (160,), (NODES,), (100,), (NODES,), 4, "host", "table", "lru",
    ("disk",), "threads", 4, 4096, 0, 0, 1, None,
)  # fmt: skip
SHARE = NODES * 160 + SETTINGS.staging_bytes
Load = Callable[..., NeighborLoader]
_numbers = itertools.count()


class Serving:
    """A service in a loop thread; `said` is what it has reported and logged."""

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


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
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
            return opened.enter_context(NeighborLoader(data, **moved(given | arguments)))

        yield one


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NODES, 40, generator=draw),
        y=torch.randint(3, (NODES,), generator=draw),
        edge_index=torch.randint(NODES, (2, 2_000), generator=draw),
    )
    return gnndrive.from_data(data, tmp_path_factory.mktemp("store") / "served.gnn")


@pytest.fixture(scope="session")
def without_x(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """330 nodes with labels and without features."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(330, (2, 4_000), generator=draw)
    data = Data(y=torch.arange(330) % 3, edge_index=edges, num_nodes=330)
    return gnndrive.from_data(data, tmp_path_factory.mktemp("without") / "x.gnn")


@pytest.fixture
def hello(store: Store) -> Hello:
    return Hello(store.identity, "a group", 0, (0,), SETTINGS, "", SHARE, "a test")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 64 bytes, eight to a sector, that tell their number."""
    return write_told_rows(tmp_path_factory.mktemp("rows") / "x.bin", 200, 64)


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are gathered in pieces too, so that their tails are released early."""
    monkeypatch.setattr(host, "PIECES_BYTES", 0)
