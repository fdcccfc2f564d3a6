"""`partition`: the nodes of a store in partitions, with rows and lists in their order on disk.

When not to use it: for features that fit in memory, or a graph that is trained a few times, because
rows and lists then lie twice on disk.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory, parse_size
from gnndrive.common.records import Int32Array
from gnndrive.store.format import Progress
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.partitioned.assign import assign, choose_method, default_parts
from gnndrive.store.partitioned.format import PARTITIONS, PartitionInfo, partitioned_path
from gnndrive.store.partitioned.given import GivenParts
from gnndrive.store.partitioned.settings import METHODS, STATIC_DEFAULT, PartitionSettings
from gnndrive.store.partitioned.write import write
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

MEMORY_DEFAULT = 1 << 30


def partition(
    store: Store | str | os.PathLike[str],
    parts: int | None = None,
    method: Any = "auto",
    memory: str | int | None = None,
    static: float = STATIC_DEFAULT,
    train_first: bool = False,
    seed: int = 0,
    name: str = "default",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PartitionInfo:
    """Divide the nodes of a store into partitions, and write x and the lists in their order.

    After an error or a kill, the same call goes on where it stopped, and ends with the same bytes.

    Args:
        store: a homogeneous store with x, or its path.
        parts: the number of partitions. None: one for each 8,192 nodes, or as many as the largest
            number in the file says.
        method: how the partition of each node is found: "metis", "ldg" or "random"; "auto": metis
            if pymetis is there and the memory is enough, else ldg; or the partition of each node:
            an array of whole numbers [num_nodes], or the path of an .npy file of one, or of a text
            with a number on each line.
        memory: the memory that this may use. None: a gibibyte, or half of the available memory if
            that is less.
        static: the share of the nodes whose lists are copied to be held in memory, those with the
            most out-edges; 0 to 1.
        train_first: fill the first partitions with the nodes of the split "train".
        seed: the seed of random choices.
        name: the name of the folder in STORE/partitioned/.
        overwrite: replace a folder of that name.
        progress: called as progress(phase, done, total); see write.py.

    Returns:
        The content of its partition.json.

    Raises:
        ConfigError: an argument cannot work, the store is not homogeneous or has no x, there is
            such a folder, or another process writes it.
        StoreError: the disk is too full, or the store is damaged or has changed.
        ReadError: the store cannot be read.
    """
    opened = store if isinstance(store, Store) else open_store(store)
    told = progress or (lambda *_: None)
    _check_store(opened)
    named = isinstance(method, str) and method in METHODS[:-1]
    given = None if named else GivenParts(method, opened.num_nodes)
    count = parts
    if count is None:
        count = default_parts(opened) if given is None else given.parts
    settings = PartitionSettings(
        str(method) if given is None else "file", count, static, train_first, seed,
        "" if given is None else given.digest,
    )  # fmt: skip
    _check_parts(opened, settings, given)
    room = min(MEMORY_DEFAULT, available_memory() // 2)
    room = room if memory is None else parse_size(memory, "memory")
    target = partitioned_path(opened, name)
    settings = _with_method(opened, target, settings, room)
    with (
        LayoutFolder(PARTITIONS, opened, target, settings, overwrite) as folder,
        opened.unchanged(),
    ):
        if folder.finished is not None:
            return folder.finished

        def part() -> Int32Array:
            if given is not None:
                given.write(folder.path)
            return assign(opened, settings, folder.path, room, told)

        return write(opened, part, settings, folder, room, told)


def _with_method(
    store: Store, target: Path, settings: PartitionSettings, memory: int
) -> PartitionSettings:
    """The settings with the method that "auto" stands for: that of an unfinished folder, because
    another amount of memory must not begin anew; else the one that fits."""
    if settings.method != "auto":
        return settings
    for method in ("metis", "ldg"):
        chosen = replace(settings, method=method)
        if LayoutFolder(PARTITIONS, store, target, chosen).path.exists():
            return chosen
    return replace(settings, method=choose_method(store, memory))


def _check_store(store: Store) -> None:
    """Refuse what cannot be partitioned.

    Raises:
        ConfigError: the store is heterogeneous, has no x, or no nodes.
    """
    if store.is_hetero:
        raise ConfigError(
            f"{store.path} is heterogeneous, and only stores with one type of nodes can be "
            "partitioned: train with another strategy"
        )
    if "x" not in store.node_names or not store.table("x").row_bytes or not store.num_nodes:
        raise ConfigError(
            f"{store.path} has no features x, whose rows are what partitions are for: import it "
            "with features, or train with another strategy"
        )


def _check_parts(store: Store, settings: PartitionSettings, given: GivenParts | None) -> None:
    if settings.parts > store.num_nodes:
        raise ConfigError(
            f"parts={settings.parts}: give a number from 1 to {store.num_nodes}, the number of "
            "nodes"
        )
    if given is not None:
        if settings.parts < given.parts:
            raise ConfigError(
                f"parts={settings.parts}, and {given.path} has nodes in partition "
                f"{given.parts - 1}: give parts={given.parts}, or leave parts out"
            )
        if settings.train_first:
            raise ConfigError(
                "train_first= is for partitions that are drawn at random, and the file says which "
                "there are: leave it out"
            )
