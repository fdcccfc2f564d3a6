"""A stranger's pack: damage is an error or another sound batch, never a crash or a hang."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive import Store
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES
from tests.loader.diskgnn.packs import loader_of, pack_folder
from tests.soak import product

NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 255, 4096, 2**31 - 1, 2**31, 2**45, 2**63 - 1)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 40, 2**31, 2**62, 2**70, 0.5, "", "x", "int64", "nodes/x", [], [3], {},
    [[]], "../x", "\0",
)  # fmt: skip
KINDS = ("number", "byte", "json", "short")


def damage(root: Path, seed: int) -> str:
    """Damage one place of the pack in `root`; returns what was done."""
    draw = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "json":
        return _damage_json(root / "pack.json", draw)
    files = sorted(path for path in root.rglob("*.npy") if path.stat().st_size > DATA_OFFSET)
    if kind != "short":  # any bytes are rows
        files = [path for path in files if path.relative_to(root).parts[0] != "rows"]
    if kind == "byte":
        files.append(root / "pack.json")
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    said = f"{kind} of {file.relative_to(root)}"
    if kind == "short":
        del content[draw.randrange(len(content)) :]
    elif kind == "byte":
        at = draw.randrange(len(content))
        content[at] ^= 1 << draw.randrange(8)
        said += f" at {at}"
    else:
        width = 4 if "samples" in file.parts else 8
        count = (len(content) - DATA_OFFSET) // width
        at = DATA_OFFSET + width * draw.randrange(max(count, 1))
        number = draw.choice(NUMBERS)
        if draw.random() < 0.5:  # a small change of what is there
            number = int.from_bytes(content[at : at + width], "little", signed=True)
            number += draw.choice((-1, 1, 2, 16))
        packed = np.array(number % 2 ** (8 * width), np.uint64).astype(f"<u{width}")
        content[at : at + width] = packed.tobytes()
        said += f" at {at}: {number}"
    file.write_bytes(content)
    return said


def _damage_json(path: Path, draw: random.Random) -> str:
    document = json.loads(path.read_text())
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                walk(value[key])

    walk(document)
    inside, key = draw.choice(places)
    if draw.random() < 0.2:
        del inside[key]
        path.write_text(json.dumps(document))
        return f"{key!r} is left out"
    was, inside[key] = inside[key], draw.choice(VALUES)
    path.write_text(json.dumps(document))
    return f"{key!r} was {was!r} and is {inside[key]!r}"


def outcome(make: Any) -> str:
    """What becomes of an epoch: "refused", "error" at a batch, or "sound" batches.

    Raises:
        AssertionError: a batch is none.
        Exception: an error that says nothing of the pack.
    """
    begun = False
    try:
        with make() as loader:
            begun = True
            for batch in loader:
                assert_sound(batch)
    except (StoreError, ReadError):
        return "error" if begun else "refused"
    except ConfigError:
        return "refused"
    return "sound"


def assert_sound(batch: Any) -> None:
    """The parts of a batch fit together."""
    nodes, edges = len(batch.n_id), len(batch.e_id)
    assert batch.x.shape == (nodes, 20)
    assert batch.y.shape == (nodes,)
    assert batch.edge_attr.shape == (edges, 16)
    assert batch.edge_index.shape == (2, edges)
    assert edges == 0 or 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < nodes
    assert torch.isfinite(batch.y.float()).all()
    assert sum(batch.num_sampled_nodes) == nodes
    assert sum(batch.num_sampled_edges) == edges
    assert batch.batch_size == len(batch.input_id) == batch.num_sampled_nodes[0]


SMALL = "46KB"  # holds the largest batch


@pytest.fixture
def pack(store: Store, tmp_path: Path) -> Path:
    """A copy of the store's pack, which the test may damage."""
    return Path(shutil.copytree(pack_folder(store), tmp_path / "pack"))


def test_damage_is_refused_or_harmless(store, pack, tmp_path, seeds):
    """In small buffers and in large ones."""
    found: Counter[str] = Counter()
    for seed in seeds(12):
        damaged = shutil.copytree(pack, tmp_path / "damaged")
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
    with (
        pytest.raises((StoreError, ReadError, ConfigError)) as caught,
        loader_of(store, ARGUMENTS, packed=pack, buffer=SMALL) as loader,
    ):
        list(loader)
    assert str(file) in str(caught.value)
    assert "remove the pack, and pack the store again (gnndrive pack)" in str(caught.value)


def test_rows_that_end_early_are_an_error_of_their_batch(store, pack):
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
