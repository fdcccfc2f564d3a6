"""The writer makes the files that `made.py` makes, also if it is killed or its disk is full."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.cli.commands import clean
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.layout import rows
from gnndrive.store.partitioned import partition as partitioning
from gnndrive.store.partitioned import renumbering
from gnndrive.store.partitioned.format import PARTITIONS
from gnndrive.store.partitioned.partition import partition
from gnndrive.store.partitioned.verify import verify_partition
from gnndrive.store.reader import Store
from tests.loader.hetero.graph import make_data
from tests.soak import product
from tests.store.conftest import poke
from tests.store.kills import killed_at
from tests.store.packed.packs import files_of
from tests.store.packed.resuming import Work
from tests.store.partitioned.made import WRITING_MEMORY as MEMORY
from tests.store.partitioned.made import content, make_folder, make_store, write_folder

NODES = 200
DRAW = np.random.default_rng(7)
PARTS = {
    "random": (DRAW.integers(0, 9, NODES), 9),
    "one": (np.zeros(NODES, np.int64), 1),
    "each node its own": (DRAW.permutation(NODES), NODES),
    "empty at both ends": (DRAW.integers(3, 6, NODES), 11),
    "one large": (np.where(np.arange(NODES) == 17, 0, 1), 2),
}
PHASES = {
    "dividing nodes at random", "counting out-edges", "numbering nodes", "choosing static nodes",
    "lists of neighbours", "lists of static nodes", "writing rows of x", "ordering rows of x",
    "checksums", "end",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*given partitions are empty")  # as they are meant to be
@product("which,static", [*PARTS], [0.0, 0.04, 1.0])
def test_the_writer_makes_what_numpy_makes(store, small, which, static):
    small()
    part, parts = PARTS[which]
    expected = make_folder(store, part, parts, static)
    written = write_folder(store, part, parts, static=static)
    assert content(written.path) == content(expected.path)
    found, wanted = written.info.as_dict(), expected.info.as_dict()
    found.pop("settings"), wanted.pop("settings")
    assert found == wanted


@pytest.mark.parametrize("edges", [0, 1500])
def test_large_steps_make_the_same(tmp_path, edges):
    store = make_store(tmp_path / "graph.gnn", edges=edges)
    part, parts = PARTS["random"]
    expected, written = make_folder(store, part, parts), write_folder(store, part, parts)
    assert content(written.path) == content(expected.path)
    assert (written.info.share_inside > 0) == (edges > 0)


def test_wide_numbers(store, small, monkeypatch):
    """Ids, codes and index pointers of 64 bits, as of 2^31 nodes and more."""
    small()
    part, parts = PARTS["random"]
    pointers = np.asarray(store.indptr)
    monkeypatch.setattr(Store, "index_pointers", pointers)
    monkeypatch.setattr("gnndrive.store.partitioned.format.index_dtype", lambda values: "int64")
    expected, written = make_folder(store, part, parts), write_folder(store, part, parts)
    assert written.order.dtype == written.place.dtype == np.int64
    assert content(written.path) == content(expected.path)


def test_ties_are_hot_by_id():
    counts = np.array([3, 9, 3, 0, 9, 3], np.uint32)
    for count in range(7):
        assert renumbering.hottest(counts, count).tolist() == [1, 4, 0, 2, 5, 3][:count]


def test_shares_of_kept_edges(tmp_path: Path):
    store = make_store(tmp_path / "graph.gnn", nodes=1_000, edges=10_000)
    part = np.random.default_rng(3).integers(0, 16, 1_000)
    info = make_folder(store, part, 16).info
    indices = np.asarray(store.indices)
    targets = np.repeat(np.arange(1_000), np.diff(store.indptr))
    hot = np.zeros(1_000, bool)
    hot[renumbering.hottest(np.bincount(indices, minlength=1_000).astype(np.uint32), 10)] = True
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


def test_arguments_that_cannot_work_leave_nothing(store, tmp_path):
    np.save(tmp_path / "own.npy", np.full(NODES, 4))
    for given, said in (
        ({"static": float("nan")}, "from 0 to 1"),
        ({"parts": 0}, "parts=0: give a whole number from 1"),
        ({"parts": NODES + 1}, f"parts={NODES + 1}: give a number from 1 to {NODES}, the number"),
        ({"memory": "1MB"}, "give at least"),
        ({"name": "../other"}, "name="),
        ({"method": tmp_path / "own.npy"}, "leave parts out"),
    ):
        with pytest.raises(ConfigError, match=said):
            partition(store, **{"parts": 4, "method": "random", **given})
        assert not any((store.path / "partitioned").glob("*"))


def test_stores_without_features_or_with_types_are_refused(tmp_path: Path):
    none = Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=4)
    for data, said in ((none, "has no features x"), (make_data(), "heterogeneous")):
        with pytest.raises(ConfigError, match=said):
            partition(gnndrive.from_data(data, tmp_path / f"{said}.gnn"))


def test_a_node_id_out_of_range_is_named(store):
    poke(store.indices_path, 4096 + 40, NODES.to_bytes(4, "little"))
    for static in (0.0, 0.04):
        with pytest.raises(StoreError, match=r"indices.npy has an id of no node: .*verify"):
            partition(store, 4, "random", static=static)


# ---- which method auto stands for


def test_auto_says_what_it_chose_and_goes_on_with_it(store, monkeypatch):
    module = "gnndrive.store.partitioned.partition"
    monkeypatch.setattr(f"{module}.choose_method", lambda *_: "ldg")
    assert partition(store, 4, memory=MEMORY).settings.method == "ldg"

    def stop(what: str, *_: int) -> None:
        if what == "counting out-edges":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(store, 4, memory=MEMORY, name="b", progress=stop)
    monkeypatch.setattr(f"{module}.choose_method", lambda *_: "metis")
    phases: list[str] = []
    info = partition(store, 4, memory=MEMORY, name="b", progress=lambda *t: phases.append(t[0]))
    assert (info.settings.method, phases[0]) == ("ldg", "counting out-edges")


# ---- interrupted


@pytest.fixture
def work(tmp_path, small, monkeypatch) -> Work:
    small(2 * 4096 + 1000, step=60)
    monkeypatch.setattr(rows, "RUNS_MAX", 3)  # so that rows are spooled
    store = make_store(tmp_path / "graph.gnn", NODES, 1_500)

    def make(tell: Any, **more: Any) -> None:
        given = {"memory": MEMORY, "static": 0.1, "name": "p", "progress": tell}
        partition(store, 10, "random", **(given | more))

    made = Work(store.path / "partitioned" / "p", make, PARTITIONS.lock)
    verify_partition(made.target, store)
    assert made.phases.keys() == PHASES
    made.store, made.make = store, make
    return made


def test_a_writer_that_is_killed_is_finished_by_the_next(work, seeds):
    for seed in seeds(3):
        work.check_kills(random.Random(seed))


def test_a_writer_whose_disk_fails_is_finished_by_the_next(work, seeds, monkeypatch):
    for seed in seeds(4):
        work.check_failure(random.Random(seed), monkeypatch)


def test_killed_while_it_replaces_another(work, tmp_path):
    """Cleaning leaves the old folder or the new one, and the same call ends the new one."""

    def replace() -> None:
        work.make(lambda *_: None, overwrite=True)

    def restore(folder: Path) -> None:
        shutil.rmtree(work.target.parent)
        shutil.copytree(folder, work.target.parent)

    work.clear()
    partition(work.store, 3, "random", name="p")
    before = files_of(work.target)
    assert killed_at(replace, work.calls - 12)
    near, killed = tmp_path / "near the end", tmp_path / "killed"
    shutil.copytree(work.target.parent, near)
    seen: list[str] = []
    while killed_at(replace, len(seen) + 1, ("rename", "unlink", "rmdir")):
        shutil.copytree(work.target.parent, killed)
        replace()
        assert files_of(work.target) == work.files
        assert os.listdir(work.target.parent) == ["p"]
        restore(killed)
        clean.run(tmp_path)
        found = files_of(work.target)
        seen.append("old" if found == before else "new")
        assert found == (before if seen[-1] == "old" else work.files)
        assert os.listdir(work.target.parent) == ["p"]
        shutil.rmtree(killed)
        restore(near)
    assert seen == sorted(seen, reverse=True), "first the old one, then the new one"
    assert set(seen) == {"old", "new"}


def test_a_disk_that_is_too_small(store, monkeypatch):
    """It is refused before the partitions are searched for, with what is missing."""
    told: list[str] = []
    for module in (partitioning, rows):
        monkeypatch.setattr(module, "free_bytes", lambda _: 10_000)
    with pytest.raises(StoreError, match=r"it needs [\d,]+ more bytes .*static="):
        partition(store, 20, "random", progress=lambda what, *_: told.append(what))
    assert told == []


def test_another_store_begins_anew(work):
    work.clear()
    assert killed_at(work.run, work.phases["writing rows of x"])
    (left,) = work.target.parent.iterdir()
    record = left / PARTITIONS.record
    record.write_text(json.dumps(json.loads(record.read_text()) | {"store": 64 * "0"}))
    phases: list[str] = []
    work.make(lambda what, *_: phases.append(what))
    assert phases[0] == "dividing nodes at random"
    assert files_of(work.target) == work.files
