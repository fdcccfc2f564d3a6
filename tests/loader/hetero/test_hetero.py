"""Batches of several types are as PyG would yield them; several tables behind one buffer."""

import json
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, NumNeighbors, SamplerOutput

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader
from tests.loader.hetero.graph import (
    CITES,
    EDGES,
    HOSTS,
    NODES,
    WIDTHS,
    WRITES,
    WRITTEN,
    check,
)  # fmt: skip
from tests.soak import product

FANOUTS = {WRITES: [3, 2], WRITTEN: [2, 2], CITES: [-1, 0], HOSTS: [1, 1]}
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "fanouts by type": {"fanout": FANOUTS},
    "with replacement": {"replace": True},
    "trees": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "weights": {"weight_attr": "weight"},
    "direct": {"topology": "direct", "neighbour_cache": "20KB"},
    "mmap": {"topology": "mmap", "sweep": 3},
    "on a device": {"device": "simulated-cuda"},
    "a small buffer": {"buffer": "60KB", "batch_size": 4},
    "authors": {"input_nodes": "author"},
    "a default": {"fanout": NumNeighbors({CITES: [2, 2]}, default=[1, 1])},
    "ali+pg": {"strategy": "ali+pg", "buffer": "60KB", "batch_size": 4},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_batch_is_a_part_of_the_graph(make, data, how):
    loader = make(**how)
    batches = list(loader)
    assert len(batches) == len(loader)
    for batch in batches:
        check(batch, data)
    if how.keys() <= {"topology", "neighbour_cache", "device", "sweep"}:
        assert all(map(same, batches, make(samplers=1, topology="resident")))
    kind = "author" if "input_nodes" in how else "paper"
    seeds = torch.arange(NODES["author"]) if kind == "author" else data[kind].train_mask.nonzero()
    seen = torch.cat([batch[kind].n_id[: batch[kind].batch_size] for batch in batches])
    assert torch.equal(seen, seeds.view(-1))
    assert all("batch_size" not in batch[name] for batch in batches for name in set(NODES) - {kind})


def test_what_is_set_on_a_batch_is_on_no_other(make):
    first, second, *_ = make()
    first["paper"].own = first.own = 1
    assert "own" not in second
    assert "own" not in second["paper"]
    for batch in (first, second):
        assert all(each._parent() is batch for each in batch.stores)


def same(one: HeteroData, other: HeteroData) -> bool:
    return all(torch.equal(one[name].n_id, other[name].n_id) for name in NODES) and all(
        torch.equal(one[edge_type].e_id, other[edge_type].e_id) for edge_type in EDGES
    )


def test_bidirectional_subgraphs(make, data):
    with pytest.warns(UserWarning, match="does not seem to have a reverse edge type"):
        batches = list(make(subgraph_type="bidirectional"))
    for batch in batches:
        check(batch, data)
        forth, back = batch[WRITES].edge_index.tolist(), batch[WRITTEN].edge_index.tolist()
        assert set(zip(*forth, strict=True)) == set(zip(*back[::-1], strict=True))


def test_times_of_edges_and_of_nodes(make, data):
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


@product("mode,given", ["binary", "triplet", None], [False, True])
def test_links(make, data, mode, given):
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


def test_resume_yields_the_rest(make):
    whole, first, second = (make(fanout=FANOUTS, shuffle=True) for _ in range(3))
    batches, expected = iter(first), list(whole)
    assert all(same(next(batches), one) for one in expected[:3])
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    for one, other in zip(second, expected[3:], strict=True):
        assert same(one, other)
    with pytest.raises(ConfigError, match="num_neighbors"):
        make(shuffle=True).load_state_dict(state)


# ---- refusals


LINKS = {"kind": LinkNeighborLoader}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"input_nodes": None}, "give input_nodes as a node type"),
        ({"input_nodes": [1, 2, 3]}, "give input_nodes as a node type"),
        ({"input_nodes": "poper"}, r"\(did you mean paper\?\); the types are paper, author"),
        ({"input_nodes": ("venue", [7])}, "outside 0 … 6"),
        ({"fanout": {CITES: [2, 2]}}, "leaves out"),
        ({"fanout": FANOUTS | {("a", "b", "c"): [1, 1]}}, "that the store does not have"),
        ({"fanout": FANOUTS | {CITES: [1]}}, "lists of several lengths"),
        ({"time_attr": "when"}, "no such attribute, but edge_attr"),
        (LINKS | {"edge_label_index": torch.zeros(2, 3, dtype=torch.int64)},
         "give edge_label_index as an edge type"),
        (LINKS | {"edge_label_index": ("paper", "likes", "paper")}, "there is no"),
        (LINKS | {"edge_label_index": (WRITES, torch.tensor([[0], [NODES["paper"]]]))},
         "outside 0 … 199"),
    ],
)  # fmt: skip
def test_wrong_arguments(make, arguments, words):
    with pytest.raises(ConfigError, match=words):
        make(**arguments)


def test_types_of_a_homogeneous_store_and_samples_without_types_are_refused(make, tmp_path):
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    store = gnndrive.from_data(data, tmp_path / "one.gnn")
    with pytest.raises(ConfigError, match="is homogeneous: it has no type 'paper'"):
        NeighborLoader(store, [2], input_nodes=("paper", None))
    with pytest.raises(ConfigError, match="is by edge type and this store is homogeneous"):
        NeighborLoader(store, {CITES: [2]})

    class Odd(BaseSampler):  # type: ignore[misc]
        def sample_from_nodes(self, index: Any, **_: Any) -> Any:
            return SamplerOutput(*[torch.zeros(1).long()] * 4)

        sample_from_edges = sample_from_nodes

    with pytest.raises(ConfigError, match="return a HeteroSamplerOutput"):
        next(iter(make(neighbor_sampler=Odd())))


# ---- several tables


NONE = {WRITES: [0, 0], WRITTEN: [0, 0], CITES: [2, 2], HOSTS: [0, 0]}


@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
def test_tables_that_no_batch_needs(make, data, device):
    loader = make(fanout=NONE, batch_size=4, buffer=28 * 32, device=device)
    assert {table.name: table.slots for table in loader.plan().tables} == {
        "nodes/paper/x": 28, "nodes/author/x": 0, "nodes/venue/x": 0,
        "edges/author__writes__paper/edge_attr": 0,
    }  # fmt: skip
    for batch in loader:
        check(batch, data)
        assert len(batch["author"].n_id) == 0
    assert len(list(make(fanout=NONE, batch_size=4, buffer=None, device=device))) == len(loader)


def test_rows_of_all_tables_are_counted_and_integers_converted_to_floats(make, data):
    loader = make(buffer="500KB", batch_size=200, feature_dtype="float32")
    (batch,) = loader
    ids = {name: batch[name].n_id for name in WIDTHS}
    assert all(torch.equal(batch[name].x, data[name].x[ids[name]].float()) for name in WIDTHS)
    nbytes = sum(len(ids[name]) * data[name].x[0].nbytes for name in WIDTHS)
    edges = len(batch[WRITES].e_id)
    assert loader.stats()["rows_loaded"] == sum(map(len, ids.values())) + edges
    assert loader.stats()["bytes_wanted"] == nbytes + edges * 128


def test_topologies_take_turns(make):
    """Fetches are planned for one at a time, whatever edge type a sampler is at."""
    loader = make(topology="direct")
    next(iter(loader))
    topologies = loader._runtime.adjacency.topologies
    assert len({id(topology._lock) for topology in topologies}) == 1


def test_a_graph_without_features(tmp_path):
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 5, 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 3]])
    store = gnndrive.from_data(data, tmp_path / "bare.gnn")
    with NeighborLoader(store, [-1], input_nodes="b", batch_size=4) as loader:
        (batch,) = loader
    assert batch["a"].n_id[batch["a", "to", "b"].edge_index[0]].tolist() == [0, 1, 2, 3]
    assert (batch["a"].num_nodes, batch["b"].num_nodes) == (4, 4)
    assert all("num_nodes" in batch[name] for name in ("a", "b"))  # as in PyG's batches
