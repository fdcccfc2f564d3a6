"""from_graphbolt refuses wrong metadata and wrong files, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError, StoreError
from tests.store.graphbolt_folders import (
    EDGES,
    NODES,
    TYPES,
    Source,
    heterogeneous,
    homogeneous,
)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return homogeneous(tmp_path / "dataset")


@pytest.fixture
def typed(tmp_path: Path) -> Source:
    return heterogeneous(tmp_path / "dataset")


@pytest.mark.parametrize("memory", ["4GB", "50KB"])
@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("0,1\n\n2,200\n", "edges.csv, line 3: node 200, but there are 200 nodes"),
        ("src,dst\n0,1\n", "edges.csv, line 1: 'src,dst' is not 2 whole numbers"),
        ("0,1\n2,3,4\n", "edges.csv, line 2: '2,3,4' is not 2 whole numbers"),
        ("0,1,2\n2,3,4\n", "edges.csv, line 1: '0,1,2' is not 2 whole numbers"),
        ("0\n", "edges.csv, line 1: '0' is not 2 whole numbers"),
        ("0,1.5\n", "edges.csv, line 1: '0,1.5' is not 2 whole numbers"),
    ],
)
def test_wrong_edges_in_csv(source: Source, memory: str, content: str, match: str) -> None:
    source.edges("csv")
    text = content + "0,1\n" * EDGES
    (source.folder / "data" / "edges.csv").write_text(text, encoding="utf-8")
    source.refused(match, memory=memory)


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.full((2, 3), NODES), "edges.npy, edge 0 .*: node 200, but there are 200 nodes"),
        (np.array([[0, 1], [0, -1]]), "edges.npy, edge 1 .*: node -1"),
        (np.zeros((3, 2), int), "edges.npy cannot be read as edges .*shape"),
        (np.zeros((2, 2)), "edges.npy cannot be read as edges .*float64"),
        (np.array([[{}], [{}]]), "edges.npy cannot be read as edges .*Python objects"),
    ],
)
def test_wrong_edges_in_npy(source: Source, array: Any, match: str) -> None:
    source.edges("numpy")
    np.save(source.folder / "data" / "edges.npy", array)
    source.refused(match)


class _Code:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (_Code(), "x.pt cannot be read as a tensor"),
        ({"x": torch.zeros(3)}, "holds a dict that is not one dense tensor"),
        (torch.zeros(NODES, 2).to_sparse(), "not one dense tensor"),
        (torch.zeros(()), "not rows of numbers"),
        (torch.zeros(3), f"x.pt has 3 rows, but metadata.yaml's graph says {NODES}"),
    ],
)
def test_wrong_tensors(
    source: Source, value: Any, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source.edges("csv")
    torch.save(value, source.folder / "data" / "x.pt")
    entry = {"domain": "node", "name": "feat", "format": "torch", "path": "data/x.pt"}
    source.said["feature_data"] = [entry]
    source.refused(match)
    torch.save(torch.zeros(NODES), source.folder / "data" / "x.pt",
               _use_new_zipfile_serialization=False)  # fmt: skip
    source.refused("x.pt cannot be read as a tensor .*mmap")


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros((7, 2)), f"f.npy has 7 rows, but metadata.yaml's graph says {NODES}"),
        (np.array([{}] * NODES), "f.npy cannot be read as features .*Python objects"),
        (np.array(["a"] * NODES), "f.npy cannot be read as features .*<U1"),
    ],
)
def test_wrong_features(source: Source, array: Any, match: str) -> None:
    source.edges("csv")
    entry = {"domain": "node", "name": "feat", **source.put("f", array)}
    source.said["feature_data"] = [entry]
    source.refused(match)


def change(at: str, value: Any) -> Any:
    """A function that sets one value of the metadata, "graph.nodes.0.num"; None removes it."""

    def changed(said: Any) -> None:
        *way, last = [int(each) if each.isdigit() else each for each in at.split(".")]
        for each in way:
            said = said[each]
        if value is None:
            del said[last]
        else:
            said[last] = value

    return changed


TRAIN = "tasks.0.train_set.0"


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        (change("graph", None), "metadata.yaml has no 'graph'"),
        (change("graph", [1]), "graph is not a list of names and values"),
        (change("graph.nodes", []), "graph has no 'nodes'"),
        (change("graph.nodes", 7), "graph has a 'nodes' that is not a list"),
        (change("graph.nodes.0.num", -1), r"graph.nodes\[0\] has no 'num' that is a whole"),
        (change("graph.nodes.0.num", True), r"graph.nodes\[0\] has no 'num'"),
        (change("graph.nodes.0.type", None), r"graph.nodes\[0\] has no 'type' of its own"),
        (change("graph.nodes.1.type", "paper"), r"graph.nodes\[1\] has no 'type' of its own"),
        (change("graph.nodes.0.type", "a/b"), "a type is called 'a/b'"),
        (change("graph.edges.0.type", None), r"graph.edges\[0\] has no 'type' that is a text"),
        (change("graph.edges.0.type", "writes"), "'writes': say source:relation:target"),
        (change("graph.edges.0.type", "venue:of:paper"), r"edges\[0\] is not valid: .*begins or"),
        (change("graph.edges.0.type", "paper:cites:paper"), r"edges\[1\] has no 'type' of its"),
        (change("graph.edges.0.format", "torch"), "the format 'torch', .*not one of csv, numpy"),
        (change("graph.edges.0.path", "no.csv"), r"names .*dataset/no.csv, which is not there"),
        (change("graph.edges.0.path", 7), r"graph.edges\[0\] has no 'path' that is a text"),
        (change("feature_data.0.domain", "x"), r"feature_data\[0\] has the domain 'x'"),
        (change("feature_data.0.name", None), r"feature_data\[0\] has no 'name'"),
        (change("feature_data.0.type", "venue"), "has the node type 'venue', but the types are pa"),
        (change("feature_data.0.type", None), "has the node type None, but the types are paper"),
        (change("feature_data.0.format", "csv"), "the format 'csv', .*not one of numpy, torch"),
        (change("feature_data.0.path", "no.npy"), "names .*no.npy, which is not there"),
        (change("feature_data.0", "x"), r"feature_data\[0\] is not a list of names and values"),
        (change("feature_data.0.name", "y"), "nodes/paper/y would be made of two arrays"),
        (change(f"{TRAIN}.type", "venue"), r"tasks\[0\].train_set\[0\] has the node type 'venue'"),
        (change(f"{TRAIN}.data.0", None), r"train_set\[0\] has no data named 'seeds'"),
        (change(f"{TRAIN}.data.0.name", None), r"train_set\[0\].data\[0\] has no 'name' that is"),
        (change(f"{TRAIN}.data.1.path", "data/node-feat.npy"), "node-feat.npy has 200 rows, but"),
        (change(f"{TRAIN}.data.0.path", "data/node-real.npy"), "holds float64 and not node ids"),
        (change(f"{TRAIN}.data.0.path", "data/large.npy"), "whose entry 1 is node 200, but there"),
        (change(f"{TRAIN}.data.1.path", "data/wide.npy"), r"has labels of shape \[30\], but anoth"),
    ],
)
def test_wrong_metadata(typed: Source, changed: Any, match: str) -> None:
    for type in TYPES:
        typed.edges("csv", type)
    typed.feature("node", "feat", np.ones((NODES, 2)), type="paper")
    typed.task("paper")
    typed.put("node-real", np.zeros(30))
    typed.put("large", np.array([0, NODES]))
    typed.put("wide", np.zeros((30, 2), int))
    typed.said = json.loads(json.dumps(typed.said))
    changed(typed.said)
    typed.refused(match, (StoreError, ConfigError))


def test_types_of_edges_or_features_without_types_of_nodes(source: Source) -> None:
    source.refused("graph has no 'edges'")
    source.edges("csv")
    source.graph["edges"][0]["type"] = "paper:cites:paper"
    source.refused("has a 'type', but the nodes have none")
    del source.graph["edges"][0]["type"]
    source.feature("node", "feat", np.ones(NODES), type="paper")
    source.refused("has the node type 'paper', but the nodes have no types")


@pytest.mark.parametrize(
    "text",
    ["num: " + "9" * 5000, "num: 2020-13-45", "num: !!int ''", "num: !!float abc", "[" * 9000],
)
def test_yaml_values_that_cannot_be_constructed(source: Source, text: str) -> None:
    (source.folder / "metadata.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=r"metadata\.yaml"):
        gnndrive.from_graphbolt(source.folder, source.folder.parent / "no.gnn")


@pytest.mark.parametrize("path", ["../edges.npy", "/etc/passwd", "a/../../b.npy", "x" * 300])
def test_files_outside_the_metadatas_folder(source: Source, path: str) -> None:
    source.edges("csv")
    source.said["graph"]["edges"][0]["path"] = path
    source.refused("which is not (in the folder of the metadata: move it )?there", StoreError)


def test_labels_larger_than_memory(source: Source) -> None:
    source.edges("csv")
    source.task()
    data = source.said["tasks"][0]["train_set"][0]["data"]
    data[1] = {"name": "labels", **source.put("wide", np.zeros((30, 500), np.int8))}
    source.refused(r"more than memory=: raise it \(--memory\)", ConfigError, memory="50KB")


def test_no_metadata(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "g.gnn"
    with pytest.raises(StoreError, match=r"metadata.yaml is missing: give a metadata.yaml"):
        gnndrive.from_graphbolt(tmp_path, path)
    file = tmp_path / "metadata.yaml"
    for content, match in (
        ("graph:\n  nodes: [1\n", "metadata.yaml, line 3: "),
        ("a: !!python/object/apply:os.mkdir [ran]\n", "line 1: could not determine a const"),
        ("7", "metadata.yaml is not a list of names and values"),
        ("graph_topology: {path: x}\n", "a preprocessed dataset, whose graph is a pickle: give"),
        ("a: \ud800".encode("utf-8", "surrogatepass"), "cannot be read .*UTF-8"),
    ):
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(StoreError, match=match):
            gnndrive.from_graphbolt(tmp_path, path)
    assert sorted(os.listdir(tmp_path)) == ["dataset", "metadata.yaml"]


def test_wrong_arguments_and_missing_packages(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.edges("csv")
    source.refused("is no size", ConfigError, memory="much")
    source.refused("more than memory=", ConfigError, memory=8 * NODES - 1)
    source.feature("node", "feat", np.full(NODES, 1e6))
    source.refused("does not fit float16", ConfigError, dtype="float16")
    for module, match in (("duckdb", "DuckDB|duckdb"), ("pyarrow", "pyarrow"), ("yaml", "PyYAML")):
        with pytest.MonkeyPatch.context() as patch:
            folder = source.write()
            patch.setitem(sys.modules, module, None)
            before = sorted(os.listdir(folder.parent))
            with pytest.raises(ConfigError, match=rf"need.* ({match}).*'gnndrive\[import\]'"):
                gnndrive.from_graphbolt(folder, folder.parent / "refused.gnn", memory="50KB")
            assert sorted(os.listdir(folder.parent)) == before


def test_an_interruption_leaves_nothing(source: Source) -> None:
    source.edges("numpy")
    source.feature("node", "feat", np.ones((NODES, 2)))
    for wanted in ("reading edges", "sorting edges", "nodes/x"):

        def stop(what: str, done: int, total: int, wanted: str = wanted) -> None:
            if what == wanted:
                raise KeyboardInterrupt

        source.refused(None, KeyboardInterrupt, progress=stop, memory="50KB")
