"""Loaders of data in memory: PyG's own loaders with gnndrive's sampler, without pyg-lib.

PyG's own tests run against them too (tests/README.md); the tests here run everywhere.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv, to_hetero
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from gnndrive import (
    ConfigError,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
)
from tests.pyg.graphs import COUNTS, heterogeneous, homogeneous


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 4)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_loaders_are_instances_of_pygs():
    loader = NeighborLoader(homogeneous(), [3, 2], batch_size=8)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert (len(loader), loader.dataset) == (8, range(60))
    links = LinkNeighborLoader(homogeneous(), [3], batch_size=8)
    assert isinstance(links, torch_geometric.loader.LinkNeighborLoader)
    assert len(links) == 50
    assert isinstance(loader.node_sampler, NeighborSampler)
    loader.close()
    assert loader.stats() == {}

    async def main() -> list[int]:
        loader = NeighborLoader(homogeneous(), [2], batch_size=20)
        return [len(batch.input_id) async for batch in loader]

    assert asyncio.run(main()) == [20, 20, 20]


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_a_batch_is_a_part_of_the_graph(subgraph_type):
    data = homogeneous()
    for number, batch in enumerate(
        NeighborLoader(data, [4, 3], batch_size=9, subgraph_type=subgraph_type)
    ):
        seeds = torch.arange(60)[9 * number : 9 * (number + 1)]
        assert torch.equal(batch.n_id[: batch.batch_size], seeds)
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    if subgraph_type == "induced":
        kept = torch.isin(data.edge_index, batch.n_id).all(0)
        assert sorted(batch.e_id.tolist()) == kept.nonzero().view(-1).tolist()


def test_all_neighbours_of_several_types_give_what_the_whole_graph_gives():
    data = heterogeneous()
    del data["venue", "prints", "paper"], data["venue"]  # no edge ends at this type
    model = to_hetero(Model(), data.metadata())
    whole = model(data.x_dict, data.edge_index_dict)["paper"]
    for batch in NeighborLoader(data, [-1, -1], input_nodes="paper", batch_size=7):
        size = batch["paper"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
        torch.testing.assert_close(out, whole[batch["paper"].n_id[:size]])


def test_batches_of_several_types():
    data = heterogeneous()
    fanouts = {edge_type: [2, 1] for edge_type in data.edge_types}
    fanouts["venue", "prints", "paper"] = [0, 0]
    loader = NeighborLoader(data, fanouts, input_nodes=("author", [3, 1, 4]), batch_size=3)
    (batch,) = loader
    assert batch["author"].n_id[:3].tolist() == [3, 1, 4]
    assert batch["author"].input_id.tolist() == [0, 1, 2]
    assert batch["venue"].num_nodes == 0
    for name in COUNTS:
        assert torch.equal(batch[name].x, data[name].x[batch[name].n_id])
        assert sum(batch[name].num_sampled_nodes) == len(batch[name].n_id)
    for edge_type in data.edge_types:
        source, _, target = edge_type
        row, col = batch[edge_type].edge_index
        ends = torch.stack([batch[source].n_id[row], batch[target].n_id[col]])
        assert torch.equal(ends, data[edge_type].edge_index[:, batch[edge_type].e_id])


def test_a_feature_store_and_a_graph_store():
    data, features, graph = heterogeneous(), MyFeatureStore(), MyGraphStore()
    for name in COUNTS:
        features.put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    for edge_type in data.edge_types:
        sizes = (COUNTS[edge_type[0]], COUNTS[edge_type[2]])
        edge_index = tuple(data[edge_type].edge_index)
        graph.put_edge_index(edge_index, edge_type=edge_type, layout="coo", size=sizes)
    loader = NeighborLoader((features, graph), [3], input_nodes="paper", batch_size=10)
    for batch in loader:
        assert torch.equal(batch["author"].x, data["author"].x[batch["author"].n_id])
    with pytest.raises(NotImplementedError, match="weight_attr"):
        NeighborLoader((features, graph), [3], input_nodes="paper", weight_attr="w")


def test_weights_and_times_of_edges():
    data = homogeneous()
    data.weight = (data.edge_attr % 2).float()
    data.edge_time = data.edge_attr
    whole = torch.bincount(data.edge_index[1], minlength=60)
    for batch in NeighborLoader(data, [2], batch_size=1, weight_attr="weight"):
        if int(whole[batch.input_id]) > 2:
            assert (batch.weight == 1).all()
    times = torch.full((60,), 50)
    for strategy in ("uniform", "last"):
        loader = NeighborLoader(
            data, [2], input_time=times, time_attr="edge_time", temporal_strategy=strategy
        )
        for batch in loader:
            there = (data.edge_index[1] == batch.n_id[0]) & (data.edge_time <= 50)
            latest = data.edge_time[there].sort().values[-2:]
            assert len(batch.edge_time) == len(latest)
            assert (batch.edge_time <= 50).all()
            assert strategy == "uniform" or sorted(batch.edge_time) == latest.tolist()
    with pytest.raises(ValueError, match="input_time"):
        next(iter(NeighborLoader(data, [2], time_attr="edge_time")))
    data.time = torch.rand(60)
    with pytest.raises(ConfigError, match=r"times are torch\.float32: give whole numbers"):
        next(iter(NeighborLoader(data, [2], time_attr="time")))


def test_trees_are_disjoint():
    data = homogeneous()
    (batch,) = NeighborLoader(data, [3, 3], [5, 5, 6], batch_size=3, disjoint=True)
    assert batch.batch[:3].tolist() == [0, 1, 2]
    row, col = batch.edge_index
    assert torch.equal(batch.batch[row], batch.batch[col])
    assert torch.equal(batch.x, data.x[batch.n_id])
    with pytest.raises(ValueError, match="induced"):
        next(iter(NeighborLoader(data, [3], disjoint=True, subgraph_type="induced")))


def test_manual_seed_repeats_the_draws():
    loader = NeighborLoader(homogeneous(), [2, 2], batch_size=10)

    def drawn() -> list[list[int]]:
        torch.manual_seed(3)
        return [batch.e_id.tolist() for batch in loader]

    assert drawn() == drawn()
    assert drawn() != [batch.e_id.tolist() for batch in loader]


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives_of_links(mode):
    data = homogeneous()
    loader = LinkNeighborLoader(data, [3], batch_size=25, neg_sampling={"mode": mode, "amount": 2})
    for number, batch in enumerate(loader):
        first = data.edge_index[:, 25 * number : 25 * (number + 1)]
        if mode == "binary":
            assert batch.edge_label.tolist() == [1] * 25 + [0] * 50
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :25]], first)
        else:
            assert torch.equal(batch.n_id[batch.src_index], first[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], first[1])
            assert batch.dst_neg_index.shape == (25, 2)


def test_worker_processes_and_copies():
    data = homogeneous()
    loader = NeighborLoader(data, [3], batch_size=10, num_workers=2)
    assert [len(batch.input_id) for batch in loader] == [10] * 6
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader.node_sampler))):
        sampler = getattr(other, "node_sampler", other)
        for batch in NodeLoader(data, sampler, batch_size=30):
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_arguments_for_stores_are_refused():
    with pytest.raises(ConfigError, match=r"memory='1GB' is for a store.*gnndrive\.from_data"):
        NeighborLoader(homogeneous(), [2], memory="1GB")
    with pytest.raises(ConfigError, match="nothing to plan"):
        NeighborLoader(homogeneous(), [2]).plan()
    with pytest.raises(ConfigError, match=r"give gnndrive\.open"):
        NeighborLoader("graph.gnn", [2])


def test_a_graph_without_edges():
    loader = NeighborLoader(Data(num_nodes=5), [2, 2], batch_size=2)
    assert [batch.n_id.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
