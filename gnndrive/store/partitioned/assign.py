"""`assign`: the partition of each node of a store. A stand-in: every method draws at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnndrive.common.records import Int32Array
from gnndrive.store.format import Progress
from gnndrive.store.partitioned import part_file
from gnndrive.store.partitioned.settings import PartitionSettings
from gnndrive.store.reader import Store


def default_parts(store: Store) -> int:
    """The number of partitions if the user gives none."""
    return max(min(max(store.num_nodes // 8192, 16), 65_536, store.num_nodes), 1)


def assign(
    store: Store, settings: PartitionSettings, folder: Path, memory: int, report: Progress
) -> Int32Array:
    """Draw the partition of each node, int32 [N]."""
    path, nodes = folder / part_file.NAME, store.num_nodes
    if not path.exists():
        draw = np.random.default_rng(settings.seed & (1 << 64) - 1)
        part = draw.permutation(np.arange(nodes, dtype=np.int64) * settings.parts // nodes)
        part_file.write_part(path, part.astype(np.int32))
        report("random", nodes, nodes)
    return part_file.map_part(path, nodes)
