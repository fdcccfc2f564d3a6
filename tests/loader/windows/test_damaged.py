"""A stranger's partitions: damage is an error or other sound batches, never a crash or a hang."""

from __future__ import annotations

import errno
import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import Faults
from tests.loader.batches import assert_same, simulate
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import NODES, PARTS, check, windows_of
from tests.soak import product

MEND = r"remove the folder, and partition the store again \(gnndrive partition\)"
ROW_BYTES = 36
KINDS = ("short", "number", "byte", "order")
NUMBERS = (-(2**63), -(2**31), -1, 0, 1, 255, 4096, 2**31 - 1, 2**31, 2**45, 2**63 - 1)
WIDE = ("home.npy", "bounds.npy", "edge_bounds.npy", "static_bounds.npy")


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


def damage(root: Path, kind: str, seed: int) -> str:
    """Damage one place of the arrays in the folder `root`; returns what was done."""
    draw = random.Random(seed)
    files = sorted(path for path in root.glob("*.npy") if path.stat().st_size > DATA_OFFSET)
    if kind != "short":  # any bytes are rows
        files = [path for path in files if path.name != "x.npy"]
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    said = f"{kind} of {file.name}"
    if kind == "short":
        del content[draw.randrange(len(content)) :]
    elif kind == "byte":
        at = draw.randrange(len(content))
        content[at] ^= 1 << draw.randrange(8)
        said += f" at {at}"
    else:
        width = 8 if file.name in WIDE else 4
        numbers = np.frombuffer(content, f"<i{width}", offset=DATA_OFFSET).copy()
        if kind == "order":
            numbers = np.random.default_rng(seed).permutation(numbers)
        else:
            at = draw.randrange(len(numbers))
            number = draw.choice([*NUMBERS, *(int(numbers[at]) + by for by in (-1, 1, 2, 16))])
            numbers[at] = np.array(number % 2 ** (8 * width), np.uint64).astype(f"<i{width}")
            said += f" at {at}: {number}"
        content[DATA_OFFSET:] = numbers.tobytes()
    file.write_bytes(content)
    return said


def outcome(make: Any, change: Any) -> tuple[str, str]:
    """What becomes of an epoch: "refused", "error" at a batch, or "sound" batches; and the error's
    message. `change` is called when the loader is made.

    Raises:
        AssertionError: a batch is none.
        Exception: an error that says nothing of the folder.
    """
    try:
        loader: NeighborLoader = make()
    except (StoreError, ConfigError) as error:
        return "refused", str(error)
    change()
    try:
        for batch in loader:
            assert_sound(batch)
    except (StoreError, ReadError) as error:
        return "error", str(error)
    return "sound", ""


def assert_sound(batch: Any) -> None:
    """The parts of a batch fit together."""
    nodes, edges = len(batch.n_id), len(batch.e_id)
    assert batch.x.shape == (nodes, 9)
    assert batch.y.shape == (nodes,)
    assert batch.edge_attr.shape == (edges, 3)
    assert batch.edge_index.shape == (2, edges)
    assert edges == 0 or 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < nodes
    assert nodes == 0 or 0 <= int(batch.n_id.min()) <= int(batch.n_id.max()) < NODES
    assert sum(batch.num_sampled_nodes) == nodes
    assert sum(batch.num_sampled_edges) == edges
    assert batch.batch_size == len(batch.input_id) == batch.num_sampled_nodes[0]


@pytest.mark.parametrize("opened", [False, True], ids=["before", "after it was opened"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_an_error_or_harmless(make, folder, kind, opened, seeds, tmp_path):
    for seed in seeds(4):
        damaged = tmp_path / f"damaged{seed}"
        shutil.copytree(folder, damaged)
        change = partial(damage, damaged, kind, seed)
        said = "" if opened else change()
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
    overwrite(folder / "indices.npy", 4 * at, np.int32(code).tobytes())
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


@pytest.mark.parametrize(("name", "value"), [("order", -1), ("place", 10**6)])
def test_ids_of_no_nodes(make: Make, folder: Path, name: str, value: int) -> None:
    loader = make(partitioned=folder)
    overwrite(folder / f"{name}.npy", 40, np.int32(value).tobytes())
    with pytest.raises(StoreError, match=rf"{name}\.npy has .*{MEND}"):
        list(loader)


def test_order_and_place_that_contradict_each_other(make: Make, folder: Path) -> None:
    loader = make(partitioned=folder)
    place = np.fromfile(folder / "place.npy", np.int32, offset=DATA_OFFSET)
    overwrite(folder / "place.npy", 0, place[::-1].tobytes())
    with pytest.raises(StoreError, match=r"order\.npy and place\.npy beside .* do not fit"):
        list(loader)


# ---- rows


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
    """Other batches have no error: those before the first one that needs the row are delivered,
    and so is an epoch without it."""
    row = 400
    at = DATA_OFFSET + row * ROW_BYTES
    faults = Faults(eio_offsets=((at, at + 1),), short=0.2, delay_turns_max=seed)
    simulate(monkeypatch, seed, faults)
    plain, loader = make(), make(engine="simulated", device=device)
    nodes = set(plain._partitioned.store_ids(0, NODES)[row - 20 : row + 20].tolist())
    for number in (0, 1):
        loader.set_epoch(number)
        whole, delivered = list(plain), []
        with pytest.raises(ReadError) as caught:  # noqa: PT012
            for batch in loader:
                delivered.append(batch)
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
