"""from_ogb: the store holds every row and every edge of the dataset, in each of OGB's forms."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import ConfigError
from gnndrive.cli.main import main
from gnndrive.store.importers import csv_numbers, ends, from_dataset
from tests.store.ogb_folders import (
    COUNTS,
    EDGES,
    NODES,
    SPLITS,
    TYPES,
    csv_form,
    fortran_form,
    left,
    make_arrays,
    make_typed,
    npz_form,
    plain_form,
    put,
    put_splits,
    refused,
    typed_csv_form,
    typed_npz_form,
)
from tests.store.same import same_array, same_edges

FORMS = [csv_form, npz_form, plain_form, fortran_form]


@pytest.fixture
def arrays() -> dict[str, Any]:
    return make_arrays()


@pytest.fixture
def typed() -> dict[str, Any]:
    return make_typed()


def same_splits(nodes: Any) -> None:
    assert sorted(nodes.split_names) == ["test", "train", "val"]
    for name, ids in SPLITS.items():
        assert nodes.split({"valid": "val"}.get(name, name)).tolist() == ids


@pytest.mark.parametrize("form", FORMS)
def test_one_type(form: Any, arrays: dict[str, Any], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    store = gnndrive.from_ogb(
        form(tmp_path / "ogb", arrays), tmp_path / "g.gnn", progress=lambda *each: told.append(each)
    )
    assert (store.num_nodes, store.num_edges, store.num_classes) == (NODES, EDGES, 4)
    same_edges(store, None, arrays["edge_index"])
    same_array(store, "nodes/x", "float32", arrays["node_feat"])
    same_array(store, "edges/edge_attr", "float32", arrays["edge_feat"])
    same_array(store, "nodes/node_year", "int64", arrays["node_year"][:, 0])
    same_array(store, "edges/edge_weight", "int64", arrays["edge_weight"][:, 0])
    labels = np.nan_to_num(arrays["node_label"][:, 0], nan=-1)
    same_array(store, "nodes/y", "int64", labels)
    same_splits(store.nodes())
    assert ("reading edges", EDGES, EDGES) in told
    assert ("nodes/x", NODES * 20, NODES * 20) in told
    assert store.info.made_by == f"gnndrive.from_ogb({tmp_path / 'ogb'})"
    store.verify()
    assert left(tmp_path) == ["g.gnn", "ogb"]


@pytest.mark.parametrize("form", [typed_csv_form, typed_npz_form])
def test_several_types(form: Any, typed: dict[str, Any], tmp_path: Path) -> None:
    store = gnndrive.from_ogb(form(tmp_path / "ogb", typed), tmp_path / "g.gnn", dtype="float16")
    assert {name: store[name].num_nodes for name in store.node_types} == COUNTS
    assert sorted(store.edge_types) == TYPES
    for type in TYPES:
        same_edges(store, type, typed["edge_index"][type])
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
    assert left(tmp_path) == ["g.gnn", "ogb"]


@pytest.mark.parametrize("form", FORMS)
def test_the_reverse_follows_each_edge(form: Any, arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = form(tmp_path / "ogb", arrays)
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn", undirected=True)
    doubled = np.repeat(arrays["edge_index"], 2, axis=1)
    doubled[:, 1::2] = arrays["edge_index"][::-1]
    same_edges(store, None, doubled)
    same_array(store, "edges/edge_attr", "float32", np.repeat(arrays["edge_feat"], 2, axis=0))
    store.verify()


@pytest.mark.parametrize("form", FORMS)
def test_little_memory_gives_the_same_store(
    form: Any, arrays: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "CHUNK", 300)
    monkeypatch.setattr(csv_numbers, "BLOCK_BYTES", 2000)
    folder = form(tmp_path / "ogb", arrays)
    told: list[str] = []
    stores = [
        gnndrive.from_ogb(
            folder, tmp_path / name, memory=memory, made_by="a test",
            progress=lambda what, done, total: told.append(what),
        )
        for name, memory in (("a.gnn", 40 * EDGES), ("b.gnn", 40 * EDGES - 1))
    ]  # fmt: skip
    assert stores[0].info.as_dict() == stores[1].info.as_dict()  # with every file's sha256
    assert "sorting edges" in told
    assert left(tmp_path) == ["a.gnn", "b.gnn", "ogb"]


@pytest.mark.parametrize("form", [typed_csv_form, typed_npz_form])
def test_little_memory_for_several_types(form: Any, typed: dict[str, Any], tmp_path: Path) -> None:
    folder = form(tmp_path / "ogb", typed)
    told: list[str] = []
    stores = [
        gnndrive.from_ogb(
            folder, tmp_path / name, memory=memory, made_by="a test",
            progress=lambda what, done, total: told.append(what),
        )
        for name, memory in (("a.gnn", "1GB"), ("b.gnn", "79KB"))
    ]  # fmt: skip
    assert stores[0].info.as_dict() == stores[1].info.as_dict()
    assert "sorting paper cites paper" in told
    assert left(tmp_path) == ["a.gnn", "b.gnn", "ogb"]


def test_several_labels_and_labels_that_are_not_whole_numbers(
    arrays: dict[str, Any], tmp_path: Path
) -> None:
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


def test_species_and_several_schemes_of_splits(arrays: dict[str, Any], tmp_path: Path) -> None:
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


def test_splits_as_tensors(arrays: dict[str, Any], tmp_path: Path) -> None:
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


def test_no_edges_and_no_features(arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)
    for name in ("edge.csv.gz", "edge_weight.csv.gz", "edge-feat.csv.gz", "node-feat.csv.gz"):
        (folder / "raw" / name).unlink()
    put(folder / "raw" / "edge.csv.gz", np.empty((0, 2)))
    put(folder / "raw" / "num-edge-list.csv.gz", [0.0])
    put(folder / "split" / "time" / "test.csv.gz", [])
    store = gnndrive.from_ogb(folder, tmp_path / "g.gnn")
    assert (store.num_edges, store.num_features, len(store.split("test"))) == (0, 0, 0)
    store.verify()


def test_from_dataset_chooses_this_importer(arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = csv_form(tmp_path / "ogb", arrays)
    store = from_dataset(folder, tmp_path / "g.gnn", undirected=True)
    assert store.num_edges == 2 * EDGES
    assert store.array("nodes/x").dtype == np.float32
    half = from_dataset(folder, tmp_path / "half.gnn", dtype=np.dtype("float16"))
    assert half.array("nodes/x").dtype == np.float16
    with pytest.raises(ConfigError, match="is not a dataset: give an OGB folder"):
        from_dataset(tmp_path, tmp_path / "h.gnn")


def test_the_command_line(
    arrays: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = csv_form(tmp_path / "ogb", arrays), tmp_path / "g.gnn"
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
