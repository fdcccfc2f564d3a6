"""from_ogb: the store holds every row and every edge of the dataset, in each of OGB's forms; wrong
folders are refused with an error that names the file, and nothing is left behind."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError, StoreError
from gnndrive.cli.main import main
from gnndrive.store.importers import csv_numbers, ends, from_dataset
from tests.soak import product
from tests.store.conftest import edges_of, left, same_array

NODES, EDGES = 90, 600
COUNTS = {"author": 70, "field_of_study": 40, "paper": NODES}
TYPES = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
]
SPLITS = {"train": [5, 3, 9], "valid": [0, 89], "test": [7]}


# ---- folders of datasets, in each of OGB's forms


def put(path: Path, rows: Any) -> None:
    """Write rows as OGB does: no header, gzipped, nan as an empty text in quotes."""
    table = np.asarray(rows)
    table = table if table.ndim == 2 else table[:, None]
    lines = [
        ",".join('""' if each != each else str(each) for each in row) for row in table.tolist()
    ]
    text(path, "".join(f"{line}\n" for line in lines))


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()))


def put_splits(folder: Path) -> None:
    for name, ids in SPLITS.items():
        put(folder / f"{name}.csv.gz", ids)


@pytest.fixture
def arrays() -> dict[str, Any]:
    """The arrays of a homogeneous dataset."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, NODES).astype(np.float32)
    labels[::7] = np.nan
    return {
        "edge_index": random.integers(0, NODES, (2, EDGES)),
        "node_feat": random.standard_normal((NODES, 5)).astype(np.float32),
        "node_year": random.integers(1990, 2020, (NODES, 1)),
        "edge_feat": random.standard_normal((EDGES, 2)).astype(np.float32),
        "edge_weight": random.integers(0, 9, (EDGES, 1)),
        "node_label": labels[:, None],
    }


def csv_form(folder: Path, arrays: dict[str, Any]) -> Path:
    raw = folder / "raw"
    put(raw / "edge.csv.gz", arrays["edge_index"].T)
    put(raw / "num-node-list.csv.gz", [NODES])
    put(raw / "num-edge-list.csv.gz", [EDGES])
    for name in ("node_feat", "edge_feat", "node_label"):
        put(raw / f"{name.replace('_', '-')}.csv.gz", arrays[name])
    for name in ("node_year", "edge_weight"):
        put(raw / f"{name}.csv.gz", arrays[name])
    put_splits(folder / "split" / "time")
    return folder


def npz_form(
    folder: Path, arrays: dict[str, Any], save: Callable[..., None] = np.savez_compressed
) -> Path:
    (folder / "raw").mkdir(parents=True)
    given = dict(arrays)
    save(folder / "raw" / "node-label.npz", node_label=given.pop("node_label"))
    counts = {"num_nodes_list": np.array([NODES]), "num_edges_list": np.array([EDGES])}
    save(folder / "raw" / "data.npz", **given, **counts)
    put_splits(folder / "split" / "time")
    return folder


def fortran_form(folder: Path, arrays: dict[str, Any]) -> Path:
    edge_index = np.asfortranarray(arrays["edge_index"])
    return npz_form(folder, {**arrays, "edge_index": edge_index}, np.savez)


@pytest.fixture
def typed() -> dict[str, Any]:
    """The arrays of a heterogeneous dataset, by type."""
    random = np.random.default_rng(1)
    return {
        "edge_index": {
            (s, r, t): np.stack(
                [random.integers(0, COUNTS[s], EDGES), random.integers(0, COUNTS[t], EDGES)]
            )
            for s, r, t in TYPES
        },
        "node_feat": {"paper": random.standard_normal((NODES, 5)).astype(np.float32)},
        "node_year": {"paper": random.integers(1990, 2020, (NODES, 1))},
        "edge_reltype": {type: np.full((EDGES, 1), n) for n, type in enumerate(TYPES)},
        "node_label": {"paper": random.integers(0, 4, (NODES, 1))},
    }


def typed_csv_form(folder: Path, typed: dict[str, Any]) -> Path:
    raw = folder / "raw"
    put(raw / "num-node-dict.csv.gz", [list(COUNTS), list(COUNTS.values())])
    put(raw / "triplet-type-list.csv.gz", TYPES)
    for what in ("feat", "label"):
        put_flags(raw / f"nodetype-has-{what}.csv.gz")
    for type in TYPES:
        relation = raw / "relations" / "___".join(type)
        put(relation / "edge.csv.gz", typed["edge_index"][type].T)
        put(relation / "num-edge-list.csv.gz", [EDGES])
        put(relation / "edge_reltype.csv.gz", typed["edge_reltype"][type])
    put(raw / "node-feat" / "paper" / "node-feat.csv.gz", typed["node_feat"]["paper"])
    put(raw / "node-feat" / "paper" / "node_year.csv.gz", typed["node_year"]["paper"])
    put(raw / "node-label" / "paper" / "node-label.csv.gz", typed["node_label"]["paper"])
    return put_typed_splits(folder)


def typed_npz_form(folder: Path, typed: dict[str, Any]) -> Path:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    np.savez_compressed(raw / "num_nodes_dict.npz", **{k: [n] for k, n in COUNTS.items()})
    joined = {"___".join(type): type for type in TYPES}
    np.savez_compressed(raw / "num_edges_dict.npz", **{member: [EDGES] for member in joined})
    for name, file in (("edge_index", "edge_index_dict"), ("edge_reltype", "edge_reltype")):
        each = {member: typed[name][type] for member, type in joined.items()}
        np.savez_compressed(raw / f"{file}.npz", **each)
    np.savez_compressed(raw / "node_feat_dict.npz", **typed["node_feat"])
    np.savez_compressed(raw / "node_year.npz", **typed["node_year"])
    np.savez_compressed(raw / "node-label.npz", **typed["node_label"])
    return put_typed_splits(folder)


def put_flags(path: Path) -> None:
    put(path, np.array([[*COUNTS], [name == "paper" for name in COUNTS]], object))


def put_typed_splits(folder: Path) -> Path:
    put_flags(folder / "split" / "time" / "nodetype-has-split.csv.gz")
    put_splits(folder / "split" / "time" / "paper")
    return folder


# ---- what becomes of them


def same_splits(nodes: Any) -> None:
    assert sorted(nodes.split_names) == ["test", "train", "val"]
    for name, ids in SPLITS.items():
        assert nodes.split({"valid": "val"}.get(name, name)).tolist() == ids


@pytest.mark.parametrize("form", [csv_form, npz_form, fortran_form])
def test_one_type(form, arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(ends, "CHUNK", 100)
    monkeypatch.setattr(csv_numbers, "BLOCK_BYTES", 600)
    folder = form(tmp_path / "ogb", arrays)
    told: list[tuple[str, int, int]] = []
    store = gnndrive.from_ogb(
        folder, tmp_path / "g.gnn", progress=lambda *each: told.append(each), memory=40 * EDGES
    )
    assert (store.num_nodes, store.num_edges, store.num_classes) == (NODES, EDGES, 4)
    assert np.array_equal(edges_of(store), arrays["edge_index"])
    same_array(store, "nodes/x", "float32", arrays["node_feat"])
    same_array(store, "edges/edge_attr", "float32", arrays["edge_feat"])
    same_array(store, "nodes/node_year", "int64", arrays["node_year"][:, 0])
    same_array(store, "edges/edge_weight", "int64", arrays["edge_weight"][:, 0])
    labels = np.nan_to_num(arrays["node_label"][:, 0], nan=-1)
    same_array(store, "nodes/y", "int64", labels)
    same_splits(store.nodes())
    assert ("reading edges", EDGES, EDGES) in told
    assert ("nodes/x", NODES * 20, NODES * 20) in told
    assert store.info.made_by == f"gnndrive.from_ogb({folder})"
    store.verify()
    little = gnndrive.from_ogb(
        folder, tmp_path / "h.gnn", progress=lambda *each: told.append(each), memory=40 * EDGES - 1
    )
    assert little.info.as_dict() == store.info.as_dict()  # with every file's sha256
    assert "sorting edges" in [what for what, _, _ in told]
    both = gnndrive.from_ogb(folder, tmp_path / "b.gnn", undirected=True)
    doubled = np.repeat(arrays["edge_index"], 2, axis=1)
    doubled[:, 1::2] = arrays["edge_index"][::-1]  # the reverse follows each edge
    assert np.array_equal(edges_of(both), doubled)
    same_array(both, "edges/edge_attr", "float32", np.repeat(arrays["edge_feat"], 2, axis=0))
    both.verify()
    assert left(tmp_path) == ["b.gnn", "g.gnn", "h.gnn", "ogb"]


@pytest.mark.parametrize("form", [typed_csv_form, typed_npz_form])
def test_several_types(form, typed, tmp_path):
    folder = form(tmp_path / "ogb", typed)
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn", dtype="float16")
    assert {name: store[name].num_nodes for name in store.node_types} == COUNTS
    assert sorted(store.edge_types) == TYPES
    for type in TYPES:
        assert np.array_equal(edges_of(store[type]), typed["edge_index"][type])
        name = f"edges/{'__'.join(type)}/edge_reltype"
        same_array(store, name, "int64", typed["edge_reltype"][type][:, 0])
    x = typed["node_feat"]["paper"].astype(np.float16)
    same_array(store, "nodes/paper/x", "float16", x)
    same_array(store, "nodes/paper/node_year", "int64", typed["node_year"]["paper"][:, 0])
    same_array(store, "nodes/paper/y", "int64", typed["node_label"]["paper"][:, 0])
    assert store["paper"].num_classes == 4
    assert store["author"].names == ()
    same_splits(store["paper"])
    store.verify()
    told: list[str] = []
    little = gnndrive.from_ogb(
        folder, tmp_path / "h.gnn", dtype="float16", memory="23KB",
        progress=lambda what, done, total: told.append(what),
    )  # fmt: skip
    assert little.info.as_dict() == store.info.as_dict()
    assert "sorting paper cites paper" in told
    assert left(tmp_path) == ["g.gnn", "h.gnn", "ogb"]


def test_several_labels_and_labels_that_are_not_whole_numbers(arrays, tmp_path):
    tasks = np.random.default_rng(2).integers(0, 2, (NODES, 3))
    folder = csv_form(tmp_path / "a", {**arrays, "node_label": tasks})
    store = gnndrive.from_ogb(folder, tmp_path / "a.gnn")
    same_array(store, "nodes/y", "int64", tasks)
    assert store.num_classes == 3
    real = np.where(np.arange(NODES) % 5, np.arange(NODES) / 4, np.nan)[:, None]
    for form in (csv_form, npz_form):
        folder = form(tmp_path / form.__name__, {**arrays, "node_label": real})
        store = gnndrive.from_ogb(folder, tmp_path / f"{form.__name__}.gnn")
        same_array(store, "nodes/y", "float32", real[:, 0].astype(np.float32))


def test_species_and_several_schemes_of_splits(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    put(folder / "raw" / "species.csv.gz", np.arange(NODES) * 1001)
    put(folder / "raw" / "node_score.csv.gz", np.arange(NODES) / 4)
    shutil.rmtree(folder / "split")
    for scheme in ("species", "random"):
        put_splits(folder / "split" / scheme)
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn")
    same_array(store, "nodes/node_species", "int64", np.arange(NODES) * 1001)
    same_array(store, "nodes/node_score", "float32", np.arange(NODES) / 4)
    assert len(store.split_names) == 6
    assert store.split("species_val").tolist() == SPLITS["valid"]


def test_splits_as_tensors(arrays, tmp_path):
    folder = npz_form(tmp_path / "ogb", arrays)
    scheme = folder / "split" / "time"
    for name in SPLITS:
        (scheme / f"{name}.csv.gz").unlink()
    ids = {name: torch.tensor(each) for name, each in SPLITS.items()}
    torch.save(ids, scheme / "split_dict.pt")
    same_splits(gnndrive.from_ogb(folder, tmp_path / "g.gnn").nodes())
    for wrong, match in (
        ({name: np.array(each) for name, each in SPLITS.items()}, "a pickle can run any code"),
        ({**ids, "test": torch.tensor([0, NODES])}, f"entry 1 of 'test' names node {NODES}"),
        ({**ids, "valid": torch.tensor([0.5])}, "'valid' is not a tensor of node ids"),
        ({"train": ids["train"]}, "'valid' is not a tensor of node ids"),
    ):
        torch.save(wrong, scheme / "split_dict.pt")
        refused(folder, match)


def test_no_edges_and_no_features(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    for name in ("edge.csv.gz", "edge_weight.csv.gz", "edge-feat.csv.gz", "node-feat.csv.gz"):
        (folder / "raw" / name).unlink()
    put(folder / "raw" / "edge.csv.gz", np.empty((0, 2)))
    put(folder / "raw" / "num-edge-list.csv.gz", [0.0])
    put(folder / "split" / "time" / "test.csv.gz", [])
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn")
    assert (store.num_edges, store.num_features, len(store.split("test"))) == (0, 0, 0)
    store.verify()


def test_from_dataset_and_the_command_choose_this_importer(arrays, tmp_path, capsys):
    folder, out = npz_form(tmp_path / "ogb", arrays), tmp_path / "g.gnn"
    half = from_dataset(folder, tmp_path / "half.gnn", dtype=np.dtype("float16"))
    assert half.array("nodes/x").dtype == np.float16
    with pytest.raises(ConfigError, match="is not a dataset: give an OGB folder"):
        from_dataset(tmp_path, tmp_path / "h.gnn")
    words = ["import", str(folder), str(out)]
    assert main([*words, "--undirected", "--dtype", "float16", "--memory", "1GB"]) == 0
    assert gnndrive.open(out).num_edges == 2 * EDGES
    assert gnndrive.open(out).array("nodes/x").dtype == np.float16
    for more, match in (
        ([], "exists: choose another path, or overwrite=True"),
        (["--edges", "e.csv", "--no-header"], "--edges, --header: the files of the dataset"),
        (["--split", "none", "--num-nodes", "0"], "--num-nodes, --split: the files of the dataset"),
        ([str(out)], "what is to be imported"),
    ):
        capsys.readouterr()
        assert main([*words, *more]) == 2
        assert match in capsys.readouterr().err
    assert main(["import", str(out)]) == 2
    assert main([*words, "--overwrite"]) == 0
    assert gnndrive.open(out).num_edges == EDGES


# ---- what is refused


def refused(folder: Path, match: str | None, kind: Any = StoreError, **arguments: Any) -> None:
    """Check that a folder is refused and that nothing is left behind."""
    before = left(folder.parent)
    with pytest.raises(kind, match=match):
        gnndrive.from_ogb(folder, folder.parent / "refused.gnn", **arguments)
    assert left(folder.parent) == before


LITTLE = "23KB"  # less than sorting the edges takes in memory


@product(
    "case,memory",
    [
        ("edge", "0,1\n\n2,90\n", "edge.csv.gz, line 3: node 90, but there are 90 nodes"),
        ("edge", "0,1\n-1,2\n", "edge.csv.gz, line 2: node -1"),
        ("edge", "0,1\n2,x\n", r"edge.csv.gz, line 2: '2,x' is not 2 whole numbers"),
        ("edge", "0,1\n2,\n", r"edge.csv.gz, line 2: '2,' is not 2 whole numbers"),
        ("edge", "0,1\n2\n", r"edge.csv.gz, line 2: '2' is not 2 whole numbers"),
        ("edge", "0,1,2\n", r"line 1: '0,1,2' is not 2 whole numbers"),
        ("edge", "0,1\n", "edge.csv.gz has 1 rows, but num-edge-list.csv.gz says 600"),
        ("edge", "0,1\n" * 601, "edge.csv.gz has more than 600 rows, but num-edge-list"),
        ("num-edge-list", "599\n", "has more than 599 rows"),
        ("num-edge-list", "x\n", "num-edge-list.csv.gz: 'x' is not a count"),
        ("num-edge-list", "inf\n", "num-edge-list.csv.gz: 'inf' is not a count"),
        ("num-edge-list", "7\n8\n", "says that there are 2 graphs: give a dataset of one graph"),
        ("num-node-list", "89\n", "89.*89"),
        ("node-feat", "1,2\n", "node-feat.csv.gz has 1 rows, but num-node-list.csv.gz says 90"),
        ("node-feat", "1,2\n1,a\n", "node-feat.csv.gz, line 2: '1,a' is not 2 numbers"),
        ("node-label", "1\n" * 91, "node-label.csv.gz has more than 90 rows"),
        ("node-label", "one\n" * 90, "node-label.csv.gz, line 1: 'one' is not 1 number,"),
        ("node_year", "1\n" * 89, "node_year.csv.gz has 89 rows"),
        ("edge_weight", "", "edge_weight.csv.gz has 0 rows"),
    ],
    ["4GB", LITTLE],
)
def test_wrong_csv(arrays, tmp_path, case, memory):
    file, content, match = case
    folder = csv_form(tmp_path / "ogb", arrays)
    text(folder / "raw" / f"{file}.csv.gz", content)
    refused(folder, match, memory=memory)


def test_missing_and_damaged_csv(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    for name in ("edge.csv.gz", "node-feat.csv.gz"):
        file = folder / "raw" / name
        whole = file.read_bytes()
        if name == "edge.csv.gz":
            text(file, "0,1\n1,2\n1,90\n")
            refused(folder, "edge.csv.gz, line 3: node 90", undirected=True)
        for content in (whole[: len(whole) // 2], b"no gzip"):
            file.write_bytes(content)
            refused(folder, f"{name} cannot be read .*: fetch or unzip the dataset again")
        file.write_bytes(whole)
    valid = folder / "split" / "time" / "valid.csv.gz"
    put(valid, [0, NODES])
    refused(folder, "valid.csv.gz, line 2: node 90, but there are 90 nodes")
    valid.unlink()
    refused(folder, "valid.csv.gz is missing")
    shutil.rmtree(folder / "split")
    refused(folder, "holds no scheme of splits")
    for name in ("node-label.csv.gz", "num-edge-list.csv.gz", "num-node-list.csv.gz"):
        (folder / "raw" / name).unlink()
        refused(folder, rf"{name} is missing: fetch or unzip")


def test_wrong_folders_arguments_and_missing_packages(arrays, tmp_path):
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


@product(
    "change,memory",
    [
        ({"edge_index": np.full((2, EDGES), NODES)}, r"\(edge_index\), edge 0 .*: node 90, but"),
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
    ["4GB", LITTLE],
)
def test_wrong_npz(arrays, tmp_path, change, memory):
    folder = npz_form(tmp_path / "ogb", arrays)
    given = {**np.load(folder / "raw" / "data.npz"), **change[0]}
    np.savez(folder / "raw" / "data.npz", **given)
    refused(folder, change[1], memory=memory)


def test_damaged_npz(arrays, tmp_path):
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
        ("relations/paper___cites___paper/edge", "0,1\n0,90\n", "line 2: node 90, but .*'paper'"),
        ("relations/author___writes___paper/edge", "70,1\n", "line 1: node 70, .*'author'"),
        ("relations/paper___cites___paper/edge_reltype", "0\n", "edge_reltype.csv.gz has 1 rows"),
        ("relations/paper___cites___paper/num-edge-list", None, "num-edge-list.csv.gz is missing"),
        ("relations/paper___cites___paper/edge", None, "paper___cites___paper/edge.csv.gz is miss"),
    ],
)
def test_wrong_csv_with_types(typed, tmp_path, file, content, match):
    folder = typed_csv_form(tmp_path / "ogb", typed)
    path = folder / "raw" / f"{file}.csv.gz"
    path.unlink() if content is None else text(path, content)
    refused(folder, match, (StoreError, ConfigError))


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
def test_wrong_npz_with_types(typed, tmp_path, file, content, match):
    folder = typed_npz_form(tmp_path / "ogb", typed)
    np.savez(folder / "raw" / f"{file}.npz", **content)
    refused(folder, match, (StoreError, ConfigError))


def test_undirected_with_types_and_missing_files(typed, tmp_path):
    folder = typed_npz_form(tmp_path / "ogb", typed)
    refused(folder, "undirected= is for one type of edges", ConfigError, undirected=True)
    flags = folder / "split" / "time" / "nodetype-has-split.csv.gz"
    text(flags, "paper\nFalse\n")
    refused(folder, "says that no node type is split")
    flags.unlink()
    refused(folder, "nodetype-has-split.csv.gz is missing")
    (folder / "raw" / "num_nodes_dict.npz").unlink()
    refused(folder, "num_nodes_dict.npz is missing")


def test_an_interruption_leaves_nothing(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    for wanted in ("reading edges", "sorting edges", "nodes/x"):

        def stop(what: str, done: int, total: int, wanted: str = wanted) -> None:
            if what == wanted:
                raise KeyboardInterrupt

        refused(folder, None, KeyboardInterrupt, progress=stop, memory=LITTLE)
