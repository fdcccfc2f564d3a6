"""The writer makes the files that `made.py` makes in memory, whatever the partitions and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.partitioned import renumbering
from gnndrive.store.partitioned.partition import partition
from gnndrive.store.reader import Store
from tests.store.partitioned.made import make_folder, make_store
from tests.store.partitioned.written import MEMORY, content, write_folder

NODES = 200
DRAW = np.random.default_rng(7)
PARTS = {
    "random": (DRAW.integers(0, 9, NODES), 9),
    "one": (np.zeros(NODES, np.int64), 1),
    "each node its own": (DRAW.permutation(NODES), NODES),
    "empty at both ends": (DRAW.integers(3, 6, NODES), 11),
    "one large": (np.where(np.arange(NODES) == 17, 0, 1), 2),
}
Small = Callable[..., None]


@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("static", [0.0, 0.04, 1.0])
def test_the_writer_makes_what_numpy_makes(tmp_path: Path, small: Small, which: str, static: float):
    small()
    store = make_store(tmp_path / "graph.gnn")
    part, parts = PARTS[which]
    expected = make_folder(store, part, parts, static)
    written = write_folder(store, part, parts, static=static)
    assert content(written.path) == content(expected.path)
    found, wanted = written.info.as_dict(), expected.info.as_dict()
    found.pop("settings"), wanted.pop("settings")
    assert found == wanted


DTYPES = ("bool", "uint8", "int16", "float16", "bfloat16", "float32", "float64", "int64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_dtype(tmp_path: Path, small: Small, dtype: str):
    small()
    x = (torch.rand(NODES, 3) * 100).to(getattr(torch, dtype))
    store = make_store(tmp_path / "graph.gnn", x=x)
    part, parts = PARTS["random"]
    expected, written = make_folder(store, part, parts), write_folder(store, part, parts)
    assert content(written.path) == content(expected.path)
    assert written.x.dtype == dtype


@pytest.mark.parametrize("shape", [(5,), (777,), (18_856,), (), (2, 3)])
def test_rows_of_every_size(tmp_path: Path, small: Small, shape: tuple[int, ...]):
    small(64 << 10)
    x = np.random.default_rng(1).integers(0, 256, (NODES, *shape), np.uint8)
    store = make_store(tmp_path / "graph.gnn", x=x)
    part, parts = PARTS["random"]
    written = write_folder(store, part, parts)
    assert content(written.path) == content(make_folder(store, part, parts).path)
    assert written.x.row_shape == shape


def test_large_steps_make_the_same(tmp_path: Path):
    store = make_store(tmp_path / "graph.gnn")
    part, parts = PARTS["random"]
    expected, written = make_folder(store, part, parts), write_folder(store, part, parts)
    assert content(written.path) == content(expected.path)


def test_wide_numbers(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch):
    """Ids, codes and index pointers of 64 bits, as of 2^31 nodes and more."""
    small()
    store = make_store(tmp_path / "graph.gnn")
    part, parts = PARTS["random"]
    pointers = np.asarray(store.indptr)
    monkeypatch.setattr(Store, "index_pointers", pointers)
    for module in ("gnndrive.store.partitioned.format",):
        monkeypatch.setattr(f"{module}.index_dtype", lambda values: "int64")
    expected, written = make_folder(store, part, parts), write_folder(store, part, parts)
    assert written.order.dtype == written.place.dtype == np.int64
    assert content(written.path) == content(expected.path)


def test_a_graph_without_edges(tmp_path: Path):
    store = make_store(tmp_path / "graph.gnn", edges=0)
    part, parts = PARTS["random"]
    expected, written = make_folder(store, part, parts), write_folder(store, part, parts)
    assert content(written.path) == content(expected.path)
    assert written.info.share_inside == 0.0


def test_ties_are_hot_by_id():
    counts = np.array([3, 9, 3, 0, 9, 3], np.uint32)
    for count in range(7):
        assert renumbering.hottest(counts, count).tolist() == [1, 4, 0, 2, 5, 3][:count]


def test_shares_of_kept_edges(tmp_path: Path):
    store = make_store(tmp_path / "graph.gnn", nodes=2_000, edges=20_000)
    part = np.random.default_rng(3).integers(0, 16, 2_000)
    info = make_folder(store, part, 16).info
    indices, indptr = np.asarray(store.indices), np.asarray(store.indptr)
    targets = np.repeat(np.arange(2_000), np.diff(indptr))
    hot = np.zeros(2_000, bool)
    hot[renumbering.hottest(np.bincount(indices, minlength=2_000).astype(np.uint32), 20)] = True
    draw, kept, cold = np.random.default_rng(4), [], []
    for _ in range(200):
        window = np.isin(part, draw.permutation(16)[:4])
        inside = window[targets]
        cold.append(window[indices][inside].mean())
        kept.append((window | hot)[indices][inside].mean())
    assert info.share_kept(4) == pytest.approx(np.mean(kept), abs=0.01)
    assert info.share_kept(4, hot=False) == pytest.approx(np.mean(cold), abs=0.01)
    assert info.share_kept(16) == pytest.approx(1)


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parts": 0}, "parts=0"),
        ({"parts": 201}, "from 1 to 200"),
        ({"static": 1.5}, "from 0 to 1"),
        ({"static": float("nan")}, "from 0 to 1"),
        ({"method": "nothing"}, "neither one of auto, metis, ldg, random nor"),
        ({"memory": "1MB"}, "give at least"),
        ({"name": "../other"}, "name="),
        ({"name": ".hidden"}, "name="),
        ({"seed": 1 << 70}, "64 bits"),
    ],
)
def test_arguments_that_cannot_work(tmp_path: Path, given: dict[str, Any], said: str):
    store = make_store(tmp_path / "graph.gnn")
    with pytest.raises(ConfigError, match=said):
        partition(store, **{"parts": 4, "method": "random", **given})


@pytest.mark.parametrize(
    ("numbers", "parts", "said"),
    [
        (np.zeros(NODES), None, "whole numbers"),
        (np.zeros((NODES, 1), int), None, "whole numbers"),
        (np.zeros(NODES - 1, int), None, r"\[200\]"),
        (np.full(NODES, -1), None, "below 0"),
        (np.full(NODES, 1 << 40), None, "above"),
        (np.full(NODES, 4), 4, "leave parts out"),
        (np.full(NODES, None), None, "neither one of"),
    ],
)
def test_files_that_are_no_partitions(tmp_path: Path, numbers: Any, parts: Any, said: str):
    store = make_store(tmp_path / "graph.gnn")
    np.save(tmp_path / "own.npy", numbers)
    with pytest.raises(ConfigError, match=said):
        partition(store, parts, tmp_path / "own.npy")


def test_stores_without_features_or_with_types_are_refused(tmp_path: Path):
    indptr, none = np.zeros(5, np.int64), np.zeros(0, np.int64)
    bare = gnndrive.write_store(
        tmp_path / "bare.gnn", indptr=indptr, indices=none, nodes={"y": np.zeros(4)}
    )
    with pytest.raises(ConfigError, match="has no features x"):
        partition(bare)
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["a"].x = torch.zeros(3, 2)
    data["a", "to", "a"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="heterogeneous"):
        partition(gnndrive.from_data(data, tmp_path / "types.gnn"))


def test_a_node_id_out_of_range_is_named(tmp_path: Path):
    store = make_store(tmp_path / "graph.gnn")
    with store.indices_path.open("r+b") as file:
        file.seek(4096 + 40)
        file.write((NODES).to_bytes(4, "little"))
    for static in (0.0, 0.04):
        with pytest.raises(StoreError, match=r"indices.npy has an id of no node: .*verify"):
            partition(store, 4, "random", static=static)


# ---- which method auto stands for


def test_auto_says_what_it_chose_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = make_store(tmp_path / "graph.gnn")
    module = "gnndrive.store.partitioned.partition"
    monkeypatch.setattr(f"{module}.choose_method", lambda *_: "ldg")
    assert partition(store, 4, memory=MEMORY).settings.method == "ldg"

    def stop(what: str, *_: int) -> None:
        if what == "out-edges":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(store, 4, memory=MEMORY, name="b", progress=stop)
    monkeypatch.setattr(f"{module}.choose_method", lambda *_: "metis")
    phases: list[str] = []
    info = partition(store, 4, memory=MEMORY, name="b", progress=lambda *t: phases.append(t[0]))
    assert info.settings.method == "ldg"
    assert phases[0] == "out-edges"
