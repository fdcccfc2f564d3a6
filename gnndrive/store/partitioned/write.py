"""Write the partitioned folder of a store from the partition of each node: `write`.

    out-edges     the edges that start at each node are counted, from one pass over the lists
    order         the nodes get new ids, by partition, and those with the most get ranks
                  (renumbering.py)
    static nodes  each node gets its code
    lists         one pass over the lists writes all of them in the new order (new_lists.py)
    static lists  those of the static nodes are copied (static_lists.py)
    rows x        one pass over x writes its rows in the new order, and copies of the static ones
    check         checksums, and the share of in-edges that stay inside a partition

Each phase leaves durable files, and a writer that was killed goes on behind them: where a row or an
entry lies follows from the partitions, so one that is written twice does no harm. When not to use
it: `gnndrive.partition` (partition.py) is for users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.io.hashing import hash_file
from gnndrive.common.io.write_errors import disk_full, free_bytes
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.records import Int32Array
from gnndrive.store.format import DATA_OFFSET, Progress
from gnndrive.store.layout.arrays import LayoutArray, Maps, StoredIds
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.layout.outputs import Output
from gnndrive.store.layout.reserving import reserve
from gnndrive.store.layout.rows import MEMORY_MIN, RowPacking
from gnndrive.store.layout.table_parts import SUM_MODULUS
from gnndrive.store.partitioned.format import ARRAYS, TABLE, PartitionInfo, array_infos
from gnndrive.store.partitioned.list_writer import Unfinished, write_lists, write_static_lists
from gnndrive.store.partitioned.renumbering import write_order, write_static
from gnndrive.store.partitioned.settings import PartitionSettings
from gnndrive.store.partitioned.shares import Shares
from gnndrive.store.reader import Store
from gnndrive.store.temporary_folders import size_of

Part = Callable[[], Int32Array]
"""Returns the partition of each node, int32 [N]; called unless the new ids are written already."""

CHECK = "check"
LESS = "give a smaller share of static nodes (--static), or copy the store to a larger disk"
_BYTES_A_NODE, _BYTES_A_STATIC_NODE = 8, 72


def static_nodes(nodes: int, settings: PartitionSettings) -> int:
    """The number of static nodes, K."""
    return round(settings.static * nodes)


def pointer_bytes(store: Store) -> int:
    """Bytes of the store's index pointers in memory."""
    return store.index_pointers.nbytes


def write(
    store: Store, part: Part, settings: PartitionSettings, folder: LayoutFolder[PartitionInfo],
    memory: int, report: Progress,
) -> PartitionInfo:  # fmt: skip
    """Write the partitioned folder of a homogeneous store with x, or go on after a kill.

    Args:
        store: the store.
        part: see `Part`.
        settings: what the folder is made with.
        folder: the hidden folder, entered and not finished; it is finished here.
        memory: bytes that may be used: the index pointers, 8 bytes a node and 72 a static node
            (12 and more from 2^31 nodes on), and at least 64 MiB.
        report: called as report(phase, done, total).

    Returns:
        The content of partition.json.

    Raises:
        ConfigError: `memory` is too little.
        StoreError: the disk is full, or the store is damaged or has changed.
        ReadError: the store cannot be read.
    """
    statics = static_nodes(store.num_nodes, settings)
    least = pointer_bytes(store) + _BYTES_A_STATIC_NODE * statics + MEMORY_MIN
    least += store.num_nodes * (_BYTES_A_NODE if store.num_nodes < 1 << 30 else 16)
    if memory < least:
        raise ConfigError(
            f"memory={format_size(memory)} is too little to partition {store.num_nodes:,} nodes: "
            f"give at least {least_text(least)}"
        )
    counts = store.num_nodes, store.num_edges, settings.parts, statics
    infos = array_infos(*counts, 0, store.info.arrays[TABLE])
    made = Unfinished(folder.path, store, infos, memory - pointer_bytes(store), report)
    missing = sum(info.nbytes for info in infos.values()) - size_of(folder.path)
    if missing > free_bytes(folder.path):
        raise disk_full(folder.path, missing, LESS)
    if not (folder.path / infos["bounds"].file).exists():
        write_order(folder.path, infos, store, part(), report)
    if not (folder.path / infos["home"].file).exists():
        write_static(folder.path, infos, store, report)
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
    file, nodes, rows = made.root / made.infos["x"].file, made.store.num_nodes, order.shape[0]
    ids = StoredIds(Maps(), made.root / order.file, 0, rows, order.storage)
    outputs = [
        Output(file, DATA_OFFSET + low * x.row_bytes, ids.part(low, high))
        for low, high in ((0, nodes), (nodes, rows))
    ]
    identity = made.store.info.arrays[TABLE].sha256
    return RowPacking(x, outputs, made.root, "x", made.memory, identity)


def _describe(made: Unfinished, settings: PartitionSettings, sum_of_x: str) -> PartitionInfo:
    """Read what was written, but x, and make the content of partition.json.

    Raises:
        StoreError: a file is not what was written.
        ReadError: the disk failed.
    """
    infos, home = made.infos, made.small("home")
    store = made.store
    counted = Shares(home, made.small("bounds"), made.small("edge_bounds"), store.num_nodes)
    hashed = [name for name in ARRAYS if name != "x"]
    done, total = 0, sum(infos[name].nbytes for name in hashed)
    checksums = {"x": sum_of_x}
    for name in hashed:

        def each(offset: int, content: Bytes, name: str = name, done: int = done) -> None:
            if name == "indices" and offset:
                counted.add(content.view(infos[name].storage))
            made.report(CHECK, done + offset + content.size, total)

        checksums[name] = hash_file(made.root / infos[name].file, infos[name].nbytes, each)
        done += infos[name].nbytes
    arrays = {
        name: LayoutArray(name, info.dtype, info.shape, checksums[name])
        for name, info in infos.items()
    }
    made.report(CHECK, total, total)
    return PartitionInfo(
        store.identity, settings, store.num_nodes, store.num_edges, len(home), counted.inside,
        counted.hot, arrays,
    )  # fmt: skip
