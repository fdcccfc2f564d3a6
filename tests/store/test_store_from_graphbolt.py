"""from_graphbolt: the store holds every row and edge of the dataset; what is wrong is refused."""

import copy
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import gnndrive
from gnndrive import ConfigError, Store
from gnndrive.store.importers import ends, from_dataset
from tests.store.conftest import edges_of, refused, same_array

NODES, EDGES = 60, 400
COUNTS = {"paper": NODES, "author": 50}
TYPES = {"author:writes:paper": (50, NODES), "paper:cites:paper": (NODES, NODES)}
SETS = {"train": "train_set", "val": "validation_set", "test": "test_set"}
SEEDS = 30  # in all three sets


class Source:
    """A dataset's folder: its files, and the metadata that describes them."""

    def __init__(self, folder: Path, *nodes: dict[str, Any]) -> None:
        self.folder, self.random = folder, np.random.default_rng(0)
        self.graph: dict[str, Any] = {"nodes": [*nodes], "edges": []}
        self.said: dict[str, Any] = {
            "dataset_name": "a test", "graph": self.graph, "feature_data": [], "tasks": [],
        }  # fmt: skip
        (folder / "data").mkdir(parents=True)

    def put(self, name: str, array: Any, kind: str = "numpy") -> dict[str, str]:
        """Save an array; return the metadata of its file."""
        place = f"data/{name}.{ {'numpy': 'npy', 'torch': 'pt', 'csv': 'csv'}[kind] }"
        if kind == "numpy":
            np.save(self.folder / place, array)
        elif kind == "torch":
            torch.save(torch.as_tensor(array), self.folder / place)
        else:
            np.savetxt(self.folder / place, array.T, "%d", delimiter=",")
        return {"format": kind, "path": place}

    def edges(self, kind: str = "numpy", type: str | None = None) -> np.ndarray:
        sources, targets = TYPES[type] if type else (NODES, NODES)
        drawn = np.stack([self.random.integers(0, nodes, EDGES) for nodes in (sources, targets)])
        said = self.put((type or "edges").replace(":", "-"), drawn, kind)
        self.graph["edges"].append({**({"type": type} if type else {}), **said})
        return drawn

    def feature(self, domain: str, name: str, array: Any, **more: Any) -> Any:
        said = self.put(f"{domain}-{name}", array, more.pop("kind", "numpy"))
        entry = {"domain": domain, "name": name, "in_memory": False, **said, **more}
        self.said["feature_data"].append(entry)
        return array

    def task(self, type: str | None = None, labels: str | None = "numpy", **more: Any) -> Any:
        """Add a task of nodes; return the seeds and the labels of its sets."""
        order = self.random.permutation(NODES)[:SEEDS]
        given = {}
        task: dict[str, Any] = {"name": "classify", "num_classes": 5, **more}
        for name, seeds in zip(SETS, np.split(order, 3), strict=True):
            data = [{"name": "seeds", **self.put(f"{name}-seeds", seeds)}]
            given[name] = seeds, seeds % 5
            if labels:
                data.append({"name": "labels", **self.put(f"{name}-labels", seeds % 5, labels)})
            task[SETS[name]] = [{**({"type": type} if type else {}), "data": data}]
        self.said["tasks"].append(task)
        return given

    def write(self) -> Path:
        text = yaml.safe_dump(self.said, sort_keys=False)
        (self.folder / "metadata.yaml").write_text(text, encoding="utf-8")
        return self.folder

    def store(self, **arguments: Any) -> Store:
        return gnndrive.from_graphbolt(self.write(), self.folder.parent / "g.gnn", **arguments)

    def refused(self, match: str, **arguments: Any) -> None:
        self.write()
        with refused(self.folder.parent, match):
            self.store(**arguments)


@pytest.fixture
def source(tmp_path) -> Source:
    """A homogeneous dataset with nodes and nothing else."""
    return Source(tmp_path / "dataset", {"num": NODES})


@pytest.fixture
def typed(tmp_path) -> Source:
    """A heterogeneous dataset with nodes and nothing else."""
    nodes = [{"type": name, "num": count} for name, count in COUNTS.items()]
    return Source(tmp_path / "dataset", *nodes)


def same_task(nodes: Any, y: Any, given: Any) -> None:
    expected = np.full(NODES, -1)
    for name, (seeds, labels) in given.items():
        assert nodes.split(name).tolist() == seeds.tolist()
        expected[seeds] = labels
    assert y.dtype == "int64"
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kind", ["csv", "numpy"])
def test_one_type(source, kind):
    edges = source.edges(kind)
    x = source.feature("node", "feat", source.random.random((NODES, 6), np.float32))
    attr = source.feature("edge", "feat", np.arange(EDGES, dtype=np.float16))
    year = source.feature("node", "year", np.arange(NODES, dtype=np.int16), kind="torch")
    given = source.task()
    label = source.feature("node", "label", np.zeros(NODES, np.int32))  # the task's are y
    store = source.store()
    assert (store.num_nodes, store.num_edges, store.num_classes) == (NODES, EDGES, 5)
    assert np.array_equal(edges_of(store), edges)
    same_array(store, "nodes/x", "float32", x)
    same_array(store, "edges/edge_attr", "float16", attr[:, None])
    same_array(store, "nodes/year", "int16", year)
    same_array(store, "nodes/label", "int32", label)
    same_task(store.nodes(), store.array("nodes/y"), given)
    assert store.info.made_by == f"gnndrive.from_graphbolt({source.folder})"
    store.verify()


def test_several_types(typed, monkeypatch):
    kinds = dict(zip(TYPES, ("csv", "numpy"), strict=True))
    edges = {type: typed.edges(kind, type) for type, kind in kinds.items()}
    x = typed.feature("node", "feat", np.ones((NODES, 2)), type="paper")
    names = typed.feature("node", "name", np.arange(50), type="author")
    type = "author:writes:paper"
    attr = typed.feature("edge", "feat", np.ones((EDGES, 3)), type=type)
    typed.graph["feature_data"] = [
        {"domain": "edge", "type": type, "name": "time", **typed.put("time", np.arange(EDGES))}
    ]
    given = typed.task("paper", "torch")
    monkeypatch.setattr(ends, "CHUNK", 150)
    store = typed.store(dtype="float16")
    assert {name: store[name].num_nodes for name in store.node_types} == COUNTS
    for name, expected in edges.items():
        assert np.array_equal(edges_of(store[tuple(name.split(":"))]), expected)
    same_array(store, "nodes/paper/x", "float16", x)
    same_array(store, "nodes/author/name", "int64", names)
    same_array(store, "edges/author__writes__paper/edge_attr", "float64", attr)
    same_array(store, "edges/author__writes__paper/time", "int64", np.arange(EDGES))
    same_task(store["paper"], store.array("nodes/paper/y"), given)
    assert store["author"].split_names == ()


def test_bfloat16_stays_bfloat16(source):
    source.edges()
    x = source.feature("node", "feat", torch.arange(NODES).bfloat16(), kind="torch")
    given = source.task(labels=None)
    label = torch.arange(NODES).remainder(3).bfloat16()
    source.feature("node", "label", label, kind="torch")
    store = source.store()
    assert torch.equal(store.tensor("nodes/x"), x[:, None])
    same_array(store, "nodes/y", "int64", np.arange(NODES) % 3)
    assert store.split("val").tolist() == given["val"][0].tolist()


def put_sets(source: Source, *sets: tuple[str, list[int], Any]) -> None:
    """Make a task of sets of seeds with labels."""
    task: dict[str, Any] = {}
    for number, (name, seeds, labels) in enumerate(sets):
        arrays = {"seeds": np.array(seeds), "labels": np.array(labels)}
        data = [{"name": key, **source.put(f"{key}{number}", arrays[key])} for key in arrays]
        task.setdefault(name, []).append({"data": data})
    source.said["tasks"] = [task]


def test_labels_of_several_sets(source):
    """-1 is a missing label in a set of whole numbers."""
    source.edges()
    put_sets(
        source,
        ("train_set", [0, 1, 2], [0.5, -1.0, 2.5]),
        ("validation_set", [10, 11], [-1.0, 2.0]),
        ("test_set", [20, 21], [-1, 3]),
    )
    y = source.store().array("nodes/y")
    assert y.dtype == np.float32
    assert y[[0, 1, 2, 10, 11, 21]].tolist() == [0.5, -1, 2.5, -1, 2, 3]
    assert int(np.isnan(y).sum()) == NODES - 6
    put_sets(
        source,
        ("train_set", [0, 1, 2], np.zeros((3, 2), int)),
        ("train_set", [10, 11, 12], np.ones((3, 2), int)),
    )
    store = source.store(if_exists="replace")
    assert store.split_names == ("train",)
    assert store.split("train").tolist() == [0, 1, 2, 10, 11, 12]
    assert store.array("nodes/y")[[2, 3, 12]].tolist() == [[0, 0], [-1, -1], [1, 1]]


def test_warnings_name_all_that_is_left_out(source):
    source.edges()
    pairs = source.put("pairs", np.zeros((4, 2), np.int64))
    for name in ("seeds", "node_pairs"):
        task = {"name": f"of {name}", "train_set": [{"data": [{"name": name, **pairs}]}]}
        source.said["tasks"].append(task)
    given = source.task()
    source.task(name="another")
    data = source.said["tasks"][2]["train_set"][0]["data"]
    data.append({"name": "weight", **source.put("weight", np.zeros(30))})
    source.feature("graph", "colour", np.zeros(1))
    with pytest.warns(UserWarning) as warned:  # noqa: PT030 - each is looked at below
        store = source.store()
    said = sorted(str(each.message) for each in warned)
    for message, words in zip(
        said,
        ("tasks[0] (of seeds) is left out", "tasks[1] (of node_pairs) is left out",
         "tasks[2].train_set[0] has data other than seeds and labels; left out: weight",
         "tasks[3] (another) is left out", "left out: colour, of the whole graph"),
        strict=True,
    ):  # fmt: skip
        assert words in message
    assert set(store.split_names) == set(given)


def test_no_edges_and_no_tasks(source):
    source.graph["edges"].append(source.put("none", np.empty((2, 0)), "csv"))
    store = source.store()
    assert (store.num_edges, store.split_names, store.num_features) == (0, (), 0)


def test_from_dataset_chooses_this_importer(source, tmp_path):
    source.edges()
    file = source.write() / "metadata.yaml"
    for number, each in enumerate((file, source.folder)):
        assert from_dataset(each, tmp_path / f"{number}.gnn").num_edges == EDGES
    with pytest.raises(ConfigError, match=r"undirected .* is for an OGB folder"):
        from_dataset(source.folder, tmp_path / "h.gnn", undirected=True)


# ---- what is refused


@pytest.mark.parametrize("memory", ["4GB", "10KB"])
def test_wrong_edges(source, memory):
    source.edges("csv")
    text = "0,1\n\n2,60\n" + "0,1\n" * EDGES
    (source.folder / "data/edges.csv").write_text(text, encoding="utf-8")
    source.refused("edges.csv, line 3: node 60, but there are 60 nodes", memory=memory)
    source.graph["edges"].clear()
    source.edges("numpy")
    for array, match in (
        (np.array([[0, 1], [0, -1]]), "edges.npy, edge 1 .*: node -1"),
        (np.zeros((3, 2), int), "edges.npy cannot be read as edges .*shape"),
        (np.array([[{}], [{}]]), "edges.npy cannot be read as edges .*Python objects"),
    ):
        np.save(source.folder / "data/edges.npy", array)
        source.refused(match, memory=memory)


class _Code:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_wrong_features(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source.edges()
    source.feature("node", "feat", np.zeros(NODES), kind="torch")
    file = source.folder / "data/node-feat.pt"
    for value, match in (
        (_Code(), "feat.pt cannot be read as a tensor"),
        ({"x": torch.zeros(3)}, "holds a dict that is not one dense tensor"),
        (torch.zeros(NODES, 2).to_sparse(), "not one dense tensor"),
        (torch.zeros(()), "not rows of numbers"),
        (torch.zeros(3), f"feat.pt has 3 rows, but metadata.yaml's graph says {NODES}"),
    ):
        torch.save(value, file)
        source.refused(match)
    torch.save(torch.zeros(NODES), file, _use_new_zipfile_serialization=False)
    source.refused("feat.pt cannot be read as a tensor .*mmap")
    source.said["feature_data"].clear()
    source.feature("node", "feat", np.array(["a"] * NODES))
    source.refused("feat.npy cannot be read as features .*<U1")


def change(said: Any, at: str, value: Any) -> None:
    """Set one value of the metadata, "graph.nodes.0.num"; None removes it."""
    *way, last = [int(each) if each.isdigit() else each for each in at.split(".")]
    for each in way:
        said = said[each]
    if value is None:
        del said[last]
    else:
        said[last] = value


def test_wrong_metadata(typed):
    for type in TYPES:
        typed.edges(type=type)
    typed.feature("node", "feat", np.ones((NODES, 2)), type="paper")
    typed.task("paper")
    typed.put("node-real", np.zeros(10))
    typed.put("large", np.array([0, NODES]))
    typed.put("wide", np.zeros((10, 2), int))
    whole, train = typed.said, "tasks.0.train_set.0"
    for at, value, match in (
        ("graph", None, "metadata.yaml: graph is missing, and has to be an object"),
        ("graph", [1], r"graph is \[1\], and has to be an object"),
        ("graph.nodes", [], "graph has no 'nodes'"),
        ("graph.nodes", 7, "graph.nodes is 7, and has to be a list"),
        ("graph.nodes.0.num", -1, r"graph.nodes\[0\].num is -1, and has to be a whole"),
        ("graph.nodes.0.type", None, r"graph.nodes\[0\] has no 'type' of its own"),
        ("graph.nodes.0.type", "a/b", "a type is called 'a/b'"),
        ("graph.edges.0.type", "writes", "'writes', and has to be source:relation:target"),
        ("graph.edges.0.type", "venue:of:paper", r"edges\[0\] is not valid: .*begins or"),
        ("graph.edges.0.type", "paper:cites:paper", r"edges\[1\] has no 'type' of its"),
        ("graph.edges.0.format", "torch", "format is 'torch', .*one of csv, numpy"),
        ("graph.edges.0.path", "no.csv", r"names .*dataset/no.csv, which is not there"),
        ("graph.edges.0.path", "a/../../b.npy", "which is not in the folder of the metadata"),
        ("feature_data.0.domain", "x", r"feature_data\[0\].domain is 'x'"),
        ("feature_data.0.type", "venue", "has the node type 'venue', but the types are pa"),
        ("feature_data.0.format", "csv", "format is 'csv', .*one of numpy, torch"),
        ("feature_data.0.name", "y", "nodes/paper/y would be made of two arrays"),
        (f"{train}.type", "venue", r"tasks\[0\].train_set\[0\] has the node type 'venue'"),
        (f"{train}.data.0", None, r"train_set\[0\] has no data named 'seeds'"),
        (f"{train}.data.1.path", "data/node-feat.npy", "node-feat.npy has 60 rows, but"),
        (f"{train}.data.0.path", "data/node-real.npy", "holds float64 and not node ids"),
        (f"{train}.data.0.path", "data/large.npy", "whose entry 1 is node 60, but there"),
        (f"{train}.data.1.path", "data/wide.npy", r"has labels of shape \[10\], but anoth"),
    ):
        typed.said = copy.deepcopy(whole)
        change(typed.said, at, value)
        typed.refused(match)


def test_types_of_edges_or_features_without_types_of_nodes(source):
    source.refused("graph has no 'edges'")
    source.edges()
    source.graph["edges"][0]["type"] = "paper:cites:paper"
    source.refused("has a 'type', but the nodes have none")
    del source.graph["edges"][0]["type"]
    source.feature("node", "feat", np.ones(NODES), type="paper")
    source.refused("has the node type 'paper', but the nodes have no types")


def test_no_metadata(tmp_path):
    for content, match in (
        (None, "metadata.yaml is missing: give a metadata.yaml"),
        ("graph:\n  nodes: [1\n", "metadata.yaml, line 3: "),
        ("a: !!python/object/apply:os.mkdir [ran]\n", "line 1: could not determine a const"),
        ("7", "metadata.yaml is not an object"),
        ("graph_topology: {path: x}\n", "a preprocessed dataset, whose graph is a pickle: give"),
        ("a: \ud800", "cannot be read .*UTF-8"),
        ("num: 2020-13-45", "metadata.yaml"),
        ("[" * 500, "cannot be read .*recursion"),
    ):
        if content is not None:
            (tmp_path / "metadata.yaml").write_bytes(content.encode("utf-8", "surrogatepass"))
        with refused(tmp_path, match):
            gnndrive.from_graphbolt(tmp_path, tmp_path / "g.gnn")


def test_labels_larger_than_memory_and_what_does_not_fit(source, monkeypatch):
    source.edges("csv")
    source.task()
    data = source.said["tasks"][0]["train_set"][0]["data"]
    data[1] = {"name": "labels", **source.put("wide", np.zeros((10, 500), np.int8))}
    source.refused(r"more than memory=: raise it \(--memory\)", memory="50KB")
    source.said["tasks"].clear()
    source.feature("node", "feat", np.full(NODES, 1e6))
    source.refused("does not fit float16", dtype="float16")
    source.write()
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"need.* PyYAML.*'gnndrive\[import\]'"):
        gnndrive.from_graphbolt(source.folder, source.folder.parent / "g.gnn")
