"""Damage to a store's files, of every kind and at random: a StoreError that names the file."""

import hashlib
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive.common.errors import StoreError
from gnndrive.store import open
from tests.loader.hetero.graph import make_data
from tests.store.conftest import EDGES, edit_json, make_store, poke

ARRAYS = [
    "graph/indptr.npy", "graph/indices.npy", "graph/edge_id.npy", "nodes/x.npy", "nodes/y.npy",
    "edges/edge_attr.npy", "splits/train.npy",
]  # fmt: skip


def refused(path: Path, file: str, match: str = "") -> None:
    with pytest.raises(StoreError, match=re.escape(str(path / file)) + ".*" + match):
        open(path)


# ---- files


@pytest.mark.parametrize("file", [*ARRAYS, "store.json"])
def test_every_file_is_checked(store, file):
    path = store.path / file
    whole = path.read_bytes()
    if file in ARRAYS:
        for content, match in (
            (b"", "truncated"),
            (whole[:-1], "truncated"),
            (whole + b"x", "too long"),
            (b"\x93NUMPY\x02" + whole[7:], "header"),
        ):
            path.write_bytes(content)
            refused(store.path, file, match)
        path.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])
        with pytest.raises(StoreError, match=re.escape(str(path))):
            open(store.path).verify()
    path.unlink()
    refused(store.path, file)
    os.mkfifo(path)
    refused(store.path, file)
    path.unlink()
    path.mkdir()
    refused(store.path, file)
    if file in ARRAYS:
        shutil.rmtree(path.parent)
        refused(store.path, str(Path(file).parent))


def test_links_are_followed_to_the_store_but_not_in_it(victims, tmp_path):
    path = victims / "types"
    (tmp_path / "link").symlink_to(path)
    assert open(tmp_path / "link").info == open(path).info
    for name in ("nodes/paper/x.npy", "nodes", "nodes/paper", "graph/author__writes__paper"):
        os.rename(path / name, tmp_path / "outside")
        (path / name).symlink_to(tmp_path / "outside")
        refused(path, name, "" if "." in name else "is not a folder")
        (path / name).unlink()
        os.rename(tmp_path / "outside", path / name)


def test_changed_after_opening_leaves_no_descriptor(store):
    before = len(os.listdir("/proc/self/fd"))
    os.truncate(store.path / "nodes/y.npy", 4100)
    with pytest.raises(StoreError, match=r"nodes/y.npy is truncated"):
        store.tensor("y")
    with pytest.raises(StoreError, match=r"nodes/y.npy"):
        store.verify()
    refused(store.path, "nodes/y.npy")
    assert len(os.listdir("/proc/self/fd")) == before


# ---- values


def test_values_that_opening_checks(store):
    for file, place, value, match in (
        ("graph/indptr.npy", 0, 1, "starts"),
        ("graph/indptr.npy", 5, 10**6, "decreases"),
        ("graph/indptr.npy", 40, 161, "ends with"),
        ("splits/train.npy", 0, -1, "entry 0 names -1"),
        ("splits/train.npy", 0, 40, "entry 0 names 40"),
    ):
        whole = (store.path / file).read_bytes()
        poke(store.path / file, 4096 + 8 * place, np.int64(value).tobytes())
        refused(store.path, file, match)
        (store.path / file).write_bytes(whole)
    open(store.path).verify()


@pytest.mark.parametrize("together", [EDGES, 100, 7])
def test_an_edge_id_that_occurs_twice(store, monkeypatch, together):
    """Also with more edges than one pass checks, as in a graph of hundreds of millions of edges."""
    monkeypatch.setattr("gnndrive.store.checks._SEEN_MAX", together)
    store.verify()
    file = store.path / "graph/edge_id.npy"
    ids = store.array("graph/edge_id").copy()
    ids[ids == 7] = ids[0]  # the first of the second pass
    poke(file, 4096, ids.tobytes())
    changed = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    edit_json(store.path / "store.json", lambda top: top["arrays"]["graph/edge_id"].update(changed))
    with pytest.raises(StoreError, match=r"edge_id.npy: edge 7 does not occur"):
        open(store.path).verify()


# ---- store.json


def test_every_field_is_checked(store):
    file = store.path / "store.json"
    whole = file.read_text()

    def check(change: Callable[[dict[str, Any]], object], match: str = "") -> None:
        file.write_text(whole)
        edit_json(file, change)
        refused(store.path, "store.json", match)

    def check_values(of: Callable[[dict[str, Any]], Any], keys: str, values: list[Any]) -> None:
        for key in keys.split():
            check(lambda top, key=key: of(top).pop(key))
            for value in values:
                check(lambda top, key=key, value=value: of(top).update({key: value}))

    for content in ("", "null", "{}", b"\xff", "[" * 100_000, whole.replace("40", "9" * 10_000, 1),
                    whole.replace("40", "NaN", 1), '{"format": "another"}'):  # fmt: skip
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        refused(store.path, "store.json")
    for changes, match in (
        ({"version": 3}, "format version 3 and this gnndrive reads 1 and 2"),
        ({"num_nodes": 39}, "does not fit 39 nodes"),
        ({"num_classes": 4}, "below the number of 'classes'"),
    ):
        check(lambda top, changes=changes: top.update(changes), match)
    check(lambda top: top["arrays"].pop("graph/indices"), "has no graph/indices")
    values: list[Any] = ["x\x1b", "\ud800", True, -1, 1.5, [1], 10**30]
    keys = "format version num_nodes num_edges num_classes classes made_by arrays"
    check_values(lambda top: top, keys, values)
    values += ["object", "<f4", [], [0], [-1, 4], ["40"], [2**40, 2**40], [40.0], None, "0" * 63]
    check_values(lambda top: top["arrays"]["nodes/x"], "dtype shape bytes sha256", values)
    for name in ("../x", "nodes/../x", "/etc/x", "nodes/.x", "nodes/x/y", "graph/a", "x",
                 "nodes/\0"):  # fmt: skip
        check(lambda top, name=name: top["arrays"].update({name: top["arrays"]["nodes/y"]}))


# ---- at random

PIECES = [*rb'-1 0 null 1e999 " { [ ]} true ../ \ud800'.split(), b"9" * 40]


def damage(content: bytes, rng: random.Random, text: bool) -> bytes:
    """Flip, cut, repeat or replace bytes, mostly at the beginning, where the headers are."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(max(1, len(data) if text or rng.random() < 0.5 else 160))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + rng.choice([1, 1, 8, 100])]
        elif kind == 3:
            data[at:at] = data[at : at + rng.choice([1, 8, 100])]
        elif kind == 4:
            piece = rng.choice(PIECES)
            data[at : at + rng.choice([0, 1, len(piece)])] = piece
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def use(path: Path) -> None:
    """Open a store, check all that a successful `open` promises, and verify it."""
    store = open(path)
    repr(store), repr(store.info), store.info.as_dict()
    for edges in store.all_edges():
        assert edges.indptr[0] == 0
        assert edges.indptr[-1] == edges.num_edges == len(edges.indices)
    for name, array in store.info.arrays.items():
        assert store.array(name).shape == array.shape
        assert tuple(store.tensor(name).shape) == array.shape
        assert store.table(name).row_bytes >= 0
    for nodes in store.all_nodes():
        for name in nodes.split_names:
            ids = nodes.split(name)
            assert not len(ids) or (ids.min() >= 0 and ids.max() < nodes.num_nodes)
    store.verify()


@pytest.fixture(scope="module")
def victims(tmp_path_factory):
    """The tiny store, and a heterogeneous one."""
    folder = tmp_path_factory.mktemp("fuzz")
    make_store(folder / "tiny")
    gnndrive.from_data(make_data(), folder / "types")
    return folder


@pytest.mark.parametrize(
    ("kind", "file", "count"),
    [
        ("tiny", "store.json", 40),
        ("types", "store.json", 10),
        ("tiny", "graph/indptr.npy", 10),
        ("tiny", "graph/indices.npy", 5),
        ("tiny", "splits/train.npy", 10),
        ("tiny", "nodes/x.npy", 5),
    ],
)
def test_random_damage(victims, kind, file, count, seeds):
    victim = victims / kind
    whole = (victim / file).read_bytes()
    try:
        for seed in seeds(count):
            rng = random.Random(f"{kind} {file} {seed}")
            (victim / file).write_bytes(damage(whole, rng, file.endswith(".json")))
            try:
                use(victim)
            except StoreError as error:
                assert str(victim) in str(error)  # noqa: PT017 - either is right
                str(error).encode()  # can be printed
    finally:
        (victim / file).write_bytes(whole)
    use(victim)
