"""from_graphbolt: the store holds every row and edge of the dataset; what is wrong is refused."""

import base64
import copy
import io
import os
import pickle
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, Store, StoreError
from gnndrive.store import checks
from gnndrive.store.importers import ends, from_dataset, fused_graph, link_task
from gnndrive.store.link_split.opened import link_tasks
from gnndrive.store.writer import StoreWriter
from tests.store.conftest import compressed, edges_of, refused, same_array

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
            file = f"{len(self.said['tasks'])}-{name}"
            data = [{"name": "seeds", **self.put(f"{file}-seeds", seeds)}]
            given[name] = seeds, seeds % 5
            if labels:
                data.append({"name": "labels", **self.put(f"{file}-labels", seeds % 5, labels)})
            task[SETS[name]] = [{**({"type": type} if type else {}), "data": data}]
        self.said["tasks"].append(task)
        return given

    def links(self, task: str, types: Iterable[str | None] = (None,), **sets: Any) -> None:
        """Add a task of links; each set is its data by name, the same for all types."""
        said: dict[str, Any] = {"name": task}
        for name, given in sets.items():
            data = [
                {"name": each, **self.put(f"{task}-{name}-{each}", array)}
                for each, array in given.items()
            ]
            said[name] = [{**({"type": type} if type else {}), "data": data} for type in types]
        self.said["tasks"].append(said)

    def write(self) -> Path:
        text = yaml.safe_dump(self.said, sort_keys=False)
        (self.folder / "metadata.yaml").write_text(text, encoding="utf-8")
        return self.folder

    def preprocess(self, ids: bool = True) -> Path:
        """Do to the dataset what GraphBolt does; return the folder that it makes."""
        self.write()
        made = self.folder / "preprocessed"
        shutil.copytree(self.folder / "data", made / "data", dirs_exist_ok=True)
        said = copy.deepcopy(self.said)
        for entry in said["feature_data"]:
            path = self.folder / entry["path"]
            rows = torch.load(path).numpy() if entry["format"] == "torch" else np.load(path)
            entry |= {"format": "numpy", "path": entry["path"].replace(".pt", ".npy")}
            np.save(made / entry["path"], rows.reshape(-1, 1) if rows.ndim == 1 else rows)
        for entry in (*said["feature_data"], *sets_data(said)):
            entry["path"] = f"preprocessed/{entry['path']}"
        said["include_original_edge_id"] = ids
        path = "preprocessed/fused_csc_sampling_graph.pt"
        said["graph_topology"] = {"type": "FusedCSCSamplingGraph", "path": path}
        put_graph(self.folder / path, self._fused(ids))
        del said["graph"]
        (made / "metadata.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
        return made

    def _fused(self, ids: bool) -> dict[str, dict[str, Any]]:
        nodes = sorted(self.graph["nodes"], key=lambda each: each.get("type", ""))
        edges = sorted(self.graph["edges"], key=lambda each: each.get("type", ""))
        first = dict(
            zip(
                (each.get("type") for each in nodes),
                np.cumsum([0, *(each["num"] for each in nodes)]).tolist(),
                strict=False,
            )
        )
        lists = []
        for place, each in enumerate(edges):
            path = self.folder / each["path"]
            read = np.load if each["format"] == "numpy" else np.loadtxt
            given = {} if read is np.load else {"delimiter": ",", "dtype": int, "unpack": True}
            source, _, target = each.get("type", "::").split(":")
            src, dst = read(path, **given)
            ends_there = src + first.get(source, 0), dst + first.get(target, 0)
            lists.append((*ends_there, np.full(len(src), place), np.arange(len(src))))
        src, dst, kinds, numbers = np.concatenate(lists, 1)
        order = np.argsort(dst, kind="stable")
        total = sum(each["num"] for each in nodes)
        tensors = {
            "version_number": torch.tensor([6199]),
            "indptr": torch.from_numpy(np.searchsorted(dst[order], np.arange(total + 1))).int(),
            "indices": torch.from_numpy(src[order]).int(),
        }
        groups: dict[str, dict[str, Any]] = {"independent_tensors": tensors, "edge_attributes": {}}
        if ids:
            groups["edge_attributes"]["_ORIGINAL_EDGE_ID"] = torch.from_numpy(numbers[order]).int()
        if None not in first:
            tensors["type_per_edge"] = torch.from_numpy(kinds[order]).byte()
            tensors["node_type_offset"] = torch.tensor([*first.values(), total]).int()
            for group, types in (("node_type_to_id", nodes), ("edge_type_to_id", edges)):
                groups[group] = {each["type"]: torch.tensor(n) for n, each in enumerate(types)}
        return groups

    def store(self, **arguments: Any) -> Store:
        return gnndrive.from_graphbolt(self.write(), self.folder.parent / "g.gnn", **arguments)

    def refused(self, match: str, **arguments: Any) -> None:
        self.write()
        with refused(self.folder.parent, match):
            self.store(**arguments)


def sets_data(said: Any) -> Iterable[dict[str, Any]]:
    """The data of all sets of all tasks in metadata."""
    for task in said["tasks"]:
        for name in SETS.values():
            for entry in task.get(name, ()):
                yield from entry["data"]


class Script:
    """Pickles as torch's ScriptObject."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __getstate__(self) -> Any:
        return self.state, "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph"


class Graph:
    """Pickles as DGL's FusedCSCSamplingGraph."""

    def __init__(self, state: Any) -> None:
        self._c_csc_graph = Script(state)


def put_graph(path: Path, groups: Any) -> None:
    """Save a graph as GraphBolt does, without DGL: under the names of its classes."""
    torch.save(Graph(groups), path)
    names = {
        b"Graph\n": b"dgl.graphbolt.impl.fused_csc_sampling_graph\nFusedCSCSamplingGraph\n",
        b"Script\n": b"torch\nScriptObject\n",
    }
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as whole, zipfile.ZipFile(path, "w") as new:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("data.pkl"):
                for own, given in names.items():
                    content = content.replace(b"c" + __name__.encode() + b"\n" + own, b"c" + given)
            new.writestr(name, content)


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


def test_classes_that_no_set_has(source):
    source.edges()
    for named, labels, expected in ((40, [1, 2], 40), (2, [1, 2], 3), (40, [0.5, 2], 0)):
        put_sets(source, ("train_set", [4, 5], labels))
        source.said["tasks"][0]["num_classes"] = named
        assert source.store(if_exists="replace").num_classes == expected
    source.said["tasks"][0]["num_classes"] = "many"
    shutil.rmtree(source.folder.parent / "g.gnn")
    source.refused(r"tasks\[0\]\.num_classes is 'many', and has to be a whole number")


def test_a_node_with_two_labels(source):
    source.edges()
    for first, second, row in (
        (([4, 5], [1, 2]), ([6, 5], [0, 3]), "labels1.npy: row 1 gives node 5 the label 3, and"),
        (([4, 4], [1, 2]), ([6], [0]), "labels0.npy: row 0 gives node 4 the label 1, and another"),
        (([4], [[1, 0]]), ([4], [[1, 2]]), r"labels1.npy: row 0 gives node 4 the label \[1, 2\]"),
        (([4], [0.5]), ([4], [0.25]), "labels1.npy: row 0 gives node 4 the label 0.25"),
    ):
        put_sets(source, ("train_set", *first), ("test_set", *second))
        source.refused(f"{row}.*leave one of the two")
    put_sets(source, ("train_set", [4, 5, 5], [1, 2, -1]), ("test_set", [4, 5], [1, -1]))
    assert source.store().array("nodes/y")[[4, 5]].tolist() == [1, 2]


def test_warnings_name_all_that_is_left_out(source):
    source.edges()
    source.links("wide", train_set={"seeds": np.zeros((4, 3), np.int64)})
    given = source.task()
    data = source.said["tasks"][1]["train_set"][0]["data"]
    data.append({"name": "weight", **source.put("weight", np.zeros(30))})
    source.feature("graph", "colour", np.zeros(1))
    with pytest.warns(UserWarning) as warned:  # noqa: PT030 - each is looked at below
        store = source.store()
    said = sorted(str(each.message) for each in warned)
    for message, words in zip(
        said,
        ("tasks[0].train_set[0] has seeds of 3 nodes each; the task is left out",
         "tasks[1].train_set[0] has data other than seeds and labels; left out: weight",
         "left out: colour, of the whole graph"),
        strict=True,
    ):  # fmt: skip
        assert words in message
    assert set(store.split_names) == set(given)
    with pytest.raises(StoreError, match=r"is not a split of links: .* a task of links"):
        gnndrive.open_links(store.path)


def test_further_tasks_of_nodes(source):
    source.edges()
    given = source.task()
    second = source.task(name="by year")
    unnamed = source.task(name=None)
    store = source.store()
    same_task(store.nodes(), store.array("nodes/y"), given)
    for prefix, of_task in (("by_year", second), ("task2", unnamed)):
        for name, (seeds, labels) in of_task.items():
            assert store.split(f"{prefix}_{name}").tolist() == seeds.tolist()
            assert store.array(f"nodes/{prefix}_y")[seeds].tolist() == labels.tolist()
    source.task(name="by/year")
    source.refused(r"tasks\[3\] would make the split 'by_year_test', as another task does: rename")


# ---- tasks of links


def drawn(source: Source, *shape: int) -> np.ndarray:
    return source.random.integers(0, 50, shape)


def same_links(part: Any, edges: Any, label: Any, query: Any) -> None:
    assert part.edge_label_index.t().tolist() == np.asarray(edges).tolist()
    assert part.edge_label.tolist() == np.asarray(label).tolist()
    found = part.edge_label_query
    assert (None if found is None else found.tolist()) == query


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_task_of_links(source, made, monkeypatch):
    """Queries, labels and negatives of all forms, before preprocessing and after it."""
    monkeypatch.setattr(link_task, "CHUNK", 7)
    source.edges()
    source.task()
    pairs = {name: drawn(source, 20, 2) for name in SETS}
    labels, indexes = np.arange(20) % 2 == 0, np.arange(20) // 2
    negative = drawn(source, 20, 3)
    source.links(
        "predict links",
        train_set={"seeds": pairs["train"]},
        validation_set={"seeds": pairs["val"], "labels": labels, "indexes": indexes},
        test_set={"node_pairs": pairs["test"], "negative_dsts": negative},
    )
    given = source.preprocess() if made == "after" else source.write()
    store = gnndrive.from_graphbolt(given, source.folder / "a.gnn")
    assert store.split_names == ("train", "val", "test")
    train, val, test = gnndrive.open_links(store.path, "predict links")
    same_links(train, pairs["train"], np.ones(20), None)
    same_links(val, pairs["val"], labels, indexes.tolist())
    below = np.stack([np.repeat(pairs["test"][:, 0], 3), negative.reshape(-1)], 1)
    query = [*range(20), *np.repeat(range(20), 3)]
    same_links(test, [*pairs["test"], *below], [1] * 20 + [0] * 60, query)
    assert {part.edge_label.dtype for part in (train, val, test)} == {torch.float32}
    with LinkNeighborLoader(
        val, [2], val.edge_label_index, val.edge_label, batch_size=8, memory="50MB"
    ) as loader:
        for batch in loader:
            ends = batch.n_id[batch.edge_label_index].t()
            assert ends.tolist() == pairs["val"][batch.input_id].tolist()
            assert batch.edge_label.tolist() == labels[batch.input_id].tolist()


def test_several_tasks_of_links(typed):
    for type in TYPES:
        typed.edges(type=type)
    writes, cites = (tuple(type.split(":")) for type in TYPES)
    one, two = drawn(typed, 4, 2), drawn(typed, 5, 2)
    typed.links("first", TYPES, train_set={"seeds": one})
    source, negative = drawn(typed, 5, 2), drawn(typed, 5, 2)
    data = {"seeds": two, "labels": np.arange(5)}
    typed.links(
        "second", ["paper:cites:paper"], train_set=data,
        test_set={"seeds": two, "negative_srcs": source, "negative_dsts": negative},
        validation_set={"seeds": two, "negative_srcs": source, "indexes": np.arange(5) + 7},
    )  # fmt: skip
    path = typed.store().path
    for task in (None, "first"):
        parts = gnndrive.open_links(path, task)
        for type in (writes, cites):
            same_links(parts.train[type], one, np.ones(4), None)
            same_links(parts.test[type], np.empty((0, 2)), [], None)
    second = gnndrive.open_links(path, "second")
    assert second.train.labelled_types == [cites]
    same_links(second.train, two, np.arange(5), None)
    assert second.train.edge_label.dtype == torch.int64
    below = np.stack([source, negative], 2).reshape(-1, 2)
    label = [1] * 5 + [0] * 10
    same_links(second.test, [*two, *below], label, [*range(5), *np.repeat(range(5), 2)])
    below = np.stack([source.reshape(-1), np.repeat(two[:, 1], 2)], 1)
    query = [*range(7, 12), *np.repeat(range(7, 12), 2)]
    part = pickle.loads(pickle.dumps(second.val))
    same_links(part[cites], [*two, *below], label, query)
    assert "edge_label_query" in part[cites].keys()  # noqa: SIM118 - no dict
    one_task, other = link_tasks(path)
    assert one_task == ("first", [writes, cites], {"train": 8, "val": 0, "test": 0})
    assert other == ("second", [cites], {"train": 5, "val": 15, "test": 15})
    with pytest.raises(
        ConfigError, match="has no task 'third' of links; it has: 'first', 'second'"
    ):
        gnndrive.open_links(path, "third")
    queries = path / "links/tasks/second/val/paper__cites__paper/queries.npy"
    queries.write_bytes((path / "links/train/paper__cites__paper/labels.npy").read_bytes())
    with pytest.raises(StoreError, match=r"does not hold labelled edges: .*import the dataset ag"):
        gnndrive.open_links(path, "second")
    queries.write_bytes(b"")
    with pytest.raises(StoreError, match=r"queries.npy cannot be read .*import the dataset again"):
        gnndrive.open_links(path, "second")


def test_the_disk_needs_room_for_links(source, monkeypatch):
    source.edges()
    pairs, negative = drawn(source, 20, 2), drawn(source, 20, 3)
    expected: list[int] = []
    monkeypatch.setattr(StoreWriter, "reserve", lambda _, nbytes: expected.append(nbytes))
    source.store()
    without = expected[0]
    expected.clear()
    source.links(
        "links", train_set={"seeds": pairs, "negative_dsts": negative},
        validation_set={"seeds": pairs, "labels": np.arange(20)}, test_set={"seeds": pairs},
    )  # fmt: skip
    path = source.store(if_exists="replace").path
    written = sum(np.load(file).nbytes for file in path.glob("links/**/*.npy"))
    assert expected[0] - without == written > 0


def test_wrong_links(typed, monkeypatch):
    monkeypatch.setattr(link_task, "CHUNK", 4)
    typed.edges(type="author:writes:paper")
    pairs = np.stack([np.arange(6), np.arange(6)], 1)

    def refuse(match: str, *types: str, **data: Any) -> None:
        typed.said["tasks"].clear()
        typed.links("links", types or ["author:writes:paper"], test_set={"seeds": pairs, **data})
        typed.refused(match)

    refuse(r"test_set-seeds.npy: row 5 names 50, but there are 50 nodes", seeds=pairs * 10)
    refuse(r"test_set-seeds.npy: row 0 names -1", seeds=pairs - 1)
    refuse(r"test_set-seeds.npy: row 4 names 60, but there are 60 nodes", seeds=pairs * [1, 15])
    refuse(r"seeds.npy, which holds float64 \[6, 2\] and not whole numbers \[n, k", seeds=pairs / 2)
    refuse(r"has seeds of shape \[6, 1\]", seeds=pairs[:, :1])
    refuse(
        r"negative_dsts.npy: entry 25 names 60, but", negative_dsts=pairs.repeat(3, 1)[:, 1:] * 12
    )
    refuse(r"holds int64 \[6\] and not whole numbers \[n, k\]", negative_dsts=np.arange(6))
    refuse(
        r"negatives of shapes \[6, 2\] and \[6, 4\]",
        negative_srcs=pairs, negative_dsts=pairs.repeat(2, 1),
    )  # fmt: skip
    refuse("labels.npy has 5 rows, but .*seeds.npy says 6", labels=np.ones(5))
    refuse(r"has labels of shape \[6, 2\], not one for each", labels=np.ones((6, 2)))
    refuse(r"indexes.npy, which holds float64", indexes=np.ones(6))
    large = np.array([0, 1, 2, 3, 4, 2**63], np.uint64)
    for name in ("indexes", "labels"):
        refuse(f"{name}.npy: row 5 is {2**63}, which does not fit int64", **{name: large})
    refuse(f"negative_dsts.npy: entry 5 names {2**63}, but", negative_dsts=large.reshape(6, 1))
    refuse(f"seeds.npy: row 5 names {2**63}, but", seeds=large.repeat(2).reshape(6, 2))
    refuse(r"labels.npy: row 0 is 1e\+300, which does not fit float32", labels=np.full(6, 1e300))
    refuse("is a second set of its type", "author:writes:paper", "author:writes:paper")
    refuse("an edge type that is not there; the types are .*'writes'", "paper:cites:paper")
    refuse("'paper', and has to be source:relation:target", "paper")
    typed.said["tasks"].clear()
    for _ in range(2):
        typed.links("links", ["author:writes:paper"], test_set={"seeds": pairs})
    typed.refused(r"tasks\[1\] has the name 'links' of another task: rename one")


def test_no_edges_and_no_tasks(source):
    source.graph["edges"].append(source.put("none", np.empty((2, 0)), "csv"))
    store = source.store()
    assert (store.num_edges, store.split_names, store.num_features) == (0, (), 0)


def test_from_dataset_chooses_this_importer(source, tmp_path):
    source.edges()
    file = source.write() / "metadata.yaml"
    for number, each in enumerate((file, source.folder)):
        assert from_dataset(each, tmp_path / f"{number}.gnn").num_edges == EDGES
    with pytest.raises(ConfigError, match=r"undirected= is for an OGB folder"):
        from_dataset(source.folder, tmp_path / "h.gnn", undirected=True)


# ---- a preprocessed dataset

# What DGL 2.1 made of the dataset below, with include_original_edge_id=True.
DGL_GRAPH = (
    "c-qC6OK{sn7{_J1aUAE_^g&7=c{H?6+c<vP2?SC%ahkd`sZ6O_3aTtCwp!KlC#_q`jA!5whBCvEnR4L-hu%93CuZQn"
    "fdd0q4n1(;0#}Bf*wrejq}16YbOudiDe`{5|9`(-eY;*M2KI1VD8y|#M!B=xYSUCIqHM~dDcxykYP~8}4XII^sz^wR"
    "Hg0Q${496<zZ@U><w{kHTGX<xp{R;=qV06U1@gtY(z%lTc+q+a+{8!VYk^<r!Nx_|inIbCAS2z7YvGb?s13ASzNN@0"
    "40~|<jur$X!af|J)+<Uw!5?)bBBgHXh6$Z52t|ZG{Ow)EFjc)S)|+?AiUC~|7!{jH)y%MHDCMTARqR0VZXyifNJQww"
    "ktS{_RTb#AJzUi5)e?Och91F(o5Y}32;i&SXhL7nhoJv*kt_PvV1Rt=eIU!areVw2fEivkDvF_0=2g;#!3iGrA=uBu"
    "0U<~`(Le?qtYP)qy5dqDZ3w<(3C3Zl)>jN6I7Ea(Yw$7=I{ctUct;Q%<>8oR9`jULF=3bjYcxCoBRISZ!6*suT7xkX"
    "ew>DnBY1^}6T$#)Sl26xi0(HOQD0p(6$B?;oFqgrCxBprZ~|*^if~R-&KU%gJVb?F+|WWa6hl-hIFnPZ-sSHjWutpB"
    "i<^Qt^_Q^yB?&i0xoHF$9<oiL-(?W#qFRAm3#KDhCZ#5-=?2W$hUq}1;nkWoK(Ar&!~_M-B6yvLH-rw{pdn$GFy{)&"
    "z*!oUcLbe7FwesRbwPUNbWv!*BAt}f#mqfJMT$8?>E~VaEG$v_1qZ!|;35xi3VYWr&BzYGB^MwE%M`HU09;1E^H6dm"
    "NkYg_%S}vyw_0$;3Ptd?YbfURW?6eS7+0-E(;#4eCxUBaFgn-ZIvI?2sLl-p@AB}T`78|%9kB&BBUT^8WqxUK>C)MY"
    ";==smg19sf(#AyclldHjG97W*9`OnhQK-l&f+`O+%gsGdU6xBYz0cl`Ta*@u+mxo+v^#`Wr!*Zwg9m6fg)DI<S{zY~"
    "(t;psl4&ZYqm(_jSb^~|m}RpZT`6{kA{TzBKgIQzoGWcB@feqBUx~~3CD2J>DC85nD8-tJkfsnXYqP%}BGaFo?Y#_h"
    "lUuI}Q?WvRV*5t2LzGJ#e0BBkcSJJ8aB!O8AYRCy+^z#JeUF_1QUbedU)P@gbY%qJk8J5{gd1e}!l~)=81vbh<RJF}"
    "`}Et-{I&<_o0*@-@%=c%Lm$fnPEOe2A;9hDdbtBQHq0HvY6mQ}+23wG8pO{A86z>uP)ii@N4FjczbEhH{|-9`>p3Bg"
    "KL7eY&+h*)*Uxa2Eaba6&-e%I@g_Rye?F^`O+*hv=OjZXRmdObwl)8JKJsUY|M~rmMAyc|YcGC^A)YSePjEY%|3qGW"
    "GN!zU_b;=9_s{3h|NF@&k6wg+b{Fsei|l{yfA0VE?(5$iy$sB4{d{PS_${q|`(uvmBN#PlroCT#b6v=1cKI_R875AC"
    "`LcS&zfmpQIhoq3UPZ0cnTnxGn)-o6cHDSF#;jlQR4krK$1|zqbUK-i$8zaZHWo|f(y??Vlg*^E>C|*4n@ACt-RfWU"
    "2=)=NT>7lix9-!q6Bym(ocTM<i*qjKV=mOE9o#lH6JDNkX&!d*4hA{ahQJGRuBUF;LnbWlg*g|-5f?1h$%JjP=3MyP"
    "w8w1PCU4F~%iYnj5Q~=Z!kjCU8}^t9OL}3>mBtM_(#3+MyfA0obi=-2!qQ%tvk1CjLtz#yvwdd|nXv2*oOQEcIWNpv"
    "J3Y>ruxT&MS^nI!_IwY=EWTcvvrJ97Xuobndwv03DF%aQ?C@iO$qm$i=lX}e34XtKeLW14Eg5%n(76xn2-27Vt37S|"
    "FNU&sR{"
)
DGL_EDGES = {
    ("author", "writes", "paper"): [[0, 2, 1, 2, 0], [3, 0, 3, 1, 0]],
    ("paper", "cites", "paper"): [[1, 3, 0, 2], [0, 0, 2, 1]],
}


def test_a_graph_that_graphbolt_wrote(tmp_path):
    """The edge attribute w of (u, v) is 10 u + v, the node attribute t of u is 2 u."""
    folder = tmp_path / "preprocessed"
    folder.mkdir()
    graph = folder / "fused_csc_sampling_graph.pt"
    graph.write_bytes(zlib.decompress(base64.b85decode(DGL_GRAPH)))
    said = {
        "graph_topology": {"path": f"preprocessed/{graph.name}", "type": "FusedCSCSamplingGraph"},
        "include_original_edge_id": True,
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    for number, given in enumerate((tmp_path, folder, folder / "metadata.yaml")):
        store = from_dataset(given, tmp_path / f"{number}.gnn")
        assert {name: store[name].num_nodes for name in store.node_types} == {
            "author": 3, "paper": 4,
        }  # fmt: skip
        for type, edges in DGL_EDGES.items():
            assert edges_of(store[type]).tolist() == edges
            w = [10 * source + target for source, target in zip(*edges, strict=True)]
            same_array(store, f"edges/{'__'.join(type)}/w", "int16", w)
        same_array(store, "nodes/paper/t", "float64", [0, 2, 4, 6])
        store.verify()


@pytest.fixture
def whole(typed) -> Source:
    """A dataset with everything that preprocessing changes. An edge's features tell which it is."""
    for kind, (type, counts) in zip(("csv", "numpy"), TYPES.items(), strict=True):
        source, target = typed.edges(kind, type)
        typed.feature("edge", "feat", np.stack([source, target], 1), type=type)
        assert max(source.max(), target.max()) < max(counts)
    typed.feature("node", "feat", np.ones((NODES, 2), np.float32), type="paper")
    typed.feature("node", "year", np.arange(50, dtype=np.int16), type="author", kind="torch")
    typed.task("paper")
    return typed


def test_preprocessed_as_before(whole, monkeypatch):
    """The store is the same."""
    before = whole.store()
    monkeypatch.setattr(fused_graph, "CHUNK", 37)
    store = gnndrive.from_graphbolt(whole.preprocess(), whole.folder / "after.gnn")
    assert store.info.types == before.info.types
    assert store.info.arrays.keys() == before.info.arrays.keys()
    for name, array in before.info.arrays.items():
        rows = before.array(name)
        column = (-1, 1) if name == "nodes/author/year" else rows.shape
        same_array(store, name, array.dtype, rows.reshape(column))
    store.verify()


def test_one_type_preprocessed(source, monkeypatch):
    edges = source.edges()
    source.feature("edge", "feat", edges.T.astype(np.int16))
    monkeypatch.setattr(fused_graph, "CHUNK", 37)
    seen = []
    store = gnndrive.from_graphbolt(
        source.preprocess(), source.folder / "a.gnn", progress=lambda *each: seen.append(each)
    )
    assert np.array_equal(edges_of(store), edges)
    same_array(store, "edges/edge_attr", "int16", edges.T)
    assert ("reading edges", EDGES, EDGES) in seen


def test_edge_features_without_edge_ids_are_left_out(whole):
    made = whole.preprocess(ids=False)
    with pytest.warns(UserWarning, match=r"row of feat belongs .* include_original_edge_id=True"):
        store = gnndrive.from_graphbolt(made, whole.folder / "after.gnn")
    expected = {type: edges_of(store[type]) for type in store.edge_types}
    again = whole.store()
    for type, edges in expected.items():
        assert not store[type].names
        assert np.array_equal(np.unique(edges, axis=1), np.unique(edges_of(again[type]), axis=1))
        assert store[type].edge_id is None


def test_edge_ids_are_checked_within_memory(whole, monkeypatch):
    monkeypatch.setattr(checks, "_SEEN_MIN", 1)
    reads: list[Any] = []
    read = fused_graph.FusedEnds._ids
    monkeypatch.setattr(
        fused_graph.FusedEnds, "_ids", lambda self, ids: reads.append(self) or read(self, ids)
    )
    gnndrive.from_graphbolt(whole.preprocess(), whole.folder / "a.gnn", memory=500)
    assert len(reads) == len(TYPES) * (2 + 1)  # each half is looked for, and ids are written


@pytest.mark.parametrize(("ids", "said_ids"), [(True, None), (False, True)])
def test_edge_attributes_that_preprocessing_did_not_write_are_left_out(source, ids, said_ids):
    """GraphBolt reads those in the order of the CSC."""
    source.edges()
    made = source.preprocess()
    groups = source._fused(ids)
    groups["edge_attributes"]["weight"] = torch.zeros(EDGES)
    groups["node_attributes"] = {"time": torch.arange(NODES)}
    put_graph(made / "fused_csc_sampling_graph.pt", groups)
    said = yaml.safe_load((made / "metadata.yaml").read_text())
    said["include_original_edge_id"] = said_ids
    (made / "metadata.yaml").write_text(yaml.safe_dump(said))
    with pytest.warns(UserWarning, match="row of weight belongs to"):
        store = gnndrive.from_graphbolt(made, source.folder / "a.gnn")
    assert (store.edge_names, store.node_names) == ((), ("time",))


def test_which_of_both_is_read(source):
    source.edges()
    source.task()
    source.preprocess()
    (source.folder / "metadata.yaml").write_text(yaml.safe_dump({**source.said, "tasks": []}))
    path = source.folder / "a.gnn"
    assert not gnndrive.from_graphbolt(source.folder, path).split_names
    (source.folder / "data/edges.npy").unlink()
    for given in (source.folder, source.folder / "metadata.yaml"):
        assert gnndrive.from_graphbolt(given, path, if_exists="replace").split_names
    (source.folder / "metadata.yaml").write_text("a: &a [*a]\ngraph_topology: {path: x}\n")
    with pytest.raises(StoreError, match=r"graph_topology.type is missing"):
        gnndrive.from_graphbolt(source.folder, path, if_exists="replace")


def test_a_damaged_graph(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = whole.preprocess()
    file = made / "fused_csc_sampling_graph.pt"
    good = whole._fused(True)

    def refuse(match: str) -> None:
        with refused(tmp_path, f"fused_csc_sampling_graph.pt.*{match}"):
            gnndrive.from_graphbolt(made, tmp_path / "g.gnn")

    tensors, ids = "independent_tensors", "_ORIGINAL_EDGE_ID"
    cases: list[tuple[str, str, Callable[[Any], Any], str]] = [
        (tensors, "version_number", lambda each: each + 1, r"the version \[6200\]"),
        (tensors, "indptr", lambda each: None, "has no indptr"),
        (tensors, "indptr", lambda each: each[:0], "has an empty indptr"),
        (tensors, "indptr", lambda each: each + 1, "starts with 1 instead of 0"),
        (tensors, "indptr", lambda each: each.flip(0), "starts with 800"),
        (tensors, "indptr", lambda each: torch.cat([each[:-2], each[-1:]]), "not divide 109 no"),
        (tensors, "indices", lambda each: each[1:], "ends with 800, but there are 799 edges"),
        (tensors, "indices", lambda each: each.double(), "indices of torch.float64"),
        (tensors, "indices", lambda each: each.reshape(2, -1), r"indices of .*\[2, 400\]"),
        (tensors, "indices", lambda each: each[:1].expand(800), r"indices of .*\[800\], not who"),
        (tensors, "indices", lambda each: each.to_sparse(), r"indices of .*\[800\]"),
        (tensors, "indices", lambda each: each + 50, "comes from node .* 'author' are 0 to 49"),
        (tensors, "indices", lambda each: each - 50, "comes from node -.* are 0 to 49"),
        (tensors, "type_per_edge", lambda each: None, "has no type_per_edge"),
        (tensors, "type_per_edge", lambda each: each[1:], "799 values of type_per_edge"),
        (tensors, "type_per_edge", lambda each: each + 1, "type 2; the types are 0 .*, 1 "),
        (tensors, "node_type_offset", lambda each: each.repeat(9), "does not divide 110 nodes i"),
        (tensors, "node_type_offset", lambda each: each - 1, r"has node_type_offset \[-1, 49"),
        (tensors, "node_type_offset", lambda each: each[[0, 2, 1]], "which does not divide"),
        (tensors, "node_type_offset", lambda each: each[[0, 2, 2]], "'author', is of type"),
        ("edge_attributes", ids, lambda each: each[1:], "799 values of _ORIG.* but 800 edges"),
        ("edge_attributes", ids, lambda each: each - 1, "'author', 'writes', .* edge 399 does no"),
        ("edge_attributes", ids, torch.zeros_like, "edge 1 does not occur, so another occurs tw"),
        ("edge_attributes", "w", lambda _: torch.zeros(3), "attribute 'w' .* 3 rows, .* are 800"),
        ("edge_attributes", "w", lambda _: torch.zeros(1).expand(800), "'w' .*save tensor.clone"),
        ("node_attributes", "t", lambda _: torch.tensor(3), "attribute 't' that cannot be read"),
        ("node_type_to_id", "author", lambda each: each + 1, "node_type_to_id that does not num"),
        ("node_type_to_id", "author", lambda _: torch.zeros(9), "node_type_to_id that does no"),
        ("edge_type_to_id", "paper:cites:paper", lambda _: None, "is of type 1; the types are 0"),
        ("edge_type_to_id", "a:b", lambda _: torch.tensor(2), "types that are not valid .*'a'"),
        ("node_type_to_id", "a/b", lambda _: torch.tensor(2), "does not divide 110 nodes into 3"),
    ]  # fmt: skip
    for group, name, change_of, match in cases:
        groups = {key: dict(value) for key, value in good.items()}
        changed = change_of(groups.setdefault(group, {}).get(name))
        groups[group][name] = changed
        if changed is None:
            del groups[group][name]
        put_graph(file, groups)
        refuse(match)
    for groups in ([], {"independent_tensors": 3}, {"independent_tensors": {"indptr": 3}}):
        put_graph(file, groups)
        refuse("does not hold GraphBolt's")
    put_graph(file, {"independent_tensors": {"indptr": _Code()}})
    refuse(r"\(it names '(posix|os).mkdir'\), and a pickle that holds more can run any code")
    put_graph(file, good)
    file.write_bytes(compressed(file.read_bytes()))
    refuse(r"graph \(its tensors are compressed")
    torch.save(good, file)
    refuse("does not hold GraphBolt's")
    file.write_bytes(file.read_bytes()[:-30])
    refuse("cannot be read as GraphBolt's graph")
    assert not (tmp_path / "ran").exists()


def test_a_preprocessed_dataset_needs_a_newer_torch(source, monkeypatch):
    source.edges()
    made = source.preprocess()
    monkeypatch.delattr(torch.serialization, "safe_globals")
    with pytest.raises(ConfigError, match=r"needs torch 2\.5"):
        gnndrive.from_graphbolt(made, source.folder / "a.gnn")


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
        (_Code(), r"feat.pt cannot be read as a tensor \(it names '(posix|os).mkdir'\): save one"),
        ({"x": torch.zeros(3)}, "holds a dict that is not one dense tensor"),
        (torch.zeros(NODES, 2).to_sparse(), "not one dense tensor"),
        (torch.zeros(()), "not rows of numbers"),
        (torch.zeros(1).expand(NODES), r"holds \[60\] with more elements .*tensor\.clone\(\)"),
        (torch.zeros(3), f"feat.pt has 3 rows, but metadata.yaml's graph says {NODES}"),
    ):
        torch.save(value, file)
        source.refused(match)
    torch.save(torch.zeros(NODES), file, _use_new_zipfile_serialization=False)
    source.refused(r"feat.pt cannot be read as a tensor .*torch's form before 1\.6")
    torch.save(torch.arange(NODES), file)
    file.write_bytes(compressed(file.read_bytes()))
    source.refused(r"feat.pt cannot be read as a tensor \(its tensors are compressed")
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
        ("graph.edges.0.path", "a/../../b.npy", "which is not in the folder of the dataset"),
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
        ("graph_topology: {path: x}\n", "graph_topology.type is missing, and has to be"),
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
    source.refused(r"more than memory=: raise it", memory="50KB")
    source.said["tasks"].clear()
    source.feature("node", "feat", np.full(NODES, 1e6))
    source.refused("does not fit float16", dtype="float16")
    source.write()
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"need.* PyYAML.*'gnndrive\[import\]'"):
        gnndrive.from_graphbolt(source.folder, source.folder.parent / "g.gnn")
