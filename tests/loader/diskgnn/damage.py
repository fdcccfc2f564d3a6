"""Damages a pack in a seeded way, and says what may come of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnndrive import NeighborLoader
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET

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
    try:
        loader: NeighborLoader = make()
    except (StoreError, ConfigError):
        return "refused"
    with loader:
        try:
            for batch in loader:
                assert_sound(batch)
        except (StoreError, ReadError):
            return "error"
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
