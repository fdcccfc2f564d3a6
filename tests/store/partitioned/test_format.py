"""partition.json and the arrays of a folder, refused if damaged; what a folder answers."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.partitioned.format import ARRAYS, PARTITION_JSON, PARTITIONS
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.partitioned.settings import PartitionSettings
from gnndrive.store.reader import Store
from tests.soak import product
from tests.store.packed.test_format import damaged
from tests.store.partitioned.made import make_folder, make_store

NODES = 200
PART = np.random.default_rng(7).integers(0, 9, NODES)
MENDED = "gnndrive partition"


@pytest.fixture
def made(store: Store) -> Partitioned:
    return make_folder(store, PART)


def rewrite(made: Partitioned, change: Callable[[dict[str, Any]], object]) -> None:
    said = made.info.as_dict()
    change(said)
    (made.path / PARTITION_JSON).write_text(json.dumps(said))


# ---- partition.json


FIELDS: list[tuple[str, Any, str]] = [
    ("format", "gnndrive-pack", "choose another folder"),
    ("version", 1, f"has version 1, and this gnndrive reads 2.*{MENDED}"),
    ("store", "0" * 64, "has changed since"),
    ("num_edges", 1 << 60, "out of range"),
    ("num_static", 201, "more static nodes"),
    ("share_inside", 1, "not float"),
    ("share_hot", 0.99, "shares of in-edges"),
    ("share_hot", float("nan"), "NaN is not a number in JSON"),
    ("arrays", {}, "does not list the arrays"),
    ("settings.method", "best", "give one of auto"),
    ("settings.method", "file", "SHA-256"),
    ("settings.seed", 1 << 64, "64 bits"),
    ("settings.file", "a" * 64, "nothing with another method"),
]


@pytest.mark.parametrize(("field", "value", "said"), FIELDS)
def test_every_field_is_checked(store: Store, made: Partitioned, field: str, value: Any, said: str):
    *outer, name = field.split(".")

    def change(content: dict[str, Any]) -> None:
        for each in outer:
            content = content[each]
        content[name] = value

    rewrite(made, change)
    with pytest.raises(StoreError, match=said) as caught:
        open_partitioned(made.path, store)
    assert PARTITION_JSON in str(caught.value) or MENDED in str(caught.value)


@product(
    "name,change",
    ARRAYS,
    [
        ("dtype", "float64", "instead of|rows of another"),
        ("dtype", "object", "cannot hold dtype"),
        ("shape", [3], "instead of|has 4|more nodes|other numbers|does not rise|bytes instead"),
        ("shape", [], "1 to 8 sizes"),
        ("shape", [-1], "1 to 8 sizes"),
        ("shape", [1 << 50], "too large"),
        ("checksum", "md5:1", "'checksum' that is none"),
    ],
)
def test_every_array_is_checked(store, made, name, change):
    field, value, said = change
    rewrite(made, lambda content: content["arrays"][name].__setitem__(field, value))
    with pytest.raises(StoreError, match=said):
        open_partitioned(made.path, store)


def test_damage_anywhere_in_partition_json_is_a_store_error(store, made, seeds):
    refused = 0
    for seed in seeds(40):
        content = damaged(made.info.as_dict(), random.Random(seed))
        (made.path / PARTITION_JSON).write_text(json.dumps(content))
        try:
            open_partitioned(made.path, store)
        except StoreError:
            refused += 1
    assert refused > 20
    for broken in (b"", b"{", b"[]", b"\xff", PARTITIONS.dump(made.info)[:-9]):
        (made.path / PARTITION_JSON).write_bytes(broken)
        with pytest.raises(StoreError, match=PARTITION_JSON):
            open_partitioned(made.path, store)


# ---- the files


@pytest.mark.parametrize("name", ARRAYS)
def test_every_file_is_checked(store: Store, made: Partitioned, name: str, tmp_path: Path):
    path = made.path / f"{name}.npy"
    content = path.read_bytes()
    for damage, said in (
        (content[:-1], "bytes instead of"),
        (content + b"1", "bytes instead of"),
        (content.replace(b"NUMPY", b"numpy", 1), "does not have the header of"),
    ):
        path.write_bytes(damage)
        with pytest.raises(StoreError, match=rf"{name}.npy .*{said}.*{MENDED}"):
            open_partitioned(made.path, store)
    path.unlink()
    with pytest.raises(StoreError, match=rf"{name}.npy cannot be opened .*{MENDED}"):
        open_partitioned(made.path, store)
    (tmp_path / "outside.npy").write_bytes(content)
    path.symlink_to(tmp_path / "outside.npy")
    with pytest.raises(StoreError, match=rf"{name}.npy cannot be opened"):
        open_partitioned(made.path, store)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match=rf"{name}.npy is not a plain file"):
        open_partitioned(made.path, store)


def put(made: Partitioned, name: str, at: int, value: int) -> None:
    array = np.load(made.path / f"{name}.npy", mmap_mode="r+")
    array[at] = value
    array.flush()


@product(
    "change,name",
    [(0, 1), (0, -1), (-1, 0), (-1, 1 << 50), (2, 1 << 40)],
    ["bounds", "edge_bounds", "static_bounds"],
)
def test_bounds_that_do_not_rise_are_refused(store, made, change, name):
    at, value = change
    put(made, name, at, value)
    with pytest.raises(StoreError, match=rf"{name}.npy does not rise from 0 to \d+.*{MENDED}"):
        open_partitioned(made.path, store)


@pytest.mark.parametrize("value", [-1, NODES])
def test_a_home_that_is_no_node_is_refused(store: Store, made: Partitioned, value: int):
    put(made, "home", 3, value)
    with pytest.raises(StoreError, match=r"home.npy has ids of no nodes"):
        open_partitioned(made.path, store)


@pytest.mark.parametrize("value", [-1, NODES + 8])
def test_ids_and_codes_are_checked_when_they_are_used(store: Store, made: Partitioned, value: int):
    put(made, "place", 5, value)
    put(made, "order", 5, value)
    opened = open_partitioned(made.path, store)
    assert opened.part_of(np.array([4, 6])).tolist() == PART[[4, 6]].tolist()
    with pytest.raises(StoreError, match=rf"place.npy has codes out of range.*{MENDED}"):
        opened.part_of(np.array([4, 5]))
    assert len(opened.store_ids(6, 20)) == 14
    with pytest.raises(StoreError, match=rf"order.npy has ids of no nodes.*{MENDED}"):
        opened.store_ids(0, 6)


# ---- the store, and the folder as a whole


def test_a_store_that_has_changed_is_refused(store: Store, made: Partitioned, tmp_path: Path):
    other = make_store(tmp_path / "other.gnn", seed=1)
    with pytest.raises(StoreError, match=rf"other.gnn has changed since .*{MENDED}"):
        open_partitioned(made.path, other)
    rewrite(made, lambda content: content.__setitem__("store", other.identity))
    assert open_partitioned(made.path, other).num_nodes == NODES
    narrow = make_store(tmp_path / "narrow.gnn", x=np.zeros((NODES, 5), np.float32))
    rewrite(made, lambda content: content.__setitem__("store", narrow.identity))
    with pytest.raises(StoreError, match="rows of another shape or dtype"):
        open_partitioned(made.path, narrow)
    larger = make_store(tmp_path / "larger.gnn", edges=1501)
    rewrite(made, lambda content: content.__setitem__("store", larger.identity))
    with pytest.raises(StoreError, match="other numbers of nodes or edges"):
        open_partitioned(made.path, larger)


def test_a_folder_that_is_none_is_refused(store: Store, tmp_path: Path):
    with pytest.raises(StoreError, match=f"is not a partitioned folder.*{MENDED}"):
        PARTITIONS.read(tmp_path)


def test_a_folder_that_is_replaced_is_noticed(store: Store, made: Partitioned):
    with made.unchanged():
        pass
    copied = (made.path / PARTITION_JSON).read_bytes()
    (made.path / PARTITION_JSON).write_bytes(copied)  # the same again
    with made.unchanged():
        pass
    gnndrive.partition(store, 4, "random", overwrite=True)
    with pytest.raises(StoreError, match="removed or replaced"), made.unchanged():
        pass


# ---- the hidden folder


def test_a_second_writer_is_refused(store: Store, made: Partitioned):
    settings = PartitionSettings("random", 9)
    other = store.path / "partitioned" / "other"
    with LayoutFolder(PARTITIONS, store, other, settings) as first:
        with pytest.raises(ConfigError, match=r"another process is partitioning .* wait"):
            LayoutFolder(PARTITIONS, store, other, settings).__enter__()
        made.path.rename(other)  # a writer with other settings was faster
        with pytest.raises(ConfigError, match="there already"):
            first.finish(made.info)
    assert PARTITIONS.read(other) == made.info
    with pytest.raises(ConfigError, match="--overwrite"):
        LayoutFolder(PARTITIONS, store, other, settings).__enter__()


def test_the_digest_is_that_of_the_settings():
    first = PartitionSettings("ldg", 16, 1)
    assert first.digest == PartitionSettings("ldg", 16, 1.0).digest
    others = [
        replace(first, parts=17), replace(first, static=0.5), replace(first, seed=1),
        replace(first, train_first=True), replace(first, method="metis"),
    ]  # fmt: skip
    assert len({first.digest, *(each.digest for each in others)}) == 6


# ---- what a folder answers


def test_a_folder_answers_in_store_ids(store: Store):
    part = np.random.default_rng(1).integers(0, 5, store.num_nodes)
    part[part == 3] = 4  # a partition without nodes
    made = make_folder(store, part, 7)  # the last two, too
    assert (made.num_parts, made.num_static) == (7, 8)
    nodes = np.random.default_rng(2).permutation(store.num_nodes)
    assert np.array_equal(made.part_of(nodes), part[nodes])
    assert made.part_of(nodes[:0]).dtype == np.int32
    for number in range(7):
        found = made.store_ids(*made.bounds[number : number + 2])
        assert np.array_equal(found, np.flatnonzero(part == number))
    with pytest.raises(ConfigError, match="from 0 to 199"):
        made.part_of(np.array([200]))
    with pytest.raises(ConfigError, match="from 0 to 199"):
        made.part_of(np.array([-1]))


def test_the_folders_of_a_store_are_listed(store: Store):
    assert PARTITIONS.of(store) == []
    first = make_folder(store, np.zeros(store.num_nodes, int), name="b")
    second = make_folder(store, np.arange(store.num_nodes), static=0.0, name="a")
    (second.path / "x.npy").write_bytes(b"")  # opening it finds that
    (store.path / "partitioned" / ".hidden").mkdir()
    (store.path / "partitioned" / "empty").mkdir()
    found = PARTITIONS.of(store)
    assert [each.path.name for each in found] == ["a", "b", "empty"]
    assert found[1].info == first.info
    assert "gnndrive partition" in found[2].problem
