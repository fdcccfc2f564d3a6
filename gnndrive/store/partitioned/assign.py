"""`assign`: the partition of each node of a store, as a durable file (HierBatching; MariusGNN).

    random   partitions of equal size, drawn at random
    ldg      linear deterministic greedy partitioning, repeated, within any memory
    metis    METIS, for graphs that fit in memory many times over
    file     partitions that the user has found

Each method leaves durable files in the folder, and a call with the same arguments goes on after a
kill and ends with the same bytes. When not to use it: `gnndrive.partition` is for users.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import Progress
from gnndrive.store.partitioned import at_random, ldg, part_file
from gnndrive.store.partitioned.budget import FIXED_BYTES, pointer_bytes, require
from gnndrive.store.partitioned.symmetric import symmetric_lists
from gnndrive.store.reader import Store

NODES_A_PART = 8192
PARTS_LEAST, PARTS_MOST = 16, 65_536
PART_BYTES_LEAST = 4 << 20  # of rows of x, so that a partition is a few long reads
LISTS = "symmetric.lists"
TRAIN = "train"


class Settings(Protocol):
    """What an assignment depends on, beside the store: fields of `PartitionSettings`."""

    @property
    def method(self) -> str:
        """How the partitions are found: "random", "ldg", "metis" or "file"."""

    @property
    def parts(self) -> int:
        """The number of partitions."""

    @property
    def train_first(self) -> bool:
        """Whether the nodes of the split "train" fill the first partitions."""

    @property
    def seed(self) -> int:
        """The seed of random choices."""


def default_parts(store: Store) -> int:
    """The number of partitions of a homogeneous store if the user gives none.

    A partition has 8,192 nodes or more, and at least 4 MiB of rows of x; but there are at least 16,
    at most 65,536, and never more partitions than nodes.
    """
    nodes = store.num_nodes
    parts = nodes // NODES_A_PART
    if "x" in store.node_names:
        parts = min(parts, nodes * store.table("x").row_bytes // PART_BYTES_LEAST)
    return max(min(max(parts, PARTS_LEAST), PARTS_MOST, nodes), 1)


def assign(
    store: Store, settings: Settings, folder: Path, memory: int, report: Progress
) -> np.memmap[Any, np.dtype[np.int32]] | Int32Array:
    """Find the partition of each node of a homogeneous store, or go on after a kill.

    Args:
        store: the store.
        settings: how, and how many partitions.
        folder: an existing folder for `part.npy` and what is needed until it is complete; for one
            store and one `settings`, and one process at a time.
        memory: bytes that may be used, see `budget`.
        report: called as report(phase, done, total).

    Returns:
        The partition of each node, int32 [nodes], mapped from `part.npy`, which is durable.

    Raises:
        ConfigError: the settings or the memory cannot work.
        StoreError: the store is damaged, or the disk is full.
        ReadError: the store cannot be read.
    """
    path = folder / part_file.NAME
    if not path.exists():
        _check(store, settings, memory)
        with store.unchanged():
            _METHODS[settings.method](store, settings, folder, memory, report)
    part_file.remove_passes(folder)
    part_file.remove(folder / LISTS)
    return part_file.map_part(path, store.num_nodes)


def _check(store: Store, settings: Settings, memory: int) -> None:
    nodes, parts = store.num_nodes, settings.parts
    if settings.method not in _METHODS:
        raise ConfigError(f"method={settings.method!r}: give one of {', '.join(_METHODS)}")
    if not 1 <= parts <= max(nodes, 1):
        raise ConfigError(
            f"parts={parts}: give a number from 1 to {nodes}, the number of nodes in {store.path}"
        )
    if settings.train_first and settings.method != "random":
        raise ConfigError(
            f"train_first is for method='random', and method={settings.method!r} puts each node "
            "beside its neighbours: leave one of them out"
        )
    least = FIXED_BYTES + pointer_bytes(store) + _LEAST[settings.method](nodes, parts)
    require(memory, least, f"to partition {nodes:,} nodes with method={settings.method!r}")


def _random(store: Store, settings: Settings, folder: Path, memory: int, report: Progress) -> None:
    first = _training_nodes(store) if settings.train_first else None
    part = at_random.assign_random(store.num_nodes, settings.parts, settings.seed, report, first)
    part_file.write_part(folder / part_file.NAME, part)


def _training_nodes(store: Store) -> Int64Array:
    if TRAIN not in store.split_names:
        known = ", ".join(store.split_names) or "none"
        raise ConfigError(
            f"train_first: {store.path} has no split {TRAIN!r}, its splits are: {known}; import it "
            "with splits=, or leave train_first out"
        )
    found: Int64Array = store.nodes().stored_split(TRAIN).numpy()
    return found


def _ldg(store: Store, settings: Settings, folder: Path, memory: int, report: Progress) -> None:
    later = ldg.memory_of(store.num_nodes, settings.parts)
    lists = symmetric_lists(store, folder / LISTS, memory, report, later)
    ldg.assign_ldg(lists, folder, store.num_nodes, settings.parts, report)


_METHODS = {"random": _random, "ldg": _ldg}
_LEAST = {"random": lambda nodes, _: at_random.memory_of(nodes), "ldg": ldg.memory_of}
