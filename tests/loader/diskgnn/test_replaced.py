"""A pack that is removed or replaced while a loader lives: an error, never rows of another pack."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.data import Data

from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import StoreError
from gnndrive.store.packed.recording import Recording
from tests.loader.batches import assert_same
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows, loader_of, make_pack, pack_folder

REFUSED = r"was removed or replaced since it was opened: make a new loader"


@pytest.fixture
def pack(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's pack, which the test may replace."""
    return Path(shutil.copytree(pack_folder(store), tmp_path / "pack"))


@pytest.fixture(scope="module")
def other(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of the same batches, which has each batch's rows elsewhere."""
    made = tmp_path_factory.mktemp("other") / "pack"
    make_pack(store, ARGUMENTS, epochs=EPOCHS, segment=1, buffer="1GB", out=made)
    return made


def put(other: Path, pack: Path) -> None:
    """Replace a pack by a copy of another one."""
    pack.rename(pack.with_name("away"))
    shutil.copytree(other, pack)


def open_at(store: Store, pack: Path) -> NeighborLoader:
    return loader_of(store, ARGUMENTS, packed=pack, buffer="100KB")


@pytest.mark.parametrize("change", [put, lambda _, pack: shutil.rmtree(pack)], ids=["put", "gone"])
@pytest.mark.parametrize("epochs", [0, 1], ids=["opened", "started"])
def test_between_epochs(
    store: Store, pack: Path, other: Path, change: Callable[[Path, Path], Any], epochs: int
) -> None:
    """The rows' files are open if the loader has started; samples are opened for each batch."""
    with open_at(store, pack) as loader:
        for _ in range(epochs):
            assert len(list(loader)) == BATCHES
        change(other, pack)
        with pytest.raises(StoreError, match=REFUSED):
            list(loader)


def test_a_loader_opens_no_rows_of_another_pack(
    store: Store, graph: Data, pack: Path, other: Path
) -> None:
    """Also if its own pack is there again before a sample is read."""
    with open_at(store, pack) as loader:
        put(other, pack)
        with pytest.raises(StoreError, match=REFUSED):
            iter(loader)
        shutil.rmtree(pack)
        pack.with_name("away").rename(pack)
        batches = list(loader)
        assert len(batches) == BATCHES
        for batch in batches:
            check_rows(batch, graph)


def test_within_an_epoch(store: Store, graph: Data, pack: Path, other: Path) -> None:
    """Batches whose samples are read already are delivered, and are right."""
    with loader_of(
        store, ARGUMENTS, packed=pack, samplers=1, extracting_queue=1, training_queue=1
    ) as loader:
        batches = iter(loader)
        check_rows(next(batches), graph)
        put(other, pack)
        with pytest.raises(StoreError, match=REFUSED):  # noqa: PT012
            for batch in batches:
                check_rows(batch, graph)


def test_a_copy_of_the_same_pack_is_taken(store: Store, pack: Path) -> None:
    with open_at(store, pack) as loader:
        first = list(loader)
        put(pack_folder(store), pack)
        loader.set_epoch(0)
        for one, expected in zip(loader, first, strict=True):
            assert_same(one, expected)


def test_a_pickled_loader_refuses_another_pack(store: Store, pack: Path, other: Path) -> None:
    with open_at(store, pack) as loader:
        pickled = pickle.dumps(loader)
    put(other, pack)
    with pickle.loads(pickled) as again, pytest.raises(StoreError, match=REFUSED):
        list(again)
    shutil.rmtree(pack)
    shutil.copytree(pack_folder(store), pack)
    with pickle.loads(pickled) as again:
        assert len(list(again)) == BATCHES


def test_files_are_those_of_the_pack_json_that_was_read(
    store: Store, pack: Path, other: Path
) -> None:
    """The pack is replaced between reading pack.json and opening the files."""
    with open_at(store, pack) as loader:
        assembly = loader._assembly()
    assert assembly.recording is not None
    info, tables = assembly.recording.info, assembly.collate.tables
    Recording(pack, info, store, tables)
    put(other, pack)
    with pytest.raises(StoreError, match=REFUSED):
        Recording(pack, info, store, tables)
