"""What a batch holds: the contract of PyTorch Geometric's NeighborLoader."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES, NODES_WITH_EDGES


def store_of(data: Data, folder: Path) -> Store:
    return gnndrive.from_data(data, folder / "small.gnn")


# ---- what a batch holds


FIELDS = "x y edge_index edge_attr train_mask n_id e_id input_id batch_size"


def test_batches_are_pieces_of_the_graph(make, data):
    seen = []
    for batch in make(shuffle=True):
        check(batch, data)
        assert type(batch) is Data
        assert len(batch.num_sampled_nodes) == 3
        assert len(batch.num_sampled_edges) == 2
        assert all(isinstance(count, int) for count in batch.num_sampled_nodes)
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert len(batch.e_id.unique()) == len(batch.e_id)
        for name in ("edge_index", "n_id", "e_id", "input_id"):
            assert batch[name].dtype == torch.int64, name
        assert isinstance(batch.batch_size, int)
        assert set(batch.keys()) == {*FIELDS.split(), "num_sampled_nodes", "num_sampled_edges"}
        seen.append(batch.n_id[: batch.batch_size])
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(NODES))


def test_each_hop_follows_the_last(make, data):
    (batch,) = make((3, 2, 2), input_nodes=[1, 2, 3])
    hop = np.repeat(np.arange(4), batch.num_sampled_nodes)
    edge_hop = np.repeat(np.arange(3), batch.num_sampled_edges)
    source, target = batch.edge_index.numpy()
    assert (hop[target] == edge_hop).all(), "an edge of hop h + 1 points at a node of hop h"
    assert (hop[source] <= edge_hop + 1).all()
    for fanout, number in zip((3, 2, 2), range(3), strict=True):
        _, counts = np.unique(target[edge_hop == number], return_counts=True)
        assert (counts <= fanout).all()


def test_input_id_of_a_mask_is_global(make, data):
    batches = list(make(input_nodes=data.train_mask, batch_size=10))
    input_id = torch.cat([batch.input_id for batch in batches])
    assert torch.equal(input_id, data.train_mask.nonzero().view(-1))
    for batch in batches:
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])


@pytest.mark.parametrize("kind", [torch.tensor, list, np.array, tuple])
def test_input_id_of_an_index_is_its_position(make, kind):
    nodes = [30, 399, 0, 12]
    (batch,) = make(input_nodes=kind(nodes))
    assert batch.input_id.tolist() == [0, 1, 2, 3]
    assert batch.n_id[:4].tolist() == nodes


def test_a_seed_given_twice_is_there_twice(make, data):
    (batch,) = make(input_nodes=[5, 6, 5])
    assert batch.n_id[:3].tolist() == [5, 6, 5]
    assert torch.equal(batch.x, data.x[batch.n_id])


def test_no_input_nodes_no_batches(make):
    loader = make(input_nodes=torch.empty(0, dtype=torch.int64))
    assert len(loader) == 0
    assert list(loader) == []
    assert list(make(input_nodes=torch.zeros(NODES, dtype=torch.bool))) == []


# ---- graphs


def test_nodes_without_neighbours(make, data):
    nodes = torch.arange(NODES_WITH_EDGES, NODES)
    (batch,) = make(input_nodes=nodes, batch_size=32)
    assert torch.equal(batch.n_id, nodes)
    assert batch.edge_index.shape == (2, 0)
    assert batch.num_sampled_nodes == [20, 0, 0]
    assert batch.num_sampled_edges == [0, 0]
    check(batch, data)


def test_all_neighbours(make, data):
    for batch in make([-1], batch_size=20, buffer="80KB"):
        check(batch, data)
        expected = torch.isin(data.edge_index[1], batch.n_id[: batch.batch_size])
        assert torch.equal(batch.e_id.sort().values, expected.nonzero().view(-1))


def test_self_loops_and_duplicate_edges(make, tmp_path):
    edges = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 2, 1]])
    data = Data(x=torch.arange(6.0).view(3, 2), y=torch.arange(3), edge_index=edges)
    (batch,) = make([-1, -1], data=store_of(data, tmp_path), input_nodes=[0])
    check(batch, data)
    assert sorted(batch.e_id.tolist()) == [0, 1, 2, 3, 5]


def test_a_graph_without_edges(make, tmp_path):
    nothing = torch.empty(2, 0, dtype=torch.int64)
    data = Data(x=torch.rand(5, 2), y=torch.arange(5), edge_index=nothing)
    (batch,) = make(data=store_of(data, tmp_path))
    check(batch, data)
    assert batch.num_sampled_edges == [0, 0]


def test_with_replacement_the_fanout_is_filled(make, data):
    (batch,) = make([9], input_nodes=range(30), batch_size=30, replace=True, buffer="80KB")
    check(batch, data)
    assert torch.equal(torch.bincount(batch.edge_index[1])[:30], torch.full((30,), 9))


def test_x_of_more_dimensions_and_no_y(make, tmp_path, data):
    cube = Data(x=torch.rand(NODES, 3, 4, 2), edge_index=data.edge_index)
    for batch in make(data=store_of(cube, tmp_path)):
        assert torch.equal(batch.x, cube.x[batch.n_id])
        assert "y" not in batch
        assert "edge_attr" not in batch
    flat = Data(x=torch.arange(NODES, dtype=torch.int32), edge_index=data.edge_index)
    for batch in make(data=gnndrive.from_data(flat, tmp_path / "flat.gnn")):
        assert torch.equal(batch.x, batch.n_id.int())


# ---- training


def test_a_batch_is_the_users_own(make, data):
    loader = make(seed=1)
    for batch in loader:
        batch.x.zero_(), batch.y.zero_(), batch.edge_attr.zero_(), batch.n_id.zero_()
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


# ---- one batch by hand


def test_calling_the_loader_gives_one_batch(make, data):
    loader = make(input_nodes=data.train_mask)
    nodes = data.train_mask.nonzero().view(-1)
    batch = loader(np.array([4, 2, 9]))
    check(batch, data)
    assert torch.equal(batch.n_id[:3], nodes[[4, 2, 9]])
    assert torch.equal(batch.input_id, nodes[[4, 2, 9]])
    assert loader.stats() == {}, "no pipeline was started"


def test_collate_fn_and_filter_fn_make_up_a_call(make, data):
    loader = make(seed=3, transform=lambda batch: batch.to_dict())
    out = loader.filter_fn(loader.collate_fn([1, 2, 3]))
    assert isinstance(out, dict)
    assert_same(Data.from_dict(out), Data.from_dict(loader(torch.tensor([1, 2, 3]))))


def test_a_transform_is_applied_to_each_batch(make, data):
    def transform(batch: Data) -> tuple[int, Data]:
        batch.total = batch.x.sum()
        return batch.batch_size, batch

    for size, batch in make(transform=transform):
        assert size == batch.batch_size
        assert torch.equal(batch.total, batch.x.sum())
