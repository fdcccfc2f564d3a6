"""from_ogb refuses wrong folders with an error that names the file, and leaves nothing behind."""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive import ConfigError, StoreError
from tests.store.ogb_folders import (
    EDGES,
    NODES,
    csv_form,
    make_arrays,
    make_typed,
    npz_form,
    put,
    refused,
    typed_csv_form,
    typed_npz_form,
)


@pytest.fixture
def arrays() -> dict[str, Any]:
    return make_arrays()


@pytest.fixture
def typed() -> dict[str, Any]:
    return make_typed()


def text(path: Path, content: str) -> None:
    path.write_bytes(gzip.compress(content.encode()))


@pytest.mark.parametrize("memory", ["4GB", "79KB"])
@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("edge", "0,1\n\n2,300\n", "edge.csv.gz, line 3: node 300, but there are 300 nodes"),
        ("edge", "0,1\n-1,2\n", "edge.csv.gz, line 2: node -1"),
        ("edge", "0,1\n2,x\n", r"edge.csv.gz, line 2: '2,x' is not 2 whole numbers"),
        ("edge", "0,1\n2,\n", r"edge.csv.gz, line 2: '2,' is not 2 whole numbers"),
        ("edge", "0,1\n2\n", r"edge.csv.gz, line 2: '2' is not 2 whole numbers"),
        ("edge", "0,1,2\n", r"line 1: '0,1,2' is not 2 whole numbers"),
        ("edge", "0,1\n", "edge.csv.gz has 1 rows, but num-edge-list.csv.gz says 2000"),
        ("edge", "0,1\n" * 2001, "edge.csv.gz has more than 2000 rows, but num-edge-list"),
        ("num-edge-list", "1999\n", "has more than 1999 rows"),
        ("num-edge-list", "x\n", "num-edge-list.csv.gz: 'x' is not a count"),
        ("num-edge-list", "inf\n", "num-edge-list.csv.gz: 'inf' is not a count"),
        ("num-edge-list", "7\n8\n", "says that there are 2 graphs: give a dataset of one graph"),
        ("num-node-list", "299\n", "299.*299"),
        ("node-feat", "1,2\n", "node-feat.csv.gz has 1 rows, but num-node-list.csv.gz says 300"),
        ("node-feat", "1,2\n1,a\n", "node-feat.csv.gz, line 2: '1,a' is not 2 numbers"),
        ("node-label", "1\n" * 301, "node-label.csv.gz has more than 300 rows"),
        ("node-label", "one\n" * 300, "node-label.csv.gz, line 1: 'one' is not 1 number,"),
        ("node_year", "1\n" * 299, "node_year.csv.gz has 299 rows"),
        ("edge_weight", "", "edge_weight.csv.gz has 0 rows"),
    ],
)
def test_wrong_csv(
    arrays: dict[str, Any], tmp_path: Path, memory: str, file: str, content: str, match: str
) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)
    text(folder / "raw" / f"{file}.csv.gz", content)
    refused(folder, match, memory=memory)


@pytest.mark.parametrize(
    "file", ["num-node-list.csv.gz", "num-edge-list.csv.gz", "node-label.csv.gz"]
)
def test_a_missing_file_is_named(arrays: dict[str, Any], tmp_path: Path, file: str) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)
    (folder / "raw" / file).unlink()
    refused(folder, rf"{file} is missing: fetch or unzip")


def test_damaged_gzip(arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)
    for name in ("edge.csv.gz", "node-feat.csv.gz"):
        file = folder / "raw" / name
        whole = file.read_bytes()
        for content in (whole[: len(whole) // 2], b"no gzip"):
            file.write_bytes(content)
            refused(folder, f"{name} cannot be read .*: fetch or unzip the dataset again")
        file.write_bytes(whole)


def test_wrong_splits(arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)
    valid = folder / "split" / "time" / "valid.csv.gz"
    put(valid, [0, NODES])
    refused(folder, "valid.csv.gz, line 2: node 300, but there are 300 nodes")
    valid.unlink()
    refused(folder, "valid.csv.gz is missing")
    shutil.rmtree(folder / "split")
    refused(folder, "holds no scheme of splits")


def test_wrong_folders_arguments_and_missing_packages(
    arrays: dict[str, Any], tmp_path: Path
) -> None:
    refused(tmp_path / "none", "none is not an OGB folder: .*data.npz, .*edge.csv.gz")
    folder = csv_form(tmp_path / "ogb", arrays)
    refused(folder / "raw", "raw is not an OGB folder")
    refused(folder, "more than memory=", ConfigError, memory=8 * NODES - 1)
    refused(folder, "is no size", ConfigError, memory="much")
    refused(folder, "dtype", ConfigError, dtype="text")
    with pytest.raises(ConfigError, match="exists: choose another path"):
        gnndrive.from_ogb(folder, folder)
    for module, match in (("pyarrow", "CSV need pyarrow"), ("duckdb", "larger than memory, need")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            refused(folder, rf"{match}.*pip install 'gnndrive\[import\]'", ConfigError, memory=5000)


@pytest.mark.parametrize("memory", ["4GB", "79KB"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"edge_index": np.full((2, EDGES), NODES)}, r"\(edge_index\), edge 0 .*: node 300, but"),
        ({"edge_index": np.zeros((2, 7), int)}, r"\(edge_index\) has 7 edges, but data.npz says"),
        ({"edge_index": np.zeros((3, EDGES), int)}, "cannot be read as edges .*int64 of shape"),
        ({"edge_index": np.zeros((2, EDGES))}, "cannot be read as edges .*float64"),
        ({"edge_index": np.array([[{}], [{}]])}, "cannot be read as edges .*object"),
        ({"node_feat": np.zeros((7, 2))}, r"\(node_feat\) has 7 rows, but num_nodes_list says"),
        ({"node_feat": np.array([{}] * NODES)}, r"cannot be read \(node_feat: it holds object"),
        ({"node_feat": np.zeros((2, NODES)).T}, "it.* in Fortran order"),
        ({"edge_feat": np.zeros(7)}, r"\(edge_feat\) has 7 rows, but num_edges_list says"),
        ({"colour": np.zeros(NODES)}, "'colour' belongs neither to nodes nor to edges"),
        ({"num_nodes_list": np.array([3, 4])}, r"\[3, 4\] and not the count of one graph"),
    ],
)
def test_wrong_npz(
    arrays: dict[str, Any], tmp_path: Path, memory: str, change: dict[str, Any], match: str
) -> None:
    folder = npz_form(tmp_path / "ogb", arrays)
    given = {**np.load(folder / "raw" / "data.npz"), **change}
    np.savez(folder / "raw" / "data.npz", **given)
    refused(folder, match, memory=memory)


def test_damaged_npz(arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = npz_form(tmp_path / "ogb", arrays, np.savez)
    file = folder / "raw" / "data.npz"
    whole = bytearray(file.read_bytes())
    whole[whole.index(arrays["edge_index"].tobytes()) + 100] ^= 1  # an edge's source
    file.write_bytes(whole)
    refused(folder, "cannot be read as edges .*CRC")
    header = bytearray(whole)
    header[header.index(b"'shape': (2, ") + 9] = ord("{")
    file.write_bytes(header)
    refused(folder, "data.npz .*cannot be read")
    file.write_bytes(whole[:-100])
    refused(folder, "data.npz cannot be read")
    (folder / "raw" / "node-label.npz").unlink()
    npz_form(tmp_path / "other", arrays)
    shutil.copy(tmp_path / "other" / "raw" / "data.npz", file)
    refused(folder, "node-label.npz is missing")
    np.savez(folder / "raw" / "node-label.npz", labels=np.zeros(NODES))
    refused(folder, "node-label.npz cannot be read .node_label")


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("num-node-dict", "author,paper\n1,2\n", "begins or ends at a node type"),
        ("num-node-dict", "../x,paper\n1,2\n", "a type is called '../x'"),
        ("num-node-dict", "author,paper\n1\n", "names and one value for each"),
        ("triplet-type-list", "author,writes\n", "line 1: .* is not source, relation and target"),
        ("nodetype-has-feat", "paper,author\nTrue,True\n", "author/node-feat.csv.gz is missing"),
        ("nodetype-has-label", "author\nTrue\n", "author/node-label.csv.gz is missing"),
        ("relations/paper___cites___paper/edge", "0,1\n0,300\n", "line 2: node 300, but .*'paper'"),
        ("relations/author___writes___paper/edge", "200,1\n", "line 1: node 200, .*'author'"),
        ("relations/paper___cites___paper/edge_reltype", "0\n", "edge_reltype.csv.gz has 1 rows"),
        ("node-feat/paper/node_year", "0\n", "node_year.csv.gz has 1 rows"),
    ],
)
def test_wrong_csv_with_types(
    typed: dict[str, Any], tmp_path: Path, file: str, content: str, match: str
) -> None:
    folder = typed_csv_form(tmp_path / "ogb", typed)
    text(folder / "raw" / f"{file}.csv.gz", content)
    refused(folder, match, (StoreError, ConfigError))


@pytest.mark.parametrize("file", ["num-edge-list.csv.gz", "edge.csv.gz"])
def test_a_missing_relation_is_named(typed: dict[str, Any], tmp_path: Path, file: str) -> None:
    folder = typed_csv_form(tmp_path / "ogb", typed)
    (folder / "raw" / "relations" / "paper___cites___paper" / file).unlink()
    refused(folder, f"paper___cites___paper/{file} is missing")


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("num_edges_dict", {"paper__cites__paper": [1]}, "is not an edge type, which OGB writes"),
        ("num_edges_dict", {"a___b___c": [1]}, "begins or ends at a node type"),
        ("edge_index_dict", {"x": [1]}, "cannot be read as edges .*no item"),
        ("node_year", {"venue": [1]}, "has an array of 'venue', but the types are author, field"),
        ("node_year", {"paper": [1]}, r"node_year.npz \(paper\) has 1 rows, but num_nodes_dict"),
        ("edge_reltype", {"a___b___c": [1]}, "has an array of .*, but the types are"),
        ("node-label", {}, "has no labels"),
        ("venue", {"paper": [1]}, "'venue' belongs neither to nodes nor to edges"),
    ],
)
def test_wrong_npz_with_types(
    typed: dict[str, Any], tmp_path: Path, file: str, content: dict[str, Any], match: str
) -> None:
    folder = typed_npz_form(tmp_path / "ogb", typed)
    np.savez(folder / "raw" / f"{file}.npz", **content)
    refused(folder, match, (StoreError, ConfigError))


def test_undirected_with_types_and_missing_files(typed: dict[str, Any], tmp_path: Path) -> None:
    folder = typed_npz_form(tmp_path / "ogb", typed)
    refused(folder, "undirected= is for one type of edges", ConfigError, undirected=True)
    flags = folder / "split" / "time" / "nodetype-has-split.csv.gz"
    text(flags, "paper\nFalse\n")
    refused(folder, "says that no node type is split")
    flags.unlink()
    refused(folder, "nodetype-has-split.csv.gz is missing")
    (folder / "raw" / "num_nodes_dict.npz").unlink()
    refused(folder, "num_nodes_dict.npz is missing")


def test_an_interruption_leaves_nothing(arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)

    for wanted in ("reading edges", "sorting edges", "nodes/x"):

        def stop(what: str, done: int, total: int, wanted: str = wanted) -> None:
            if what == wanted:
                raise KeyboardInterrupt

        refused(folder, None, KeyboardInterrupt, progress=stop, memory="79KB")
