"""Partitions at random or from the user, the number of partitions, and what is refused."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import Store, write_store
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.partitioned import given, long_writer, metis
from gnndrive.store.partitioned.assign import assign, choose_method, default_parts
from gnndrive.store.partitioned.given import GivenParts
from gnndrive.store.partitioned.long_writer import LongWriter
from tests.store.partitioned.assigned import (
    MEMORY,
    Chosen,
    draw_edges,
    ignore,
    make_store,
    run,
)

NODES = 1000
TRAIN = range(3, NODES, 9)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "graph.gnn", NODES, draw_edges(NODES, 3000), TRAIN)


# ---- random


@pytest.mark.parametrize("parts", [1, 7, 64, NODES])
def test_random_partitions_are_even(store: Store, tmp_path: Path, parts: int):
    found = [run(store, tmp_path / str(n), Chosen("random", parts, seed=n)) for n in (0, 1)]
    for part in found:
        sizes = np.bincount(part, minlength=parts)
        assert sizes.max() - sizes.min() <= 1
        assert len(sizes) == parts
    assert found[0] != found[1] or parts == 1
    assert run(store, tmp_path / "again", Chosen("random", parts)) == found[0]


def test_a_node_may_be_in_any_random_partition(store: Store, tmp_path: Path):
    found = np.array(
        [run(store, tmp_path / str(n), Chosen("random", 4, seed=n)) for n in range(60)]
    )
    for part in range(4):
        share = (found == part).mean(0)
        assert share.min() > 0.02
        assert share.max() < 0.55


@pytest.mark.parametrize("parts", [1, 8, 64])
def test_training_nodes_fill_the_first_partitions(store: Store, tmp_path: Path, parts: int):
    chosen = Chosen("random", parts, train_first=True, seed=2)
    part = np.array(run(store, tmp_path / "work", chosen))
    sizes = np.bincount(part, minlength=parts)
    assert sizes.max() - sizes.min() <= 1
    train = part[list(TRAIN)]
    last = train.max()
    assert np.array_equal(np.bincount(train, minlength=parts)[:last], sizes[:last])
    assert np.bincount(train).sum() == len(TRAIN) <= sizes[: last + 1].sum()
    others = np.setdiff1d(np.arange(NODES), TRAIN)
    assert (np.diff(train) < 0).any() or last == 0
    if parts > 1:
        assert (np.diff(part[others]) < 0).any()


# ---- from the user


def written(folder: Path, part: Any, form: str) -> Any:
    """The partitions in one of the forms that are accepted."""
    if form == "npy":
        np.save(folder / "given.npy", np.array(part, np.uint16))
        return str(folder / "given.npy")
    if form == "text":
        (folder / "given.txt").write_text("".join(f"{number}\n" for number in part))
        return folder / "given.txt"
    return np.array(part, np.int64) if form == "array" else list(part)


@pytest.mark.parametrize("form", ["npy", "text", "array", "list"])
def test_partitions_from_the_user(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
):
    monkeypatch.setattr(given, "_STEP", 300)
    part = [(node + 1) % 5 for node in range(NODES)]
    found = GivenParts(written(tmp_path, part, form), NODES)
    assert found.parts == 5
    assert found.digest == sha256(np.array(part, np.int32).tobytes()).hexdigest()
    assert run(store, tmp_path / "work", Chosen("file", 5), given=found) == part
    with pytest.raises(ConfigError, match="parts=4, and a node is in partition 4: give more parts"):
        run(store, tmp_path / "fewer", Chosen("file", 4), given=found)


def test_empty_partitions_are_counted(store: Store, tmp_path: Path):
    found = GivenParts([4 * (node % 2) for node in range(NODES)], NODES)
    with pytest.warns(UserWarning, match="4 of 6 given partitions are empty: give fewer parts"):
        run(store, tmp_path / "work", Chosen("file", 6), given=found)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ([0, 1], r"the array of partitions holds int64 \[2\]: give whole numbers \[3\], the"),
        ([0.0, 1.0, 2.0], r"holds float64 \[3\]: give whole numbers"),
        ([[0], [1], [2]], r"holds int64 \[3, 1\]: give whole numbers"),
        ([0, 1, -1], "has a number below 0 .*, -1 of node 2: give the partition of each node"),
        ([0, (1 << 31) - 1, 1], r"or above \d+, 2147483647 of node 1: .* counted from 0"),
    ],
)
def test_what_is_no_partition_is_refused(source: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        GivenParts(source, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"0\n1\n2\n3\n", r"holds int64 \[4\]: give whole numbers \[3\]"),
        (b"0\n1\ntwo\n", "nor a file of partitions that can be read .*: give a .npy file of"),
        (b"\x93NUMPY\x01\x00", "nor a file of partitions that can be read"),
        (None, "neither one of auto, metis, ldg, random nor .*No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, said: str):
    path = tmp_path / "given"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}.*{said}"):
        GivenParts(path, 3)


# ---- settings


@pytest.mark.parametrize(
    ("nodes", "row", "parts"),
    [
        (100, 4, 16),
        (9, 4, 9),
        (400_000, 512, 48),  # nodes / 8,192
        (400_000, 128, 16),  # rows of 4 MiB would be 12
        (400_000, 256, 24),  # rows of 4 MiB
    ],
)
def test_the_number_of_partitions(tmp_path: Path, nodes: int, row: int, parts: int):
    store = write_store(
        tmp_path / "g.gnn", indptr=np.zeros(nodes + 1, np.int64), indices=np.zeros(0, np.int32),
        nodes={"x": np.zeros((nodes, row), np.uint8)}, made_by="a test",
    )  # fmt: skip
    assert default_parts(store) == parts


def test_a_store_without_features_has_partitions(tmp_path: Path):
    store = write_store(
        tmp_path / "g.gnn", indptr=np.zeros(20 * 8192 + 1, np.int64), nodes={},
        indices=np.zeros(0, np.int32), made_by="a test",
    )  # fmt: skip
    assert default_parts(store) == 20
    assert len(set(run(store, tmp_path / "work", Chosen("ldg", 20)))) == 20


def test_auto_takes_metis_where_it_fits(store: Store, monkeypatch: pytest.MonkeyPatch):
    assert choose_method(store, 88 * 6000) == "metis"
    assert choose_method(store, 88 * 6000 - 1) == "ldg"
    monkeypatch.setattr("gnndrive.store.partitioned.metis.find_spec", lambda _: None)
    assert choose_method(store, MEMORY) == "ldg"


@pytest.mark.parametrize(
    ("chosen", "memory", "said"),
    [
        (Chosen("best", 4), MEMORY, "method='best': give one of auto, metis, ldg, random, file"),
        (Chosen("ldg", 0), MEMORY, "parts=0: give a number from 1 to 1000"),
        (Chosen("random", 1001), MEMORY, "parts=1001: give a number from 1 to 1000"),
        (Chosen("ldg", 4, True), MEMORY, "train_first is for method='random'"),
        (Chosen("file", 4), MEMORY, "method='file' needs the partition of each node"),
        (Chosen("random", 4), 1 << 20, "memory=1.05 MB is too little .* give at least 3"),
        (Chosen("ldg", 4), 1 << 20, "memory=1.05 MB is too little .* give at least 2"),
        (Chosen("metis", 4), 1 << 20, "memory=1.05 MB is too little .* give at least 2"),
    ],
)
def test_settings_that_cannot_work(
    store: Store, tmp_path: Path, chosen: Chosen, memory: int, said: str
):
    with pytest.raises(ConfigError, match=said):
        run(store, tmp_path / "work", chosen, memory)


def test_auto_goes_on_with_the_method_that_it_began_with(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another choice at a later call, because pymetis is gone, changes nothing."""
    whole = run(store, tmp_path / "whole", Chosen("auto", 8))
    assert whole == run(store, tmp_path / "metis", Chosen("metis", 8))
    folder = tmp_path / "work"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(metis, "assign_metis", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            assign(store, Chosen("auto", 8), folder, MEMORY, ignore)
    monkeypatch.setattr(metis, "is_there", lambda: False)
    with pytest.raises(ConfigError, match="method='metis' needs pymetis"):
        assign(store, Chosen("auto", 8), folder, MEMORY, ignore)
    monkeypatch.undo()
    assert assign(store, Chosen("auto", 8), folder, MEMORY, ignore).tolist() == whole


def test_training_nodes_first_need_a_split(tmp_path: Path):
    store = make_store(tmp_path / "g.gnn", 20, [(0, 1)])
    with pytest.raises(ConfigError, match="has no split 'train', its splits are: none; import"):
        run(store, tmp_path / "work", Chosen("random", 2, train_first=True))


def test_a_finished_assignment_is_taken_as_it_is(store: Store, tmp_path: Path):
    part = run(store, tmp_path / "work", Chosen("random", 4))
    again = assign(store, Chosen("random", 4), tmp_path / "work", 1, ignore)
    assert again.tolist() == part
    np.save(tmp_path / "work" / "part.npy", np.zeros(3, np.int32))
    with pytest.raises(StoreError, match=r"part.npy is damaged: remove .*, and partition again"):
        assign(store, Chosen("random", 4), tmp_path / "work", 1, ignore)


# ---- the writer of long files


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 8191, 3 * 8192, 3 * 8192 + 5])
def test_long_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, direct: bool):
    monkeypatch.setattr(long_writer, "BUFFER_BYTES", 8192)
    monkeypatch.setattr(long_writer, "_SYNCED_BYTES", 8192)
    if not direct:
        real = os.pwrite

        def refuse(fd: int, data: Any, at: int) -> int:
            flags = Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
            if int(flags, 8) & os.O_DIRECT:
                raise OSError(22, "simulated")
            return real(fd, data, at)

        monkeypatch.setattr(os, "pwrite", refuse)
    content = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    with LongWriter(tmp_path / "file") as writer:
        for first in range(0, nbytes, 5000):
            writer.append(content[first : first + 5000])
        assert not (tmp_path / "file").exists()
        writer.finish()
    assert (tmp_path / "file").read_bytes() == content.tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_long_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> int:
        raise OSError(28, "simulated")

    monkeypatch.setattr(os, "pwrite", fail)
    with LongWriter(tmp_path / "file") as writer:
        writer.append(npy_header(ArrayInfo("a", "int32", (0,), "")))
        with pytest.raises(StoreError, match=r"the disk is too full for .*file: free some"):
            writer.finish()
    assert not (tmp_path / "file").exists()
    with pytest.raises(StoreError, match=r"writing .*file failed"):
        LongWriter(tmp_path / "no folder" / "file")
