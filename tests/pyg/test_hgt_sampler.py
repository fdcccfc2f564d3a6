"""HGT's sampler draws by the squares of the shares of its budgets, and returns all edges."""

import re
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

import gnndrive
from gnndrive import ConfigError
from gnndrive.pyg.hgt_sampler import NEIGHBORS_MAX, HGTSampler
from tests.loader.hetero.graph import CITES, EDGES, NODES, make_data


def one_type(nodes: int, edges: Any) -> HeteroData:
    data = HeteroData()
    data["paper"].num_nodes = nodes
    data[CITES].edge_index = torch.as_tensor(edges).T
    return data


def sampled(sampler: HGTSampler, *seeds: int) -> Any:
    return sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor(seeds), None, "paper"))


def test_nodes_are_drawn_by_the_squares_of_their_shares():
    # Shares around nodes 0 and 1: 1/2 + 1 of node 2, 1/2 of node 3; squares 9/4 and 1/4.
    sampler = HGTSampler(one_type(4, [(2, 0), (3, 0), (2, 1)]), [1])
    torch.manual_seed(0)
    drawn = torch.stack([sampled(sampler, 0, 1).node["paper"] for _ in range(1000)])
    assert drawn[:, :2].eq(torch.tensor([0, 1])).all()
    assert 870 < (drawn[:, 2] == 2).sum() < 930  # 900


def test_shares_add_up_over_hops_and_only_new_neighbours_are_drawn():
    # 1 is found first; then 3 has the shares of 0 and of 1, and 2 that of 0 alone, halved.
    chain = [(1, 0), (1, 0), (1, 0), (1, 0), (2, 0), (3, 0), (3, 1), (0, 1), (0, 0)]
    sampler = HGTSampler(one_type(4, chain), [1, 1])
    torch.manual_seed(0)
    found = [tuple(sampled(sampler, 0).node["paper"].tolist()) for _ in range(1000)]
    then = [nodes[2] for nodes in found if nodes[1] == 1]
    assert len(then) > 800
    assert all(nodes[0] == 0 and len(set(nodes)) == 3 for nodes in found)
    share = (1 / 7 + 1 / 2) ** 2  # of 3; 2 has (1/7)², so 3 is drawn 95 times of 100
    assert abs(then.count(3) / len(then) - share / (share + (1 / 7) ** 2)) < 0.02


def test_of_a_hub_the_neighbours_that_count_are_those_whose_edges_are_returned():
    edges = [(source, 0) for source in range(1, 200)]
    out = sampled(HGTSampler(one_type(200, edges), [300, 300]), 0)
    assert len(out.node["paper"]) == 1 + NEIGHBORS_MAX == len(out.node["paper"].unique())
    assert sorted(out.row[CITES].tolist()) == list(range(1, 1 + NEIGHBORS_MAX))
    assert out.col[CITES].eq(0).all()


def test_seeds_may_come_twice():
    out = sampled(HGTSampler(one_type(3, [(1, 0), (0, 2)]), [5]), 0, 2, 0)
    assert out.node["paper"].tolist() == [0, 2, 0, 1]
    edges = list(zip(out.row[CITES].tolist(), out.col[CITES].tolist(), strict=True))
    assert sorted(edges) == [(0, 1), (3, 0), (3, 2)]


def test_bounds_are_what_num_samples_allows(tmp_path):
    store = gnndrive.from_data(make_data(), tmp_path / "h.gnn")
    sampler = HGTSampler(
        store, {"paper": [5, 60], "author": [3, 3], "venue": [9, 9], "topic": [1, 1]}
    )
    edges = {type: EDGES[type] for type in store.edge_types}
    bounds = sampler.bounds({"paper": 10}, NODES, edges)
    assert bounds.nodes == bounds.entries == {"paper": 75, "author": 6, "venue": 7, "topic": 2}
    assert bounds.edges == {type: min(50 * bounds.nodes[type[2]], EDGES[type]) for type in edges}


@pytest.mark.parametrize(
    "num_samples",
    [3, [2, -1], [1.5], {"paper": [1]}, {"paper": [1, 2], "author": [1]},
     {"paper": [1], "author": [1], "venue": [1]}],
)  # fmt: skip
def test_num_samples_that_cannot_work(num_samples):
    data = one_type(3, [(1, 0)])
    data["author"].num_nodes = 2
    with pytest.raises(ConfigError, match=re.escape(f"num_samples={num_samples!r}: give a list")):
        HGTSampler(data, num_samples)


def test_graphs_without_types_are_refused(tmp_path):
    data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0], [1]]))
    for each in (data, gnndrive.from_data(data, tmp_path / "plain.gnn"), (data, data)):
        with pytest.raises(NotImplementedError, match="HGT samples node types"):
            HGTSampler(each, [1])
