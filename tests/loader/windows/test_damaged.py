"""A stranger's partitions: damage is an error or other sound batches, never a crash or a hang."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from torch_geometric.data import Data

from gnndrive import Store
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import assert_same, simulate
from tests.loader.windows.conftest import Make
from tests.loader.windows.damage import KINDS, damage, outcome
from tests.loader.windows.stores import NODES, PARTS, check, windows_of

SEEDS, MEND = 120, r"remove the folder, and partition the store again \(gnndrive partition\)"
ROW_BYTES = 36
LISTS = ("indices", "static_indices")


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's partitions, which the test may damage."""
    copy = tmp_path / "parts"
    shutil.copytree(store.path / "partitioned" / "default", copy)
    return copy


def overwrite(file: Path, place: int, values: bytes) -> None:
    """Change a file that is open, from the value behind its header at byte `place` on."""
    with open(file, "r+b") as opened:
        opened.seek(DATA_OFFSET + place)
        opened.write(values)


@pytest.mark.parametrize("opened", [False, True], ids=["before", "after it was opened"])
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_damage_is_an_error_or_harmless(
    make: Make, folder: Path, kind: int, opened: bool, tmp_path: Path
) -> None:
    found: Counter[str] = Counter()
    for seed in range(kind, SEEDS, len(KINDS)):
        damaged = tmp_path / "damaged"
        shutil.copytree(folder, damaged)
        change = partial(damage, damaged, seed)
        said = "" if opened else change()
        try:
            what, message = outcome(
                partial(make, partitioned=damaged), change if opened else lambda: None
            )
        except Exception as error:
            raise AssertionError(f"seed {seed}, {said}: {error!r}") from error
        assert what == "sound" or str(damaged) in message, (seed, said, message)
        found[what] += 1
        shutil.rmtree(damaged)
    assert found["refused"] + found["error"] > 0, found


@pytest.mark.parametrize("name", ["order", "place", "home", "bounds", "indices", "x"])
@pytest.mark.parametrize("what", ["missing", "pipe", "folder", "link"])
def test_files_that_are_none(make: Make, folder: Path, name: str, what: str) -> None:
    """A link may lead out of the folder, and a pipe has no end."""
    file = folder / f"{name}.npy"
    kept = file.rename(folder.parent / "kept")
    if what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    elif what == "link":
        file.symlink_to(kept)
    with pytest.raises((StoreError, ConfigError), match=MEND) as caught:
        make(partitioned=folder)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("code", [-1, 10**6])
def test_a_code_that_is_no_node(make: Make, folder: Path, bad: int, code: int) -> None:
    """The error comes at the turn of its window's first batch; the next epoch has it again."""
    loader = make(partitioned=folder, static=0)
    window = windows_of(loader)[bad]
    assert window.partitions is not None
    assert loader._partitioned is not None
    at = int(loader._partitioned.edge_bounds[window.partitions[1]]) + 3
    overwrite(folder / "indices.npy", 4 * at, np.int32(code).tobytes())
    for _ in range(2):
        loader.set_epoch(0)
        count = 0
        message = rf"indices\.npy has the code {code}, and"
        with pytest.raises(StoreError, match=message) as caught:  # noqa: PT012
            for _ in loader:
                count += 1
        assert count == window.first
        assert MEND.replace("\\", "") in str(caught.value)


def test_a_static_list_that_is_damaged(make: Make, folder: Path) -> None:
    """Each window has it, so the first batch fails."""
    loader = make(partitioned=folder, static=0.02)
    overwrite(folder / "static_indices.npy", 0, np.int32(-5).tobytes())
    with pytest.raises(StoreError, match=r"static_indices\.npy has the code -5"):
        next(iter(loader))


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("early", [False, True])
def test_lists_that_end_early(make: Make, folder: Path, name: str, early: bool) -> None:
    loader = make(partitioned=folder, static=0.02)
    if not early:  # else the adjacency is not in memory yet
        assert len(list(loader)) == len(loader)
    file = folder / f"{name}.npy"
    os.truncate(file, DATA_OFFSET + 8)
    with pytest.raises(StoreError, match=f"{file} became shorter"):
        list(loader)


def test_order_that_ends_early(make: Make, folder: Path) -> None:
    """It is mapped: the kernel's signal becomes an error."""
    file = folder / "order.npy"
    loader = make(partitioned=folder)
    iterator = iter(loader)
    next(iterator)
    os.truncate(file, DATA_OFFSET)
    with pytest.raises(ReadError) as caught:
        list(iterator)
    assert caught.value.path == str(file)


def test_place_that_ends_early(make: Make, folder: Path) -> None:
    """It says which partitions the inputs are in, once for a loader."""
    file = folder / "place.npy"
    loader = make(partitioned=folder)
    os.truncate(file, DATA_OFFSET)
    for _ in range(2):
        with pytest.raises(ReadError) as caught:
            list(loader)
        assert caught.value.path == str(file)


@pytest.mark.parametrize("name", ["order", "place"])
@pytest.mark.parametrize("value", [-1, 10**6])
def test_ids_of_no_nodes(make: Make, folder: Path, name: str, value: int) -> None:
    loader = make(partitioned=folder)
    overwrite(folder / f"{name}.npy", 40, np.int32(value).tobytes())
    with pytest.raises(StoreError, match=rf"{name}\.npy has ") as caught:
        list(loader)
    assert MEND.replace("\\", "") in str(caught.value)


def test_order_and_place_that_contradict_each_other(make: Make, folder: Path) -> None:
    loader = make(partitioned=folder)
    place = np.fromfile(folder / "place.npy", np.int32, offset=DATA_OFFSET)
    overwrite(folder / "place.npy", 0, place[::-1].tobytes())
    with pytest.raises(StoreError, match=r"order\.npy and place\.npy beside .* do not fit"):
        list(loader)


# ---- rows


def test_rows_that_end_early_are_an_error_of_their_batch(
    make: Make, graph: Data, folder: Path
) -> None:
    """Batches before it are delivered."""
    loader = make(partitioned=folder, megabatch=1, shuffle=False, static=0)
    windows = windows_of(loader)
    assert [each.partitions.tolist() for each in windows] == [[part] for part in range(PARTS)]
    assert len(list(loader)) == len(loader)
    other = make(partitioned=folder, megabatch=1, shuffle=False, static=0)
    file = folder / "x.npy"
    assert other._partitioned is not None
    static = other._partitioned.num_static * other._partitioned.x.row_bytes  # copies at the end
    os.truncate(file, file.stat().st_size - static - 600)
    delivered = 0
    with pytest.raises(ReadError) as caught:  # noqa: PT012
        for batch in other:
            check(batch, graph)
            delivered += 1
    assert windows[-1].first <= delivered < len(loader)
    assert caught.value.path == str(file)


@pytest.mark.parametrize("seed", range(6))
def test_noise_changes_nothing(make: Make, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, seed, NOISE)
    noisy, plain = make(engine="simulated"), make()
    for _ in range(2):
        for one, other in zip(noisy, plain, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
@pytest.mark.parametrize("seed", range(3))
def test_eio_comes_at_its_batchs_turn(
    make: Make, store: Store, graph: Data, seed: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other batches have no error: those before the first one that needs the row are delivered,
    and so is an epoch without it."""
    row = 400
    at = DATA_OFFSET + row * ROW_BYTES
    faults = Faults(eio_offsets=((at, at + 1),), short=0.2, delay_turns_max=seed)
    simulate(monkeypatch, seed, faults)
    plain = make()
    assert plain._partitioned is not None
    nodes = set(plain._partitioned.store_ids(0, NODES)[row - 20 : row + 20].tolist())
    epochs = [list(plain) for _ in range(2)]
    loader = make(engine="simulated", device=device)
    for number in (0, 1):
        loader.set_epoch(number)
        delivered = []
        with pytest.raises(ReadError) as caught:  # noqa: PT012
            for batch in loader:
                check(batch, graph)
                delivered.append(batch)
        for one, other in zip(delivered, epochs[number], strict=False):
            assert_same(one, other)
        failed = epochs[number][len(delivered)]
        assert nodes & set(failed.n_id.tolist())
        assert caught.value.errno == errno.EIO
        assert Path(caught.value.path) == store.path / "partitioned" / "default" / "x.npy"


def test_a_folder_that_is_replaced_while_it_is_used(make: Make, folder: Path, store: Store) -> None:
    """The lists are opened for each window."""
    loader = make(partitioned=folder)
    iterator = iter(loader)
    next(iterator)
    folder.rename(folder.with_name("kept"))
    with pytest.raises((StoreError, ReadError)) as caught:
        list(iterator)
    assert str(folder) in str(caught.value)
