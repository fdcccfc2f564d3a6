"""A store as PyG's FeatureStore and GraphStore, in PyG's loaders that take such a pair."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, EdgeAttr, TensorAttr
from torch_geometric.loader import LinkLoader, NodeLoader

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborSampler, ReadError, Store
from gnndrive.disk.row_reader import RowReader
from gnndrive.pyg.stores import FeatureStore, GraphStore
from tests.pyg.graphs import homogeneous


@pytest.fixture(scope="module")
def data() -> Data:
    return homogeneous()


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(data, tmp_path_factory.mktemp("stores") / "graph.gnn")


@pytest.fixture
def features(store: Store) -> Iterator[FeatureStore]:
    found = FeatureStore(store, io_depth=8)
    yield found
    found.close()


@pytest.mark.parametrize(
    "index",
    [torch.tensor([5, 0, 59, 5]), torch.arange(60) % 7 == 0, slice(3, 50, 9), torch.tensor([1, -1]),
     torch.tensor([], dtype=torch.int64), None],
)  # fmt: skip
def test_rows_by_any_index(features, data, index):
    expected = data.x if index is None else data.x[index]
    assert torch.equal(torch.as_tensor(features.get_tensor(None, "x", index)), expected)


def test_several_attributes_at_once(features, data):
    attrs = features.get_all_tensor_attrs()
    assert sorted(attr.attr_name for attr in attrs) == ["x", "y"]
    for attr in attrs:
        attr.index = torch.tensor([7, 3])
    attrs.append(TensorAttr(None, "y", None))
    for attr, found in zip(attrs, features.multi_get_tensor(attrs), strict=True):
        value = data[attr.attr_name]
        assert torch.equal(found, value if attr.index is None else value[attr.index])
    assert features.get_tensor_size(None, "x") == (60, 3)
    assert torch.equal(features[None, "x", torch.tensor([2])], data.x[[2]])
    other = pickle.loads(pickle.dumps(features))
    assert repr(other) == repr(features)
    assert torch.equal(other.get_tensor(None, "x", torch.tensor([4])), data.x[[4]])
    for _ in range(2):
        other.close()
        with pytest.raises(ClosedError):
            other.get_tensor(None, "x", torch.tensor([1]))


def test_rows_are_awaited(features, data):
    async def main() -> None:
        indices = [torch.tensor([n, 59 - n]) for n in range(20)]
        attrs = [TensorAttr(None, "x", index) for index in indices]
        found = await asyncio.gather(*map(features.aget_tensor, attrs))
        for index, rows in zip(indices, found, strict=True):
            assert torch.equal(rows, data.x[index])
        both = await features.amulti_get_tensor([attrs[0], TensorAttr(None, "y", attrs[1].index)])
        assert torch.equal(both[1], data.y[indices[1]])

    asyncio.run(main())


def test_missing_attributes_and_rows_are_errors(features):
    with pytest.raises(KeyError, match="has no attribute 'z'"):
        features.get_tensor(None, "z", None)
    with pytest.raises(KeyError, match="of 'paper'"):
        features.get_tensor("paper", "x", None)
    with pytest.raises(ConfigError, match="row 0 … 60 of nodes/x, which has 60 rows"):
        features.get_tensor(None, "x", torch.tensor([0, 60]))
    with pytest.raises(ConfigError, match="read-only"):
        features.put_tensor(torch.zeros(60), None, "z", None)
    with pytest.raises(ConfigError, match="read-only"):
        features.remove_tensor(None, "x", None)


def test_the_adjacency_is_that_of_the_data(store, data):
    graph = pickle.loads(pickle.dumps(GraphStore(store)))
    assert str(store.path) in repr(graph)
    (attr,) = graph.get_all_edge_attrs()
    assert attr.size == (60, 60)
    row, colptr = graph.get_edge_index(attr)
    col = torch.repeat_interleave(torch.arange(60), colptr.diff())
    ends = sorted(zip(row.tolist(), col.tolist(), strict=True))
    assert ends == sorted(map(tuple, data.edge_index.t().tolist()))
    with pytest.raises(ConfigError, match="read-only"):
        graph.put_edge_index((row, col), EdgeAttr(None, "coo"))


@pytest.mark.parametrize("workers", [0, 2])
def test_pygs_own_loaders(features, store, data, workers):
    pair, sampler = (features, GraphStore(store)), NeighborSampler(store, [3, 2])
    features.get_tensor(None, "x", torch.tensor([1]))  # starts threads, which forked workers lack
    nodes = NodeLoader(
        pair, sampler, input_nodes=torch.arange(60), batch_size=20, num_workers=workers
    )
    for batch in nodes:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    links = LinkLoader(
        pair, sampler, edge_label_index=(None, data.edge_index), batch_size=100,
        neg_sampling="binary",
    )  # fmt: skip
    for batch in links:
        assert torch.equal(batch.y, data.y[batch.n_id])


def test_a_reader_is_collected_in_its_own_loop_thread(store):
    reader: Any = RowReader(store)
    reader.read([("nodes/x", np.array([1]))])
    loop_thread = reader._reader.loop_thread
    reader.itself = reader
    del reader

    async def collect() -> None:
        gc.collect()

    loop_thread.start(collect()).result(timeout=300)


def test_a_row_that_cannot_be_read_is_an_error(data, tmp_path):
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    reader = RowReader(store, engine="threads")
    reader.read([("nodes/x", np.array([1]))])
    file = store.path / "nodes" / "x.npy"
    os.truncate(file, 4096 + 12)
    with pytest.raises(ReadError) as caught:
        reader.read([("nodes/x", np.array([0, 59]))])
    assert caught.value.errno in (errno.EIO, errno.ENODATA)
    assert caught.value.path == str(file)
    reader.close()
