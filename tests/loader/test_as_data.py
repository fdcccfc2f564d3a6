"""A loader on a store, used as PyG's programs use one on data: set attributes, model.inference."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import HeteroData
from torch_geometric.nn import GCN, GraphSAGE

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store
from tests.loader.conftest import NODES
from tests.loader.hetero.graph import CITES, HOSTS, WRITES, WRITTEN, check, make_data
from tests.soak import product


@pytest.fixture(scope="module")
def hetero() -> HeteroData:
    """A graph of several types."""
    return make_data()


@pytest.fixture(scope="module")
def types(hetero: HeteroData, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same as a store."""
    return gnndrive.from_data(hetero, tmp_path_factory.mktemp("as_data") / "hetero.gnn")


# ---- attributes that were set


def test_set_attributes_are_in_batches_as_in_pygs(store, data, make):
    mine = copy.copy(store)
    mine.year, mine.z_index = torch.arange(NODES) + 1900, torch.arange(2 * NODES).view(2, NODES)
    mine.width = torch.arange(data.num_edges)
    mine.name, mine.y = "mine", data.y.view(-1, 1)
    rows = {"year": mine.year, "y": mine.y, "x": data.x}
    for batch in make(data=mine, input_nodes=data.train_mask):
        assert all(torch.equal(batch[name], rows[name][batch.n_id]) for name in rows)
        assert torch.equal(batch.z_index, mine.z_index[:, batch.n_id])
        assert torch.equal(batch.width, batch.e_id)
        assert batch.name == "mine"
    assert "year" not in next(iter(make()))
    loader = make([-1], data=copy.copy(store))  # as examples/reddit.py does
    del loader.data.x, loader.data.y
    loader.data.n_id = torch.arange(NODES)
    found = [batch for batch in loader if not {"x", "y"} & set(batch.keys())]
    assert torch.equal(torch.cat([b.n_id[: b.batch_size] for b in found]), torch.arange(NODES))


VALUES: dict[str, Any] = {
    "title": "a\ngraph", "flag": True, "number": 3, "share": -0.5, "infinite": float("inf"),
    "words": ["a", "b"], "pair": (1, ["\ud800", 2.5]), "by_id": {0: "a", (1,): {}},
    "scalar": torch.tensor(3.0), "small": torch.arange(6, dtype=torch.int16).view(2, 3),
    "half": torch.tensor([[1.5], [float("nan")]]).bfloat16(), "none": torch.empty(0, 3).bool(),
    "tensors": [torch.ones(2)], "matrix": np.arange(4.0).reshape(2, 2), "one": np.float32(1.5),
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of the same types and dtypes."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        same_bits = one.nan_to_num().equal(other.nan_to_num())
        return one.shape == other.shape and one.dtype == other.dtype and same_bits
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def test_values_of_the_whole_graph_are_in_batches_as_in_pygs(data, hetero, tmp_path, stack):
    plain, typed = copy.copy(data), copy.copy(hetero)
    for name, value in VALUES.items():
        plain[name] = value
        setattr(typed, name, value)
        setattr(typed["paper"], name, value)
        setattr(typed[CITES], name, value)
    for mine, nodes in ((plain, None), (typed, "paper")):
        store = gnndrive.from_data(mine, tmp_path / str(nodes))
        given = {"num_neighbors": [2], "input_nodes": nodes, "batch_size": 9}
        expected = next(iter(NeighborLoader(mine, **given)))
        loader = stack.enter_context(NeighborLoader(store, buffer="1MB", **given))
        batch = next(iter(loader))
        places: list[Any] = [lambda of: of]
        if nodes:
            places += [lambda of: of["paper"], lambda of: of[CITES]]
        for place in places:
            for name in VALUES:
                assert same(getattr(place(batch), name), getattr(place(expected), name)), name
                assert same(getattr(place(store), name), VALUES[name]), name
                assert name in place(store)
                assert not store.stores[0].is_node_attr(name)
            assert set(place(batch).keys()) == set(place(expected).keys())
    store.title = "another"
    del store["paper"].title
    batch = next(iter(NeighborLoader(store, buffer="1MB", **given)))
    assert (batch.title, "title" in batch["paper"]) == ("another", False)


def test_changes_between_epochs_count_from_the_next_one(store, make):
    loader = make(data=copy.copy(store))
    assert "mark" not in next(iter(loader))
    loader.data.mark = torch.arange(NODES)
    again = pickle.loads(pickle.dumps(loader))
    for batch in (next(iter(loader)), loader(torch.arange(9)), again(torch.arange(9))):
        assert torch.equal(batch.mark, batch.n_id)
    del loader.data.y
    assert "y" not in next(iter(loader))
    del loader.data.x
    with pytest.raises(ConfigError, match=r"deleted after this loader's first batch.*another load"):
        iter(loader)


def test_set_attributes_of_types(types, hetero, stack):
    mine = copy.copy(types)
    mine["paper"].order = torch.arange(types["paper"].num_nodes)
    mine["author", "paper"].number = torch.arange(types[WRITES].num_edges)
    mine["topic"].x = torch.arange(types["topic"].num_nodes)
    mine["venue"].word, mine.name = "v", "mine"
    del mine["author"].x
    loader = stack.enter_context(NeighborLoader(mine, [3, 3], "paper", batch_size=20))
    for batch in loader:
        assert torch.equal(batch["paper"].order, batch["paper"].n_id)
        assert torch.equal(batch[WRITES].number, batch[WRITES].e_id)
        assert torch.equal(batch["topic"].x, batch["topic"].n_id)
        assert (batch["venue"].word, batch.name) == ("v", "mine")
        assert "x" not in batch["author"]
        assert torch.equal(batch["paper"].x, hetero["paper"].x[batch["paper"].n_id])


def test_times_set_between_epochs_count_from_the_next_one(store, make):
    mine = copy.copy(store)
    mine.when = early = torch.arange(NODES)
    late = early.flip(0)
    loader = make(
        data=mine, num_neighbors=[-1], time_attr="when", input_nodes=torch.arange(NODES),
        input_time=torch.full((NODES,), 20), batch_size=10,
    )  # fmt: skip
    epoch = iter(loader)
    first = [next(epoch)]
    mine.when = late
    for batches, when in ((first + list(epoch), early), (list(loader), late)):
        sources = torch.cat([batch.n_id[batch.edge_index[0]] for batch in batches])
        assert len(sources)
        assert (when[sources] <= 20).all()
    del mine.when
    with pytest.raises(ConfigError, match=r"time_attr='when'.*has no such attribute"):
        list(loader)


def test_weights_set_between_epochs_count_from_the_next_one(store, make):
    mine = copy.copy(store)
    mine.w = weight = (torch.arange(store.num_edges) % 2).double()
    loader = make([1], data=mine, weight_attr="w")
    for other in (weight, 1 - weight):
        mine.w = other
        heavy = torch.zeros(NODES, dtype=torch.bool)
        heavy[store.edge_index[1, other > 0]] = True  # nodes that have an edge to be drawn
        for batches in (list(loader), [loader(torch.arange(NODES))]):
            drawn = torch.cat(
                [other[each.e_id][heavy[each.n_id[each.edge_index[1]]]] for each in batches]
            )
            assert len(drawn)
            assert drawn.all()


# ---- what PyG's models look for in a loader


@product("model,cache", [GraphSAGE, GCN], [False, True])
def test_pygs_inference_is_the_models(make, data, model, cache):
    torch.manual_seed(0)
    net = model(33, 8, num_layers=2, out_channels=5).eval()
    found = net.inference(make([-1], batch_size=64, buffer="60KB"), cache=cache)
    with torch.no_grad():
        expected = net(data.x, data.edge_index)
    # A GCN normalises by the degrees in a batch, so it is PyG's own inference that it equals.
    if model is GCN:
        expected = net.inference(NeighborLoader(data, [-1], batch_size=64))
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_loader_has_pygs_attributes(store, make):
    loader = make([4, 3], input_nodes=torch.arange(7))
    assert isinstance(loader, torch_geometric.loader.NodeLoader)
    assert (len(loader.node_sampler.num_neighbors), loader.data) == (2, store)
    assert loader.input_nodes.tolist() == list(range(7))
    links = LinkNeighborLoader(store, [4], batch_size=8)
    assert isinstance(links, torch_geometric.loader.LinkNeighborLoader)
    assert (len(links.link_sampler.num_neighbors), links.data) == (1, store)


# ---- custom_cls and input_id


class Named(HeteroData):  # type: ignore[misc]
    """A batch of the user's class."""


def test_custom_cls_makes_the_batches(make, types, hetero, stack):
    loader = NeighborLoader(types, [3], "paper", batch_size=50, custom_cls=Named)
    for batch in stack.enter_context(loader):
        assert type(batch) is Named
        check(batch, hetero)
    with pytest.raises(ConfigError, match="custom_cls= made a HeteroData: give a class that"):
        next(iter(make(custom_cls=HeteroData)))


def test_input_id_is_pygs(store, data, types, hetero, stack):
    few, label = torch.tensor([5, 2, 9]), torch.arange(30)
    links = {"edge_label_index": data.edge_index[:, :30], "edge_label": label}
    for kind, ours, theirs, given in (
        (NeighborLoader, store, data, {"input_nodes": data.train_mask}),
        (NeighborLoader, store, data, {"input_nodes": few}),
        (NeighborLoader, store, data, {"input_nodes": few, "input_id": few * 10}),
        (NeighborLoader, types, hetero, {"input_nodes": ("paper", few), "input_id": few * 10}),
        (LinkNeighborLoader, store, data, {**links, "input_id": label * 2}),
    ):
        loader = stack.enter_context(kind(ours, [2], batch_size=7, **given))
        for one, other in zip(loader, kind(theirs, [2], batch_size=7, **given), strict=True):
            if ours is types:
                one, other = one["paper"], other["paper"]
            assert torch.equal(one.input_id, other.input_id)
            if kind is LinkNeighborLoader:
                assert torch.equal(one.edge_label * 2, one.input_id)


# ---- short edge types


def test_short_edge_types_in_arguments(types, hetero, stack):
    short = {("author", "paper"): [2], "rev_writes": [1], ("paper", "paper"): [0], HOSTS: [0]}
    whole = {WRITES: [2], WRITTEN: [1], CITES: [0], HOSTS: [0]}
    edges = hetero[WRITES].edge_index[:, :9]
    for form in (("author", "paper"), "writes", (("author", "paper"), edges), (WRITES, None)):
        loader = stack.enter_context(LinkNeighborLoader(types, short, form, batch_size=9))
        assert loader.num_neighbors == whole
        batch = next(iter(loader))
        assert batch[WRITES].edge_label_index.shape == (2, 9)
        check(batch, hetero)
    assert gnndrive.NeighborSampler(types, short).fanouts == whole
    for given in ({**short, WRITES: [1]}, {**short, "z": [1]}):
        with pytest.raises(ConfigError, match=r"there twice|does not have"):
            NeighborLoader(types, given, "paper")
