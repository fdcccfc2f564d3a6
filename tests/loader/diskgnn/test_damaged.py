"""A stranger's pack: damage is an error or another sound batch, never a crash or a hang."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from gnndrive import Store
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES
from tests.loader.diskgnn.damage import damage, outcome
from tests.loader.diskgnn.packs import loader_of, pack_folder
from tests.soak import product

SMALL = "46KB"  # holds the largest batch


@pytest.fixture
def pack(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's pack, which the test may damage."""
    copy = tmp_path / "pack"
    shutil.copytree(pack_folder(store), copy)
    return copy


def test_damage_is_refused_or_harmless(store, pack, tmp_path, seeds):
    """In small buffers and in large ones."""
    found: Counter[str] = Counter()
    for seed in seeds(12):
        damaged = tmp_path / "damaged"
        shutil.copytree(pack, damaged)
        said = damage(damaged, seed)
        make = partial(
            loader_of, store, ARGUMENTS, packed=damaged, buffer=(SMALL, "4MB")[seed // 4 % 2]
        )
        try:
            found[outcome(make)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {said}: {error!r}") from error
        shutil.rmtree(damaged)
    assert found["refused"] + found["error"] > 0, found


@product(
    "name,what",
    ["rows/nodes/x", "samples/000", "index", "ids/nodes/x/bands"],
    ["link", "pipe", "folder", "missing"],
)
def test_files_that_are_none(store, pack, name, what):
    """A link in a pack may lead out of it, and a pipe has no end."""
    file = pack / f"{name}.npy"
    kept = file.rename(pack.parent / "kept")
    if what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    elif what == "link":
        file.symlink_to(kept)

    def an_epoch() -> None:
        with loader_of(store, ARGUMENTS, packed=pack, buffer=SMALL) as loader:
            list(loader)

    with pytest.raises((StoreError, ReadError, ConfigError)) as caught:
        an_epoch()
    assert str(file) in str(caught.value)
    assert "remove the pack, and pack the store again (gnndrive pack)" in str(caught.value)


def test_rows_that_end_early_are_an_error_of_their_batch(store: Store, pack: Path) -> None:
    """Batches before it are delivered: the last batches' chunks are at the end of the file."""
    file = pack / "rows" / "nodes" / "x.npy"
    with loader_of(store, ARGUMENTS, packed=pack, buffer=SMALL) as loader:
        loader.set_epoch(1)
        os.truncate(file, file.stat().st_size - 600)
        delivered = 0
        with pytest.raises(ReadError) as caught:  # noqa: PT012
            for _ in loader:
                delivered += 1
    assert delivered == BATCHES - 1
    assert caught.value.path == str(file)
