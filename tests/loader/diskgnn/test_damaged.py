"""Damage of a stranger's pack is an error or another sound batch, never a crash or a hang."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

import gnndrive
from gnndrive import Store
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import Faults
from tests.loader.batches import simulate
from tests.loader.diskgnn.conftest import ARGUMENTS, EPOCHS
from tests.loader.diskgnn.packs import loader_of, make_pack, pack_folder
from tests.loader.windows.damage import KINDS, damage, outcome
from tests.soak import product
from tests.store.packed.packs import make_graph

SMALL = "46KB"  # holds the largest batch


@pytest.fixture
def pack(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's pack, which the test may damage."""
    return Path(shutil.copytree(pack_folder(store), tmp_path / "pack"))


def test_damage_is_refused_or_harmless(store, pack, tmp_path, seeds):
    """In small buffers and in large ones."""
    found = []
    for seed in {*range(6), *seeds(12)}:  # some of the first six are refused
        damaged = shutil.copytree(pack, tmp_path / "damaged")
        kind = KINDS[seed % 3]
        said = damage(
            damaged, kind, seed, "rows/*/*.npy", lambda file: file.stem not in ("index", "bands")
        )
        buffer = (SMALL, "4MB")[seed // 3 % 2]
        try:
            make = partial(loader_of, store, ARGUMENTS, packed=damaged, buffer=buffer)
            found.append(outcome(make)[0])
        except Exception as error:  # a damaged index may say that batches are larger
            if "is too little to replay" not in str(error):
                raise AssertionError(f"seed {seed}, {said}: {error!r}") from error
        shutil.rmtree(damaged)
    assert {"refused", "error"} & set(found)


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
    with (
        pytest.raises((StoreError, ReadError, ConfigError)) as caught,
        loader_of(store, ARGUMENTS, packed=pack, buffer=SMALL) as loader,
    ):
        list(loader)
    assert str(file) in str(caught.value)
    assert "remove the pack, and pack the store again (gnndrive pack)" in str(caught.value)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of one table with a pack, because a simulated fault strikes all files."""
    graph = make_graph()
    del graph.edge_attr
    made = gnndrive.from_data(graph, tmp_path_factory.mktemp("failing") / "graph.gnn")
    make_pack(made, ARGUMENTS, epochs=EPOCHS)
    return made


def test_a_hot_row_that_cannot_be_read(narrow, monkeypatch):
    """The first batch of each epoch has the error, because all wait for the hot rows."""
    simulate(monkeypatch, 0, Faults(eio_offsets=((DATA_OFFSET, DATA_OFFSET + 1),)))
    with loader_of(narrow, ARGUMENTS, engine="simulated", buffer="1MB") as loader:
        for _ in range(3):
            with pytest.raises(ReadError):
                next(iter(loader))
