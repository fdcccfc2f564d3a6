"""Classes of rows: scores against brute force, and what is kept in the store's folder."""

import os
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import gnndrive
from gnndrive.common.errors import StoreError
from gnndrive.common.records import ends_of
from gnndrive.store import row_classes
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.row_classes import classes_of
from tests.store.conftest import edit_json, left, poke

SCORES = ("degree", "pagerank")


@pytest.fixture(autouse=True)
def forget():
    """A function after which nothing is kept in this process; called before each test."""

    def forget() -> None:
        row_classes._in_use.clear()
        row_classes._unsaved.clear()
        row_classes._warned.clear()

    forget()
    return forget


@pytest.fixture
def passes(monkeypatch) -> list[str]:
    """The scores that were computed, in order."""
    found: list[str] = []
    for name, compute in row_classes.SCORES.items():

        def counted(store: Store, name: str = name, compute: Any = compute) -> Any:
            found.append(name)
            return compute(store)

        monkeypatch.setitem(row_classes.SCORES, name, counted)
    return found


@pytest.fixture
def mixed(tmp_path) -> Store:
    """Three types of nodes, of which one has no out-edges; one edge type has no edges."""
    draw = torch.Generator().manual_seed(3)
    data = HeteroData()
    counts = {"paper": 50, "author": 30, "venue": 4}
    for name, count in counts.items():
        data[name].x = torch.randn(count, 4, generator=draw)
    ends = [("author", "writes", "paper", 200), ("paper", "cites", "paper", 300)]
    ends += [("paper", "in", "venue", 50), ("author", "reads", "paper", 0)]
    for source, relation, target, edges in ends:
        low = torch.randint(counts[source], (edges,), generator=draw) // 2  # the others have none
        ends_in = torch.randint(counts[target], (edges,), generator=draw)
        data[source, relation, target].edge_index = torch.stack([low, ends_in])
    return gnndrive.from_data(data, tmp_path / "mixed.gnn")


def brute_degrees(store: Store) -> dict[Any, np.ndarray]:
    degrees = {each.type: np.zeros(each.num_nodes) for each in store.all_nodes()}
    for edges in store.all_edges():
        np.add.at(degrees[edges.source.type], np.asarray(edges.indices), 1)
    return degrees


def brute_pagerank(store: Store) -> dict[Any, np.ndarray]:
    """Like `reverse_pagerank`, with a matrix for each edge type, and in float64."""
    types = store.info.types.edges
    now = {each.type: np.ones(each.num_nodes) for each in store.all_nodes()}
    for step in range(3):
        after = {type: np.full(len(each), 0.15 if step < 2 else 0.0) for type, each in now.items()}
        for edges in store.all_edges():
            source, target = ends_of(edges.type)
            matrix = np.zeros((len(now[source]), len(now[target])))
            for v, (begin, end) in enumerate(pairwise(edges.indptr.tolist())):
                for u in edges.indices[begin:end].tolist():
                    matrix[u, v] += 1 / (end - begin)
            leading = sum(ends_of(type)[1] == target for type in types)
            after[source] += 0.85 / leading * matrix @ now[target]
        now = after
    return now


@pytest.mark.parametrize("kind", ["store", "mixed"])
def test_scores_and_classes_are_those_of_brute_force(request, kind, monkeypatch):
    store: Store = request.getfixturevalue(kind)
    for part_bytes in (1, 1 << 20):  # one index a call, and all of them
        monkeypatch.setattr(row_classes, "_PART_BYTES", part_bytes)
        degrees, expected = row_classes.out_degrees(store), brute_degrees(store)
        assert degrees.keys() == expected.keys()
        for type, each in degrees.items():
            np.testing.assert_array_equal(each, expected[type])
        ranks, expected = row_classes.reverse_pagerank(store), brute_pagerank(store)
        for type, each in ranks.items():
            np.testing.assert_allclose(each, expected[type], rtol=1e-5)
            np.testing.assert_array_equal(each == 0, degrees[type] == 0)
    for score, scores in (("degree", degrees), ("pagerank", ranks)):
        for type, each in scores.items():
            classes = row_classes.row_classes(store, type, score)
            assert (classes.dtype, classes.shape) == (np.uint8, each.shape)
            assert not classes.flags.writeable
            order = np.argsort(each, kind="stable")
            assert (np.diff(classes[order].astype(int)) >= 0).all()
            np.testing.assert_array_equal(classes == 0, each == 0)


def test_each_class_has_the_same_part_of_all_uses():
    scores = (1e6 / np.arange(1, 200_001) ** 0.8).astype(np.uint32)
    classes = classes_of(np.random.default_rng(0).permutation(scores))
    assert (classes.min(), classes.max()) == (1, 251)  # the hottest node has 1/50 of all uses
    parts = np.bincount(classes_of(scores), weights=scores, minlength=256) / scores.sum()
    np.testing.assert_allclose(parts[1:201].reshape(-1, 20).sum(axis=1), 20 / 255, rtol=0.1)
    for given, expected in (
        (np.empty(0, np.uint32), []),
        (np.zeros(3, np.float32), [0, 0, 0]),
        (np.full(3, 7, np.uint32), [1, 1, 1]),
        (np.array([0, 2**32 - 1, 1], np.uint32), [0, 1, 1]),
        (np.array([0, 1e-30, 1, 3], np.float32), [0, 1, 1, 64]),
    ):
        assert classes_of(given).tolist() == expected


# ---- what is kept


def test_the_graph_is_read_once(store, passes, forget):
    identity = store.identity
    for score in SCORES:
        first = row_classes.row_classes(store, None, score)
        assert row_classes.row_classes(open_store(store.path), None, score) is first
        forget()
        again = row_classes.row_classes(store, None, score)
        assert again is not first
        np.testing.assert_array_equal(again, first)
        np.testing.assert_array_equal(np.load(store.path / "classes" / f"{score}.npy"), first)
    assert passes == [*SCORES]
    assert left(store.path / "classes") == ["degree.npy", "pagerank.npy"]
    opened = open_store(store.path)
    opened.verify()
    assert opened.identity == identity
    forget()
    edit_json(store.path / "store.json", lambda document: document.update(made_by="another"))
    row_classes.row_classes(open_store(store.path), None, "degree")
    assert passes == [*SCORES, "degree"]


def test_all_types_are_kept_at_once(mixed, passes, forget):
    for type in ("paper", "author", "venue"):
        row_classes.row_classes(mixed, type, "pagerank")
        forget()
    assert passes == ["pagerank"]
    mixed.verify()


@pytest.mark.filterwarnings("ignore:the classes of rows cannot be kept")
@pytest.mark.parametrize("damage", ["short", "long", "changed", "header", "link", "folder"])
def test_a_damaged_file_is_made_again(store, passes, forget, damage, tmp_path):
    expected = row_classes.row_classes(store, None, "degree").copy()
    file, other = store.path / "classes" / "degree.npy", tmp_path / "other"
    good = file.read_bytes()
    if damage in ("link", "folder"):
        file.rename(other)
        file.symlink_to(other) if damage == "link" else file.mkdir()
    else:
        file.write_bytes({
            "short": good[:-1],
            "long": good + b"\0",
            "changed": good[: DATA_OFFSET + 3] + b"\xff" + good[DATA_OFFSET + 4 :],
            "header": b"\x93numpy" + good[6:],
        }[damage])  # fmt: skip
    forget()
    for _ in range(2):
        np.testing.assert_array_equal(row_classes.row_classes(store, None, "degree"), expected)
    assert passes == ["degree"] * 2
    if damage != "folder":  # which stays; the classes are kept in the process
        assert not file.is_symlink()
        assert len(file.read_bytes()) == DATA_OFFSET + len(expected) + 32


def test_a_folder_that_cannot_be_written_to_is_left_alone(store, passes, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError("read-only")))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        first = row_classes.row_classes(store, None, "degree").copy()
        row_classes._in_use.clear()
        np.testing.assert_array_equal(row_classes.row_classes(store, None, "degree"), first)
        assert passes == ["degree"]
        row_classes.row_classes(open_store(store.path), None, "pagerank")
    (message,) = [str(each.message) for each in warned]
    assert f"cannot be kept in {store.path / 'classes'} (read-only)" in message
    assert "Make the folder writable for one start, or give tuning=Tuning(policy='lru')" in message
    assert len(row_classes._unsaved) == 1
    assert not (store.path / "classes").exists()


@pytest.mark.filterwarnings("ignore:the classes of rows cannot be kept")
def test_nothing_is_written_through_a_link(store, passes, tmp_path):
    (store.path / "classes").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    for _ in range(2):
        row_classes.row_classes(store, None, "degree")
        row_classes._in_use.clear()
    assert passes == ["degree"]
    assert left(tmp_path / "outside") == []


# ---- what is refused


@pytest.mark.parametrize("score", SCORES)
def test_a_damaged_graph_is_a_store_error(store, score):
    for index in (-1, 40):
        poke(store.indices_path, DATA_OFFSET + 4 * 77, np.int32(index).tobytes())
        with pytest.raises(
            StoreError, match=r"indices\.npy has an id of no node: run gnndrive ver"
        ):
            row_classes.row_classes(store, None, score)
    os.truncate(store.indices_path, DATA_OFFSET + 8)
    with pytest.raises(StoreError, match="became shorter"):
        row_classes.row_classes(store, None, score)
    assert not (store.path / "classes" / f"{score}.npy").exists()


def test_a_pipe_in_place_of_the_lock_is_no_obstacle(store):
    (store.path / "classes").mkdir()
    os.mkfifo(store.path / "classes" / ".degree.lock")
    row_classes.row_classes(store, None, "degree")
    assert (store.path / "classes" / "degree.npy").is_file()


def test_an_interrupt_leaves_nothing(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(row_classes.SCORES, "degree", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            row_classes.row_classes(store, None, "degree")
    assert not list((store.path / "classes").iterdir())
    row_classes.row_classes(store, None, "degree")
