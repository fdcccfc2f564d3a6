"""from_edges: DuckDB sorts Parquet and CSV into the same store as sorting in memory."""

import csv
import shutil
import threading
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store, StoreError
from gnndrive.common.progress import reporting
from gnndrive.store.importers import database, plain_files, table_files
from gnndrive.store.importers import text as text_module
from tests.store.conftest import edges_of, left, poke, refused

NODES, EDGES = 200, 3000


@pytest.fixture(scope="module")
def ends() -> np.ndarray:
    return np.random.default_rng(0).integers(0, NODES, (2, EDGES))


@pytest.fixture
def parquet(ends, tmp_path) -> Path:
    path = tmp_path / "edges.parquet"
    table = pa.table({"from": ends[0], "to": ends[1], "weight": np.arange(EDGES) / 2})
    pq.write_table(table, path, row_group_size=350)
    return path


def same_graph(store: Store, ends: np.ndarray, tmp_path: Path) -> None:
    """Check that a store's graph equals one that is sorted in memory."""
    data = Data(edge_index=torch.from_numpy(ends), num_nodes=store.num_nodes)
    expected = gnndrive.from_data(data, tmp_path / "expected.gnn", if_exists="replace")
    for name in ("indptr", "indices", "edge_id"):
        np.testing.assert_array_equal(getattr(store, name), getattr(expected, name))


def edges(store: Store) -> list[tuple[int, int]]:
    return list(map(tuple, edges_of(store).T.tolist()))


def test_lines_may_end_as_on_an_old_mac(tmp_path):
    (tmp_path / "e.csv").write_bytes(b"source,target\r0,1\r1,2\r2,0\r")
    store = gnndrive.from_edges(tmp_path / "e.csv", tmp_path / "g.gnn")
    assert edges(store) == [(0, 1), (1, 2), (2, 0)]


def test_parquet_with_features_labels_and_splits(parquet, ends, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BATCH", 1000)
    x = np.random.default_rng(1).random((NODES, 5), np.float32)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "y.csv").write_text("".join(f"{n},{n % 3}\n" for n in range(NODES)))
    told: list[tuple[str, int, int]] = []
    store = gnndrive.from_edges(
        parquet, tmp_path / "g.gnn", memory="500MB", columns=["weight"],
        features=tmp_path / "x.npy", labels=tmp_path / "y.csv",
        splits=("random", 0.5, 0.25, 0.25, 0), progress=lambda *each: told.append(each),
    )  # fmt: skip
    same_graph(store, ends, tmp_path)
    np.testing.assert_array_equal(store.array("edges/weight"), np.arange(EDGES) / 2)
    np.testing.assert_array_equal(store.array("nodes/x"), x)
    assert store.num_classes == 3
    assert len(store.split("train")) == NODES // 2
    assert told.index(("sorting edges", 100, 100)) < told.index(("writing edges", EDGES, EDGES))
    store.verify()
    assert left(tmp_path) == ["edges.parquet", "expected.gnn", "g.gnn", "x.npy", "y.csv"]


def test_csv_in_several_files_of_which_some_have_a_header(ends, tmp_path):
    files = [tmp_path / f"{number}.csv" for number in range(3)]
    for file, part in zip(files, np.array_split(ends, 3, axis=1), strict=True):
        lines = "".join(f"{source},{target}\n" for source, target in part.T)
        file.write_text(("" if file == files[1] else "source,target\n") + lines)
    store = gnndrive.from_edges(files, tmp_path / "g.gnn", num_nodes=NODES + 7)
    assert store.num_nodes == NODES + 7
    same_graph(store, ends, tmp_path)


def test_named_columns_and_both_directions(parquet, ends, tmp_path):
    given = {"source": "to", "target": "from", "num_nodes": NODES}
    same_graph(gnndrive.from_edges(parquet, tmp_path / "g", **given), ends[::-1].copy(), tmp_path)
    store = gnndrive.from_edges(parquet, tmp_path / "h", undirected=True)
    expected = {(s, t) for a, b in ends.T.tolist() for s, t in ((a, b), (b, a))}
    assert sorted(edges(store)) == sorted(expected)
    assert store.edge_id is None


@pytest.mark.parametrize("kind", ["text", "sparse"])
def test_ids_are_mapped_and_kept(ends, tmp_path, kind):
    names = np.array([f"node {n:04}{'é' * (n % 3)}" for n in range(NODES)])
    given: Any = names[ends] if kind == "text" else ends * 1_000_003 - 7
    path = tmp_path / "edges.parquet"
    pq.write_table(pa.table({"s": given[0], "t": given[1]}), path)
    store = gnndrive.from_edges(path, tmp_path / "g.gnn", map_ids=True)
    used = np.unique(ends)
    same_graph(store, np.searchsorted(used, ends), tmp_path)
    ids = store.array("nodes/id")
    if kind == "text":
        kept = [bytes(row).rstrip(b"\0").decode() for row in np.asarray(ids)]
        assert kept == names[used].tolist()
    else:
        np.testing.assert_array_equal(ids, used * 1_000_003 - 7)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("named", [[1, 2, 3, 10, 20], ["1,b", "1", "#c", "d e", "é"]])
def test_labels_and_splits_name_mapped_nodes_by_their_ids(tmp_path, named, suffix):
    file, y, train = tmp_path / f"e{suffix}", tmp_path / "y.csv", tmp_path / "train.csv"
    table = pa.table({"s": named, "t": named[1:] + named[:1]})
    (pacsv.write_csv if suffix == ".csv" else pq.write_table)(table, file)
    labels = {named[place]: label for place, label in ((3, 2), (0, 1), (4, 0))}
    lines = [f'"{name}",{label}\n' for name, label in labels.items()]
    train.write_text(f'# chosen\n"{named[4]}"\n\n{named[0]}\n{named[2]}\n')
    np.save(tmp_path / "val.npy", np.array([named[3], named[1]]))
    mask = np.array([False, True, False, False, False])
    given: Any = {
        "map_ids": True, "header": True if suffix == ".csv" else None, "labels": y,
        "splits": {"train": train, "val": tmp_path / "val.npy", "test": named[1:3], "m": mask},
    }  # fmt: skip
    for header in ("", "node,label\n"):
        y.write_text(header + "".join(lines))
        store = gnndrive.from_edges(file, tmp_path / "g.gnn", if_exists="replace", **given)
        number = {name: node for node, name in enumerate(sorted(named))}
        expected = np.full(5, -1)
        expected[[number[name] for name in labels]] = list(labels.values())
        assert store.array("nodes/y").tolist() == expected.tolist()
        for split, places in (("train", [4, 0, 2]), ("val", [3, 1]), ("test", [1, 2])):
            assert store.split(split).tolist() == [number[named[place]] for place in places]
        assert store.split("m").tolist() == [1]
    shutil.rmtree(tmp_path / "g.gnn")
    unknown = tmp_path / "unknown"
    unknown.write_text(f"{named[0]}\nzoe\n")
    for change, match in (
        ({"splits": {"train": unknown}}, "unknown, line 2: no edge has the id 'zoe': correct"),
        ({"splits": {"train": [*named, "0"]}}, r"'train', entry 5 \(from 0\): no edge has the id"),
        ({"labels": y}, "y.csv, line 2: no edge has the id 'zoe': correct"),
    ):
        y.write_text(f"{named[2]},b\nzoe,a\n" if "labels" in change else lines[0])
        with refused(tmp_path, match):
            gnndrive.from_edges(file, tmp_path / "g.gnn", **{**given, **change})
    y.write_text(f'person,label\n"{named[0]}",rome\n{named[1]},\n"{named[3]}",rome\n')
    store = gnndrive.from_edges(file, tmp_path / "g.gnn", **given)
    assert store.classes == ("rome",)
    assert sorted(store.array("nodes/y").tolist()) == [-1, -1, -1, 0, 0]
    shutil.rmtree(store.path)
    y.write_text(lines[0] * 2)
    with refused(tmp_path, f"y.csv, line 2: node {named[3]} has a second label"):
        gnndrive.from_edges(file, tmp_path / "g.gnn", **given)


@pytest.mark.filterwarnings("ignore:.*holds no edges")
def test_kinds_of_text(tmp_path):
    file = tmp_path / "e[1]*.csv"
    (tmp_path / "e1.csv").write_text("7,8\n", encoding="utf-8")  # the file of a wildcard
    for content, arguments, expected in (
        ("0,1\n1,2\n", {}, [(0, 1), (1, 2)]),
        ("# a comment\n\nsource;target\n0;1\n1;2\n", {}, [(0, 1), (1, 2)]),
        ("0 1\n1 2\n", {}, [(0, 1), (1, 2)]),
        ("a\tb\n0\t1\n", {"header": True}, [(0, 1)]),
        ("'0','1'\n'1','2'\n", {}, [(0, 1), (1, 2)]),
        ("s,t\n'0',1\n1,'2'\n", {}, [(0, 1), (1, 2)]),
        ("s,t\n1,'Bob's'\n'tis,1\n", {"map_ids": True, "header": True}, [(2, 0), (1, 2)]),
        ("anna,bert\nbert,c#\n", {"map_ids": True, "header": False}, [(0, 1), (1, 2)]),
        ("user,item\n1,anna\n2,bert\n", {"map_ids": True, "header": True}, [(0, 2), (1, 3)]),
        ("10, 9\n9 ,10\n", {"map_ids": True}, [(1, 0), (0, 1)]),
        ("from,to,w\nanna,bert,2\n", {"map_ids": True}, [(0, 1)]),
        ("from,to\nanna,bert\n", {"map_ids": True, "source": "to", "target": "from"}, [(1, 0)]),
        ("anna,bert,2\n", {"map_ids": True}, [(0, 1)]),
        ("s,t\n'a,b','c'\n", {"map_ids": True, "header": True}, [(0, 1)]),
        ("a,b\n", {"num_nodes": 3, "header": True}, []),
        ("", {"num_nodes": 3}, []),
    ):
        file.write_text(content, encoding="utf-8")
        store = gnndrive.from_edges(file, tmp_path / "g.gnn", if_exists="replace", **arguments)
        assert edges(store) == expected


MANY = "".join(f"{n},{n + 1}\n" for n in range(21_000))
"""More rows of CSV than DuckDB looks at to guess a column's type."""


def whole(*values: Any, dtype: Any = None) -> dict[str, Any]:
    """A Parquet file's columns of ids: one edge less than there are values."""
    ids = pa.array(values, dtype)
    return {"from": ids[:-1], "to": ids[1:]}


@pytest.mark.filterwarnings("ignore:no edge has the id 0")
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("files", "refusal"),
    [
        ([whole(1.0, 2.0, 3.0)], ""),
        ([whole(Decimal("1.0"), Decimal("2.0"), Decimal("3.0"))], ""),
        ([whole(1, 2), whole(2.0, 3.0)], ""),
        ([whole(1, 2, dtype=pa.int8()), whole(2, 3, dtype=pa.uint64())], ""),
        ([whole(1.0, 2.0, 2.5)], "edge 2 has 2.5 in column 'to'"),
        ([whole(Decimal("1.0"), Decimal("2.0"), Decimal("2.5"))], "edge 2 has 2.5 in column 'to'"),
        ([whole(1, 2), whole(1.5, 3.0)], "1.parquet, edge 1 has 1.5 in column 'from'"),
        ([whole(1.0, float("nan"))], "edge 1 has nan in column 'to'"),
        ([whole(1.0, 2.0**53)], "in column 'to', .* up to 9007199254740991"),
        (
            [whole(1, 2, dtype=pa.float32()), whole(2, 2**24, dtype=pa.float32())],
            "1.parquet, edge 1 has 1677",
        ),
    ],
)
def test_numbers_of_any_kind_are_ids_if_they_are_whole(tmp_path, files, refusal, mapped):
    """They are the ids that other files name as whole numbers."""
    paths = [tmp_path / f"{number}.parquet" for number in range(len(files))]
    for path, columns in zip(paths, files, strict=True):
        pq.write_table(pa.table(columns), path)
    (tmp_path / "train.txt").write_text("3\n2\n")
    given: dict[str, Any] = {"map_ids": mapped, "splits": {"train": tmp_path / "train.txt"}}
    if refusal:
        with refused(tmp_path, refusal, StoreError):
            gnndrive.from_edges(paths, tmp_path / "g.gnn", **given)
        return
    store = gnndrive.from_edges(paths, tmp_path / "g.gnn", **given)
    assert edges(store) == [(1 - mapped, 2 - mapped), (2 - mapped, 3 - mapped)]
    assert np.asarray(store.split("train")).tolist() == [3 - mapped, 2 - mapped]


def test_arrow_files_with_a_column_that_one_of_them_lacks(ends, tmp_path):
    for name, part in zip("ab", np.array_split(ends, 2, axis=1), strict=True):
        table = pa.table({"s": part[0], "t": part[1], name: np.zeros(len(part[0]), np.float16)})
        feather.write_feather(table, tmp_path / f"{name}.arrow", chunksize=100)
    files = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
    same_graph(gnndrive.from_edges(files, tmp_path / "g.gnn"), ends, tmp_path)
    with refused(tmp_path, "b.arrow, edge 1 has no value in column 'a'"):
        gnndrive.from_edges(files, tmp_path / "h.gnn", columns=["a"])
    (tmp_path / "b.arrow").write_bytes(b"ARROW1 no")
    with refused(tmp_path, "cannot be read as Arrow files"):
        gnndrive.from_edges(files, tmp_path / "h.gnn")
    (tmp_path / "c.csv").touch()
    with refused(tmp_path, "several kinds, Arrow and text"):
        gnndrive.from_edges([files[0], tmp_path / "c.csv"], tmp_path / "h.gnn")


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".csv"])
@pytest.mark.parametrize("named", [[0, 1, 2], ["b", "c", "ä"]])
def test_features_in_a_table(tmp_path, named, suffix):
    """Rows in the nodes' order, or by the nodes' ids."""
    file, mapped = tmp_path / "e.csv", named[0] == "b"
    file.write_text(f"s,t\n{named[0]},{named[1]}\n{named[2]},{named[0]}\n")
    write = {".csv": pacsv.write_csv, ".parquet": pq.write_table, ".feather": feather.write_feather}
    ordered = {"f0": [0.0, 1.5, 2.0], "f1": [5, 6, 7], "g": [True, False, True]}
    by_id = {"id": named[::-1], **{name: column[::-1] for name, column in ordered.items()}}
    for name, columns in (("x", ordered), ("by_id", by_id)):
        write[suffix](pa.table(columns), tmp_path / f"{name}{suffix}")
    given: dict[str, Any] = {"map_ids": mapped, "header": True, "if_exists": "replace"}
    for features, x, expected in (
        (f"x{suffix}", (), [[0, 5, 1], [1.5, 6, 0], [2, 7, 1]]),
        (f"x{suffix}", ["g", "f*"], [[1, 0, 5], [0, 1.5, 6], [1, 2, 7]]),
        (f"by_id{suffix}:id", "f*", [[0, 5], [1.5, 6], [2, 7]]),
    ):
        features = str(tmp_path / features)
        store = gnndrive.from_edges(file, tmp_path / "g.gnn", features=features, x=x, **given)
        assert store.x.tolist() == expected
        assert store.x.dtype == torch.float32
    assert store.num_nodes == 3
    with refused(tmp_path, r"name those of the features, x=\"f\*\".*by_id.*:id"):
        gnndrive.from_edges(file, tmp_path / "h", features=tmp_path / f"by_id{suffix}", **given)


@pytest.mark.parametrize("named", [[0, 1, 2, 3], ["a", "b", "c", "d"], [11, 12, 13, 14]])
def test_rows_of_features_with_ids_that_are_not_named(tmp_path, named):
    """Rows in the nodes' order are taken; ids in another order are an error, whether their column
    would be left out or be a feature."""
    file, at = tmp_path / "e.csv", tmp_path / "x.parquet"
    pacsv.write_csv(pa.table({"s": named, "t": named[1:] + named[:1]}), file)
    given = {"map_ids": named[0] != 0, "header": True, "features": at}
    rows = [[0.0], [1.0], [2.0], [3.0]]
    for columns in ({"city": list("uuvw"), "emb": rows}, {"f": [0.5, 1.5, 2.5, 3.5]}):
        pq.write_table(pa.table({"user": named[::-1], **columns}), at)
        match = "'user' has ids of nodes, but not in.*features=.*quet:user"
        with refused(tmp_path, match if "city" in columns or named[0] != "a" else "name those of"):
            gnndrive.from_edges(file, tmp_path / "g.gnn", **given)
    some = [*named[:0:-1], named[1]]  # those of 3 of 4 nodes
    for key, warns in ((named, False), (some, given["map_ids"])):
        pq.write_table(pa.table({"user": key, "city": ["u", "u", "v", None], "emb": rows}), at)
        with pytest.warns(UserWarning, match="ids.*'city':") if warns else nullcontext():
            store = gnndrive.from_edges(file, tmp_path / "g.gnn", if_exists="replace", **given)
        assert store.x.tolist() == rows


def test_ids_of_features_and_of_edges_that_differ(tmp_path):
    file, at = tmp_path / "e.csv", tmp_path / "x.csv"
    file.write_text("s,t\na,b\nb,c\n")
    given: dict[str, Any] = {"map_ids": True, "header": True, "features": f"{at}:user"}
    for users, match in (
        ("abcd", "row 4 has the id 'd' in column 'user': no edge has it; correct it, or .*nodes="),
        ("xabycz", "row 1 has the id 'x' .* has it, nor those of 2 more: 'y', 'z'; correct it"),
        ("uvwxyz", "row 1 has the id 'u' .* nor those of 5 more, such as 'v', 'w', 'x'; correct"),
        (
            "b",
            "no row with the id 'a' in column 'user', which edges have, nor .* 1 more: 'c': give",
        ),
        ("cb", "x.csv has no row with the id 'a' in column 'user', which edges have: give each"),
    ):
        at.write_text("user,f\n" + "".join(f"{user},{n}\n" for n, user in enumerate(users)))
        with refused(tmp_path, match, StoreError):
            gnndrive.from_edges(file, tmp_path / "g.gnn", **given)
    np.save(tmp_path / "x.npy", np.ones((4, 1)))
    with refused(tmp_path, "ids say 3: give the same number, or features in a table by the ids"):
        gnndrive.from_edges(file, tmp_path / "g", **{**given, "features": tmp_path / "x.npy"})
    at.write_text("user,f\nd,4\nb,2\nc,3\na,1\n")
    store = gnndrive.from_tables(
        tmp_path / "g.gnn", nodes=f"{at}:user", edges=f"{file}:s,t", x="f", header=True
    )
    assert store.x.tolist() == [[4], [2], [3], [1]]
    assert edges(store) == [(3, 1), (1, 2)]


def test_a_header_above_classes_of_nodes_with_names(tmp_path):
    (tmp_path / "e.csv").write_text("from,to\nb,c\na,b\n")
    given: dict[str, Any] = {"source": "from", "target": "to", "map_ids": True}
    given["labels"] = tmp_path / "y.csv"
    for content, expected in (("name,team\na,z\nc,y\n", [1, -1, 0]), ("a,z\nc,y\n", [1, -1, 0])):
        given["labels"].write_text(content)
        store = gnndrive.from_edges(
            tmp_path / "e.csv", tmp_path / "g.gnn", header=True, if_exists="replace", **given
        )
        assert store.y.tolist() == expected
    given["labels"].write_text("name,team\na,z\n")
    with refused(
        tmp_path, r"line 1: no edge has the id 'name': if it is .* header=True", StoreError
    ):
        gnndrive.from_edges(tmp_path / "e.csv", tmp_path / "h.gnn", **given)


def test_features_in_lists_and_rows_that_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_files, "rows_per_chunk", lambda shape, itemsize: 2)
    file, at = tmp_path / "e.csv", tmp_path / "x.parquet"
    file.write_text("0,1\n2,3\n")
    rows = [[0.0, 1], [2, 3], [4, 5], [6, 7]]
    for type in (pa.list_(pa.float32()), pa.list_(pa.float64(), 2)):
        pq.write_table(pa.table({"id": [3, 1, 0, 2], "emb": pa.array(rows, type)}), at)
        store = gnndrive.from_csv(file, f"{at}:id", None, tmp_path / "g.gnn", if_exists="replace")
        assert store.x.tolist() == [rows[2], rows[1], rows[3], rows[0]]
    for column, match in (
        ({"id": [3, 1, 0, 4]}, "row 4 has the id '4' in column 'id': there are 4 nodes, 0 to 3"),
        ({"id": [3, 1, 0, None]}, "row 4 has the id None"),
        ({"id": [3, 1, 0, 1]}, "row 4 has an id in column 'id' that an earlier row has"),
        ({"id": [3, 1, 0, 2.5]}, "row 4 has 2.5 in column 'id'"),
        ({"emb": [[1.0], [1.0], [1.0], None]}, "row 4 has no value in column 'emb'"),
        ({"emb": [[1.0], [1.0], [1.0], [1.0, 2.0]]}, "row 4 has 2 values in column 'emb', and row"),
        ({"emb": ["a", "b", "c", "d"]}, "is VARCHAR, and .*row 1 has 'a'"),
    ):
        pq.write_table(pa.table({"id": [3, 1, 0, 2], "emb": rows, **column}), at)
        with refused(tmp_path, f"x.parquet.*{match}"):
            gnndrive.from_edges(file, tmp_path / "h", features=f"{at}:id", x="emb")
    pq.write_table(pa.table({"id": [3, 1, 0], "emb": rows[:3]}), at)
    with refused(tmp_path, "num_nodes say 4, features say 3"):
        gnndrive.from_edges(file, tmp_path / "h", features=f"{at}:id", num_nodes=4)
    file.write_text("3,1\n1,9\n")
    with refused(tmp_path, "row 3 has the id '0' in column 'id': no edge has it; .*nodes="):
        gnndrive.from_edges(file, tmp_path / "h", features=f"{at}:id", map_ids=True)
    with refused(tmp_path, "x= .*names columns of a table"):
        gnndrive.from_edges(file, tmp_path / "h", x="f*")


def test_text_in_one_of_several_parquet_files_is_text(tmp_path):
    for name, columns in (("a", whole(1, 7)), ("b", whole("007", "1"))):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    with refused(tmp_path, "is VARCHAR", StoreError):
        gnndrive.from_edges(files, tmp_path / "g.gnn")
    assert gnndrive.from_edges(files, tmp_path / "g.gnn", map_ids=True).num_nodes == 3


@pytest.mark.parametrize("sign", [",", " ", "\t"])
@pytest.mark.parametrize("end", ["# end", "# the end, at last", "#"])
def test_a_comment_behind_the_first_edge_is_no_edge(tmp_path, sign, end):
    file = tmp_path / "edges.csv"
    for mapped in (False, True):
        file.write_text(f"# a comment\na{sign}b\n{end}\n")
        with refused(tmp_path, "line 3: .* is a comment" if mapped else None, StoreError):
            gnndrive.from_edges(file, tmp_path / "g.gnn", map_ids=mapped, header=False)
    file.write_text(f'a{sign}b\n"#a"{sign}b\n')
    assert gnndrive.from_edges(file, tmp_path / "g.gnn", map_ids=True, header=False).num_nodes == 3


@pytest.mark.parametrize("odd", ["007,7", "1e3,1000", "+5,5", "abc,5", '"a,b",5'])
@pytest.mark.parametrize("place", ["first", "last"])
def test_mapped_ids_in_text_are_compared_as_text(tmp_path, odd, place):
    file = tmp_path / "e.csv"
    file.write_text(f"{odd}\n{MANY}" if place == "first" else f"{MANY}{odd}\n")
    store = gnndrive.from_edges(file, tmp_path / "g.gnn", map_ids=True, header=False)
    names = [bytes(row).rstrip(b"\0").decode() for row in np.asarray(store.array("nodes/id"))]
    assert sorted(names) == sorted({*map(str, range(21_001)), *next(csv.reader([odd]))})
    assert sorted((names[s], names[t]) for s, t in edges(store)) == sorted(
        tuple(row) for row in csv.reader([*MANY.split(), odd])
    )


def test_a_late_row_decides_the_type_of_a_column(tmp_path):
    file, given = tmp_path / "e.csv", {"columns": ["w"], "if_exists": "replace"}
    many = "s,t,w\n" + MANY.replace("\n", ",3\n")
    file.write_text(f"{many}0,1,0.5\n")
    weight = gnndrive.from_edges(file, tmp_path / "g.gnn", **given).array("edges/w")
    assert weight.tolist() == [3.0] * 21_000 + [0.5]
    for row, match in (
        ("0,1,x", "'w' is VARCHAR, and .*e.csv, edge 21001 has 'x': .*or correct it"),
        ("0,1, ", "edge 21001 has no value in column 'w'"),
        ("0.5,1,2", "edge 21001 has '0.5'"),
        ('"x",1,2', "edge 21001 has 'x' .*map_ids=True"),
    ):
        file.write_text(f"{many}{row}\n")
        with pytest.raises(Exception, match=match):
            gnndrive.from_edges(file, tmp_path / "g.gnn", **given)


# ---- refusals, which leave nothing behind


def test_invalid_edges_and_arguments_are_refused(tmp_path):
    path = tmp_path / "edges.parquet"
    for table, match, arguments in (
        ({"s": [0, 1], "t": [1, -2]}, "edge 2, 1 to -2, has an end that is missing or neg", {}),
        ({"s": [0, None], "t": [1, 2]}, "edge 2, None to 2, has an end that is missing", {}),
        ({"s": [0, 9], "t": [1, 2]}, r"edge 2, 9 to 2, names a node, .*num_nodes=10",
         {"num_nodes": 5}),
        ({"s": ["a"], "t": ["b"]}, "edge 1 has 'a' in column 's', .* VARCHAR: .*map_ids=True", {}),
        ({"s": ["1", "b"], "t": ["2", "3"]}, "edge 2 has 'b' in column 's'", {}),
        ({"s": ["1"], "t": ["2"]}, "edge 1 has '1' in column 's', which is VARCHAR", {}),
        ({"s": [1.5], "t": [2.0]}, "is DOUBLE", {}),
        ({"s": [1]}, "has 1 column", {}),
        ({"s": [1], "t": [2]}, "there is no column 'u'; there are 's', 't'", {"source": "u"}),
        ({"s": [1], "t": [2]}, r"no column 'tt' \(did you mean t\?\)", {"columns": ["tt"]}),
        ({"s": [1], "t": [2], "w": ["x"]}, "only columns of numbers", {"columns": ["w"]}),
        ({"s": [1, 1], "t": [2, 2], "w": [1, None]}, "edges.parquet, edge 2 has no value in col",
         {"columns": ["w"]}),
        ({"s": [1], "t": [10**12]}, "go up to 1000000000000.*map_ids", {}),
        ({"s": [1], "t": np.array([2**63 + 1], np.uint64)}, "go up to 92233.*map_ids", {}),
        ({"s": [1], "t": [2]}, "one direction", {"columns": ["s"], "undirected": True}),
        ({"s": [1], "t": [2]}, "num_nodes say 9, the mapped ids say 2: give the same",
         {"num_nodes": 9, "map_ids": True}),
    ):  # fmt: skip
        pq.write_table(pa.table(table), path)
        with refused(tmp_path, match):
            gnndrive.from_edges(path, tmp_path / "g.gnn", **arguments)


def test_wrong_text_and_files_that_cannot_be_read(tmp_path, monkeypatch):
    text = tmp_path / "e.csv"
    for content, arguments, match in (
        ("-0,1\n0.5,2\n", {}, "edge 2 has '0.5'"),
        ("0,1\n1,2\n0,1e0\n", {}, "edge 3 has '1e0'"),
        ("source,target\n0,1\n2,a\n", {}, "edge 2 has 'a'"),
        ("0,99999999999999999999\n", {}, "edge 1 has '99999999999999999999'"),
        ("1,2\n3,x\n4,5\n6;7,8\n" * 3000, {}, "e.csv"),
        ("a,b\nb,c\n", {"map_ids": True}, "or the columns' names"),
    ):
        text.write_text(content)
        with refused(tmp_path, match):
            gnndrive.from_edges(text, tmp_path / "g.gnn", **arguments)
    (tmp_path / "e.parquet").write_bytes(b"PAR1 no")
    for source, match in (
        (tmp_path / "e.parquet", "e.parquet"),
        (tmp_path / "none.parquet", r"none\.parquet is missing: give"),
        ([], "names no file"),
        ("/dev/zero", "is a device"),
    ):
        with refused(tmp_path, match):
            gnndrive.from_edges(source, tmp_path / "g.gnn")
    with refused(tmp_path, "is a device"):
        gnndrive.from_csv("/dev/zero", None, "/dev/zero", tmp_path / "s")
    text.write_text("0" * 200_000 + ",1\n")
    with refused(tmp_path, r"line 1: field larger than field limit"):
        gnndrive.from_edges(text, tmp_path / "g.gnn")
    monkeypatch.setattr(text_module, "LINE_BYTES_MAX", 100)
    for content in ("0" * 101, "0,1\n\n" + "0" * 101):
        text.write_text(content)
        with pytest.raises(StoreError, match="has a line of more than"):
            table_files._first_rows(text)


def test_a_damaged_row_group_is_named(parquet, tmp_path):
    start = pq.ParquetFile(parquet).metadata.row_group(5).column(0).data_page_offset
    poke(parquet, start, b"\xff" * 40)
    with refused(tmp_path, r"edges\.parquet, row group 5 of 9"):
        gnndrive.from_edges(parquet, tmp_path / "g.gnn")


def test_what_the_system_lacks_is_named(parquet, tmp_path, monkeypatch):
    read_only = OSError(30, "Read-only file system")
    for module, name, error, match in (
        (database, "TemporaryFolder", read_only, r"written to \(Read-only file system\)"),
        (threading.Thread, "start", RuntimeError("can't start new thread"), "ulimit -u"),
    ):
        with monkeypatch.context() as patch, refused(tmp_path, match):
            patch.setattr(module, name, Mock(side_effect=error))
            gnndrive.from_edges(parquet, tmp_path / "g.gnn")


def sorting(*shares: float) -> Mock:
    """A fake DuckDB connection in the middle of a sort, which ends with the last of the given
    progress values, or when it is interrupted."""
    ended, left, db = threading.Event(), list(shares), Mock()

    def read(batch: int) -> Any:
        ended.wait()
        if db.interrupt.called:
            raise RuntimeError("INTERRUPT Error")
        return iter(())

    def progress() -> float:
        if len(left) == 1:
            ended.set()
        return left.pop(0) if len(left) > 1 else left[0]

    db.sql.return_value.to_arrow_reader.side_effect = read
    db.query_progress.side_effect = progress
    db.interrupt.side_effect = ended.set
    return db


def test_a_query_reports_its_progress_and_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(database, "POLL_S", 0)
    told: list[int] = []
    made = database.Database.__new__(database.Database)
    made._db = sorting(-1.0, 0.0, 12.5, 40.0, 50.0)
    made._open_reader("", told.append, 1)
    assert told[:5] == [0, 0, 25, 80, 99]
    assert told[-1] == 100
    made._db = sorting(12.5, 40.0, 50.0)
    made._db.execute.side_effect = made._db.sql.return_value.to_arrow_reader.side_effect
    shown: list[tuple[str, int, int]] = []
    with reporting(lambda *each: shown.append(each)):
        made.run("")
    assert shown[:2] == [("reading tables", 12, 100), ("reading tables", 40, 100)]
    assert shown[-1] == ("reading tables", 100, 100)
    made._db = sorting(1.0, 2.0, 3.0, 4.0)

    def tell(percent: int) -> None:
        if percent >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made._open_reader("", tell, 1)
    made._db.interrupt.assert_called_once()
