"""from_data: a PyG Data becomes a store with the same edges and attributes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import Store
from gnndrive.store.arrays import write_store
from gnndrive.store.importers import csc_from_edges, from_data, to_undirected


def make_data(seed: int, nodes: int = 50, edges: int = 300) -> Data:
    torch.manual_seed(seed)
    return Data(
        x=torch.randn(nodes, 5),
        y=torch.randint(0, 4, (nodes,)),
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.randn(edges, 2).bfloat16(),
        edge_weight=torch.rand(edges),
        train_mask=torch.arange(nodes) < 30,
        val_mask=(torch.arange(nodes) >= 30) & (torch.arange(nodes) < 40),
        test_mask=torch.arange(nodes) >= 40,
    )


def csc_edge_index(store: Store) -> torch.Tensor:
    target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return torch.from_numpy(np.stack([store.indices, target]).astype(np.int64))


@pytest.mark.parametrize("seed", range(3))
def test_round_trip(tmp_path: Path, seed: int) -> None:
    data = make_data(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = from_data(data, tmp_path / "s")
    assert store.edge_id is not None
    edge_id = torch.from_numpy(np.array(store.edge_id)).long()
    assert torch.equal(data.edge_index[:, edge_id], csc_edge_index(store))
    same_target = np.diff(csc_edge_index(store)[1]) == 0
    assert (np.diff(edge_id)[same_target] > 0).all()
    assert (store.num_nodes, store.num_edges) == (data.num_nodes, data.num_edges)
    assert store.num_features == store.num_node_features == data.num_features
    assert store.num_classes == len(data.y.unique())
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(store.tensor(name), data[name])
    for name in ("edge_attr", "edge_weight"):
        assert torch.equal(store.tensor(f"edges/{name}"), data[name])
    assert store.split_names == ("train", "val", "test")
    assert torch.equal(store.split("val"), torch.arange(30, 40))
    store.verify()


def test_attributes_of_the_whole_graph_are_left_out_and_named(tmp_path: Path) -> None:
    data = make_data(0)
    data.title, data.target, data.many = "a graph", torch.tensor(3.0), torch.zeros(7, 2)
    with pytest.warns(UserWarning, match="left out: many, target, title"):
        store = from_data(data, tmp_path / "s")
    assert "many" not in store.node_names


def test_splits_may_be_given(tmp_path: Path) -> None:
    store = from_data(make_data(0), tmp_path / "s", splits={"train": torch.tensor([3, 1])})
    assert store.split_names == ("train",)
    assert store.split("train").tolist() == [3, 1]


def test_masks_of_several_splits_are_named(tmp_path: Path) -> None:
    data = make_data(0)
    data.train_mask = torch.zeros(50, 10, dtype=torch.bool)
    with pytest.warns(UserWarning, match=r"train_mask holds 10 splits .*data.train_mask\[:, 0\]"):
        store = from_data(data, tmp_path / "s")
    assert store.split_names == ("val", "test")


def test_numpy_attributes_and_a_given_node_count(tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]], dtype=torch.int32), num_nodes=4)
    data.z = np.arange(4)
    store = from_data(data, tmp_path / "s")
    assert store.num_nodes == 4
    assert store.tensor("z").tolist() == [0, 1, 2, 3]
    assert store.num_features == 0


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no node types"):
        from_data(HeteroData(), tmp_path / "s")
    with pytest.raises(ConfigError, match="torch_geometric Data or HeteroData, not a dict"):
        from_data({}, tmp_path / "s")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no edge_index"):
        from_data(Data(x=torch.ones(3, 1)), tmp_path / "s")
    data = make_data(0)
    data.z = torch.zeros(50, dtype=torch.complex64)
    with pytest.raises(ConfigError, match=r"nodes/z: .*complex64"):
        from_data(data, tmp_path / "s")
    data = make_data(0)
    data.edge_index[0, 9] = 50
    with pytest.raises(StoreError, match="edge 9 names 50, but there are 50 nodes"):
        from_data(data, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


class SparseTensor:
    """As much of torch_sparse's class as PyG and the importer look at."""

    def size(self, dim: int) -> int:
        return (50, 5)[dim]

    def to_torch_sparse_coo_tensor(self) -> torch.Tensor:
        return torch.zeros(50, 5).to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "value",
    [
        torch.eye(50).to_sparse(),
        torch.eye(50).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2)] * 50),
        scipy.sparse.eye(50, format="csr"),
        SparseTensor(),
    ],
    ids=["coo", "csr", "nested", "scipy", "SparseTensor"],
)
def test_a_sparse_attribute_is_refused(tmp_path: Path, value: object) -> None:
    data, hetero = make_data(0), HeteroData()
    data.z = value
    with pytest.raises(ConfigError, match=r"data\.z is sparse, .* call \.to_dense\(\)"):
        from_data(data, tmp_path / "s")
    hetero["a"].x, hetero["a"].num_nodes = value, 50
    hetero["a", "to", "a"].edge_index = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ConfigError, match="x of a is sparse"):
        from_data(hetero, tmp_path / "s")
    with pytest.raises(ConfigError, match=r"nodes/z is (sparse|object)"):
        write_store(tmp_path / "s", indptr=[0] * 51, indices=[], nodes={"z": value})
    assert list(tmp_path.iterdir()) == []


def test_an_adjacency_beside_edge_index_is_left_out(tmp_path: Path) -> None:
    data = make_data(0)
    data.adj_t = torch.sparse_coo_tensor(data.edge_index, torch.ones(300), (50, 50))
    with pytest.warns(UserWarning, match="left out: adj_t"):
        from_data(data, tmp_path / "s")


def test_values_that_are_not_there_are_refused(tmp_path: Path) -> None:
    data = make_data(0)
    data.x = torch.empty(50, 3, device="meta")
    with pytest.raises(ConfigError, match="nodes/x is on the device 'meta'"):
        from_data(data, tmp_path / "s")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_csc_is_stable(dtype: type) -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 30, (2, 500)).astype(dtype)
    indptr, indices, edge_id = csc_from_edges(src, dst, 31)
    assert np.array_equal(edge_id, np.argsort(dst, kind="stable"))
    assert np.array_equal(indices, src[edge_id])
    assert np.array_equal(np.diff(indptr), np.bincount(dst.astype(int), minlength=31))


def test_csc_of_no_edges() -> None:
    indptr, indices, edge_id = csc_from_edges(np.empty(0, int), np.empty(0, int), 3)
    assert (indptr.tolist(), len(indices), len(edge_id)) == ([0, 0, 0, 0], 0, 0)


def test_undirected_equals_pyg() -> None:
    from torch_geometric.utils import to_undirected as pygs

    edge_index = np.random.default_rng(0).integers(0, 30, (2, 200))
    mine = np.stack(to_undirected(edge_index[0], edge_index[1], 30))
    assert np.array_equal(mine, pygs(torch.from_numpy(edge_index), num_nodes=30).numpy())
