"""from_graphbolt: the store holds every row and every edge of the dataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError
from gnndrive.cli.main import main
from gnndrive.store.importers import ends, from_dataset
from tests.store.graphbolt_folders import (
    COUNTS,
    EDGES,
    NODES,
    TYPES,
    Source,
    heterogeneous,
    homogeneous,
)
from tests.store.same import same_array, same_edges


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return homogeneous(tmp_path / "dataset")


@pytest.fixture
def typed(tmp_path: Path) -> Source:
    return heterogeneous(tmp_path / "dataset")


def same_task(nodes: Any, y: Any, given: Any, dtype: str = "int64") -> None:
    expected = np.full(NODES, -1)
    for name, (seeds, labels) in given.items():
        assert nodes.split(name).tolist() == seeds.tolist()
        expected[seeds] = labels
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kind", ["csv", "numpy"])
def test_one_type(source: Source, kind: str, tmp_path: Path) -> None:
    edges = source.edges(kind)
    x = source.feature("node", "feat", source.random.random((NODES, 6), np.float32))
    attr = source.feature("edge", "feat", np.arange(EDGES, dtype=np.float16))
    year = source.feature("node", "year", np.arange(NODES, dtype=np.int16), kind="torch")
    given = source.task()
    told: list[tuple[str, int, int]] = []
    store = source.store(progress=lambda *each: told.append(each))
    assert (store.num_nodes, store.num_edges, store.num_classes) == (NODES, EDGES, 5)
    same_edges(store, None, edges)
    same_array(store, "nodes/x", "float32", x)
    same_array(store, "edges/edge_attr", "float16", attr[:, None])
    same_array(store, "nodes/year", "int16", year)
    same_task(store.nodes(), store.array("nodes/y"), given)
    assert ("reading edges", EDGES, EDGES) in told
    assert ("nodes/x", x.nbytes, x.nbytes) in told
    assert store.info.made_by == f"gnndrive.from_graphbolt({source.folder})"
    store.verify()
    assert sorted(os.listdir(tmp_path)) == ["dataset", "g.gnn"]


@pytest.mark.parametrize("kind", ["csv", "numpy"])
def test_several_types(typed: Source, kind: str, tmp_path: Path) -> None:
    edges = {type: typed.edges(kind, type) for type in TYPES}
    x = typed.feature("node", "feat", np.ones((NODES, 2)), type="paper")
    names = typed.feature("node", "name", np.arange(90), type="author")
    type = "author:writes:paper"
    attr = typed.feature("edge", "feat", np.ones((EDGES, 3)), type=type)
    typed.graph["feature_data"] = [
        {"domain": "edge", "type": type, "name": "time", **typed.put("time", np.arange(EDGES))}
    ]
    given = typed.task("paper", "torch")
    store = typed.store(dtype="float16")
    assert {name: store[name].num_nodes for name in store.node_types} == COUNTS
    for name, expected in edges.items():
        same_edges(store, tuple(name.split(":")), expected)
    same_array(store, "nodes/paper/x", "float16", x)
    same_array(store, "nodes/author/name", "int64", names)
    same_array(store, "edges/author__writes__paper/edge_attr", "float64", attr)
    same_array(store, "edges/author__writes__paper/time", "int64", np.arange(EDGES))
    same_task(store["paper"], store.array("nodes/paper/y"), given)
    assert store["author"].split_names == ()
    store.verify()
    assert sorted(os.listdir(tmp_path)) == ["dataset", "g.gnn"]


@pytest.mark.parametrize("kind", ["csv", "numpy"])
def test_little_memory_gives_the_same_store(
    typed: Source, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "CHUNK", 400)
    for type in TYPES:
        typed.edges(kind, type)
    told: list[str] = []
    stores = [
        gnndrive.from_graphbolt(
            typed.write() / "metadata.yaml", tmp_path / name, memory=memory,
            progress=lambda what, done, total: told.append(what),
        )
        for name, memory in (("a.gnn", 40 * EDGES), ("b.gnn", 40 * EDGES - 1))
    ]  # fmt: skip
    assert stores[0].info.as_dict() == stores[1].info.as_dict()  # with every file's sha256
    assert "sorting paper cites paper" in told
    assert sorted(os.listdir(tmp_path)) == ["a.gnn", "b.gnn", "dataset"]


def test_bfloat16_stays_bfloat16(source: Source) -> None:
    source.edges("numpy")
    x = source.feature("node", "feat", torch.arange(NODES).bfloat16(), kind="torch")
    given = source.task(labels=None)
    label = torch.arange(NODES).remainder(3).bfloat16()
    source.feature("node", "label", label, kind="torch")
    store = source.store()
    assert torch.equal(store.tensor("nodes/x"), x[:, None])
    assert store.info.arrays["nodes/x"].dtype == "bfloat16"
    same_array(store, "nodes/y", "int64", np.arange(NODES) % 3)
    assert store.split("val").tolist() == given["val"][0].tolist()


def test_labels_of_a_task_and_a_feature_called_label(source: Source) -> None:
    source.edges("csv")
    given = source.task()
    source.feature("node", "label", np.zeros(NODES, np.int32))
    store = source.store()
    same_task(store.nodes(), store.array("nodes/y"), given)
    same_array(store, "nodes/label", "int32", np.zeros(NODES))


def test_labels_that_are_not_whole_numbers(source: Source) -> None:
    source.edges("csv")
    source.task()
    data = source.said["tasks"][0]["train_set"][0]["data"]
    data[1] = {"name": "labels", **source.put("real", np.full(30, 0.5))}
    seeds = np.load(source.folder / data[0]["path"])
    y = source.store().array("nodes/y")
    assert (y.dtype, int(np.isnan(y).sum())) == (np.float32, NODES - 90)
    assert (y[seeds] == 0.5).all()


def test_minus_one_is_a_label_in_a_set_of_floats(source: Source) -> None:
    source.edges("csv")
    sets = {"train_set": [0.5, -1.0, 2.5], "validation_set": [-1.0, 2.0]}
    source.said["tasks"] = [{
        name: [{"data": [
            {"name": "seeds", **source.put(f"s{name}", np.arange(len(y)) + 10 * at)},
            {"name": "labels", **source.put(f"l{name}", np.array(y))},
        ]}]
        for at, (name, y) in enumerate(sets.items())
    }]  # fmt: skip
    y = source.store().array("nodes/y")
    assert y[:3].tolist() == sets["train_set"]
    assert y[10:12].tolist() == sets["validation_set"]
    assert int(np.isnan(y).sum()) == NODES - 5


def test_seeds_in_several_sets_and_several_labels(source: Source) -> None:
    source.edges("csv")
    sets = []
    for part in range(2):
        seeds, labels = np.arange(3) + 10 * part, np.full((3, 2), part)
        sets.append({"data": [
            {"name": "seeds", **source.put(f"s{part}", seeds)},
            {"name": "labels", **source.put(f"l{part}", labels)},
        ]})  # fmt: skip
    source.said["tasks"] = [{"train_set": sets}]
    store = source.store()
    assert store.split_names == ("train",)
    assert store.split("train").tolist() == [0, 1, 2, 10, 11, 12]
    y = store.array("nodes/y")
    assert y.shape == (NODES, 2)
    assert y[[2, 3, 12]].tolist() == [[0, 0], [-1, -1], [1, 1]]


def test_warnings_name_all_that_is_left_out(source: Source) -> None:
    source.edges("csv")
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
    assert sorted(str(each.message).removeprefix(str(source.folder)) for each in warned) == [
        "/metadata.yaml: tasks[0] (of seeds) is left out, because a store's splits are of nodes "
        "and this task is of links; give its seed edges to a LinkNeighborLoader yourself",
        "/metadata.yaml: tasks[1] (of node_pairs) is left out, because a store's splits are of "
        "nodes and this task is of links; give its seed edges to a LinkNeighborLoader yourself",
        "/metadata.yaml: tasks[2].train_set[0] has data other than seeds and labels; left out: "
        "weight",
        "/metadata.yaml: tasks[3] (another) is left out, because a store has one set of splits; "
        "it is that of tasks[2] (classify)",
        "a store holds features of nodes and edges; left out: colour, of the whole graph",
    ]
    assert store.split_names
    assert set(store.split_names) == set(given)


def test_no_edges_and_no_tasks(source: Source) -> None:
    said = source.put("none", np.empty((2, 0)), "csv")
    source.graph["edges"].append(said)
    store = source.store()
    assert (store.num_edges, store.split_names, store.num_features) == (0, (), 0)
    store.verify()


def test_from_dataset_chooses_this_importer(source: Source, tmp_path: Path) -> None:
    source.edges("csv")
    for number, given in enumerate((source.write(), source.folder / "metadata.yaml")):
        assert from_dataset(given, tmp_path / f"{number}.gnn").num_edges == EDGES
    with pytest.raises(ConfigError, match=r"undirected .* is for an OGB folder"):
        from_dataset(source.folder, tmp_path / "g.gnn", undirected=True)


def test_the_command_line(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.edges("csv")
    source.feature("node", "feat", np.ones((NODES, 2)))
    out = tmp_path / "g.gnn"
    assert main(["import", str(source.write()), str(out)]) == 0
    assert f"from_graphbolt({source.folder})" in capsys.readouterr().out
    assert gnndrive.open(out).array("nodes/x").dtype == np.float64
    assert main(["import", str(source.folder), str(tmp_path / "h.gnn"), "--undirected"]) == 2
    assert "undirected (--undirected) is for an OGB folder" in capsys.readouterr().err
