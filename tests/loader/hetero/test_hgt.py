"""HGTLoader yields parts of the graph, the same on any topology and after a resume."""

import json

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import HeteroData

import gnndrive
from gnndrive import ConfigError, HGTLoader
from tests.loader.hetero.graph import EDGES, NODES, check

HOPS = [5, 6]


@pytest.fixture
def hgt(store, data, stack):
    """Makes HGTLoaders of the store, or of `of=`, and closes them after the test."""

    def one(num_samples=HOPS, of=store, **arguments):
        given = {"batch_size": 16, "seed": 1, "input_nodes": ("paper", data["paper"].train_mask)}
        return stack.enter_context(HGTLoader(of, num_samples, **given | arguments))

    return one


def same(batches, others):
    return all(
        torch.equal(each, other[type][name])
        for one, other in zip(batches, others, strict=True)
        for type in (*NODES, *EDGES)
        for name, each in one[type].items()
        if name in ("x", "n_id", "edge_index", "e_id")
    )


def check_hgt(batch, data):
    """Also: distinct nodes, seeds first, each other one found by an edge, and all edges."""
    check(batch, data)
    size = batch["paper"].batch_size
    assert torch.equal(batch["paper"].n_id[:size], batch["paper"].input_id)
    found = {name: torch.zeros(batch[name].num_nodes, dtype=torch.bool) for name in NODES}
    found["paper"][:size] = True
    for type in EDGES:
        source, target = (batch[name].n_id for name in (type[0], type[2]))
        row, col = data[type].edge_index
        among = torch.isin(row, source) & torch.isin(col, target)
        assert torch.equal(batch[type].e_id.sort().values, among.nonzero().view(-1))
        found[type[0]][batch[type].edge_index[0]] = True
    for name in NODES:
        assert found[name].all()
        assert len(batch[name].n_id.unique()) == batch[name].num_nodes
    assert batch["paper"].num_nodes == size + sum(HOPS)
    assert batch["author"].num_nodes == sum(HOPS)
    assert batch["topic"].num_nodes == 0  # no edge leads from there


@pytest.mark.parametrize("of", ["store", "data"])
def test_a_batch_has_so_many_nodes_of_each_type_and_all_edges_among_them(hgt, data, of, request):
    seen = []
    memory = {"memory": "60MB"} if of == "store" else {"seed": None}
    for batch in hgt(of=request.getfixturevalue(of), shuffle=True, **memory):
        check_hgt(batch, data)
        seen.append(batch["paper"].input_id)
    assert torch.cat(seen).sort().values.equal(data["paper"].train_mask.nonzero().view(-1))


@pytest.mark.parametrize("topology", ["direct", "mmap", "resident"])
def test_topologies_and_threads_change_nothing(hgt, topology):
    one = hgt(tuning=gnndrive.Tuning(topology=topology, samplers=3))
    assert same(one, hgt(num_workers=1))
    assert not same(one, hgt(seed=2))


def test_resume_yields_the_rest(hgt):
    first = hgt(shuffle=True)
    expected = list(hgt(shuffle=True))
    batches = iter(first)
    assert same([next(batches) for _ in range(3)], expected[:3])
    state = json.loads(json.dumps(first.state_dict()))
    second = hgt(shuffle=True)
    second.load_state_dict(state)
    assert same(second, expected[3:])
    with pytest.raises(ConfigError, match="num_samples="):
        hgt([5, 7], shuffle=True).load_state_dict(state)


def test_with_the_least_memory(hgt, data):
    loader = hgt(memory="1.9MB", tuning=gnndrive.Tuning(io_depth=4, samplers=1))
    assert not loader.plan().holds_everything
    for batch in loader:
        check_hgt(batch, data)


def test_the_plan_counts_the_most_and_draws_nothing(hgt, tmp_path):
    """A few drawn samples would not tell what the neighbours take that a sample leaves out."""
    data = HeteroData()
    data["paper"].x = torch.zeros(3000, 64)
    target = torch.arange(120_000) % 3000
    data["paper", "cites", "paper"].edge_index = torch.stack([target * 7 % 3000, target])
    store = gnndrive.from_data(data, tmp_path / "degree40.gnn")
    given = {"memory": "1.9MB", "tuning": gnndrive.Tuning(io_depth=4, samplers=1)}
    plan = hgt([2], of=store, input_nodes="paper", batch_size=2, **given).plan()
    assert not plan.holds_everything
    (samples,) = (line.why for line in plan.lines if line.what == "queued samples")
    assert samples.endswith("a batch has at most 4 nodes and 160 edges")


def test_packs_have_other_batches(hgt):
    with pytest.raises(ConfigError, match="not of an HGTLoader"):
        hgt(strategy="diskgnn")


def test_it_stands_for_pygs_loader(hgt, data):
    for loader in (hgt(), hgt(of=data, seed=None)):
        assert isinstance(loader, torch_geometric.loader.HGTLoader)
        assert str(loader) == "HGTLoader()"
    with pytest.raises(ConfigError, match="memory='1GB' is for a store"):
        hgt(of=data, memory="1GB", seed=None)


@pytest.mark.parametrize("of", ["store", "data"])
def test_times_of_seeds_are_passed_on(hgt, of, request):
    given = {"input_nodes": ("paper", torch.arange(40)), "input_time": torch.arange(40) + 100}
    seed = 1 if of == "store" else None
    for batch in hgt(of=request.getfixturevalue(of), seed=seed, shuffle=True, **given):
        assert torch.equal(batch["paper"].seed_time, batch["paper"].input_id + 100)


@pytest.mark.parametrize("of", ["store", "data"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"input_nodes": ("papers", torch.arange(3))},
            "there is no 'papers' .*; the types are pap",
        ),
        ({"input_nodes": "papers"}, "there is no 'papers' .*; the types are pap"),
        ({"input_nodes": None}, "give input_nodes as a node type"),
        ({"input_nodes": torch.arange(3)}, "give input_nodes as a node type"),
        ({"time_attr": "time"}, "HGTLoader has no time_attr=, because"),
        ({"weight_attr": "w"}, "HGTLoader has no weight_attr=, because"),
        ({"replace": True}, "HGTLoader has no replace=, because"),
        ({"disjoint": True}, "HGTLoader has no disjoint=, because"),
    ],
)
def test_wrong_arguments(hgt, of, arguments, words, request):
    with pytest.raises(ConfigError, match=words):
        hgt(of=request.getfixturevalue(of), seed=1 if of == "store" else None, **arguments)
