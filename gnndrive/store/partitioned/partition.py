"""`partition`: the nodes of a store in partitions, with rows and lists in their order on disk.

    (assign.py)   the partition of each node is found
    out-edges     the edges that start at each node are counted, from one pass over the lists
    order         the nodes get new ids, by partition, and those with the most get ranks
                  (renumbering.py)
    static nodes  each node gets its code
    lists         one pass over the lists writes all of them in the new order (lists.py)
    static lists  those of the static nodes are copied
    rows x        one pass over x writes its rows in the new order, and copies of the static ones
    check         checksums, and the share of in-edges that stay inside a partition

Each phase leaves durable files, and a writer that was killed goes on behind them: where a row or an
entry lies follows from the partitions, so one that is written twice does no harm.

When not to use it: for features that fit in memory, or a graph that is trained a few times, because
rows and lists then lie twice on disk.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.write_errors import disk_full, free_bytes
from gnndrive.common.memory import available_memory, parse_size, require_memory
from gnndrive.common.progress import Progress
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.layout.arrays import LayoutArray, Maps, StoredIds, checksums
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.layout.rows import MEMORY_MIN, Output, RowPacking, reserve
from gnndrive.store.layout.table_parts import SUM_MODULUS
from gnndrive.store.partitioned.arrays import Unfinished
from gnndrive.store.partitioned.assign import GivenParts, assign, choose_method, default_parts
from gnndrive.store.partitioned.format import (
    ARRAYS,
    MEND,
    METHODS,
    PARTITIONS,
    STATIC_DEFAULT,
    TABLE,
    PartitionInfo,
    PartitionSettings,
    array_infos,
    partitioned_path,
)
from gnndrive.store.partitioned.lists import Shares, write_lists, write_static_lists
from gnndrive.store.partitioned.renumbering import write_order, write_static
from gnndrive.store.partitioned.symmetric import pointer_bytes
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.temporary_folders import size_of

CHECK = "checksums"
MEMORY_DEFAULT = 1 << 30
LESS = "give a smaller share of static nodes, static=, or copy the store to a larger disk"
_BYTES_A_NODE, _BYTES_A_STATIC_NODE = 8, 72


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
        progress: called as progress(phase, done, total).

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
        return _write(opened, given, settings, folder, room, told)


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
    store.check_whole("partitions have all: partition the whole store")
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


def _write(
    store: Store, given: GivenParts | None, settings: PartitionSettings,
    folder: LayoutFolder[PartitionInfo], memory: int, report: Progress,
) -> PartitionInfo:  # fmt: skip
    """Write a folder that is not finished, or go on after a kill, and finish it.

    `memory` is for the index pointers, 8 bytes a node and 72 a static node (12 and more from 2^31
    nodes on), and at least 64 MiB.
    """
    nodes, statics = store.num_nodes, round(settings.static * store.num_nodes)
    least = pointer_bytes(store) + _BYTES_A_STATIC_NODE * statics + MEMORY_MIN
    least += nodes * (_BYTES_A_NODE if nodes < 1 << 30 else 16)
    require_memory(memory, least, f"to partition {nodes:,} nodes")
    counts = nodes, store.num_edges, settings.parts, statics
    infos = array_infos(*counts, 0, store.info.arrays[TABLE])
    made = Unfinished(folder.path, store, infos, memory - pointer_bytes(store), report)
    missing = sum(info.nbytes for info in infos.values()) - size_of(folder.path)
    if missing > free_bytes(folder.path):
        raise disk_full(folder.path, missing, LESS)
    if not made.path("bounds").exists():
        if given is not None:
            given.write(folder.path)
        write_order(made, assign(store, settings, folder.path, memory, report))
    if not made.path("home").exists():
        write_static(made)
    static_edges = int(made.small("static_bounds")[-1])
    infos = array_infos(*counts, static_edges, store.info.arrays[TABLE])
    made = replace(made, infos=infos)
    rows = _rows(made)
    long = [infos[name] for name in ("indices", "static_indices", "x")]
    reserve(folder.path, long, rows.spool_bytes, LESS)
    write_lists(made)
    write_static_lists(made)
    total = sum(rows.run(report)) % SUM_MODULUS
    store.check_unchanged()
    return folder.finish(_describe(made, settings, f"sum64:{total:016x}"))


def _rows(made: Unfinished) -> RowPacking:
    """What writes the rows of x in the new order, and those of the static nodes behind them. These
    are an output of their own, because they ascend nowhere."""
    x, order = made.store.table("x"), made.infos["order"]
    nodes, rows = made.store.num_nodes, order.shape[0]
    ids = StoredIds(Maps(), made.path("order"), 0, rows, order.storage)
    outputs = [
        Output(made.path("x"), DATA_OFFSET + low * x.row_bytes, ids.part(low, high))
        for low, high in ((0, nodes), (nodes, rows))
    ]
    identity = made.store.info.arrays[TABLE].sha256
    return RowPacking(x, outputs, made.root, "x", made.memory, identity)


def _describe(made: Unfinished, settings: PartitionSettings, sum_of_x: str) -> PartitionInfo:
    """Read what was written, but x, and make the content of partition.json."""
    store, infos, home = made.store, made.infos, made.small("home")
    shares = Shares(
        home, made.small("bounds"), made.small("edge_bounds"), store.num_nodes,
        infos["indices"].storage,
    )  # fmt: skip
    hashed = [infos[name] for name in ARRAYS if name != "x"]
    told = partial(made.report, CHECK)
    found = {"x": sum_of_x, **dict(checksums(made.root, hashed, MEND, told, shares.each))}
    arrays = {
        name: LayoutArray(name, info.dtype, info.shape, found[name]) for name, info in infos.items()
    }
    return PartitionInfo(
        store.identity, settings, store.num_nodes, store.num_edges, len(home), *shares.found(),
        arrays,
    )  # fmt: skip
