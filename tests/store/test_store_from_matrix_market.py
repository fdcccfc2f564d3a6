"""MatrixMarket files become the graph that SciPy and PyG read from them, by both importers."""

import gzip
import itertools
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from torch_geometric.utils import from_scipy_sparse_matrix

import gnndrive
from gnndrive import Store
from gnndrive.store.importers import text as text_module
from tests.store.conftest import edges_of, refused

BANNER = "%%MatrixMarket matrix coordinate real general\n"
SKEW = BANNER.replace("real general", "integer skew-symmetric")


@pytest.fixture(params=[gnndrive.from_csv, gnndrive.from_edges])
def load(request, tmp_path) -> Any:
    """Import a matrix, with either importer."""

    def load(file: Path, **given: Any) -> Store:
        given = {"features": None, "labels": None, "splits": None, **given}
        return request.param(file, path=tmp_path / "g.gnn", if_exists="replace", **given)

    return load


def in_order(ends: Any, weights: Any) -> list[tuple[int, int, float]]:
    return sorted(zip(*ends.tolist(), weights.tolist(), strict=True))


@pytest.mark.parametrize(
    ("field", "symmetry"),
    [
        *itertools.product(["real", "integer"], ["general", "symmetric", "skew-symmetric"]),
        *itertools.product(["unsigned-integer", "pattern"], ["general", "symmetric"]),
    ],
)
def test_edges_and_weights_are_those_of_scipy(tmp_path, load, field, symmetry, monkeypatch):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 100)
    dtype = {"integer": np.int64, "unsigned-integer": np.uint64}.get(field, np.float64)
    sign = -1 if symmetry == "skew-symmetric" else 1
    random = np.random.default_rng(0)
    dense = random.integers(1, 9, (30, 30)) * (random.random((30, 30)) < 0.1)
    if symmetry != "general":
        dense = np.tril(dense, -1 if sign == -1 else 0)
        dense = dense + sign * np.tril(dense, -1).T
    matrix = scipy.sparse.coo_array(dense.astype(dtype) / (4 if field == "real" else 1))
    file = tmp_path / "graph.mtx"
    scipy.io.mmwrite(file, matrix.astype(dtype), "a comment", field, symmetry=symmetry)
    assert f"{field} {symmetry}" in file.read_text().splitlines()[0]
    expected, weights = from_scipy_sparse_matrix(scipy.io.mmread(file))
    store = load(file)
    assert store.num_nodes == 30
    assert in_order(edges_of(store), torch.ones(len(weights))) == in_order(
        expected, torch.ones(len(weights))
    )
    if field == "pattern":
        return
    assert "--edge-column weight" in store.info.made_by
    kept = gnndrive.from_edges(file, tmp_path / "w.gnn", columns=["weight"])
    assert in_order(edges_of(kept), kept.array("edges/weight")) == in_order(expected, weights)
    assert "left out" not in kept.info.made_by


def test_dialects_and_packed_files(tmp_path, load):
    """Spaces as in files of Matlab, an entry that is repeated, lines between the first and the
    sizes, and no end of the last line; ids of labels and splits are not those of the matrix."""
    text = "%%matrixmarket MATRIX Coordinate Real symmetric\r\n%\n%% # , 1\n\n  3 3  4\n"
    text += " 2  1\t.5\r\n3   3 1e-3\n2 1 -2.\n3 2 +1E2"
    (tmp_path / "y.csv").write_text("2,0\n")
    for name in ("graph.mtx", "graph.MTX.gz"):
        if name.endswith("gz"):
            packed = gzip.compress(text.replace("symmetric", "Hermitian").encode())
        else:
            packed = text.encode()
        (tmp_path / name).write_bytes(packed)
        given: Any = {"labels": tmp_path / "y.csv", "splits": {"train": [3]}}
        store = load(tmp_path / name, first_id=1, **given)
        both = [(1, 0), (0, 1), (2, 2), (1, 0), (0, 1), (2, 1), (1, 2)]
        assert list(map(tuple, edges_of(store).T.tolist())) == both
        assert (store.tensor("y").tolist(), store.split("train").tolist()) == ([-1, 0, -1], [2])
    kept = gnndrive.from_edges(tmp_path / name, tmp_path / "w.gnn", columns=["weight"])
    assert kept.array("edges/weight").tolist() == [0.5, 0.5, 1e-3, -2, -2, 100, 100]


def test_labels_and_splits_whose_ids_seem_to_count_as_the_matrix_does(tmp_path, load):
    file, y = tmp_path / "graph.mtx", tmp_path / "y.csv"
    file.write_text(BANNER + "3 3 1\n1 2 1\n")
    for labels, splits, warns in (
        ("1,5\n2,6\n", None, True),
        (None, {"train": [2, 1], "mask": np.array([True, False, False])}, True),
        ("1,5\n", {"train": [0]}, False),
        ("5\n6\n7\n", ("random", 0.5, 0.5, 0, 0), False),
    ):
        y.write_text(labels or "")
        given: Any = {"labels": y if labels else None, "splits": splits}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            load(file, **given)
            load(file, first_id=1, **given) if warns else None
        assert " ".join(str(each.message) for each in said).count("no label and no") == warns


@pytest.mark.parametrize("kind", ["pattern symmetric", "real general"])
def test_a_matrix_without_entries(tmp_path, load, kind):
    (tmp_path / "graph.mtx").write_text(f"%%MatrixMarket matrix coordinate {kind}\n3 3 0")
    with pytest.warns(UserWarning, match="graph.mtx holds no edges"):
        store = load(tmp_path / "graph.mtx")
    assert (store.num_nodes, store.num_edges) == (3, 0)


def test_wrong_files_are_named(tmp_path, load):
    file = tmp_path / "graph.mtx"
    for content, match in (
        ("0,1\n", r"graph.mtx, line 1: '0,1' is not '%%MatrixMarket matrix coordinate"),
        ("", "line 1"),
        (BANNER.replace("real", "complex"), "line 1: .*give a matrix in the form coordinate"),
        (BANNER.replace("coordinate", "array"), "line 1: .*give a matrix in the form coordinate"),
        (BANNER + "% no more\n", "ends before the numbers of rows"),
        (BANNER + "2 2\n", "line 2: '2 2' is not the numbers of rows, columns and entries"),
        (BANNER + "2 3 1\n1 1 1\n", "line 2: the matrix has 2 rows and 3 columns, .*bmat"),
        (BANNER + "%\n2 2 1\n\n3 1 1\n", "line 5: 3 is no row or column, .* 1 to 2 by line 3"),
        (BANNER + "2 2 2\n1 1 1\n2 0 1\n", "line 4: 0 is no row"),
        (BANNER + "2 2 1\n1 1.5 1\n", "line 3: 1.5 is no row"),
        (BANNER + "2 2 1\n1 nan 1\n", "line 3: nan is no row"),
        (BANNER + "2 2 1\n1 2\n", "line 3: '1 2' is not 3 numbers"),
        (BANNER + "2 2 1\n1  2\n", "line 3: '1  2' is not 3 numbers"),
        (BANNER.replace("real", "integer") + "2 2 1\n1 2 .5\n", "line 3: .* not 3 whole numbers"),
        (BANNER.replace("real", "pattern") + "2 2 1\n1 2 1\n", "line 3: .* not 2 whole numbers"),
        (BANNER + "2 2 2\n1 1 1\n", "graph.mtx has 1 rows, but its line 2 says 2"),
        (BANNER + "2 2 1\n1 1 1\n2 2 1\n", "graph.mtx has 2 rows, but its line 2 says 1"),
        (BANNER + f"{2**60} {2**60} 1\n1 1 1\n", "index pointers .* nodes alone (?!.*map_ids)"),
        (BANNER + "2 2 2\n1 1 1\n1 2 NA\n", "line 4: nan is no finite value, or none is there"),
        (BANNER + "2 2 2\n1,1,1\n1,2,\n", "line 4: nan is no finite value"),
        (BANNER + "2 2 1\n1 2 1e400\n", "line 3: inf is no finite value"),
        (SKEW + f"2 2 2\n2 1 1\n2 1 {-2**63}\n", "line 4: -9.*e.18 has no negative in 64 bits"),
        (SKEW + "2 2 1\n2 2 1\n", "line 3: 2 is row and column, and a skew-symmetric"),
    ):  # fmt: skip
        file.write_text(content)
        with refused(tmp_path, match):
            load(file)
    file.unlink()
    os.mkfifo(file)
    with refused(tmp_path, "graph.mtx is no plain file: save the matrix"):
        load(file)
    file.unlink()
    file.write_text(BANNER + "2 2 1\n1 2 1\n")
    np.save(tmp_path / "x.npy", np.zeros((3, 1)))
    with refused(tmp_path, "features say 3, rows of the matrix say 2"):
        load(file, features=tmp_path / "x.npy")


def test_a_matrix_is_a_whole_graph_of_numbered_nodes(tmp_path):
    (tmp_path / "graph.mtx").write_text(BANNER + "2 2 1\n1 2 1\n")
    files = [tmp_path / "graph.mtx", tmp_path / "graph.mtx"]
    for edges, given, match in (
        (files, {}, "is all edges of a graph: give one"),
        (files[0], {"map_ids": True}, "map_ids=True .* leave it out"),
        (files[0], {"header": False}, "header= is for CSV, .* leave it out"),
        (files[0], {"columns": ["value"]}, "no column 'value'; there are 'source', .*'weight'"),
        (files[0], {"num_nodes": 3}, "num_nodes say 3, rows of the matrix say 2"),
    ):
        with refused(tmp_path, match):
            gnndrive.from_edges(edges, tmp_path / "g.gnn", **given)
