"""Batches of a heterogeneous store are the same as PyG's loader would yield for its graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import HeteroConv, SAGEConv

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, NeighborSampler, Store
from gnndrive.pyg.stores import FeatureStore, GraphStore
from tests.loader.hetero.conftest import Make
from tests.loader.hetero.graph import (
    CITES,
    EDGES,
    HOSTS,
    NODES,
    WIDTHS,
    WRITES,
    WRITTEN,
    check,
)

FANOUTS = {WRITES: [3, 2], WRITTEN: [2, 2], CITES: [-1, 0], HOSTS: [1, 1]}
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "fanouts by type": {"fanout": FANOUTS},
    "with replacement": {"replace": True},
    "trees": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "weights": {"weight_attr": "weight"},
    "direct": {"topology": "direct", "neighbour_cache": "20KB"},
    "direct, no cache": {"topology": "direct", "neighbour_cache": 0},
    "mmap": {"topology": "mmap"},
    "on a device": {"device": "simulated-cuda"},
    "a small buffer": {"buffer": "60KB", "batch_size": 4},
    "authors": {"input_nodes": "author"},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_batch_is_a_part_of_the_graph(make: Make, data: HeteroData, how: Any) -> None:
    loader = make(**how)
    batches = list(loader)
    assert len(batches) == len(loader)
    for batch in batches:
        check(batch, data)
    kind = "author" if "input_nodes" in how else "paper"
    seeds = torch.arange(NODES["author"]) if kind == "author" else data[kind].train_mask.nonzero()
    seen = torch.cat([batch[kind].n_id[: batch[kind].batch_size] for batch in batches])
    assert torch.equal(seen, seeds.view(-1))
    assert all("batch_size" not in batch[name] for batch in batches for name in set(NODES) - {kind})


def same(one: HeteroData, other: HeteroData) -> bool:
    return all(torch.equal(one[name].n_id, other[name].n_id) for name in NODES) and all(
        torch.equal(one[edge_type].e_id, other[edge_type].e_id) for edge_type in EDGES
    )


def test_topologies_and_threads_change_no_batch(make: Make) -> None:
    expected = list(make(samplers=1))
    for how in ({"topology": "mmap"}, {"topology": "direct"}, {"buffer": "500KB"}, {"sweep": 3}):
        assert all(map(same, make(**how), expected))


def test_bidirectional_subgraphs(make: Make, data: HeteroData) -> None:
    with pytest.warns(UserWarning, match="does not seem to have a reverse edge type"):
        batches = list(make(subgraph_type="bidirectional"))
    for batch in batches:
        check(batch, data)
        forth, back = batch[WRITES].edge_index.tolist(), batch[WRITTEN].edge_index.tolist()
        assert set(zip(*forth, strict=True)) == set(zip(*back[::-1], strict=True))


def test_times_of_edges_and_of_nodes(make: Make, data: HeteroData) -> None:
    train = data["paper"].train_mask.nonzero().view(-1)
    given = torch.full((len(train),), 20)
    for batch in make(time_attr="time", input_time=given):
        check(batch, data)
        assert (batch[CITES].time <= 20).all()
        assert batch["paper"].seed_time.tolist() == [20] * batch["paper"].batch_size
    for batch in make(time_attr="year"):
        seed_year = batch["paper"].year[: batch["paper"].batch_size]
        for name in ("paper", "author"):  # venues have no time and were always there
            assert (batch[name].year <= seed_year[batch[name].batch]).all()
        assert len(batch["venue"].n_id) >= 0


class GNN(torch.nn.Module):
    """Two layers; a type that no edge goes to keeps what it had."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.ModuleDict(
            {name: torch.nn.Linear(width, 16) for name, width in WIDTHS.items()}
        )
        self.layers = torch.nn.ModuleList(
            HeteroConv({edge_type: SAGEConv(16, 16) for edge_type in EDGES}) for _ in range(2)
        )

    def forward(self, x: dict[str, torch.Tensor], edges: Any) -> torch.Tensor:
        x = {name: self.embed[name](rows) for name, rows in x.items()}
        for layer in self.layers:
            x |= {name: rows.relu() for name, rows in layer(x, edges).items()}
        return x["paper"]


def features(batch: HeteroData) -> dict[str, torch.Tensor]:
    """Floats for every type that edges begin or end at."""
    return {name: batch[name].x.float() for name in WIDTHS}


def test_all_neighbours_from_disk_give_what_the_whole_graph_gives(
    make: Make, data: HeteroData
) -> None:
    torch.manual_seed(0)
    model = GNN().eval()
    with torch.no_grad():
        expected = model(features(data), data.edge_index_dict)
        for batch in make(fanout=[-1, -1]):
            out = model(features(batch), batch.edge_index_dict)
            size = batch["paper"].batch_size
            seeds = batch["paper"].n_id[:size]
            torch.testing.assert_close(out[:size], expected[seeds], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["binary", "triplet", None])
@pytest.mark.parametrize("given", [False, True])
def test_links(make: Make, data: HeteroData, mode: str | None, given: bool) -> None:
    edges = data[WRITES].edge_index[:, 100:200]
    chosen: Any = (WRITES, edges) if given else WRITES
    loader = make(LinkNeighborLoader, edge_label_index=chosen, neg_sampling=mode, batch_size=50)
    seen = []
    for batch in loader:
        check(batch, data)
        author, paper = batch["author"].n_id, batch["paper"].n_id
        number = batch[WRITES].input_id
        seen.append(number)
        if mode == "triplet":
            row, col = author[batch["author"].src_index], paper[batch["paper"].dst_pos_index]
            assert "src_index" not in batch["paper"]
            assert "edge_label_index" not in batch[WRITES]
            assert len(batch["paper"].dst_neg_index) == len(row)
        else:
            both = batch[WRITES].edge_label_index[:, : len(number)]
            row, col = author[both[0]], paper[both[1]]
        expected = edges if given else data[WRITES].edge_index
        assert torch.equal(torch.stack([row, col]), expected[:, number])
    assert torch.cat(seen).sort().values.tolist() == list(range(100 if given else EDGES[WRITES]))


def test_resume_yields_the_rest(make: Make) -> None:
    whole = list(make(fanout=FANOUTS, shuffle=True))
    first = make(fanout=FANOUTS, shuffle=True)
    batches = iter(first)
    for expected in whole[:3]:
        assert same(next(batches), expected)
    state = json.loads(json.dumps(first.state_dict()))
    second = make(fanout=FANOUTS, shuffle=True)
    second.load_state_dict(state)
    rest = list(second)
    assert len(rest) == len(whole) - 3
    assert all(map(same, rest, whole[3:]))
    with pytest.raises(ConfigError, match="num_neighbors"):
        make(shuffle=True).load_state_dict(state)
    with pytest.raises(ConfigError, match="inputs"):
        make(fanout=FANOUTS, shuffle=True, input_nodes="author").load_state_dict(state)


def test_one_batch_by_hand(make: Make, data: HeteroData) -> None:
    loader = make()
    batch = loader([5, 3])
    check(batch, data)
    train = data["paper"].train_mask.nonzero().view(-1)
    assert batch["paper"].n_id[:2].tolist() == train[[5, 3]].tolist()


def test_pygs_own_loader_on_the_store(store: Store, data: HeteroData) -> None:
    sampler = NeighborSampler(store, {edge_type: [3, 3] for edge_type in EDGES})
    features = FeatureStore(store)
    loader = NodeLoader((features, GraphStore(store)), sampler, input_nodes="author", batch_size=30)
    for batch in loader:
        for name in WIDTHS:
            assert torch.equal(batch[name].x, data[name].x[batch[name].n_id])
        wide = features.get_tensor(WRITES, "edge_attr", batch[WRITES].e_id)
        assert torch.equal(wide, data[WRITES].edge_attr[batch[WRITES].e_id])
        for edge_type in EDGES:
            edges, (source, _, target) = batch[edge_type], edge_type
            ends = [
                batch[end].n_id[each]
                for end, each in zip((source, target), edges.edge_index, strict=True)
            ]
            assert torch.equal(torch.stack(ends), data[edge_type].edge_index[:, edges.e_id])
    features.close()


# ---- refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"input_nodes": None}, "give input_nodes as a node type"),
        ({"input_nodes": [1, 2, 3]}, "give input_nodes as a node type"),
        ({"input_nodes": "poper"}, "there is no 'poper'; the types are paper, author"),
        ({"input_nodes": ("venue", [7])}, "outside 0 … 6"),
        ({"fanout": {CITES: [2, 2]}}, "leaves out"),
        ({"fanout": FANOUTS | {("a", "b", "c"): [1, 1]}}, "that the store does not have"),
        ({"fanout": FANOUTS | {CITES: [1]}}, "lists of several lengths"),
        ({"time_attr": "when"}, "no such attribute, but edge_attr"),
    ],
)
def test_wrong_arguments(make: Make, arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**arguments)


def test_wrong_links(make: Make) -> None:
    with pytest.raises(ConfigError, match="give edge_label_index as an edge type"):
        make(LinkNeighborLoader, edge_label_index=torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ConfigError, match="there is no"):
        make(LinkNeighborLoader, edge_label_index=("paper", "likes", "paper"))
    outside = torch.tensor([[0], [NODES["paper"]]])
    with pytest.raises(ConfigError, match="outside 0 … 199"):
        make(LinkNeighborLoader, edge_label_index=(WRITES, outside))


def test_types_of_a_homogeneous_store(tmp_path: Path) -> None:
    from torch_geometric.data import Data

    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    store = gnndrive.from_data(data, tmp_path / "one.gnn")
    with pytest.raises(ConfigError, match="is homogeneous: it has no type 'paper'"):
        NeighborLoader(store, [2], input_nodes=("paper", None))
    with pytest.raises(ConfigError, match="is by edge type and this store is homogeneous"):
        NeighborLoader(store, {CITES: [2]})
