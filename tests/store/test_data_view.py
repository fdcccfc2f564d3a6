"""A store answers as the Data that it was made from; what is set on it counts wherever it is."""

import copy
import operator
import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, StoreError
from gnndrive.store import store_view, views
from tests.loader.hetero.graph import CITES, HOSTS, WRITES, WRITTEN, make_data
from tests.store.conftest import poke

NODES, EDGES = 60, 400


@pytest.fixture(scope="module")
def data() -> Data:
    """A random graph with attributes of several kinds; the last nodes have no edge."""
    draw = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(NODES, 3, generator=draw),
        y=torch.randint(4, (NODES,), generator=draw),
        year=torch.arange(NODES),
        train_mask=torch.rand(NODES, generator=draw) < 0.5,
        val_mask=torch.rand(NODES, generator=draw) < 0.5,
        edge_index=torch.randint(NODES - 3, (2, EDGES), generator=draw),
        edge_attr=torch.randn(EDGES, 2, generator=draw),
        weight=torch.rand(EDGES, generator=draw),
    )


@pytest.fixture(scope="module")
def hetero() -> HeteroData:
    """A graph of four node types and four edge types, some without features."""
    return make_data()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data, hetero):
    """Both graphs as stores."""
    path = tmp_path_factory.mktemp("data_view")
    gnndrive.from_data(data, path / "data.gnn")
    gnndrive.from_data(hetero, path / "hetero.gnn")
    return path


@pytest.fixture
def store(folder):
    return gnndrive.open(folder / "data.gnn")


@pytest.fixture
def types(folder):
    return gnndrive.open(folder / "hetero.gnn")


def same(one: Any, other: Any) -> bool:
    """Whether tensors have the same values and dtype, or other values are equal."""
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    return one.dtype == other.dtype and torch.equal(one, other)


# ---- reading


def test_every_attribute_is_that_of_the_data(store, data):
    assert set(store.keys()) == set(data.keys())
    assert len(store) == len(data)
    for name in data.keys():  # noqa: SIM118
        assert name in store
        assert same(getattr(store, name), data[name])
        assert same(store[name], data[name])
    assert same(dict(store)["x"], data.x)
    assert same(store.to_dict()["y"], data.y)
    assert [name for name, _ in store.items("x", "z")] == ["x"]
    assert (store.pos, store.get("z", 7)) == (None, 7)


FACTS = ("num_nodes", "num_edges", "num_features", "num_edge_features", "num_node_types", "is_cuda")
QUESTIONS = ("is_undirected", "has_self_loops", "has_isolated_nodes")
CALLS = (*QUESTIONS, "node_attrs", "edge_attrs", "size")


def test_facts_are_those_of_the_data(store, data, types, hetero):
    for ours, theirs in ((store, data), (types, hetero)):
        for name in [name for name in FACTS if hasattr(theirs, name)]:
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in CALLS:
            one, other = getattr(ours, name)(), getattr(theirs, name)()
            assert (sorted(one) == sorted(other)) if isinstance(one, list) else one == other, name


def test_a_symmetric_graph_without_loops_is_seen(tmp_path):
    data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
    store = gnndrive.from_data(data, tmp_path / "line.gnn")
    for name in QUESTIONS:
        assert getattr(store, name)() == getattr(data, name)(), name
    data.edge_attr = torch.tensor([1.0, 2.0, 3.0, 3.0])
    store = gnndrive.from_data(data, tmp_path / "line.gnn", if_exists="replace")
    assert not store.is_undirected()
    assert not data.is_undirected()


@pytest.mark.parametrize("loop", [False, True])
def test_a_node_with_a_self_loop_alone_is_isolated(tmp_path, loop):
    ends = torch.tensor([[0, 1, 2], [1, 0, 2 if loop else 1]])
    data = Data(edge_index=ends, num_nodes=3)
    hetero = HeteroData()
    hetero["a"].num_nodes = hetero["b"].num_nodes = 3
    hetero["a", "to", "a"].edge_index, hetero["a", "to", "b"].edge_index = ends, ends[:, :2]
    stores = [gnndrive.from_data(data, tmp_path / "one.gnn")]
    stores.append(gnndrive.from_data(hetero, tmp_path / "two.gnn"))
    for ours, theirs in zip(stores, (data, hetero), strict=True):
        assert ours.has_isolated_nodes() == theirs.has_isolated_nodes()
        assert ours.has_self_loops() == theirs.has_self_loops() == loop
    for type in hetero.edge_types:
        assert stores[1][type].has_isolated_nodes() == hetero[type].has_isolated_nodes()


def test_every_type_answers_as_pygs_storages(types, hetero):
    assert types.metadata() == hetero.metadata()
    for type in (*hetero.node_types, *hetero.edge_types):
        ours, theirs = types[type], hetero[type]
        assert set(ours.keys()) == set(theirs.keys()) - {"num_nodes"}
        assert all(same(ours[name], theirs[name]) for name in ours.keys())  # noqa: SIM118
        assert ours.num_features == theirs.num_features
        with pytest.raises(AttributeError, match="has no 'z'; it has: "):
            _ = ours.z
        with pytest.raises(KeyError, match="has no 'z'"):
            _ = ours["z"]
    for type in hetero.edge_types:
        for name in ("size", "is_bipartite", "has_self_loops", "has_isolated_nodes"):
            assert getattr(types[type], name)() == getattr(hetero[type], name)(), (type, name)


def test_dicts_collect_an_attribute_of_all_types(types, hetero):
    for name in ("x", "y", "edge_index", "edge_attr", "train_mask", "year"):
        ours, theirs = types.collect(name), hetero.collect(name)
        assert ours.keys() == theirs.keys() == getattr(types, f"{name}_dict").keys()
        assert all(same(ours[type], theirs[type]) for type in theirs)
    assert not hasattr(types, "z_dict")
    assert types.collect("z", allow_empty=True) == {}
    with pytest.raises(KeyError, match=r"no type of .* has 'z'; it has: x, y, year"):
        types.collect("z")


def test_short_types_are_pygs(types, hetero, tmp_path):
    for given, type in (
        (("author", "paper"), WRITES), (["venue", "paper"], HOSTS), ("rev_writes", WRITTEN),
        ("paper__cites__paper", CITES), (CITES, CITES), ("paper", "paper"),
    ):  # fmt: skip
        assert types[given].type == type
        if not isinstance(given, list) and "__" not in given:
            assert hetero[given]._key == type
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 3, 4
    for relation in ("buys", "sees"):
        data["user", relation, "item"].edge_index = torch.tensor([[0, 2], [3, 1]])
    store = gnndrive.from_data(data, tmp_path / "two.gnn")
    several = "short for several edge types: name one of .*'buys'.*'sees'"
    for ask in (store.edges, store.__getitem__):
        with pytest.raises(ConfigError, match=several):
            ask(("user", "item"))
    for given in ("z", ("item", "user"), ("user", "z", "item"), 3, None):
        with pytest.raises(ConfigError, match="the types are user, item, "):
            _ = store[given]


# ---- masks, and what is made


@pytest.fixture
def split(tmp_path):
    """A store with splits that are given as ids."""
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=5)
    splits = {"train": torch.tensor([3, 0]), "valid": torch.tensor([1])}
    return gnndrive.from_data(data, tmp_path / "splits.gnn", splits=splits)


def test_masks_are_made_of_splits(split):
    assert split.train_mask.tolist() == [True, False, False, True, False]
    assert split.train_mask is split.nodes().train_mask
    assert split.val_mask.tolist() == split.valid_mask.tolist() == [False, True] + [False] * 3
    assert split.is_node_attr("train_mask")
    assert not hasattr(split, "test_mask")
    assert not hasattr(split, "train_idx")


def test_what_does_not_fit_is_refused_with_its_size(store, types, split, monkeypatch):
    monkeypatch.setattr(views, "available_memory", lambda: 2 * 16 * EDGES - 1)
    with pytest.raises(ConfigError, match=r"edge_index would take 6.4 KB .*12.8 KB are left: give"):
        _ = store.edge_index
    with pytest.raises(ConfigError, match="is_undirected"):
        store.is_undirected()
    with pytest.raises(ConfigError, match=r"edge_index of \('author', 'writes', 'paper'\)"):
        _ = types.edge_index_dict
    monkeypatch.setattr(views, "available_memory", lambda: 2 * 16 * EDGES)
    assert store.edge_index.shape == (2, EDGES)
    assert store.x.shape == (NODES, 3)
    monkeypatch.setattr(views, "available_memory", lambda: 9)
    with pytest.raises(ConfigError, match=r"mask of the split 'train' would take 5 B .*split\('tr"):
        _ = split.train_mask


def test_a_damaged_graph_makes_no_edge_index(data, tmp_path):
    store = gnndrive.from_data(data, tmp_path / "damaged.gnn")
    for name in ("indices", "edge_id"):
        file = store.path / f"graph/{name}.npy"
        whole = file.read_bytes()
        for value in (1 << 20, -1):
            poke(file, 4096, value.to_bytes(4, "little", signed=True))
            with pytest.raises(StoreError, match=f"{name}.npy holds a number out of range: run"):
                _ = gnndrive.open(store.path).edge_index
        file.write_bytes(whole)


def test_edges_are_converted_piece_by_piece(store, data, monkeypatch):
    monkeypatch.setattr(views, "_STEP", 7)
    assert len(list(store.edges().chunks(7))) > 20
    assert torch.equal(store.edge_index, data.edge_index)


# ---- setting and deleting


def test_what_is_set_lives_in_this_object_only(store, folder):
    other = copy.copy(store)
    other.n_id, other.name = torch.arange(NODES), "mine"
    other.y = other.y.view(-1, 1)
    del other.x, other.weight
    assert (other.y.shape, other.num_features, other.x) == ((NODES, 1), 0, None)
    assert other.is_node_attr("n_id")
    assert "weight" not in other
    assert not other.is_node_attr("name")
    assert other["name"] == "mine"
    for fresh in (store, gnndrive.open(folder / "data.gnn")):
        assert ("n_id" in fresh, "x" in fresh, fresh.y.shape) == (False, True, (NODES,))
    copied, deep = pickle.loads(pickle.dumps(other)), copy.deepcopy(other)
    for each in (copied, deep):
        assert set(each.keys()) == set(other.keys())
        assert torch.equal(each.n_id, other.n_id)
    deep.n_id[0] = 9
    assert other.n_id[0] == 0
    assert copied.identity == store.identity
    other.x = torch.zeros(NODES, 8)
    assert other.num_features == 8


def test_attributes_of_a_type_are_set_on_the_store(types):
    types["paper"].n_id = torch.arange(types["paper"].num_nodes)
    types["author", "paper"]["e"] = torch.arange(types[WRITES].num_edges)
    types.name = "mine"
    assert types[WRITES].is_edge_attr("e")
    assert (types.n_id_dict.keys(), types.name) == ({"paper"}, "mine")
    del types["paper"]["x"]
    assert "paper" not in types.x_dict
    assert types.num_features["paper"] == 0
    with pytest.raises(AttributeError, match="'paper' has no 'x'; it has: y, "):
        del types["paper"].x


def test_a_mask_that_was_set_is_the_split(store, data, split):
    store.train_mask = torch.arange(NODES) < 7
    assert store.split("train").tolist() == list(range(7))
    store.pred_mask = torch.arange(NODES) == 9
    assert store.split("pred").tolist() == [9]
    assert store.split_names == ("train", "val", "pred")
    assert torch.equal(store.split("val"), torch.nonzero(data.val_mask).view(-1))
    fresh = gnndrive.open(store.path)
    assert torch.equal(fresh.split("train"), torch.nonzero(data.train_mask).view(-1))
    store.train_mask = torch.ones(NODES, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"train_mask was set to torch.bool \[60, 2\].*one truth"):
        store.split("train")
    split.val_mask = torch.arange(5) == 0
    assert split.split("valid").tolist() == split.split("val").tolist() == [0]
    assert split.valid_mask.tolist() == [False, True] + [False] * 3


def test_classes_are_those_of_the_y_that_was_set(store, types):
    for y, count in (
        (torch.arange(NODES) % 9, 9),
        (torch.rand(NODES), 0),
        (torch.zeros(NODES, 5), 5),
        (np.arange(NODES) % 3, 3),
        ([1, 2], 0),
    ):
        store.y = y
        assert store.num_classes == store.nodes().num_classes == count
        assert f"num_classes={count})" in repr(store)
    del store.y
    assert store.num_classes == 0
    assert gnndrive.open(store.path).num_classes == 4
    paper = types["paper"]
    paper.y = torch.arange(paper.num_nodes)
    assert paper.num_classes == paper.num_nodes


def test_a_stores_own_names_are_not_set(store, types):
    for name in ("path", "info", "overlay", "table", "split"):
        for put in (setattr, operator.setitem):
            with pytest.raises(ConfigError, match=rf"{name}' cannot be set.*choose another name"):
                put(store, name, 3)
    store.num_nodes, types["paper"].num_nodes = NODES, types["paper"].num_nodes
    del store.num_nodes
    assert (store.num_nodes, "num_nodes" in store) == (NODES, False)
    with pytest.raises(ConfigError, match=f"num_nodes = 7: .* has {NODES}, and a store is read"):
        store.num_nodes = 7


def test_an_import_warns_of_a_stores_own_names(data, tmp_path):
    named = copy.copy(data)
    named.table, named.path, named.paths = *torch.ones(2, NODES), torch.arange(NODES)
    with pytest.warns(UserWarning, match=r"of these names: path, table\. "):
        store = gnndrive.from_data(named, tmp_path / "named.gnn")
    assert torch.equal(store["table"], named.table)
    assert torch.equal(store["path"], named.path)
    types = HeteroData()
    types["paper"].num_nodes, types["paper"].names, types["paper"].path = 5, *torch.ones(2, 5)
    with pytest.warns(UserWarning, match=r"of these names: names\. "):
        store = gnndrive.from_data(types, tmp_path / "types.gnn")
    assert torch.equal(store["paper"].path, torch.ones(5))


REMEDIES = "gnndrive import --undirected.*gnndrive.split_links.*gnndrive.from_data"


def test_the_graph_is_read_only(store, types):
    for each, name in product((store, types[WRITES]), ("edge_index", "adj_t")):
        with pytest.raises(ConfigError, match=REMEDIES):
            setattr(each, name, torch.zeros(2, 0))
        with pytest.raises(ConfigError, match=REMEDIES):
            delattr(each, name)
    with pytest.raises(ConfigError, match=r"'venue'.* cannot be deleted"):
        del types["venue"]
    with pytest.raises(ConfigError, match=r"'venue'.* cannot be set"):
        types["venue"] = 3
    transforms = T.ToUndirected(), T.ToSparseTensor(), T.AddSelfLoops(), T.RemoveIsolatedNodes()
    links = T.RandomLinkSplit(edge_types=[WRITES])
    for transform, each in product((*transforms, links), (store, types)):
        with pytest.raises(ConfigError, match=REMEDIES):
            transform(each)


def test_transforms_of_attributes_work_on_a_copy(store, data):
    changed = T.Compose([T.NormalizeFeatures(), T.RandomNodeSplit("test_rest")])(store)
    assert torch.equal(changed.x, T.NormalizeFeatures()(copy.copy(data)).x)
    assert changed.test_mask.shape == (NODES,)
    assert "test_mask" not in store
    assert torch.equal(store.x, data.x)


def test_moving_a_store_does_nothing_and_says_so_once(store, monkeypatch):
    monkeypatch.setattr(store_view, "_told", False)
    assert store.to("cpu") is store.cpu() is store.contiguous() is store.pin_memory() is store
    with pytest.warns(UserWarning, match="give a loader device=") as said:
        assert store.to("cuda:0") is store.cuda() is store
    assert len(said) == 1
