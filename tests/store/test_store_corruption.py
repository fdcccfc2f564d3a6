"""Every kind of damage to a store's files is a StoreError that names the file."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import StoreError
from gnndrive.store import Store, open
from gnndrive.store.reader import Store as ReaderStore
from tests.store.conftest import EDGES

FILES = [
    "graph/indptr.npy",
    "graph/indices.npy",
    "graph/edge_id.npy",
    "nodes/x.npy",
    "nodes/y.npy",
    "edges/edge_attr.npy",
    "splits/train.npy",
    "store.json",
]
ARRAYS = FILES[:-1]


def refused(path: Path, file: str, match: str = "") -> None:
    with pytest.raises(StoreError, match=re.escape(str(path / file)) + ".*" + match):
        open(path)


def poke(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)


@pytest.mark.parametrize("file", FILES)
def test_missing(store: Store, file: str) -> None:
    (store.path / file).unlink()
    refused(store.path, file)


@pytest.mark.parametrize("file", ARRAYS)
@pytest.mark.parametrize("keep", [0, 1, 4095, 4096, -1])
def test_truncated(store: Store, file: str, keep: int) -> None:
    path = store.path / file
    os.truncate(path, keep if keep >= 0 else path.stat().st_size + keep)
    refused(store.path, file, "truncated")


@pytest.mark.parametrize("file", ARRAYS)
def test_too_long(store: Store, file: str) -> None:
    with (store.path / file).open("ab") as stream:
        stream.write(b"x")
    refused(store.path, file, "too long")


@pytest.mark.parametrize("file", ARRAYS)
def test_header_of_another_array(store: Store, file: str) -> None:
    poke(store.path / file, 0, b"\x93NUMPY\x02")
    refused(store.path, file, "header")


def test_fortran_order(store: Store) -> None:
    header = (store.path / "nodes/x.npy").read_bytes()[:4096]
    poke(store.path / "nodes/x.npy", 0, header.replace(b"False", b"True "))
    refused(store.path, "nodes/x.npy", "header")


@pytest.mark.parametrize("file", ARRAYS)
def test_one_changed_byte_is_found_by_verify(store: Store, file: str) -> None:
    size = (store.path / file).stat().st_size
    last = (store.path / file).read_bytes()[-8 if size > 4104 else -1]
    poke(store.path / file, size - (8 if size > 4104 else 1), bytes([last ^ 1]))
    with pytest.raises(StoreError, match=re.escape(str(store.path / file))):
        open(store.path).verify()


@pytest.mark.parametrize("value", [-1, 40, 2**31 - 1])
def test_index_out_of_range(store: Store, value: int) -> None:
    poke(store.path / "graph/indices.npy", 4096 + 4 * 7, np.int32(value).tobytes())
    with pytest.raises(StoreError, match=rf"edge 7 names {value}, but there are 40 nodes"):
        open(store.path).verify()


def test_wrong_checksum(store: Store, edit_json) -> None:
    edit_json(lambda top: top["arrays"]["nodes/x"].update(sha256="0" * 64))
    with pytest.raises(StoreError, match=r"nodes/x.npy has another checksum"):
        open(store.path).verify()


@pytest.mark.parametrize("together", [EDGES, 100, 7])
def test_an_edge_id_that_occurs_twice(
    store: Store, edit_json, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Also with more edges than one pass checks, as in a graph of hundreds of millions of edges."""
    monkeypatch.setattr("gnndrive.store.verify._SEEN_MAX", together)
    store.verify()
    import hashlib

    file = store.path / "graph/edge_id.npy"
    ids = store.array("graph/edge_id").copy()
    lost, ids[3] = int(ids[3]), ids[4]
    poke(file, 4096, ids.tobytes())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    edit_json(lambda top: top["arrays"]["graph/edge_id"].update(sha256=digest))
    with pytest.raises(StoreError, match=rf"edge_id.npy: edge {lost} does not occur"):
        open(store.path).verify()


@pytest.mark.parametrize(
    ("place", "value", "match"), [(0, 1, "starts"), (5, 10**6, "decreases"), (40, 161, "ends with")]
)
def test_index_pointers(store: Store, place: int, value: int, match: str) -> None:
    poke(store.path / "graph/indptr.npy", 4096 + 8 * place, np.int64(value).tobytes())
    refused(store.path, "graph/indptr.npy", match)


@pytest.mark.parametrize("value", [-1, 40])
def test_split_out_of_range(store: Store, value: int) -> None:
    poke(store.path / "splits/train.npy", 4096, np.int64(value).tobytes())
    refused(store.path, "splits/train.npy", f"entry 0 names {value}")


@pytest.mark.parametrize("version", [0, 3, 10**9])
def test_wrong_version(store: Store, edit_json, version: int) -> None:
    edit_json(lambda top: top.update(version=version))
    refused(store.path, "store.json", f"format version {version} and this gnndrive reads 1 and 2")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"format": "another"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": "gnndrive-store", "version": ' + b"9" * 10_000 + b"}",
        b'{"format": "gnndrive-store", "version": NaN}',
    ],
)
def test_content_that_is_not_a_store_json(store: Store, content: bytes) -> None:
    (store.path / "store.json").write_bytes(content)
    refused(store.path, "store.json")


TOP = ["format", "version", "num_nodes", "num_edges", "num_classes", "classes", "made_by", "arrays"]


@pytest.mark.parametrize("key", TOP)
@pytest.mark.parametrize(
    "value", ["absent", "x\x1b", "\ud800", True, -1, 1.5, [1], {}, 10**30, None]
)
def test_json_fields(store: Store, edit_json, key: str, value) -> None:
    def change(top) -> None:
        if value == "absent":
            del top[key]
        else:
            top[key] = value

    edit_json(change)
    if (key, value) == ("classes", None):
        open(store.path)
    else:
        refused(store.path, "store.json")


@pytest.mark.parametrize("key", ["dtype", "shape", "bytes", "sha256"])
@pytest.mark.parametrize(
    "value",
    [
        "absent",
        "object",
        "0float32",
        "<f4",
        True,
        -1,
        [],
        [0],
        [-1, 4],
        ["40"],
        [2**40, 2**40],
        [10**30],
        [40.0],
        None,
    ],
)
def test_json_array_fields(store: Store, edit_json, key: str, value) -> None:
    def change(top) -> None:
        if value == "absent":
            del top["arrays"]["nodes/x"][key]
        else:
            top["arrays"]["nodes/x"][key] = value

    edit_json(change)
    refused(store.path, "store.json", "nodes/x")


NAMES = [
    "../x",
    "nodes/../../x",
    "/etc/passwd",
    "nodes/.x",
    "nodes/x/y",
    "graph/a",
    "x",
    "nodes/\0",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_outside_the_store(store: Store, edit_json, name: str) -> None:
    edit_json(lambda top: top["arrays"].update({name: top["arrays"]["nodes/y"]}))
    refused(store.path, "store.json")


def test_shapes_that_do_not_fit_the_counts(store: Store, edit_json) -> None:
    edit_json(lambda top: top.update(num_nodes=39))
    refused(store.path, "store.json", "does not fit 39 nodes")


def test_a_link_to_a_file_outside(store: Store, tmp_path: Path) -> None:
    shutil.move(store.path / "nodes/x.npy", tmp_path / "x.npy")
    (store.path / "nodes/x.npy").symlink_to(tmp_path / "x.npy")
    refused(store.path, "nodes/x.npy")


def test_a_linked_folder(store: Store, tmp_path: Path) -> None:
    shutil.move(store.path / "nodes", tmp_path / "nodes")
    (store.path / "nodes").symlink_to(tmp_path / "nodes")
    refused(store.path, "nodes")


def test_the_store_itself_may_be_linked(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.path)
    assert open(tmp_path / "link").info == store.info


@pytest.mark.parametrize("file", FILES)
def test_a_pipe_or_folder_instead_of_a_file(store: Store, file: str) -> None:
    (store.path / file).unlink()
    os.mkfifo(store.path / file)
    refused(store.path, file)
    (store.path / file).unlink()
    (store.path / file).mkdir()
    refused(store.path, file)


def test_no_store(tmp_path: Path) -> None:
    refused(tmp_path, "store.json", "gnndrive import")
    refused(tmp_path / "nowhere", "store.json", "gnndrive import")


def test_changed_after_opening(store: Store) -> None:
    os.truncate(store.path / "nodes/y.npy", 4100)
    with pytest.raises(StoreError, match=r"nodes/y.npy is truncated"):
        store.tensor("y")
    with pytest.raises(StoreError, match=r"nodes/y.npy"):
        store.verify()


def test_refusals_close_all_descriptors(store: Store) -> None:
    assert isinstance(store, ReaderStore)
    document = json.loads((store.path / "store.json").read_text())
    os.truncate(store.path / "nodes/y.npy", 4100)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in document["arrays"]:
        refused(store.path, "nodes/y.npy")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
