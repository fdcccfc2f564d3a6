"""Arguments that are one of a few values, functions or dense tensors are checked at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, NeighborSampler, Store
from tests.soak import product

SPARSE = torch.ones(2, 30, dtype=torch.int64).to_sparse()
WRONG: list[tuple[str, Any, str]] = [
    ("temporal_strategy", "x", r"temporal_strategy='x': give 'uniform' or 'last'"),
    ("subgraph_type", "x", r"subgraph_type='x': give one of 'directional', 'bidir.*', 'induced'"),
    ("subgraph_type", None, "subgraph_type=None: give one of"),
    ("transform", 3, "transform=3 cannot be called"),
    ("transform_sampler_output", "x", "transform_sampler_output='x' cannot be called"),
    ("neighbor_sampler", "x", "neighbor_sampler='x' has no method sample_from_nodes"),
]


@pytest.fixture(scope="module")
def data() -> Data:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 90), generator=draw)
    return Data(x=torch.randn(30, 3, generator=draw), edge_index=edges, time=torch.arange(30))


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(data, tmp_path_factory.mktemp("choices") / "graph.gnn")


@product("kind,wrong", [NeighborLoader, LinkNeighborLoader], WRONG)
def test_a_loader_refuses_it_when_it_is_made(store, kind, wrong):
    name, value, complaint = wrong
    with pytest.raises(ConfigError, match=complaint):
        kind(store, [2], **{name: value})


@product("wrong,in_memory", WRONG[:2], [False, True])
def test_so_does_the_sampler(store, data, in_memory, wrong):
    name, value, complaint = wrong
    with pytest.raises(ConfigError, match=complaint):
        NeighborSampler(data if in_memory else store, [2], **{name: value})


def test_negatives_that_pyg_takes_and_refuses(store):
    for wrong in ("x", {"mode": "x"}, {"mode": "binary", "amount": -1}, 3):
        with pytest.raises(ConfigError, match=r"neg_sampling=.*give 'binary', 'triplet'"):
            LinkNeighborLoader(store, [2], neg_sampling=wrong)
    for negatives in ("binary", {"mode": "triplet", "amount": 2}, NegativeSampling("binary"), None):
        LinkNeighborLoader(store, [2], neg_sampling=negatives)
    NeighborLoader(store, [2], temporal_strategy="last", subgraph_type="induced")


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        (NeighborLoader, "input_nodes", {}),
        (NeighborLoader, "input_time", {"input_nodes": [1, 2], "time_attr": "time"}),
        (LinkNeighborLoader, "edge_label_index", {}),
        (LinkNeighborLoader, "edge_label", {"edge_label_index": torch.zeros(2, 2).long()}),
        (LinkNeighborLoader, "edge_label_time",
         {"edge_label_index": torch.zeros(2, 2).long(), "time_attr": "time"}),
    ],
)  # fmt: skip
def test_a_sparse_argument_is_named(store, kind, name, more):
    with pytest.raises(ConfigError, match=rf"{name} is sparse: .*{name}\.to_dense\(\)"):
        kind(store, [2], **{name: SPARSE}, **more)


# torch says so of what it has just made.
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_what_is_set_on_a_store_has_rows(store):
    opened = gnndrive.open(store.path)
    opened.z = torch.eye(30).to_sparse()
    batch = next(iter(NeighborLoader(opened, [2], batch_size=4, buffer="40KB")))
    assert torch.equal(batch.z.to_dense(), torch.eye(30)[batch.n_id])
    for value in (torch.eye(30).to_sparse_csr(), torch.nested.nested_tensor([torch.ones(1)] * 30)):
        with pytest.raises(ConfigError, match="z is sparse"):
            opened.z = value


def test_sparse_rows_are_refused_with_the_remedy(data, tmp_path):
    for x in (data.x.to_sparse(), data.x.to_sparse_csr()):
        sparse = Data(x=x, edge_index=data.edge_index)
        with pytest.raises(ConfigError, match=r"data\.x is sparse.*to_dense\(\).*save_npz"):
            gnndrive.from_data(sparse, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []
