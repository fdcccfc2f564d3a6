"""Stores, a hello, a table whose rows tell their number, and a host device that gathers in
pieces."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from gnndrive.buffer.devices import host
from gnndrive.common.records import TableFile
from gnndrive.host.buffer_settings import BufferSettings
from gnndrive.host.hello import Hello
from gnndrive.testing.simulation import write_told_rows

SETTINGS = BufferSettings(
    ("nodes/x",), ("nodes/x.npy",), (32,), (40,), (20,), (20,), 4, "host", "table", None, ("disk",),
    "threads", 4, 4096, 0, 1, None,
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data = Data(x=torch.arange(800.0).reshape(100, 8), edge_index=edges)
    return gnndrive.from_data(data, tmp_path_factory.mktemp("service") / "x.gnn")


@pytest.fixture
def hello(store: Store) -> Hello:
    return Hello(store.identity, "a group", 0, (0,), SETTINGS, "", 1 << 20, "a test")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 64 bytes, eight to a sector, that tell their number."""
    path: Path = tmp_path_factory.mktemp("rows") / "x.bin"
    return write_told_rows(path, 200, 64)


@pytest.fixture(scope="session")
def without_x(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """330 nodes with labels and without features."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(330, (2, 4_000), generator=draw)
    data = Data(y=torch.arange(330) % 3, edge_index=edges, num_nodes=330)
    return gnndrive.from_data(data, tmp_path_factory.mktemp("without") / "x.gnn")


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are gathered in pieces too, so that their tails are released early."""
    monkeypatch.setattr(host, "PIECES_BYTES", 0)
