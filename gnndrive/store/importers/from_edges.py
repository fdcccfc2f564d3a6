"""Import a graph whose edges are larger than memory: Parquet or CSV, features, labels.

When not to use it: for an edge list in CSV that fits in memory, `from_csv` needs no DuckDB.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gnndrive.errors import ConfigError
from gnndrive.sizes import parse_size
from gnndrive.store.format import AnyDType, Progress, dtype_name
from gnndrive.store.importers.edge_list import EdgeList, write_columns, write_graph
from gnndrive.store.importers.features import Features, open_features
from gnndrive.store.importers.label_file import read_labels
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

    Returns:
        The store, open. Its edge ids are positions in the list; after `undirected`, in the graph.

    Raises:
        ConfigError: arguments that do not fit together, or DuckDB is not installed.
        StoreError: a file is damaged, or the disk is full; nothing is left behind.
    """
    files = [Path(edges)] if isinstance(edges, str | os.PathLike) else [Path(e) for e in edges]
    if not files:
        raise ConfigError("edges names no file: give one at least")
    if undirected and columns:
        raise ConfigError("columns= are of edges in one direction: leave out undirected=")
    budget, folder = parse_size(memory, "memory"), Path(path).absolute().parent
    with EdgeList(files, budget, folder, source, target, map_ids) as found:
        table = None if features is None else open_features(Path(features))
        nodes = _count_nodes(found, num_nodes, table, map_ids)
        y = None if labels is None else read_labels(Path(labels), nodes)
        found.refuse_above(nodes)
        labelled = np.arange(nodes) if y is None else y.labelled()
        chosen = resolve(splits, labelled, nodes)
        count = found.count_undirected() if undirected else found.count
        with _writer(path, nodes, count, files, overwrite, progress) as writer:
            if table is not None:
                reserve(writer, table, dtype_name(dtype))
            write_graph(found, writer, undirected, progress)
            write_columns(found, writer, columns, progress)
            if map_ids:
                _write_ids(found, writer)
            if y is not None:
                write_labels(writer, y)
            for name, of_split in chosen.items():
                writer.split(name, of_split)
            if table is not None:
                write_features(writer, table, dtype_name(dtype), progress)
    return open_store(writer.path)


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


def _write_ids(edges: EdgeList, writer: StoreWriter) -> None:
    array = None
    for values in edges.ids():
        if array is None:
            shape = (writer.num_nodes, *values.shape[1:])
            array = writer.array("nodes/id", dtype_name(values.dtype), shape)
        array.write(values)
