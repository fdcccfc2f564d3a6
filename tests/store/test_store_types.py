"""A heterogeneous store holds the arrays of every type; invalid types are refused."""

import pickle
from typing import Any

import pytest
import torch
from torch_geometric.transforms import RandomLinkSplit

import gnndrive
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import StoreWriter
from tests.loader.hetero.graph import CITES, CLASSES, NODES, WRITES, make_data
from tests.store.conftest import edit_json, left, poke, refused

NO_NAMES: Any = ("a/b", "", "..", "é", "a" * 65, 7)  # no folder can have these


@pytest.fixture
def store(tmp_path):
    return gnndrive.from_data(make_data(), tmp_path / "types.gnn")


def test_a_store_of_types_is_the_same_when_it_is_opened_or_pickled(store):
    train = make_data()["paper"].train_mask.nonzero().view(-1)
    for each in (gnndrive.open(store.path), pickle.loads(pickle.dumps(store))):
        assert each.is_hetero
        assert (each["paper"].num_classes, each["author"].num_classes) == (CLASSES, 3)
        assert [each[name].num_features for name in NODES] == [8, 20, 3, 0]
        assert torch.equal(each["paper"].split("train"), train)
        each.verify()


def test_attributes_of_one_type_need_a_type(store):
    for name in ("indices", "index_pointers", "node_names", "num_classes", "split_names"):
        with pytest.raises(ConfigError, match=r"name a type: store\[TYPE\]; the types are"):
            getattr(store, name)
    with pytest.raises(ConfigError, match=r"there is no 'poper' .*; the types are paper, author"):
        store["poper"]
    with pytest.raises(ConfigError, match=r"there is no .* the types are .*writes"):
        store["paper", "writes", "author"]
    with pytest.raises(ConfigError, match="no split 'val' of 'paper'; it has: train"):
        store["paper"].split("val")
    assert "node_types=['paper', 'author', 'venue', 'topic']" in repr(store)
    assert "num_edges=900" in repr(store[CITES])


def test_splits_may_be_given(tmp_path):
    data = make_data()
    given = {"author": {"val": torch.tensor([3, 1])}}
    store = gnndrive.from_data(data, tmp_path / "s", splits=given)
    assert (store["paper"].split_names, store["author"].split_names) == ((), ("val",))
    assert store["author"].split("val").tolist() == [3, 1]
    with pytest.raises(ConfigError, match=r"node type: \{name: ids"):
        gnndrive.from_data(data, tmp_path / "t", splits={"val": torch.tensor([3])})


def test_errors_and_warnings_name_the_type(tmp_path):
    data = make_data()
    data.title, data["paper"].names = object(), ["a"] * NODES["paper"]
    with pytest.warns(UserWarning, match=r"left out: paper\.names, title"):
        gnndrive.from_data(data, tmp_path / "s")
    del data[CITES].edge_index
    bad = make_data()
    bad[WRITES].edge_index[0, 7] = NODES["author"]
    for each, match in (
        (data, r"data\[\('paper', 'cites', 'paper'\)\] has no edge_ind"),
        (bad, "src: edge 7 names 90, but there are 90 nodes"),
    ):
        with refused(tmp_path, match):
            gnndrive.from_data(each, tmp_path / "t")


def test_values_of_a_stranger_are_checked(tmp_path):
    data = make_data()
    data.number, data[CITES].kind = 3, ("a", None)
    store = gnndrive.from_data(data, tmp_path / "s")
    assert gnndrive.open(store.path).number == 3
    assert store[CITES].kind == ("a", None)
    good, file = {"type": "paper", "name": "a", "value": 1}, store.path / "store.json"
    for change, match in (
        ({"type": "poper"}, "values.0. has a 'type' that the store has not"),
        ({"type": ["paper"]}, "has a 'type' that"),
        ({"type": 7}, "has a 'type' that"),
        ({"name": "_store"}, "values.0. has a 'name' that no value may have"),
        ({"name": "paper", "type": None}, "has a 'name' that"),
        ({"name": "num_nodes"}, "has a 'name' that"),
        ({"name": "../a"}, "has a 'name' that"),
        *(({"value": value}, "values.0. ") for value in (
            {}, {"a": 1}, {"float": []}, {"text": "{"}, {"tuple": 3}, {"dict": [[[], 1]]},
            {"tensor": ["complex64", [1], ""]}, {"tensor": ["int64", [2], "AAAAAAAAAAA="]},
            {"numpy": ["int64", ["1"], "AAAAAAAAAAA="]}, {"tensor": ["int8", [1], "=="]},
            [[{"tensor": None}]],
        )),
    ):  # fmt: skip
        edit_json(file, lambda top, of=change: top.update(values=[{**good, **of}]))
        with pytest.raises(StoreError, match=match):
            gnndrive.open(store.path)
    edit_json(file, lambda top: top.update(values=[good, good]))
    with pytest.raises(StoreError, match=r"values.1. has a 'name' .* twice"):
        gnndrive.open(store.path)


def test_invalid_types_are_refused(tmp_path):
    for nodes, edges, match in (
        ({"a": 1}, {("a", "to", "b"): 1}, "begins or ends at a node type that does not exist"),
        ({"a": 1, "a__b": 1}, {("a", "b__c", "a"): 1, ("a__b", "c", "a"): 1}, "share a folder"),
        (3, {("a", "to", "a"): 1}, "give two numbers, or two dicts"),
        ({}, {}, "there are no node types"),
        ({"a": 1}, {("a", "a"): 1}, r"give \(source, relation, target\)"),
        ({"a": 1}, {"aaa": 1}, r"give \(source, relation, target\)"),
        *(({"p": 1, name: 1}, {}, "rename it first") for name in NO_NAMES),
        *(({"p": 1}, {("p", name, "p"): 1}, "rename it first") for name in NO_NAMES),
    ):
        with pytest.raises(ConfigError, match=match):
            StoreWriter(tmp_path / "s", nodes, edges)


def test_the_writer_checks_each_type(tmp_path):
    def write() -> None:
        with StoreWriter(tmp_path / "s", {"a": 3, "b": 5}, {("a", "to", "b"): 2}) as writer:
            writer.write("graph/a__to__b/indptr", [0, 1, 1, 1, 1, 2])
            with pytest.raises(ConfigError, match="TYPE is one of a, b, a__to__b"):
                writer.array("nodes/x", "float32", (3, 1))
            with pytest.raises(ConfigError, match="does not fit a store of 5 nodes"):
                writer.array("nodes/b/x", "float32", (3, 1))
            with pytest.raises(StoreError, match="names 3, but there are 3 nodes"):
                writer.write("graph/a__to__b/indices", [2, 3], "int32")
            with pytest.raises(StoreError, match="names 5, but there are 5 nodes"):
                writer.split("train", [5], "b")

    with pytest.raises(ConfigError, match="has 0 of its 2 rows: write the rest"):
        write()
    assert left(tmp_path) == []


def test_edge_label_index_is_left_out(tmp_path):
    """RandomLinkSplit adds edge_label_index [2, n], which PyG takes for an attribute of n edges."""
    data = make_data()
    train, _, _ = RandomLinkSplit(edge_types=[CITES], add_negative_train_samples=False)(data)
    assert train[CITES].edge_label_index.shape[1] == train[CITES].edge_index.shape[1]
    with pytest.warns(UserWarning, match="left out: .*edge_label_index"):
        store = gnndrive.from_data(train, tmp_path / "s")
    assert "edge_label" in store[CITES]


def test_classes_of_each_type(tmp_path):
    with StoreWriter(tmp_path / "s", {"a": 3, "b": 2}, {}) as writer:
        writer.write("nodes/a/y", [0, 4, 1])
        writer.write("nodes/b/y", [0, 1])
        writer.classes(["x", "y", "z"], "b")
    store = gnndrive.open(tmp_path / "s")
    assert (store["a"].num_classes, store["a"].classes) == (5, None)
    assert (store["b"].num_classes, store["b"].classes) == (3, ("x", "y", "z"))


def test_a_store_json_that_contradicts_itself(store):
    file = store.path / "store.json"
    whole = file.read_text()
    for change in (
        lambda top: top["node_types"].pop("author"),
        lambda top: top["node_types"]["paper"].update(num_nodes=201),
        lambda top: top["node_types"]["paper"].update(num_nodes=-1),
        lambda top: top["node_types"].update({"../x": {"num_nodes": 1}}),
        lambda top: top["edge_types"].pop(0),
        lambda top: top["edge_types"].append(top["edge_types"][0] | {"num_edges": 5}),
        lambda top: top["edge_types"][0].update(type=["author", "paper"]),
        lambda top: top["edge_types"][0].update(type=["author", "..", "paper"]),
        lambda top: top["edge_types"][0].update(type=None),
        lambda top: top["edge_types"].append(7),
        lambda top: top.update(version=1),
        lambda top: top.update(node_types=[]),
        lambda top: top["arrays"].pop("graph/author__writes__paper/indices"),
        lambda top: top["arrays"].update({"nodes/x": top["arrays"]["nodes/paper/x"]}),
        lambda top: top["arrays"].update({"nodes/topic/x": top["arrays"]["nodes/paper/x"]}),
    ):
        file.write_text(whole)
        edit_json(file, change)
        with pytest.raises(StoreError, match=r"store\.json"):
            gnndrive.open(store.path)


def test_verify_looks_at_every_type(store):
    for file in ("indices", "edge_id"):
        path = store.path / f"graph/paper__cites__paper/{file}.npy"
        whole = path.read_bytes()
        poke(path, 4096, (10_000).to_bytes(4, "little"))
        with pytest.raises(StoreError, match=r"paper__cites__paper.*names 10000, but there are"):
            gnndrive.open(store.path).verify()
        path.write_bytes(whole)
