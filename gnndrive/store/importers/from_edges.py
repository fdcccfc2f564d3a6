"""Import a graph whose edges are larger than memory: Parquet or CSV, features, labels.

When not to use it: for an edge list in CSV that fits in memory, `from_csv` needs no DuckDB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.store.format import AnyDType, Progress, dtype_name
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.edge_list import EdgeList, write_columns, write_graph
from gnndrive.store.importers.features import Features, open_features
from gnndrive.store.importers.label_file import Labels, read_labels
from gnndrive.store.importers.splits import SplitSpec, resolve
from gnndrive.store.importers.tables import (
    File,
    reserve,
    warn_of_no_edges,
    write_features,
    write_labels,
)
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.temporary_folders import clear
from gnndrive.store.writer import StoreWriter, path_exists


@with_if_exists()
def from_edges(
    edges: File | Sequence[File],
    path: File,
    *,
    memory: str | int = "4GB",
    source: str | None = None,
    target: str | None = None,
    columns: Sequence[str] = (),
    map_ids: bool = False,
    num_nodes: int | None = None,
    features: File | None = None,
    labels: File | None = None,
    undirected: bool = False,
    header: bool | None = None,
    splits: SplitSpec = None,
    dtype: AnyDType = "float32",
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from an edge list of any length, sorted by DuckDB within `memory`.

    Args:
        edges: one or several files, .parquet, or CSV with any separator; several are read one after
            the other.
        path: the folder to make. Sorting spills some 30 bytes an edge beside it.
        memory: bytes, or a text such as "4GB": memory for the import, without the index pointers of
            8 bytes a node.
        source, target: names of the columns of node ids; None: the first two columns.
        columns: names of columns of numbers to keep as attributes of edges, such as weight.
        map_ids: ids may be text or any whole numbers. Nodes are numbered in the ids' order, which
            features, masks and labels without ids must have too; labels and splits (files, arrays
            and lists) name nodes by their ids. In text files, ids are text, so that 007 and 7 are
            two nodes, unless all of them are whole numbers written plainly. The ids are kept as the
            node attribute "id" (text as UTF-8 bytes, uint8 [nodes, longest]).
        num_nodes: number of nodes; None: that of features or mapped ids, or the largest id + 1.
        features, labels, splits, dtype, if_exists, progress: as for `from_csv`.
        undirected: add the other direction of every edge and drop repetitions.
        header: whether each text file begins with the columns' names; None: it does if no field of
            its first row is a number.

    Returns:
        The open store. Its edge ids are positions in the list; if `undirected`, CSC positions.

    Raises:
        ConfigError: arguments do not fit together, `path` exists, or DuckDB is not installed.
        StoreError: a file is damaged, or the disk is full; nothing is left behind.
    """
    files = _files(edges)
    if undirected and columns:
        raise ConfigError("columns= are of one direction: leave out columns= or undirected=")
    budget, store = parse_size(memory, "memory"), _checked_target(path, if_exists)
    edge_list = EdgeList(files, budget, store, source, target, map_ids, columns, header)
    with closing(edge_list) as found:
        table = None if features is None else open_features(Path(features))
        nodes = _count_nodes(found, num_nodes, table, map_ids)
        if 8 * nodes > budget:
            raise _too_many(nodes, found.last, map_ids)
        numbers = found.numbers if map_ids else None
        y = None if labels is None else read_labels(Path(labels), nodes, numbers)
        found.refuse_above(nodes)
        chosen = resolve(splits, y, nodes, numbers)
        count = found.count_undirected() if undirected else found.count
        names = ", ".join(map(str, files))
        if not count:
            warn_of_no_edges(names)
        with StoreWriter(
            path, nodes, count, made_by=f"gnndrive.from_edges({names})",
            overwrite=if_exists == "replace", progress=progress,
        ) as writer:  # fmt: skip
            if table is not None:
                reserve(writer, table, dtype_name(dtype))
            write_graph(found, writer, undirected, progress)
            write_columns(found, writer, columns, progress)
            _write_nodes(writer, found if map_ids else None, y, chosen)
            if table is not None:
                write_features(writer, table, dtype_name(dtype), progress)
    return open_store(writer.path)


def _files(edges: File | Sequence[File]) -> list[Path]:
    files = [Path(each) for each in ([edges] if isinstance(edges, str | os.PathLike) else edges)]
    if not files:
        raise ConfigError("edges names no file: give at least one")
    for file in files:
        if not file.exists():
            raise StoreError(f"{file} is missing: give a file that is there")
    return files


def _too_many(nodes: int, last: int, map_ids: bool) -> ConfigError:
    few = "" if map_ids else ", or if few of the ids are used give map_ids=True (--map-ids)"
    return ConfigError(
        f"{'' if map_ids else f'ids go up to {last}: '}the index pointers of {nodes} nodes alone "
        f"are more than memory=; raise memory= (--memory){few}"
    )


def _checked_target(path: File, if_exists: IfExists) -> Path:
    """Check the store's path now, because the writer checks it only after the sort, and remove what
    processes that were killed have left beside it.

    Returns:
        The path, absolute and without links.

    Raises:
        ConfigError: that folder does not exist, or `path` does and is not to be replaced.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {target.parent} is not there: make it first")
    clear(target)
    if os.path.lexists(path) and if_exists != "replace":
        raise ConfigError(path_exists(path))
    return target


def _count_nodes(
    edges: EdgeList, num_nodes: int | None, table: Features | None, map_ids: bool
) -> int:
    """The number of nodes.

    Raises:
        ConfigError: num_nodes, features and mapped ids say different numbers.
    """
    counts = {
        "num_nodes": num_nodes,
        "features": None if table is None else table.shape[0],
        "the mapped ids": edges.last + 1 if map_ids else None,
    }
    given = {name: count for name, count in counts.items() if count is not None}
    if len(set(given.values())) > 1:
        words = ", ".join(f"{name} say {count}" for name, count in given.items())
        raise ConfigError(f"the numbers of nodes differ: {words}: give the same number")
    return next(iter(given.values()), edges.last + 1)


def _write_nodes(
    writer: StoreWriter, edges: EdgeList | None, y: Labels | None, splits: Mapping[str, Any]
) -> None:
    """Write the ids of mapped nodes, the labels and the splits."""
    array = None
    for values in () if edges is None else edges.ids():
        if array is None:
            shape = (writer.num_nodes, *values.shape[1:])
            array = writer.array("nodes/id", dtype_name(values.dtype), shape)
        array.write(values)
    if y is not None:
        write_labels(writer, y)
    for name, nodes in splits.items():
        writer.split(name, nodes)
