"""pack.json, packs by settings, and the hidden folder of a packer."""

import dataclasses
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gnndrive.cli.commands import clean
from gnndrive.common.errors import StoreError
from gnndrive.common.file_lock import try_lock
from gnndrive.store import Store
from gnndrive.store.layout.arrays import LayoutArray, write_small
from gnndrive.store.layout.folder import unfinished_layouts
from gnndrive.store.packed.format import (
    INDEX,
    PACKED,
    PACKS,
    PackInfo,
    PackSettings,
    pack_path,
)
from gnndrive.store.packed.pack import PackingFolder
from gnndrive.store.packed.sections import Schema, Section
from tests.store.kills import killed_at
from tests.store.packed.packs import files_of

SETTINGS = PackSettings("40 positions abc", 16, False, True, [10, 5], False, seed=3, epochs=2)
TYPES: Any = (("author", "writes", "paper"),)
TABLES = {"nodes/x": "b" * 64}
SCHEMA = Schema(
    "heterogeneous", True, TYPES[0], 2, ("author", "paper"), TYPES,
    (Section("node/author", "int32", "int64"), Section("metadata/1", "int32", "int64", (2, -1))),
    ("cold nodes/x",),
)  # fmt: skip


def info_of(store: Store) -> PackInfo:
    shape = (2 * 7, len(SCHEMA.columns))
    arrays = {
        "index": LayoutArray("index", "int64", shape, "sha256:" + "a" * 64),
        "rows/nodes/x/000": LayoutArray(
            "rows/nodes/x/000", "bfloat16", (9, 3), "sum64:" + "0" * 16
        ),
    }
    return PackInfo(store.identity, SETTINGS, 7, 8, 1000, 999, SCHEMA, arrays, TABLES)


# ---- pack.json


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


def test_a_damaged_pack_json_is_refused_or_consistent(store, seeds):
    document, refused = json.loads(PACKS.dump(info_of(store))), 0
    for seed in seeds(200):
        content = json.dumps(damaged(document, random.Random(seed))).encode()
        try:
            found = PACKS.parse(content, "here")
        except StoreError:
            refused += 1
        else:
            assert found.arrays["index"].shape == (
                found.epochs * found.batches, len(found.schema.columns),
            )  # fmt: skip
            assert PACKS.parse(PACKS.dump(found), "here") == found
    assert refused > 100


# ---- the folder


def finished(store: Store, settings: PackSettings = SETTINGS) -> Path:
    """Pack an index alone, or end what a killed packer left."""
    target = pack_path(store, settings)
    with PackingFolder(store, target, settings, TABLES) as folder:
        if folder.finished is None:
            write_small(folder.path, INDEX, np.ones((14, len(SCHEMA.columns)), np.int64))
            folder.finish(dataclasses.replace(info_of(store), settings=settings))
    return target


def leave(store: Store) -> Path:
    with PackingFolder(store, pack_path(store, SETTINGS), SETTINGS, TABLES) as packing:
        (packing.path / "samples").mkdir()
        (packing.path / "samples" / "000.npy").write_bytes(bytes(100))
    return packing.path


def test_a_later_packer_goes_on_without_half_a_file(store):
    path = leave(store)
    (path / "half.npy.part").touch()
    with PackingFolder(store, pack_path(store, SETTINGS), SETTINGS, TABLES) as second:
        assert (second.resumed, second.path) == (True, path)
        assert (path / "samples").is_dir()
        assert not (path / "half.npy.part").exists()


# ---- unfinished packs


def test_an_unfinished_one_is_found_with_its_settings_and_removed_unless_it_is_held(store):
    path = leave(store)
    (found,) = unfinished_layouts(path.parent, PACKS)
    assert (found.path, found.target, found.in_use) == (path, pack_path(store, SETTINGS), False)
    assert found.settings() == SETTINGS
    assert found.nbytes == 100 + (path / PACKS.record).stat().st_size
    lock = try_lock(path / PACKS.lock)
    (held,) = unfinished_layouts(path.parent, PACKS)
    assert (held.in_use, held.clean(), found.clean()) == (True, False, False)
    assert (path / PACKS.record).exists()
    os.close(lock)
    assert found.clean()
    assert held.clean()  # it is gone
    assert unfinished_layouts(path.parent, PACKS) == []


def test_a_maker_that_is_killed_at_any_call(store):
    """Cleaning leaves a whole one or nothing, and the same call ends with the same files."""
    folder, at = store.path / PACKED, 0
    files = files_of(finished(store))
    shutil.rmtree(folder)
    while killed_at(lambda: finished(store), at := at + 1):
        copy = shutil.copytree(store.path, store.path.with_name("copy"))
        target = pack_path(store, SETTINGS)
        if not target.exists():
            finished(store)
            assert files_of(folder) == {
                f"{target.name}/{name}": each for name, each in files.items()
            }
        clean.run(copy.parent)
        left = {path.parent.name: files_of(path.parent) for path in copy.glob("packed/*/index.npy")}
        assert left in ({}, {target.name: files})
        assert (copy / PACKED).exists() == bool(left)
        shutil.rmtree(copy)
        shutil.rmtree(folder)
    assert at > 15
    assert left


@pytest.mark.parametrize("content", ["", "{}", '{"settings": {"epochs": 3}}', "[1]"])
def test_one_of_unknown_settings_is_removed_too(store, content):
    path = leave(store)
    (path / PACKS.record).write_text(content)
    (found,) = unfinished_layouts(path.parent, PACKS)
    assert found.settings() is None
    assert found.clean()


def test_no_packer_goes_on_with_what_an_interrupted_removal_left(store):
    path = leave(store)
    (found,) = unfinished_layouts(path.parent, PACKS)
    interrupted = patch.object(shutil, "rmtree", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        found.clean()
    assert (path / "samples" / "000.npy").exists()
    with PackingFolder(store, pack_path(store, SETTINGS), SETTINGS, TABLES) as packing:
        assert not packing.resumed
        assert not (path / "samples").exists()


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        ((), True),  # its packer was killed before it had locked it
        (("pack.json", "mine.txt"), True),
        (("samples", "rows"), True),  # the rest of a pack that was being removed
        (("samples", "mine.txt"), False),
    ],
)
def test_other_programs_folders_files_and_links_are_left_alone(tmp_path, names, ours):
    path = tmp_path / ".p.0123456789ab.packing"
    path.mkdir()
    for name in names:
        (path / name).touch()
    (tmp_path / ".r.0123456789ab.packing").touch()
    (tmp_path / ".q.0123456789ab.packing").symlink_to(path)
    (tmp_path / ".p.0123.packing").mkdir()
    (tmp_path / "p.0123456789ab.packing").mkdir()
    assert [each.path for each in unfinished_layouts(tmp_path, PACKS)] == [path] * ours
