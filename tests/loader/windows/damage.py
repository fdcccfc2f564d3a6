"""Damage to the arrays of a derived folder, and what an epoch of a loader makes of it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET

KINDS = ("short", "number", "bit")
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 3, 255, 4096, 2**31 - 1, 2**31, 2**45, 2**63 - 1)


def damage(root: Path, kind: str, seed: int, rows: str, narrow: Callable[[Path], bool]) -> str:
    """Damage one place of the arrays below a folder; returns what was done. `rows` is the pattern
    of files that may hold any bytes, and `narrow` says which files hold int32 instead of int64."""
    draw = random.Random(seed)
    files = sorted(path for path in root.rglob("*.npy") if path.stat().st_size >= DATA_OFFSET + 8)
    file = draw.choice([each for each in files if kind == "short" or not each.match(rows)])
    content = bytearray(file.read_bytes())
    at = draw.randrange(len(content))
    if kind == "short":
        del content[at:]
    elif kind == "bit":
        content[at] ^= 1 << draw.randrange(8)
    else:
        dtype = np.dtype("<i4" if narrow(file) else "<i8")
        count = (len(content) - DATA_OFFSET) // dtype.itemsize
        numbers = np.frombuffer(content, dtype, count, DATA_OFFSET)
        at = draw.randrange(len(numbers))
        near = [int(numbers[at]) + by for by in (-1, 1, 2, 16)]
        number = draw.choice([*NUMBERS, *near]) % 2 ** (8 * numbers.itemsize)
        numbers[at] = np.array(number, np.uint64).astype(numbers.dtype)
    file.write_bytes(content)
    return f"{kind} of {file.relative_to(root)} at {at}"


def outcome(make: Callable[[], Any], change: Callable[[], object] = object) -> tuple[str, str]:
    """What becomes of an epoch: "refused", "error" at a batch, or "sound" batches; and the error's
    message. `change` is called when the loader is made.

    Raises:
        AssertionError: the parts of a batch do not fit together.
        Exception: another error than the documented ones.
    """
    try:
        loader = make()
    except (StoreError, ConfigError) as error:
        return "refused", str(error)
    with loader:
        change()
        try:
            for batch in loader:
                assert_sound(batch)
        except (StoreError, ReadError) as error:
            return "error", str(error)
    return "sound", ""


def assert_sound(batch: Any) -> None:
    nodes, edges = len(batch.n_id), len(batch.e_id)
    assert len(batch.x) == len(batch.y) == nodes == sum(batch.num_sampled_nodes)
    assert len(batch.edge_attr) == edges == sum(batch.num_sampled_edges)
    assert batch.edge_index.shape == (2, edges)
    assert edges == 0 or 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < nodes
    assert batch.batch_size == len(batch.input_id) == batch.num_sampled_nodes[0]
