"""uint16, uint32 and uint64 attributes: imported, and delivered in their dtype on every path."""

from __future__ import annotations

import copy
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.loader.runtime import Runtime
from gnndrive.pyg.stores import FeatureStore

NODES, EDGES = 60, 400
DTYPES = [torch.uint16, torch.uint32, torch.uint64]


def make_data(dtype: torch.dtype) -> Data:
    """A graph whose attributes of nodes and edges are unsigned; the largest values are there."""
    draw = torch.Generator().manual_seed(0)
    kind = np.dtype(str(dtype).removeprefix("torch."))

    def rows(*shape: int) -> torch.Tensor:
        value = torch.randint(0, 30, shape, generator=draw).numpy().astype(kind)
        value.flat[0] = np.iinfo(kind).max
        return torch.from_numpy(value)

    return Data(
        x=rows(NODES, 5),
        y=torch.randint(0, 7, (NODES,), generator=draw).to(dtype),
        year=rows(NODES),
        edge_attr=rows(EDGES, 40),
        small=rows(EDGES),
        edge_index=torch.randint(NODES, (2, EDGES), generator=draw),
    )


def check(batch: Any, data: Data) -> None:
    """Each row is the graph's, in its dtype."""
    for name in ("x", "y", "year"):
        assert batch[name].dtype == data[name].dtype
        assert torch.equal(batch[name], data[name][batch.n_id])
    for name in ("edge_attr", "small"):
        assert batch[name].dtype == data[name].dtype
        assert torch.equal(batch[name], data[name][batch.e_id])


@pytest.fixture(params=DTYPES, ids=str)
def data(request: pytest.FixtureRequest) -> Data:
    return make_data(request.param)


@pytest.fixture
def store(data: Data, tmp_path: Path) -> Store:
    return gnndrive.from_data(data, tmp_path / "unsigned.gnn")


@pytest.mark.parametrize("fetched", [(), ("nodes/year", "nodes/y", "edges/small")])
def test_the_buffer_maps_and_planned_reads_deliver_them(store, data, monkeypatch, fetched):
    """If memory has no room for the files, attributes are read from disk."""
    made = Runtime.__init__

    def some_fetched(self: Runtime, store: Store, settings: Any, **rest: Any) -> None:
        object.__setattr__(settings.plan, "fetched", fetched)
        made(self, store, settings, **rest)

    monkeypatch.setattr(Runtime, "__init__", some_fetched)
    with NeighborLoader(store, [4, 4], batch_size=16, buffer="1MB") as loader:
        for batch in loader:
            check(batch, data)
        assert loader.stats()["rows_loaded"] > 0
        check(loader(torch.arange(20)), data)
    assert store.num_classes == 7


def test_they_are_converted_set_and_read_otherwise(store, data):
    mine, kept = copy.copy(store), {"batch_size": 16, "buffer": "1MB", "feature_dtype": "float64"}
    mine.mark = data.year.clone()
    with NeighborLoader(mine, [4], **kept) as loader:
        for batch in loader:
            assert torch.equal(batch.x, data.x.to(torch.float64)[batch.n_id])
            assert torch.equal(batch.mark, data.year[batch.n_id])
    assert torch.equal(store.x, data.x)
    rows = torch.tensor([3, 0, 3])
    with closing(FeatureStore(store)) as features:
        found = features.get_tensor(group_name=None, attr_name="year", index=rows)
        assert torch.equal(found, data.year[rows])


def test_types_deliver_them(tmp_path, data):
    hetero = HeteroData()
    hetero["a"].x = data.x
    hetero["a", "to", "a"].edge_index = data.edge_index
    hetero["a", "to", "a"].small = data.small
    store = gnndrive.from_data(hetero, tmp_path / "types.gnn")
    with NeighborLoader(store, [4], "a", batch_size=16, buffer="1MB") as loader:
        for batch in loader:
            assert torch.equal(batch["a"].x, data.x[batch["a"].n_id])
            assert torch.equal(batch["a", "a"].small, data.small[batch["a", "a"].e_id])
