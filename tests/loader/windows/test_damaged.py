"""A stranger's partitions: damage is an error or other sound batches, never a crash or a hang."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive import Store
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import Faults
from tests.loader.batches import assert_same, simulate
from tests.loader.windows.conftest import Make
from tests.loader.windows.damage import KINDS, damage, outcome
from tests.loader.windows.stores import NODES, PARTS, check, windows_of
from tests.soak import product

MEND = r"remove the folder, and partition the store again \(gnndrive partition\)"
ROW_BYTES = 36
NARROW = ("order.npy", "place.npy", "indices.npy", "static_indices.npy")


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's partitions, which the test may damage."""
    return Path(shutil.copytree(store.path / "partitioned" / "default", tmp_path / "parts"))


def overwrite(file: Path, place: int, values: Any) -> None:
    """Change int32 numbers of a file that is open, from number `place` on."""
    with open(file, "r+b") as opened:
        opened.seek(DATA_OFFSET + 4 * place)
        opened.write(np.asarray(values, np.int32).tobytes())


@pytest.mark.parametrize("opened", [False, True], ids=["before", "after it was opened"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_an_error_or_harmless(make, folder, kind, opened, seeds, tmp_path):
    for seed in seeds(4):
        damaged = shutil.copytree(folder, tmp_path / f"damaged{seed}")
        change = partial(damage, damaged, kind, seed, "x.npy", lambda file: file.name in NARROW)
        said = None if opened else change()
        what, message = outcome(
            partial(make, partitioned=damaged), change if opened else lambda: None
        )
        assert what == "sound" or str(damaged) in message, (seed, said, message)
        assert what == "refused" or opened or kind != "short"


@pytest.mark.parametrize("code", [-1, 10**6])
def test_a_code_that_is_no_node(make: Make, folder: Path, code: int) -> None:
    """The error comes at the turn of its window's first batch; the next epoch has it again."""
    loader = make(partitioned=folder, static=0)
    window = windows_of(loader)[1]
    at = int(loader._partitioned.edge_bounds[window.partitions[1]]) + 3
    overwrite(folder / "indices.npy", at, code)
    for _ in range(2):
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(window.first):
            next(batches)
        with pytest.raises(StoreError, match=rf"indices\.npy has the code {code}, .*{MEND}"):
            next(batches)


def test_order_and_place_that_end_early(make: Make, folder: Path) -> None:
    """They are mapped: the kernel's signal becomes an error. `place` says which partitions the
    inputs are in, once for a loader."""
    iterator = iter(make(partitioned=folder))
    next(iterator)
    later = make(partitioned=folder)
    for name, batches in (("order", iterator), ("place", later), ("place", later)):
        os.truncate(folder / f"{name}.npy", DATA_OFFSET)
        with pytest.raises(ReadError) as caught:
            list(batches)
        assert caught.value.path == str(folder / f"{name}.npy")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("order", lambda file: overwrite(file, 10, -1), rf"order\.npy has .*{MEND}"),
        ("place", lambda file: overwrite(file, 10, 10**6), rf"place\.npy has .*{MEND}"),
        ("place", lambda file: overwrite(
            file, 0, np.fromfile(file, np.int32, offset=DATA_OFFSET)[::-1]
        ), r"order\.npy and place\.npy beside .* do not fit"),
    ],
)  # fmt: skip
def test_ids_that_do_not_fit(make, folder, name, change, said):
    loader = make(partitioned=folder)
    change(folder / f"{name}.npy")
    with pytest.raises(StoreError, match=said):
        list(loader)


def test_rows_that_end_early_are_an_error_of_their_batch(make, graph, folder):
    """Batches before it are delivered."""
    loader = make(partitioned=folder, megabatch=1, shuffle=False, static=0)
    windows = windows_of(loader)
    assert [each.partitions.tolist() for each in windows] == [[part] for part in range(PARTS)]
    file = folder / "x.npy"
    static = loader._partitioned.num_static * loader._partitioned.x.row_bytes  # copies at the end
    os.truncate(file, file.stat().st_size - static - 600)
    delivered = 0
    with pytest.raises(ReadError) as caught:  # noqa: PT012
        for batch in loader:
            check(batch, graph)
            delivered += 1
    assert windows[-1].first <= delivered < len(loader)
    assert caught.value.path == str(file)


@product("device,seed", ["cpu", "simulated-cuda"], [0, 1, 2])
def test_eio_comes_at_its_batchs_turn(make, store, seed, device, monkeypatch):
    """Batches before the first one that needs the row are delivered, in every epoch."""
    row = 400
    at = DATA_OFFSET + row * ROW_BYTES
    faults = Faults(eio_offsets=((at, at + 1),), short=0.2, delay_turns_max=seed)
    simulate(monkeypatch, seed, faults)
    plain, loader = make(), make(engine="simulated", device=device)
    nodes = set(plain._partitioned.store_ids(0, NODES)[row - 20 : row + 20].tolist())
    for number in (0, 1):
        loader.set_epoch(number)
        whole, delivered = list(plain), []
        with pytest.raises(ReadError) as caught:
            delivered.extend(loader)
        for one, other in zip(delivered, whole, strict=False):
            assert_same(one, other)
        assert nodes & set(whole[len(delivered)].n_id.tolist())
        assert caught.value.errno == errno.EIO
        assert Path(caught.value.path) == store.path / "partitioned" / "default" / "x.npy"


def test_a_folder_that_is_replaced_while_it_is_used(make: Make, folder: Path) -> None:
    """The lists are opened for each window."""
    iterator = iter(make(partitioned=folder))
    next(iterator)
    folder.rename(folder.with_name("kept"))
    with pytest.raises((StoreError, ReadError)) as caught:
        list(iterator)
    assert str(folder) in str(caught.value)
