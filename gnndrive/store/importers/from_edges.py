"""Import a graph whose edges are larger than memory: Parquet or CSV, features, labels.

When not to use it: for an edge list in CSV that fits in memory, `from_csv` needs no DuckDB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.store.format import AnyDType, Progress, dtype_name
from gnndrive.store.importers.edge_list import EdgeList
from gnndrive.store.importers.features import Features, open_features
from gnndrive.store.importers.label_file import Labels, read_labels
from gnndrive.store.importers.sorted_edges import write_columns, write_graph
from gnndrive.store.importers.splits import SplitSpec, resolve
from gnndrive.store.importers.tables import File, reserve, write_features, write_labels
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.writer import StoreWriter


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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Store:
    """Write a store from an edge list of any length, sorted by DuckDB within `memory`.

    Args:
        edges: .parquet files, or CSV files of any separator; one, or several that follow each
            other.
        path: where the store shall be. Sorting spills beside it, some 30 bytes an edge.
        memory: bytes or text; for sorting and all else but 8 bytes a node.
        source, target: names of the columns of ids; None: the first two.
        columns: names of columns of numbers to keep as attributes of edges, such as weight.
        map_ids: ids are text, or sparse numbers: nodes are numbered in the ids' order, and the ids
            kept as the node attribute "id" (of text its UTF-8 bytes, uint8 [nodes, longest]).
            Features and labels are in that order then.
        num_nodes: number of nodes; None: as many as features, labels or ids say.
        features, labels, splits, dtype, overwrite, progress: as `from_csv`'s.
        undirected: add the other direction of every edge and drop repetitions.
        header: whether each text file begins with the columns' names; None: if nothing in its first
            row is a number.

    Returns:
        The store, open. Its edge ids are positions in the list; after `undirected`, in the graph.

    Raises:
        ConfigError: arguments that do not fit together, or DuckDB is not installed.
        StoreError: a file is damaged, or the disk is full; nothing is left behind.
    """
    files = [Path(each) for each in ([edges] if isinstance(edges, str | os.PathLike) else edges)]
    if not files:
        raise ConfigError("edges names no file: give one at least")
    if undirected and columns:
        raise ConfigError("columns= are of edges in one direction: leave out undirected=")
    budget, folder = parse_size(memory, "memory"), _checked_target(Path(path), overwrite)
    edge_list = EdgeList(files, budget, folder, source, target, map_ids, columns, header)
    with closing(edge_list) as found:
        table = None if features is None else open_features(Path(features))
        nodes = _count_nodes(found, num_nodes, table, map_ids)
        if 8 * nodes > budget:
            raise _too_many(nodes, found.last)
        y = None if labels is None else read_labels(Path(labels), nodes)
        found.refuse_above(nodes)
        chosen = _splits(splits, y, nodes)
        count = found.count_undirected() if undirected else found.count
        with _writer(path, nodes, count, files, overwrite, progress) as writer:
            if table is not None:
                reserve(writer, table, dtype_name(dtype))
            write_graph(found, writer, undirected, progress)
            write_columns(found, writer, columns, progress)
            _write_nodes(writer, found if map_ids else None, y, chosen)
            if table is not None:
                write_features(writer, table, dtype_name(dtype), progress)
    return open_store(writer.path)


def _splits(splits: SplitSpec, y: Labels | None, nodes: int) -> Mapping[str, Any]:
    if splits is None:
        return {}
    return resolve(splits, np.arange(nodes) if y is None else y.labelled(), nodes)


def _too_many(nodes: int, last: int) -> ConfigError:
    return ConfigError(
        f"ids go up to {last}: the index pointers of {nodes} nodes alone are more than memory=; if "
        "few of them are used give map_ids=True (--map-ids)"
    )


def _checked_target(path: Path, overwrite: bool) -> Path:
    """The folder that the store shall be in; refuses what the writer would after hours."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"the folder {path.absolute().parent} is not there: make it first")
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{path} exists: choose another path, or overwrite=True (--overwrite)")
    return path.absolute().parent


def _writer(
    path: File, nodes: int, edges: int, files: list[Path], overwrite: bool,
    progress: Progress | None,
) -> StoreWriter:  # fmt: skip
    made_by = f"gnndrive.from_edges({', '.join(map(str, files))})"
    return StoreWriter(path, nodes, edges, made_by=made_by, overwrite=overwrite, progress=progress)


def _count_nodes(
    edges: EdgeList, num_nodes: int | None, table: Features | None, map_ids: bool
) -> int:
    """How many nodes there are, by the first who says it; all are to say the same."""
    said = {
        "num_nodes": num_nodes,
        "features": None if table is None else table.shape[0],
        "the mapped ids": edges.last + 1 if map_ids else None,
    }
    given = {name: count for name, count in said.items() if count is not None}
    if len(set(given.values())) > 1:
        words = ", ".join(f"{name} say {count}" for name, count in given.items())
        raise ConfigError(f"how many nodes are there? {words}: give the same number")
    return next(iter(given.values()), edges.last + 1)


def _write_nodes(
    writer: StoreWriter, edges: EdgeList | None, y: Labels | None, splits: Mapping[str, Any]
) -> None:
    """Ids of mapped nodes, labels and splits."""
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
