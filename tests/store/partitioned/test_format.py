"""partition.json and the arrays of a folder, refused if damaged; what a folder answers."""

import json
import os
import random
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.partitioned.format import ARRAYS, PARTITION_JSON, PARTITIONS, PartitionSettings
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.reader import Store
from tests.soak import product
from tests.store.conftest import edit_json
from tests.store.packed.test_format import damaged
from tests.store.partitioned.made import make_folder, make_store

NODES = 200
PART = np.random.default_rng(7).integers(0, 9, NODES)
MENDED = "gnndrive partition"


@pytest.fixture
def made(store: Store) -> Partitioned:
    return make_folder(store, PART)


# ---- partition.json


FIELDS: list[tuple[str, Any, str]] = [
    ("format", "gnndrive-pack", "choose another folder"),
    ("version", 1, f"has version 1, and this gnndrive reads 2.*{MENDED}"),
    ("store", "0" * 64, "has changed since"),
    ("num_edges", 1 << 60, "num_edges is 1152921504606846976, and has to be a whole number from 0"),
    ("num_static", 201, "more static nodes"),
    ("share_inside", 1, "share_inside is 1, and has to be a number with a decimal point"),
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
    file = made.path / PARTITION_JSON
    edit_json(file, lambda top: reduce(getitem, outer, top).update({name: value}))
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
    edit_json(made.path / PARTITION_JSON, lambda top: top["arrays"][name].update({field: value}))
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
    path, outside = made.path / f"{name}.npy", tmp_path / "outside.npy"
    path.rename(outside)
    content = outside.read_bytes()
    for damage, said in (
        (lambda: path.write_bytes(content[:-1]), "bytes instead of"),
        (lambda: path.write_bytes(content + b"1"), "bytes instead of"),
        (lambda: path.write_bytes(content.replace(b"NUMPY", b"numpy", 1)), "does not have the h"),
        (lambda: None, "cannot be opened "),
        (lambda: path.symlink_to(outside), "cannot be opened"),
        (lambda: os.mkfifo(path), "is not a plain file"),
    ):
        damage()
        with pytest.raises(StoreError, match=rf"{name}.npy .*{said}.*{MENDED}"):
            open_partitioned(made.path, store)
        path.unlink(missing_ok=True)


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


def test_ids_of_homes_are_checked_and_others_when_they_are_used(store, made):
    for value in (-1, NODES + 8):
        put(made, "place", 5, value)
        put(made, "order", 5, value)
        opened = open_partitioned(made.path, store)
        assert opened.part_of(np.array([4, 6])).tolist() == PART[[4, 6]].tolist()
        with pytest.raises(StoreError, match=rf"place.npy has codes out of range.*{MENDED}"):
            opened.part_of(np.array([4, 5]))
        assert len(opened.store_ids(6, 20)) == 14
        with pytest.raises(StoreError, match=rf"order.npy has ids of no nodes.*{MENDED}"):
            opened.store_ids(0, 6)
    for value in (-1, NODES):
        put(made, "home", 3, value)
        with pytest.raises(StoreError, match=r"home.npy has ids of no nodes"):
            open_partitioned(made.path, store)


# ---- the store, and the folder as a whole


def test_a_store_that_has_changed_is_refused(store: Store, made: Partitioned, tmp_path: Path):
    other = make_store(tmp_path / "other.gnn", seed=1)
    with pytest.raises(StoreError, match=rf"other.gnn has changed since .*{MENDED}"):
        open_partitioned(made.path, other)
    edit_json(made.path / PARTITION_JSON, lambda top: top.update(store=other.identity))
    assert open_partitioned(made.path, other).num_nodes == NODES
    for more, said in (
        ({"x": np.zeros((NODES, 5), np.float32)}, "rows of another shape or dtype"),
        ({"edges": 1501}, "other numbers of nodes or edges"),
    ):
        other = make_store(tmp_path / f"{said}.gnn", **more)
        edit_json(made.path / PARTITION_JSON, lambda top, of=other: top.update(store=of.identity))
        with pytest.raises(StoreError, match=said):
            open_partitioned(made.path, other)


def test_a_folder_that_is_replaced_is_noticed(store: Store, made: Partitioned):
    (made.path / PARTITION_JSON).write_bytes((made.path / PARTITION_JSON).read_bytes())
    with made.unchanged():  # it is the same again
        pass
    gnndrive.partition(store, 4, "random", overwrite=True)
    with pytest.raises(StoreError, match="removed or replaced"), made.unchanged():
        pass


# ---- the hidden folder


def test_a_writer_with_other_settings_that_was_faster_is_not_replaced(store, made):
    other = store.path / "partitioned" / "other"
    with LayoutFolder(PARTITIONS, store, other, PartitionSettings("random", 9)) as slower:
        made.path.rename(other)
        with pytest.raises(ConfigError, match="there already"):
            slower.finish(made.info)
    assert PARTITIONS.read(other) == made.info


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
