"""from_csv: text and feature files become a store; errors name the wrong line."""

import gzip
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import scipy.sparse
import torch

from gnndrive import ConfigError, StoreError
from gnndrive.common.progress import reporting
from gnndrive.store import Store
from gnndrive.store.importers import RandomSplit, from_csv, from_edges, random_split
from gnndrive.store.importers import features as features_module
from gnndrive.store.importers import text as text_module
from tests.soak import product
from tests.store.conftest import edges_of, poke, refused

EDGES = [(0, 1), (2, 1), (3, 0), (2, 1), (4, 4)]


def lines(separator: str = ",", header: str = "source,target") -> str:
    body = "\n".join(f"{a}{separator}{b}" for a, b in EDGES)
    return f"{header.replace(',', separator)}\n{body}\n" if header else body


def test_a_wrong_node_from_a_pipe_is_named_by_its_row(tmp_path):
    ends = os.pipe()
    os.write(ends[1], b"0 1\n1 9\n")
    os.close(ends[1])
    with pytest.raises(StoreError, match=r"row 1: node 9, but there are 5 nodes"):
        text_module.read_edges(Path(f"/dev/fd/{ends[0]}"), 5)
    os.close(ends[0])


class Files:
    """Source files in a folder, all valid until a test replaces one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.x = np.arange(15, dtype=np.float32).reshape(5, 3)
        self.put("edges.csv", lines())
        self.put("labels.csv", "node,label\n0,dog\n1,cat\n2,dog\n3,ant\n4,cat\n")
        np.save(folder / "x.npy", self.x)

    def put(self, name: str, content: str | bytes) -> None:
        content = content if isinstance(content, bytes) else content.encode()
        (self.folder / name).write_bytes(content)

    def load(self, features: str | None = "x.npy", labels: str | None = "labels.csv", **more):
        x, y = (None if each is None else self.folder / each for each in (features, labels))
        return from_csv(
            self.folder / "edges.csv", x, y, self.folder / "s", if_exists="replace", **more
        )

    def refuse(self, match: str, *given: Any, **more: Any) -> None:
        with refused(self.folder, match):
            self.load(*given, **more)


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


def pairs(store: Store) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in edges_of(store).T.tolist()]


def test_edges_features_labels_and_splits(files):
    seen: list[tuple[str, int, int]] = []
    store = files.load(progress=lambda *call: seen.append(call))
    assert pairs(store) == EDGES
    assert torch.equal(store.tensor("x"), torch.from_numpy(files.x))
    assert store.classes == ("ant", "cat", "dog")
    assert store.tensor("y").tolist() == [2, 1, 2, 0, 1]
    assert sum(len(store.split(name)) for name in store.split_names) == 5
    assert "edges.csv" in store.info.made_by
    assert {"edges.csv", "nodes/x"} <= {what for what, _, _ in seen}
    assert all(0 < done <= total for _, done, total in seen)
    both = sorted(set(EDGES) | {(b, a) for a, b in EDGES})
    assert pairs(files.load(undirected=True)) == both


@product(
    "separator,header,end,quoted",
    [",", "\t", " ", ";", ", ", "   "],
    ["", "source,target", "# SNAP file\n#,again", "\n\nsrc,dst"],
    ["\n", "\r\n"],
    [False, False, False, False, True, True, True],
)
def test_dialects(files, separator, header, end, quoted):
    text = lines(separator, header)
    if quoted:  # all numbers but one, because a program may quote some
        text = re.sub(r"\b(\w+)\b", r'"\1"', text).replace('"4"', "4", 1)
    files.put("edges.csv", text.replace("\n", end))
    assert pairs(files.load()) == EDGES


@pytest.mark.parametrize("arrow", [True, False])
def test_progress_of_a_packed_file_is_a_share_of_its_own_bytes(tmp_path, monkeypatch, arrow):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 50_000)
    if not arrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    ids = np.random.default_rng(0).integers(0, 2**62, 40_000)
    path, told = tmp_path / "ids.csv.gz", list[tuple[str, int, int]]()
    path.write_bytes(gzip.compress("\n".join(map(str, ids)).encode(), 1))
    rows = text_module.read_numbers(path, 1, progress=lambda *each: told.append(each))
    assert np.array_equal(np.concatenate(list(rows))[:, 0], ids)
    size = path.stat().st_size
    done = [each for _, each, _ in told]
    assert {total for _, _, total in told} == {done[-1]} == {size}
    assert done == sorted(done)
    assert 0.3 * size < done[len(done) // 2] < 0.8 * size


def test_byte_order_mark_and_blocks(files, monkeypatch):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 7)
    files.put("edges.csv", b"\xef\xbb\xbf" + lines().encode() + b"\n\n# end")
    told: list[tuple[str, int, int]] = []
    with reporting(lambda *each: told.append(each)):
        assert pairs(files.load()) == EDGES
    assert {"edges.csv", "labels.csv", "sorting edges"} == {what for what, _, _ in told}
    assert told[-1] == ("sorting edges", 1, 1)
    files.put("edges.csv", lines() + "\n\n7,1\n")
    files.refuse(r"edges.csv, line 9: node 7, but there are 5 nodes")


SNAP = "# Directed graph\n# FromNodeId\tToNodeId\n" + lines("\t", "")


@pytest.mark.parametrize("packed", ["gz", "bz2", "zst"])
@pytest.mark.parametrize("edges", [lines(), SNAP], ids=["csv", "snap"])
def test_packed_files(files, packed, edges, monkeypatch):
    compression = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}[packed]
    for name, content in (
        ("edges.csv", edges), ("labels.csv", "0,a\n3,b\n"), ("train.txt", "3\n1\n"),
    ):  # fmt: skip
        with pyarrow.output_stream(files.folder / f"{name}.{packed}", compression) as file:
            file.write(content.encode())
    names = [files.folder / f"{name}.{packed}" for name in ("edges.csv", "labels.csv", "train.txt")]
    given: Any = {"splits": {"train": names[2]}}
    expected = [EDGES, [0, -1, -1, 1, -1], [3, 1]]
    for make in (
        lambda path: from_csv(names[0], files.folder / "x.npy", names[1], path, **given),
        lambda path: from_edges(names[0], path, labels=names[1], **given),
    ):
        store = make(files.folder / "packed")
        found = [pairs(store), store.tensor("y").tolist(), store.split("train").tolist()]
        assert found == expected
        shutil.rmtree(store.path)
    whole = names[0].read_bytes()
    names[0].write_bytes(whole[:-9])
    with pytest.raises(StoreError, match=rf"edges.csv.{packed} cannot be read .*fetch"):
        from_csv(names[0], files.folder / "x.npy", None, files.folder / "t")
    with refused(files.folder, "edges.csv"):
        from_edges(names[0], files.folder / "t")
    names[0].write_bytes(whole)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    if packed != "zst":
        from_csv(names[0], files.folder / "x.npy", names[1], files.folder / "u", **given)
    else:
        with pytest.raises(ConfigError, match=r"zst needs pyarrow: pip .*'gnndrive\[import\]'"):
            from_csv(names[0], files.folder / "x.npy", None, files.folder / "u")


def test_bad_edges_are_named(files):
    for content, match in (
        ("source,target\n0,1\n0,x\n", r"line 3: '0,x' is not 2 node ids; .* map_ids=True"),
        ("0,1\n\n# c\n1,2,3\n", r"line 4: '1,2,3' is not 2"),
        ("0,1\n1,,2\n", "line 2"),
        ("0 1\n1,\n", "line 2"),
        ("0,1\n1.0,2\n", "line 2"),
        ("0,1\n0,5\n", r"line 2: node 5, but there are 5 nodes.* num_nodes="),
        ("'0','1'\n", "line 1: \"'0','1'\" is not 2 node ids"),
        ('"0,1\n2",3\n', "line 1"),
        ("a,b\n0,1\n-1,2\n", "line 3: node -1"),
        ("0,1\n0,99999999999999999999\n", "line 2"),
        ("0,1\na,b\n", "line 2: 'a,b'"),
        (b"0,1\n0,\xff\n", "line 2: not text in UTF-8"),
        ("0,\u0661\n", "line 1"),
        ("0,0x1\n", "line 1"),
        ("1 0,\n", "line 1"),
        (",1,0\n", "line 1"),
        ('"1""0"\n', "line 1"),
        ("0,1\n1-,0\n", "line 2"),
        ("0,1\n1\r2,3\n", "line 2"),
        ("0,1\r\n2,3\n\n4,x\r\n", "line 4"),
        ("0,1_0\n", "line 1"),
    ):
        files.put("edges.csv", content)
        files.refuse(f"edges.csv, {match}")


def test_files_without_edges_or_labels(files):
    (files.folder / "edges.csv").unlink()
    files.refuse(r"edges.csv cannot be opened")
    files.put("edges.csv", "source,target\n")
    with pytest.warns(UserWarning, match=r"edges\.csv holds no edges.*check the file"):
        assert files.load(undirected=True).num_edges == 0
    files.put("edges.csv", lines())
    files.put("labels.csv", "\n")
    with pytest.warns(UserWarning, match=r"labels\.csv holds no labels"):
        assert files.load().num_classes == 0
    files.put("labels.csv", "a\nb\na\nb\nb\n")
    assert files.load(features=None).num_features == 0
    assert files.load(labels=None).num_classes == 0


def test_the_largest_id_says_how_many_nodes_there_are(files):
    """Of edges and labels, where neither features nor labels in order say it."""
    for content, y, inferred in (
        ("3,1\n0,0\n", [0, -1, -1, 1, -1], True),
        ("6,0\n8,\n", [-1] * 6 + [0, -1, -1], True),
        ("0\n1\n0\n1\n0\n1\n", [0, 1] * 3, False),
    ):
        files.put("labels.csv", content)
        given: Any = {"labels": files.folder / "labels.csv", "if_exists": "replace"}
        for store in (
            files.load(None), from_edges(files.folder / "edges.csv", files.folder / "e", **given),
        ):  # fmt: skip
            assert pairs(store) == EDGES
            assert store.tensor("y").tolist() == y
            assert inferred == ("number of nodes is the largest id + 1" in store.info.made_by)
    assert files.load(None, None).num_nodes == 5
    files.put("labels.csv", "a\nb\na\n")
    files.refuse("edges.csv, line 4: node 3, but there are 3 nodes", None)
    files.put("edges.csv", f"0,{2**62}\n")
    files.refuse("ids go up to 4611686018427387904: .* free: .*map_ids=True", None, None)
    files.put("edges.csv", "0,1\n2,-1\n")
    files.refuse("edges.csv, line 2: node -1, but ids count from 0: correct it$", None, None)


@pytest.mark.parametrize("importer", ["csv", "edges"])
def test_ids_may_count_from_1(files, importer):
    """All of them: those of edges, labels and splits, in files and in arrays."""

    def make(num_nodes: int | None = 5, **more: Any) -> Store:
        if num_nodes is not None:
            np.save(files.folder / "x.npy", files.x[:num_nodes])
            more["features"] = files.folder / "x.npy"
        given = {"features": None, "labels": None, "splits": None, **more}
        make = from_csv if importer == "csv" else from_edges
        path = files.folder / "s"
        return make(files.folder / "edges.csv", path=path, if_exists="replace", **given)

    files.put("edges.csv", "".join(f"{s + 1},{t + 1}\n" for s, t in EDGES))
    files.put("labels.csv", "1,0\n5,1\n")
    files.put("train.txt", "4\n1\n")
    np.save(files.folder / "val.npy", np.array([5], np.uint8))
    mask = np.array([False, True, False, False, False])
    splits: Any = {
        "train": files.folder / "train.txt", "val": files.folder / "val.npy", "test": [3],
        "m": mask,
    }  # fmt: skip
    given: Any = {"first_id": 1, "labels": files.folder / "labels.csv", "splits": splits}
    for num_nodes in (5, None):
        store = make(num_nodes, **given)
        assert (store.num_nodes, pairs(store)) == (5, EDGES)
        assert store.tensor("y").tolist() == [0, -1, -1, -1, 1]
        assert [store.split(name).tolist() for name in splits] == [[3, 0], [4], [2], [1]]
    with pytest.warns(UserWarning, match=r"no edge has the id 0.* first_id=1"):
        assert make(None).num_nodes == 6
    files.put("zero.csv", "0,0\n")
    assert make(None, labels=files.folder / "zero.csv").num_nodes == 6  # and no warning
    for more, match in (
        ({}, "5.* but there are 5.*, numbered from 0.* give first_id=1"),
        ({**given, "splits": {"a": [0]}}, r"split 'a', entry 0 .*: node 0, but ids count from 1"),
        ({**given, "splits": {"a": [6]}}, "node 6, but there are 5 nodes, numbered from 1"),
        ({**given, "num_nodes": 4}, "5.* but there are 4.*, numbered from 1"),
        *(({"first_id": each}, f"first_id={each!r}: give") for each in (-1, 1.0, "1", 2**64)),
    ):
        with refused(files.folder, match):
            make(**more)
    for name, content, match in (
        ("train.txt", "1\n0\n", "train.txt, line 2: node 0, but ids count from 1: .* leave out fi"),
        ("labels.csv", "1,0\n0,1\n", "labels.csv, line 2: node 0, but ids count from 1"),
        ("edges.csv", "1,2\n2,0\n", "2.* 0.* 1.*correct it"),
        ("edges.csv", f"1,2\n{-(2**63)},1\n", "edges.csv.* -9223372036854775808"),
    ):
        whole = (files.folder / name).read_bytes()
        files.put(name, content)
        with refused(files.folder, match):
            make(**given)
        files.put(name, whole)


def test_labels(files):
    for content, y, classes in (
        ("0,3\n1,0\n4,1\n3,2\n2,-1\n", [3, 0, -1, 2, 1], None),
        ("node,label\n4,b\n0,a\n", [0, -1, -1, -1, 1], ("a", "b")),
        ("0,1.5\n2,3\n", [1.5, "nan", 3.0, "nan", "nan"], None),
        ("label\nx\ny\nx\nx\nz\n", [0, 1, 0, 0, 2], ("x", "y", "z")),
        ("0\n1\n2\n3\n4\n", [0, 1, 2, 3, 4], None),
        ("0 tv show\n1 film\n2 film\n3 film\n4 tv show\n", [1, 0, 0, 0, 1], ("film", "tv show")),
        ('0,"a, b"\n1,c\n2,c\n3,c\n4,c\n', [0, 1, 1, 1, 1], ("a, b", "c")),
        ("id\tlabel\n0\ta\n1\tb\n2\ta\n3\ta\n4\ta\n", [0, 1, 0, 0, 0], ("a", "b")),
        ("# labels, of 2\n\n# nodes\n#\n0\t#1\n1\t#2\n", [0, 1, -1, -1, -1], ("#1", "#2")),
        ("#1\n#2\n#1\n#1\n#1\n", [0, 1, 0, 0, 0], ("#1", "#2")),
        (",kind\n0,a\n1,b\n2,a\n", [0, 1, 0, -1, -1], ("a", "b")),  # as pandas writes an index
        ('0,0\n1,\n2,""\n3,NA\n4,null\n', [0, -1, -1, -1, -1], None),
        ('node,label\n0,\n1,NaN\n2,b\n3,""\n4,"n/a"\n', [-1, 0, 1, -1, 2], ("NaN", "b", "n/a")),
        ("0,1.0\n1,\n2,0.0\n3,NA\n4,2.0\n", [1, -1, 0, -1, 2], None),
        ("0,1.0\n1,\n2,0.0\n3,-1.0\n4,2.0\n", [1, "nan", 0, -1, 2], None),
        ("0,1.0\n1,+nan\n2,0.0\n", [1, "nan", 0, "nan", "nan"], None),
        ("y\nn\ny\nn\ny\n", [1, 0, 1, 0, 1], ("n", "y")),
        ("#classes\n0,1\n1,2\n2,0\n", [1, 2, 0, -1, -1], None),
        ("#classes\n\n#2\n0 a\n1 b\n", [0, 1, -1, -1, -1], ("a", "b")),
        ('#1\n"a, b"\n#1\n#1\n#1\n', [0, 1, 0, 0, 0], ("#1", "a, b")),
        ("0,0.5\n1,\n2,nan\n3,-1\n4,2\n", [0.5, "nan", "nan", -1, 2], None),
        ('y\n2\n""\n1\n\nNA\n0\n', [2, -1, 1, -1, 0], None),
        ("NA\n0\n1\n0\n1\n", [-1, 0, 1, 0, 1], None),
        ('"a, b"\n""\n\nc\nc\nc\n', [0, -1, 1, 1, 1], ("a, b", "c")),
        ("score\nNA\n0\n\n1\n\n", [-1, 0, -1, 1, -1], None),
        ("\na\n\n\nb\n", [-1, 0, -1, -1, 1], ("a", "b")),
        (
            '0 ""\n1 "tv show"\n2 NA\n3 film\n4 null\n',
            [-1, 3, 0, 1, 2],
            ("NA", "film", "null", "tv show"),
        ),
    ):
        files.put("labels.csv", content)
        store = files.load()
        assert [value if value == value else "nan" for value in store.tensor("y").tolist()] == y
        assert store.classes == classes
        missing = "nan" if store.tensor("y").is_floating_point() else -1
        labelled = {node for node, value in enumerate(y) if value != missing}
        assert set().union(*(store.split(name).tolist() for name in store.split_names)) == labelled


def test_a_blank_line_is_a_missing_label_only_if_the_number_of_nodes_says_so(files):
    files.put("labels.csv", "a\nb\na\n\nb\nb\n")
    assert files.load().tensor("y").tolist() == [0, 1, 0, 1, 1]
    files.refuse(r"labels.csv, line 4 is blank.*: write NA there, or remove", features=None)


def test_bad_labels_are_named(files):
    for content, match in (
        ("node,label\n0,a\n5,b\n", r"line 3: node 5, but there are 5 nodes.* num_nodes="),
        ("0,a\n1,b\n1,c\n", "line 3: node 1 has a second label"),
        ("# labels\n0,a\n1,b,c\n", "line 3"),
        ("0,a\nx,b\n", r"line 2: 'x' is not a node id.* or .* give map_ids=True"),
        (",a\n1,b\n2,a\n", "line 1: '' is not a node id"),
        ("0x1,a\n1,b\n", "line 1: '0x1' is not a node id"),
        ("0,a\n1,\x1b[2J\n", "line 2"),
        ('0,a\n1,"b\n', "line 2"),
        ("0,a\r1,b\r", "line 1: new-line character"),
        ("a\nb\n", "has 2 labels for 5 nodes"),
        ("a\n\nb\n\n", "has 2 labels for 5 nodes"),
        ("a\n\nb\na\nb\na\nb\n", "has more than 5 labels for 5 nodes: .* such as a header"),
        (b"0,\xff\n", "not text in UTF-8"),
    ):
        files.put("labels.csv", content)
        files.refuse(rf"labels.csv.* {match}")
    for content, given, match in (  # whose end cannot be read
        (b"0,1\n" * 500_000, {"features": None}, "line 2: node 0 has a second label"),
        (b"0 1\n" + b"00 1\n" * 300_000, {}, "line 3: node 00 has a second label"),
        (b"a\n" * 999_999, {}, "has more than 5 labels for 5 nodes"),
    ):
        files.put("y.gz", gzip.compress(content)[:-9])
        files.refuse(rf"y.gz.* {match}", labels="y.gz", **given)


FORMS = ("dense.npz", "small.npz", "fortran.npy", "csr.npz", "twice.npz")


@product("name,dtype", FORMS, ["float32", torch.float16, "bfloat16", np.uint8, "float64"])
def test_features_in_every_form(files, name, dtype, monkeypatch):
    monkeypatch.setattr(features_module, "CHUNK_BYTES", 24)  # two rows
    sparse = files.x * (files.x % 2)
    np.savez(files.folder / "dense.npz", x=sparse)
    np.savez_compressed(files.folder / "small.npz", sparse.astype(np.uint8))
    np.save(files.folder / "fortran.npy", np.asfortranarray(sparse))
    scipy.sparse.save_npz(files.folder / "csr.npz", scipy.sparse.csr_matrix(sparse))
    twice = scipy.sparse.csr_matrix(sparse)
    twice.data /= 2
    twice.indices, twice.data = np.repeat(twice.indices, 2), np.repeat(twice.data, 2)
    twice.indptr = twice.indptr * 2
    scipy.sparse.save_npz(files.folder / "twice.npz", twice)
    store = files.load(name, dtype=dtype)
    assert np.array_equal(store.tensor("x").double().numpy(), sparse)


def test_bad_features_are_named(files):
    files.put("text.npy", "hello")
    files.put("cut.npy", (files.folder / "x.npy").read_bytes()[:-4])
    np.save(files.folder / "pickle.npy", np.array([{}, 1, 2, 3, 4], object), allow_pickle=True)
    np.savez(files.folder / "two.npz", a=files.x, b=files.x)
    files.put("cut.npz", (files.folder / "two.npz").read_bytes()[:100])
    scipy.sparse.save_npz(files.folder / "csc.npz", scipy.sparse.csc_matrix(files.x))
    wrong = scipy.sparse.csr_matrix(files.x)
    wrong.indices[3] = 77
    scipy.sparse.save_npz(files.folder / "bad.npz", wrong)
    noise = np.random.default_rng(0).standard_normal((5, 4000))
    np.savez_compressed(files.folder / "middle.npz", x=noise)
    poke(files.folder / "middle.npz", 80_000, b"damaged...")
    files.put("text.npy", "PAR1")
    files.refuse(
        r"text.npy cannot be read .*\(it is not an .npy file\): save .* numpy.save", "text.npy"
    )
    for name in ("text.npy", "cut.npy", "pickle.npy", "cut.npz", "two.npz", "csc.npz", "bad.npz",
                 "middle.npz", "gone.npy"):  # fmt: skip
        files.refuse(name, name)


# ---- splits


def test_random_splits():
    nodes = np.arange(1003)
    first, again, other = (random_split(nodes, RandomSplit(seed=seed)) for seed in (1, 1, 2))
    assert [(name, len(ids)) for name, ids in first.items()] == [
        ("train", 602), ("val", 200), ("test", 201),
    ]  # fmt: skip
    assert np.array_equal(np.sort(np.concatenate(list(first.values()))), nodes)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["train"], other["train"])
    order = torch.randperm(1003, generator=torch.Generator().manual_seed(1)).numpy()
    assert np.array_equal(first["train"], np.sort(order[:602]))
    few = random_split(nodes, RandomSplit(0.1, 0.0, 0.1))
    assert [len(ids) for ids in few.values()] == [100, 0, 101]


def test_invalid_splits_are_refused(files):
    for splits, match in (
        (("random", 0.6, 0.3, 0.2, 0), "add up to 1 or less"),
        (("random", 0.6, -0.1, 0.2, 0), "parts from 0 to 1"),
        (("random", 0.6, 0.2, 0.2, -1), "seed"),
        (("random", 0.6, 0.2, 0.2, 2**64), "seed"),
        (("random", 0.6), "give \\('random'"),
        (0.6, "give a RandomSplit"),
    ):
        files.refuse(match, splits=splits)


def test_given_splits(files):
    files.put("train.txt", "node\n3\n1\n")
    train, val = files.folder / "train.txt", files.folder / "val.npy"
    np.save(val, np.array([False, False, True, False, False]))
    splits = {"train": train, "val": str(val), "test": [0]}
    store = files.load(splits=splits)
    assert [store.split(name).tolist() for name in ("train", "val", "test")] == [[3, 1], [2], [0]]
    assert files.load(splits=None).split_names == ()
    files.put("train.txt", "3\n5\n")
    files.refuse(r"train.txt, line 2: node 5", splits=splits)
    files.put("val.npy", "no")
    files.refuse(r"val.npy cannot be read", splits={"val": val})
