"""Writing a partitioned folder with the writer, in parts so small that all of its loops turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.store.partitioned.partition import partition
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.reader import Store

MEMORY = 128 << 20


def write_folder(
    store: Store, part: Sequence[int] | Any, parts: int, name: str = "written", **more: Any
) -> Partitioned:
    """Write the folder of an assignment with `gnndrive.partition`."""
    path = store.path.parent / "part.npy"
    np.save(path, np.asarray(part))
    partition(store, parts, path, MEMORY, name=name, **more)
    return open_partitioned(store.path / "partitioned" / name, store)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder but partition.json, by name."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix == ".npy" or path.is_dir()
    }
