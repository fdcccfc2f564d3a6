"""Damages a partitioned folder in a seeded way, and says what may come of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive import NeighborLoader
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from tests.loader.diskgnn.damage import NUMBERS, VALUES
from tests.loader.windows.stores import NODES

KINDS = ("number", "byte", "json", "short", "order")


def damage(root: Path, seed: int) -> str:
    """Damage one place of the folder `root`; returns what was done."""
    draw = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "json":
        return damage_json(root / "partition.json", draw)
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
        wide = ("home.npy", "bounds.npy", "edge_bounds.npy", "static_bounds.npy")
        width = 8 if file.name in wide else 4
        numbers = np.frombuffer(content, f"<i{width}", offset=DATA_OFFSET).copy()
        if kind == "order":
            numbers = np.random.default_rng(seed).permutation(numbers)
        else:
            at = draw.randrange(len(numbers))
            number = draw.choice(NUMBERS)
            if draw.random() < 0.5:  # a small change of what is there
                number = int(numbers[at]) + draw.choice((-1, 1, 2, 16))
            numbers[at] = np.array(number % 2 ** (8 * width), np.uint64).astype(f"<i{width}")
            said += f" at {at}: {number}"
        content[DATA_OFFSET:] = numbers.tobytes()
    file.write_bytes(content)
    return said


def damage_json(path: Path, draw: random.Random) -> str:
    document = json.loads(path.read_text())
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                walk(value[key])

    walk(document)
    inside, key = draw.choice(places)
    was, inside[key] = inside[key], draw.choice(VALUES)
    path.write_text(json.dumps(document))
    return f"{key!r} was {was!r} and is {inside[key]!r}"


def outcome(make: Any, change: Any = lambda: None) -> tuple[str, str]:
    """What becomes of an epoch: "refused", "error" at a batch, or "sound" batches; and the error's
    message.

    Args:
        make: makes a loader.
        change: called when the loader is made.

    Raises:
        AssertionError: a batch is none.
        Exception: an error that says nothing of the folder.
    """
    try:
        loader: NeighborLoader = make()
    except (StoreError, ConfigError) as error:
        return "refused", str(error)
    change()
    with loader:
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
