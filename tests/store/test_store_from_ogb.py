"""from_ogb: the store holds every row and edge of a dataset in each of OGB's forms, or nothing."""

import gzip
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError
from gnndrive.cli.main import main
from gnndrive.store.importers import ends, from_dataset
from gnndrive.store.importers import text as text_module
from tests.store.conftest import edges_of, left, refused, same_array

NODES, EDGES = 90, 600
COUNTS = {"author": 70, "field_of_study": 40, "paper": NODES}
TYPES = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
]
SPLITS = {"train": [5, 3, 9], "valid": [0, 89], "test": [7]}
FLAGS = [[*COUNTS], [str(name == "paper") for name in COUNTS]]  # what only papers have
LITTLE = "23KB"  # less than sorting the edges takes in memory


# ---- folders of datasets, in each of OGB's forms


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()))


def put(folder: Path, under: str, files: Mapping[str, Any]) -> Path:
    """Write files as OGB does: no header, gzipped, nan as an empty text in quotes."""
    for name, given in files.items():
        table = np.asarray(given)
        rows = table.reshape(len(table), -1).tolist() if table.size else []
        lines = [",".join('""' if each != each else str(each) for each in row) for row in rows]
        text(folder / under / f"{name}.csv.gz", "".join(f"{line}\n" for line in lines))
    return folder


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
    files = {"num-node-list": [NODES], "num-edge-list": [EDGES], "edge": arrays["edge_index"].T}
    for name in ("node_feat", "edge_feat", "node_label"):
        files[name.replace("_", "-")] = arrays[name]
    put(folder, "raw", files | {name: arrays[name] for name in ("node_year", "edge_weight")})
    return put(folder, "split/time", SPLITS)


def npz_form(
    folder: Path, arrays: dict[str, Any], save: Callable[..., None] = np.savez_compressed
) -> Path:
    (folder / "raw").mkdir(parents=True)
    given = {**arrays, "num_nodes_list": [NODES], "num_edges_list": [EDGES]}
    save(folder / "raw/node-label.npz", node_label=given.pop("node_label"))
    save(folder / "raw/data.npz", **given)
    return put(folder, "split/time", SPLITS)


def fortran_form(folder: Path, arrays: dict[str, Any]) -> Path:
    edge_index = np.asfortranarray(arrays["edge_index"])
    return npz_form(folder, {**arrays, "edge_index": edge_index}, np.savez)


@pytest.fixture
def typed() -> dict[str, Any]:
    """The arrays of a heterogeneous dataset, by type."""
    random = np.random.default_rng(1)

    def drawn(source: str, target: str) -> Any:
        return np.stack([random.integers(0, COUNTS[end], EDGES) for end in (source, target)])

    return {
        "edge_index": {(s, r, t): drawn(s, t) for s, r, t in TYPES},
        "node_feat": {"paper": random.standard_normal((NODES, 5)).astype(np.float32)},
        "node_year": {"paper": random.integers(1990, 2020, (NODES, 1))},
        "edge_reltype": {type: np.full((EDGES, 1), n) for n, type in enumerate(TYPES)},
        "node_label": {"paper": random.integers(0, 4, (NODES, 1))},
    }


def typed_csv_form(folder: Path, typed: dict[str, Any]) -> Path:
    files = {"num-node-dict": [[*COUNTS], [*COUNTS.values()]], "triplet-type-list": TYPES}
    put(folder, "raw", files | {f"nodetype-has-{what}": FLAGS for what in ("feat", "label")})
    for type in TYPES:
        edges, reltype = typed["edge_index"][type].T, typed["edge_reltype"][type]
        files = {"edge": edges, "num-edge-list": [EDGES], "edge_reltype": reltype}
        put(folder, "raw/relations/" + "___".join(type), files)
    files = {"node-feat": typed["node_feat"]["paper"], "node_year": typed["node_year"]["paper"]}
    put(folder, "raw/node-feat/paper", files)
    put(folder, "raw/node-label/paper", {"node-label": typed["node_label"]["paper"]})
    return put_typed_splits(folder)


def typed_npz_form(folder: Path, typed: dict[str, Any]) -> Path:
    (folder / "raw").mkdir(parents=True)
    joined = {"___".join(type): type for type in TYPES}
    for file, members in {
        "num_nodes_dict": {name: [count] for name, count in COUNTS.items()},
        "num_edges_dict": {name: [EDGES] for name in joined},
        "edge_index_dict": {name: typed["edge_index"][type] for name, type in joined.items()},
        "edge_reltype": {name: typed["edge_reltype"][type] for name, type in joined.items()},
        "node_feat_dict": typed["node_feat"],
        "node_year": typed["node_year"],
        "node-label": typed["node_label"],
    }.items():
        np.savez_compressed(folder / f"raw/{file}.npz", **members)
    return put_typed_splits(folder)


def put_typed_splits(folder: Path) -> Path:
    put(folder, "split/time", {"nodetype-has-split": FLAGS})
    return put(folder, "split/time/paper", SPLITS)


# ---- what becomes of them


def same_splits(nodes: Any) -> None:
    assert {name: nodes.split(name).tolist() for name in nodes.split_names} == {
        "train": SPLITS["train"], "val": SPLITS["valid"], "test": SPLITS["test"],
    }  # fmt: skip


@pytest.mark.parametrize("form", [csv_form, npz_form, fortran_form])
def test_one_type(form, arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(ends, "CHUNK", 100)
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 600)
    folder = form(tmp_path / "ogb", arrays)
    told: list[tuple[str, int, int]] = []

    def load(name: str, memory: Any, **more: Any) -> gnndrive.Store:
        return gnndrive.from_ogb(
            folder, tmp_path / name, progress=lambda *each: told.append(each), memory=memory, **more
        )

    store = load("g.gnn", 40 * EDGES)
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
    assert store.info.made_by == f"gnndrive.from_ogb({folder})"
    store.verify()
    little = load("h.gnn", 40 * EDGES - 1)
    assert little.info.as_dict() == store.info.as_dict()  # with every file's sha256
    assert "sorting edges" in [what for what, _, _ in told]
    both = load("b.gnn", "4GB", undirected=True)
    doubled = np.repeat(arrays["edge_index"], 2, axis=1)
    doubled[:, 1::2] = arrays["edge_index"][::-1]  # the reverse follows each edge
    assert np.array_equal(edges_of(both), doubled)
    same_array(both, "edges/edge_attr", "float32", np.repeat(arrays["edge_feat"], 2, axis=0))
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
    same_array(store, "nodes/paper/x", "float16", typed["node_feat"]["paper"].astype(np.float16))
    same_array(store, "nodes/paper/node_year", "int64", typed["node_year"]["paper"][:, 0])
    same_array(store, "nodes/paper/y", "int64", typed["node_label"]["paper"][:, 0])
    assert store["author"].names == ()
    same_splits(store["paper"])
    little = gnndrive.from_ogb(folder, tmp_path / "h.gnn", dtype="float16", memory=LITTLE)
    assert little.info.as_dict() == store.info.as_dict()


def test_several_labels_and_labels_that_are_not_whole_numbers(arrays, tmp_path):
    tasks = np.random.default_rng(2).integers(0, 2, (NODES, 3))
    folder = csv_form(tmp_path / "a", {**arrays, "node_label": tasks})
    same_array(gnndrive.from_ogb(folder, tmp_path / "a.gnn"), "nodes/y", "int64", tasks)
    real = np.where(np.arange(NODES) % 5, np.arange(NODES) / 4, np.nan)[:, None]
    for form in (csv_form, npz_form):
        folder = form(tmp_path / form.__name__, {**arrays, "node_label": real})
        store = gnndrive.from_ogb(folder, tmp_path / f"{form.__name__}.gnn")
        same_array(store, "nodes/y", "float32", real[:, 0].astype(np.float32))


def test_species_and_several_schemes_of_splits(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    more = {"species": np.arange(NODES) * 1001, "node_score": np.arange(NODES) / 4}
    put(folder, "raw", more)
    shutil.rmtree(folder / "split")
    for scheme in ("species", "random"):
        put(folder, f"split/{scheme}", SPLITS)
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn")
    same_array(store, "nodes/node_species", "int64", more["species"])
    same_array(store, "nodes/node_score", "float32", more["node_score"])
    assert len(store.split_names) == 6
    assert store.split("species_val").tolist() == SPLITS["valid"]


def test_splits_as_tensors(arrays, tmp_path):
    folder = npz_form(tmp_path / "ogb", arrays)
    scheme = folder / "split/time"
    for name in SPLITS:
        (scheme / f"{name}.csv.gz").unlink()
    ids = {name: torch.tensor(each) for name, each in SPLITS.items()}
    torch.save(ids, scheme / "split_dict.pt")
    same_splits(gnndrive.from_ogb(folder, tmp_path / "g.gnn").nodes())
    for wrong, match in (
        ({name: np.array(each) for name, each in SPLITS.items()}, "a pickle can run any code"),
        ({**ids, "test": torch.tensor([0, NODES])}, f"entry 1 of 'test' names node {NODES}"),
        ({**ids, "valid": torch.tensor([0.5])}, "'valid' is not a tensor of node ids"),
        ({**ids, "valid": ids["valid"][:1].expand(9)}, r"more elements .*save tensor\.clone\(\)"),
        ({"train": ids["train"]}, "'valid' is not a tensor of node ids"),
    ):
        torch.save(wrong, scheme / "split_dict.pt")
        refuse(folder, match)


def test_no_edges_and_no_features(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    for name in ("edge_weight", "edge-feat", "node-feat"):
        (folder / f"raw/{name}.csv.gz").unlink()
    put(folder, "raw", {"edge": [], "num-edge-list": [0.0]})
    put(folder, "split/time", {"test": []})
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn")
    assert (store.num_edges, store.num_features, len(store.split("test"))) == (0, 0, 0)


def test_from_dataset_and_the_command_choose_this_importer(arrays, tmp_path, capsys):
    folder, out = npz_form(tmp_path / "ogb", arrays), tmp_path / "g.gnn"
    half = from_dataset(folder, tmp_path / "half.gnn", dtype=np.dtype("float16"))
    assert half.array("nodes/x").dtype == np.float16
    with pytest.raises(ConfigError, match="is not a dataset: give an OGB folder"):
        from_dataset(tmp_path, tmp_path / "h.gnn")
    words = ["import", str(folder), str(out)]
    assert main([*words, "--undirected", "--dtype", "float16", "--memory", "1GB"]) == 0
    store = gnndrive.open(out)
    assert (store.num_edges, store.array("nodes/x").dtype) == (2 * EDGES, np.float16)
    for more, match in (
        (["--edges", "e.csv", "--no-header"], "--edges, --header: the files of the dataset"),
        (["--num-nodes", "0"], "--num-nodes: the files of the dataset"),
        (["--split", "none"], "--split is for a .pt file, and the files of the dataset"),
        ([str(out)], "what is to be imported"),
    ):
        capsys.readouterr()
        assert main([*words, *more]) == 2
        assert match in capsys.readouterr().err
    assert main([*words, "--if-exists", "replace"]) == 0


# ---- what is refused


def refuse(folder: Path, match: str | None, **arguments: Any) -> None:
    kind = arguments.pop("kind", gnndrive.GNNDriveError)
    with refused(folder.parent, match, kind):
        gnndrive.from_ogb(folder, folder.parent / "refused.gnn", **arguments)


def check_files(folder: Path, *cases: tuple[str, str | dict[str, Any] | None, str]) -> None:
    """Check that each content of a file in raw/ is refused: text, arrays, or None for no file."""
    for name, content, match in cases:
        path = folder / "raw" / f"{name}.{'npz' if isinstance(content, dict) else 'csv.gz'}"
        whole = path.read_bytes() if path.exists() else None
        if isinstance(content, dict):
            np.savez(path, **content)
        elif content is None:
            path.unlink()
        else:
            text(path, content)
        refuse(folder, match)
        path.unlink() if whole is None else path.write_bytes(whole)


def test_wrong_csv(arrays, tmp_path):
    check_files(
        csv_form(tmp_path / "ogb", arrays),
        ("edge", "0,1\n\n2,90\n", "edge.csv.gz, line 3: node 90, but there are 90 nodes"),
        ("edge", "0,1\n-1,2\n", "edge.csv.gz, line 2: node -1"),
        ("edge", "0,1\n2,x\n", r"edge.csv.gz, line 2: '2,x' is not 2 whole numbers"),
        ("edge", "0,1\n2,\n", r"edge.csv.gz, line 2: '2,' is not 2 whole numbers"),
        ("edge", "0,1,2\n", r"line 1: '0,1,2' is not 2 whole numbers"),
        ("edge", "0,1\n", "edge.csv.gz has 1 rows, but num-edge-list.csv.gz says 600"),
        ("edge", "0,1\n" * 601, "edge.csv.gz has more than 600 rows, but num-edge-list"),
        ("num-edge-list", "x\n", "num-edge-list.csv.gz: 'x' is not a count"),
        ("num-edge-list", "inf\n", "num-edge-list.csv.gz: 'inf' is not a count"),
        ("num-edge-list", "7\n8\n", "says that there are 2 graphs: give a dataset of one graph"),
        ("num-edge-list", "7\r8\n", r"num-edge-list.csv.gz cannot be read \(new-line character"),
        ("node-feat", "1,2\n", "node-feat.csv.gz has 1 rows, but num-node-list.csv.gz says 90"),
        ("node-feat", "1,2\n1,a\n", "node-feat.csv.gz, line 2: '1,a' is not 2 numbers"),
        ("node-label", "1\n" * 91, "node-label.csv.gz has more than 90 rows"),
        ("edge_weight", "", "edge_weight.csv.gz has 0 rows"),
        *((f"{name}", None, f"{name}.csv.gz is missing: fetch or unzip")
          for name in ("node-label", "num-edge-list", "num-node-list")),
    )  # fmt: skip


def test_damaged_csv_and_wrong_splits(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    file = folder / "raw/edge.csv.gz"
    whole = file.read_bytes()
    text(file, "0,1\n1,2\n1,90\n")
    refuse(folder, "edge.csv.gz, line 3: node 90", undirected=True)
    for content in (whole[: len(whole) // 2], b"no gzip"):
        file.write_bytes(content)
        refuse(folder, "edge.csv.gz cannot be read .*: fetch or unzip the dataset again")
    file.write_bytes(whole)
    put(folder, "split/time", {"valid": [0, NODES]})
    refuse(folder, "valid.csv.gz, line 2: node 90, but there are 90 nodes")
    (folder / "split/time/valid.csv.gz").unlink()
    refuse(folder, "valid.csv.gz is missing")
    shutil.rmtree(folder / "split")
    refuse(folder, "holds no scheme of splits")


def test_wrong_folders_arguments_and_missing_packages(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    refuse(folder / "raw", "raw is not an OGB folder: .*data.npz, .*edge.csv.gz")
    refuse(folder, "more than memory=", memory=8 * NODES - 1)
    refuse(folder, "is no size", memory="much")
    refuse(folder, "dtype", dtype="text")
    for module, match in (("pyarrow", "need pyarrow"), ("duckdb", "larger than memory, need")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            refuse(folder, rf"{match}.*pip install 'gnndrive\[import\]'", memory=5000)


def test_csv_without_pyarrow(arrays, tmp_path, monkeypatch):
    folder = csv_form(tmp_path / "ogb", arrays)
    expected = gnndrive.from_ogb(folder, tmp_path / "g.gnn").info.as_dict()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    store = gnndrive.from_ogb(folder, tmp_path / "h.gnn")
    assert store.info.as_dict() == expected
    check_files(folder, ("node-feat", "1,2\n1,a\n", "line 2: '1,a' is not 2 numbers"))


def test_wrong_npz(arrays, tmp_path):
    folder = npz_form(tmp_path / "ogb", arrays)
    whole = {**np.load(folder / "raw/data.npz")}
    for change, match in (
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
    ):
        check_files(folder, ("data", whole | change, match))
    check_files(folder, ("node-label", {"labels": np.zeros(NODES)}, r"cannot be read .node_label"))
    (folder / "raw/node-label.npz").unlink()
    refuse(folder, "node-label.npz is missing")


def test_damaged_npz(arrays, tmp_path):
    folder = npz_form(tmp_path / "ogb", arrays, np.savez)
    file = folder / "raw/data.npz"
    whole = bytearray(file.read_bytes())
    whole[whole.index(arrays["edge_index"].tobytes()) + 100] ^= 1  # an edge's source
    header = bytearray(whole)
    header[header.index(b"'shape': (2, ") + 9] = ord("{")
    for content, match in (
        (whole, "cannot be read as edges .*CRC"),
        (header, "data.npz .*cannot be read"),
        (whole[:-100], "data.npz cannot be read"),
    ):
        file.write_bytes(content)
        refuse(folder, match)


def test_wrong_csv_with_types(typed, tmp_path):
    cites, writes = "relations/paper___cites___paper", "relations/author___writes___paper"
    check_files(
        typed_csv_form(tmp_path / "ogb", typed),
        ("num-node-dict", "author,paper\n1,2\n", "begins or ends at a node type"),
        ("num-node-dict", "../x,paper\n1,2\n", "a type is called '../x'"),
        ("num-node-dict", "author,paper\n1\n", "names and one value for each"),
        ("triplet-type-list", "author,writes\n", "line 1: .* is not source, relation and target"),
        ("nodetype-has-feat", "paper,author\nTrue,True\n", "author/node-feat.csv.gz is missing"),
        ("nodetype-has-label", "author\nTrue\n", "author/node-label.csv.gz is missing"),
        (f"{cites}/edge", "0,1\n0,90\n", "line 2: node 90, but .*'paper'"),
        (f"{writes}/edge", "70,1\n", "line 1: node 70, .*'author'"),
        (f"{cites}/edge_reltype", "0\n", "edge_reltype.csv.gz has 1 rows"),
        (f"{cites}/num-edge-list", None, "num-edge-list.csv.gz is missing"),
        (f"{cites}/edge", None, "paper___cites___paper/edge.csv.gz is miss"),
    )


def test_wrong_npz_and_splits_with_types(typed, tmp_path):
    folder = typed_npz_form(tmp_path / "ogb", typed)
    check_files(
        folder,
        ("num_edges_dict", {"paper__cites__paper": [1]}, "is not an edge type, which OGB writes"),
        ("num_edges_dict", {"a___b___c": [1]}, "begins or ends at a node type"),
        ("edge_index_dict", {"x": [1]}, "cannot be read as edges .*no item"),
        ("node_year", {"venue": [1]}, "has an array of 'venue', but the types are author, field"),
        ("node_year", {"paper": [1]}, r"node_year.npz \(paper\) has 1 rows, but num_nodes_dict"),
        ("edge_reltype", {"a___b___c": [1]}, "has an array of .*, but the types are"),
        ("node-label", {}, "has no labels"),
        ("venue", {"paper": [1]}, "'venue' belongs neither to nodes nor to edges"),
    )
    refuse(folder, "undirected= is for one type of edges", undirected=True)
    flags = folder / "split/time/nodetype-has-split.csv.gz"
    text(flags, "paper\nFalse\n")
    refuse(folder, "says that no node type is split")
    text(flags, "author,paper\nTrue\n")
    refuse(folder, "should have two, names and one value for each")
    for file in (flags, folder / "raw/num_nodes_dict.npz"):
        file.unlink()
        refuse(folder, f"{file.name} is missing")


def test_an_interruption_leaves_nothing(arrays, tmp_path):
    folder = csv_form(tmp_path / "ogb", arrays)
    for wanted in ("reading edges", "sorting edges", "nodes/x"):

        def stop(what: str, done: int, total: int, wanted: str = wanted) -> None:
            if what == wanted:
                raise KeyboardInterrupt

        refuse(folder, None, kind=KeyboardInterrupt, progress=stop, memory=LITTLE)
