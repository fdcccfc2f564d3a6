"""pack.json: written, read again, refused if damaged; packs by settings; the folder's lock."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import Store
from gnndrive.store.packed.folder import PackingFolder
from gnndrive.store.packed.format import (
    PackArray,
    PackInfo,
    dump,
    open_pack,
    pack_path,
    packs_of,
    parse,
)
from gnndrive.store.packed.samples import read_index, write_index
from gnndrive.store.packed.sections import Schema, Section
from gnndrive.store.packed.settings import PackSettings, differences
from tests.store.packed.graphs import files_of

SETTINGS = PackSettings("40 positions abc", 16, False, True, [10, 5], False, seed=3, epochs=2)
TYPES: Any = (("author", "writes", "paper"),)
SCHEMA = Schema(
    "heterogeneous", True, TYPES[0], 2, ("author", "paper"), TYPES,
    (Section("node/author", "int32", "int64"), Section("metadata/1", "int32", "int64", (2, -1))),
    ("cold nodes/x",),
)  # fmt: skip


def info_of(store: Store) -> PackInfo:
    shape = (2 * 7, len(SCHEMA.columns))
    arrays = {
        "index": PackArray("index", "int64", shape, "sha256:" + "a" * 64),
        "rows/nodes/x/000": PackArray("rows/nodes/x/000", "bfloat16", (9, 3), "sum64:" + "0" * 16),
    }
    return PackInfo(
        store.identity, SETTINGS, 7, 8, 1000, 999, SCHEMA, arrays, {"nodes/x": "b" * 64}
    )


def test_pack_json_is_read_as_it_was_written(store: Store):
    info = info_of(store)
    assert parse(dump(info), "here") == info
    assert info.epochs == 2
    assert info.arrays["rows/nodes/x/000"].nbytes == 4096 + 9 * 3 * 2


def damaged(value: Any, draw: random.Random) -> Any:
    """The value with one part of it replaced by something else, or left out."""
    others = [None, True, -2, 1 << 60, "", "../x", "\x1b", [], {}, [1], ["a"], 0.5]
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(sorted(value))
        if draw.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return value | {key: damaged(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        place = draw.randrange(len(value))
        return [*value[:place], damaged(value[place], draw), *value[place + 1 :]]
    return draw.choice(others)


def test_a_damaged_pack_json_is_refused_or_consistent(store: Store):
    document = json.loads(dump(info_of(store)))
    draw, refused = random.Random(0), 0
    for _ in range(1_500):
        try:
            found = parse(json.dumps(damaged(document, draw)).encode(), "here")
        except StoreError:
            refused += 1
        else:
            assert found.arrays["index"].shape == (
                found.epochs * found.batches, len(found.schema.columns),
            )  # fmt: skip
            assert parse(dump(found), "here") == found
    assert refused > 1_000


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"format": NaN}', b"\xff", b"[" * 99999])
def test_what_is_no_pack_json_is_refused(content: bytes):
    with pytest.raises(StoreError):
        parse(content, "here")


def test_settings_decide_the_folder_and_differences_have_names(store: Store):
    other = dataclasses.replace(SETTINGS, num_neighbors=[5], segment=1)
    assert pack_path(store, SETTINGS).parent == store.path / "packed"
    assert len(SETTINGS.digest) == 12
    assert SETTINGS.digest != other.digest
    assert SETTINGS.digest == dataclasses.replace(SETTINGS).digest
    assert differences(SETTINGS, other) == ["fanout was [10, 5] and is [5]"]
    assert differences(SETTINGS, dataclasses.replace(SETTINGS, segment=1, seed=9)) == []
    weighted = dataclasses.replace(SETTINGS, sampling="NeighborSampler")
    assert differences(weighted, SETTINGS) == [
        "sampling was 'NeighborSampler' and is that of plain neighbour sampling"
    ]
    with pytest.raises(ConfigError, match="sets"):
        dataclasses.replace(SETTINGS, order="random")


def finished(store: Store, settings: PackSettings = SETTINGS) -> Path:
    """Pack an index alone."""
    with PackingFolder(store, pack_path(store, settings), settings) as folder:
        write_index(folder.path, np.ones((14, len(SCHEMA.columns)), np.int64))
        folder.finish(dataclasses.replace(info_of(store), settings=settings))
    return folder.target


def test_packs_are_listed_with_their_settings(store: Store):
    assert packs_of(store) == []
    other = dataclasses.replace(SETTINGS, segment=1)
    paths = sorted([finished(store), finished(store, other)])
    assert [pack.path for pack in packs_of(store)] == paths
    assert {pack.info.settings.segment for pack in packs_of(store) if pack.info} == {None, 1}
    assert set(files_of(paths[0])) == {"index.npy", "pack.json"}
    assert (read_index(paths[0], 14, len(SCHEMA.columns)) == 1).all()
    (paths[0] / "pack.json").write_text("{}")
    damaged, whole = packs_of(store)
    assert damaged.info is None
    assert "pack.json" in damaged.problem
    assert whole.info is not None
    with PackingFolder(store, store.path / "packed" / "0123456789ab", SETTINGS):
        assert len(packs_of(store)) == 2  # an unfinished one is none


def test_a_store_that_changed_is_named(store: Store, tmp_path: Path):
    path = finished(store)
    content = json.loads((path / "pack.json").read_text())
    (path / "pack.json").write_text(json.dumps(content | {"store": "0" * 64}))
    assert open_pack(path).store == "0" * 64
    with pytest.raises(StoreError, match="has changed since"):
        open_pack(path, store)
    with pytest.raises(StoreError):
        open_pack(tmp_path)


def test_a_second_packer_is_refused_and_a_later_one_goes_on(store: Store):
    target = pack_path(store, SETTINGS)
    with PackingFolder(store, target, SETTINGS) as first:
        assert not first.resumed
        (first.path / "samples").mkdir()
        with pytest.raises(ConfigError, match="another process is packing"):
            PackingFolder(store, target, SETTINGS).__enter__()
    (first.path / "half.npy.part").touch()
    with PackingFolder(store, target, SETTINGS) as second:
        assert (second.resumed, second.path) == (True, first.path)
        assert (second.path / "samples").is_dir()
        assert not (second.path / "half.npy.part").exists()
    finished(store)
    with pytest.raises(ConfigError, match="there already"):
        PackingFolder(store, target, SETTINGS).__enter__()
    assert not first.path.exists()


def test_the_lock_of_a_killed_packer_is_free(store: Store):
    target = pack_path(store, SETTINGS)
    script = (
        "import os, sys, gnndrive; from pathlib import Path\n"
        "from gnndrive.store.packed.folder import PackingFolder\n"
        "from gnndrive.store.packed.settings import PackSettings\n"
        f"settings = PackSettings(**{SETTINGS.as_dict()!r})\n"
        f"PackingFolder(gnndrive.open({str(store.path)!r}), Path({str(target)!r}), settings)"
        ".__enter__()\nos.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    with PackingFolder(store, target, SETTINGS) as folder:
        assert folder.resumed


def test_a_folder_of_another_store_is_emptied(store: Store):
    target = pack_path(store, SETTINGS)
    with PackingFolder(store, target, SETTINGS) as folder:
        (folder.path / "samples").mkdir()
        (folder.path / "packing.json").write_text("{}")
    with PackingFolder(store, target, SETTINGS) as folder:
        assert not folder.resumed
        assert not (folder.path / "samples").exists()


@pytest.mark.parametrize("name", ["unlink", "rename"])
def test_a_packer_killed_while_it_finishes_is_finished_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
):
    target, whole = pack_path(store, SETTINGS), None

    class Killed(BaseException):
        pass

    for calls in range(1, 9):
        left, real = [calls], getattr(os, name)

        def call(*given: Any, left: list[int] = left, real: Any = real) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*given)

        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, name, call)
                finished(store)
        except Killed:
            try:
                with PackingFolder(store, target, SETTINGS) as folder:
                    if folder.finished is None:
                        write_index(folder.path, np.ones((14, len(SCHEMA.columns)), np.int64))
                        folder.finish(info_of(store))
            except ConfigError:  # it was renamed already
                pass
        assert open_pack(target, store) == info_of(store)
        whole = whole or files_of(target)
        assert files_of(target) == whole
        assert os.listdir(target.parent) == [target.name]
        for file in target.iterdir():
            file.unlink()
        target.rmdir()
