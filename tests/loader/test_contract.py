"""What a batch holds, to the last byte: the contract of PyTorch Geometric's NeighborLoader."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from tests.loader.batches import assert_same, check
from tests.loader.conftest import NODES

# ---- what a batch holds


FIELDS = "x y edge_index edge_attr train_mask n_id e_id input_id batch_size"


def test_batches_are_pieces_of_the_graph(make, data):
    seen = []
    for batch in make(shuffle=True):
        check(batch, data)
        assert type(batch) is Data
        assert (len(batch.num_sampled_nodes), len(batch.num_sampled_edges)) == (3, 2)
        assert {type(n) for n in [batch.batch_size, *batch.num_sampled_nodes]} == {int}
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert len(batch.e_id.unique()) == len(batch.e_id)
        for name in ("edge_index", "n_id", "e_id", "input_id"):
            assert batch[name].dtype == torch.int64, name
        assert set(batch.keys()) == {*FIELDS.split(), "num_sampled_nodes", "num_sampled_edges"}
        seen.append(batch.n_id[: batch.batch_size])
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(NODES))


@pytest.mark.parametrize("kind", [torch.tensor, list, np.array, tuple])
def test_a_batch_has_the_seeds_as_given_also_one_twice(make, data, kind):
    nodes = [30, 399, 0, 30]
    (batch,) = make(input_nodes=kind(nodes))
    assert batch.input_id.tolist() == [0, 1, 2, 3]
    assert batch.n_id[:4].tolist() == nodes
    assert torch.equal(batch.x, data.x[batch.n_id])


def test_no_input_nodes_no_batches(make):
    for nothing in (torch.empty(0, dtype=torch.int64), torch.zeros(NODES, dtype=torch.bool)):
        loader = make(input_nodes=nothing)
        assert len(loader) == len(list(loader)) == 0


def test_a_graph_without_edges(make, tmp_path):
    nothing = torch.empty(2, 0, dtype=torch.int64)
    data = Data(x=torch.rand(5, 2), y=torch.arange(5), edge_index=nothing)
    (batch,) = make(data=gnndrive.from_data(data, tmp_path / "s.gnn"))
    check(batch, data)
    assert batch.num_sampled_edges == [0, 0]


def test_with_replacement_the_fanout_is_filled(make, data):
    (batch,) = make([9], input_nodes=range(30), batch_size=30, replace=True, buffer="80KB")
    check(batch, data)
    assert torch.equal(torch.bincount(batch.edge_index[1])[:30], torch.full((30,), 9))


def test_x_of_more_dimensions_and_no_y(make, tmp_path, data):
    cube = Data(x=torch.rand(NODES, 3, 4, 2), edge_index=data.edge_index)
    for batch in make(data=gnndrive.from_data(cube, tmp_path / "cube.gnn")):
        assert torch.equal(batch.x, cube.x[batch.n_id])
        assert "y" not in batch
        assert "edge_attr" not in batch
    flat = Data(x=torch.arange(NODES, dtype=torch.int32), edge_index=data.edge_index)
    for batch in make(data=gnndrive.from_data(flat, tmp_path / "flat.gnn")):
        assert torch.equal(batch.x, batch.n_id.int())


def test_a_batch_is_the_users_own(make, data):
    loader = make(seed=1)
    for batch in loader:
        batch.x.zero_(), batch.y.zero_(), batch.edge_attr.zero_(), batch.n_id.zero_()
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


# ---- one batch by hand


def test_calling_the_loader_gives_one_batch(make, data):
    loader = make(seed=3, input_nodes=data.train_mask, transform=lambda batch: batch.to_dict())
    nodes = data.train_mask.nonzero().view(-1)[[4, 2, 9]]
    batch = Data.from_dict(loader(np.array([4, 2, 9])))
    check(batch, data)
    assert torch.equal(batch.n_id[:3], nodes)
    assert torch.equal(batch.input_id, nodes)
    assert loader.stats() == {}, "no pipeline was started"
    assert_same(batch, Data.from_dict(loader.filter_fn(loader.collate_fn([4, 2, 9]))))
