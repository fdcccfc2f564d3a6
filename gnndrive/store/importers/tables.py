"""Import a graph from plain files: edges in CSV, features in .npy or .npz, labels in CSV.

All edges are held in memory; features are read in chunks. When not to use it: for edge lists that
are larger than memory or in Parquet (`from_edges`).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from gnndrive.common.errors import ConfigError
from gnndrive.store.format import AnyDType, ArrayInfo, Progress, dtype_name, index_dtype
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.csc import csc_from_edges, to_undirected
from gnndrive.store.importers.features import Features, open_features, rows_per_chunk
from gnndrive.store.importers.label_file import Labels, read_labels
from gnndrive.store.importers.splits import RandomSplit, SplitSpec, resolve
from gnndrive.store.importers.text import read_edges
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.writer import StoreWriter

File = str | os.PathLike[str]
NO_COUNT = (
    "nothing says how many nodes there are: give features (--features), labels (--labels), or "
    "num_nodes= of gnndrive.from_edges (--num-nodes)"
)


@with_if_exists()
def from_csv(
    edges: File,
    features: File | None,
    labels: File | None,
    path: File,
    *,
    undirected: bool = False,
    splits: SplitSpec = RandomSplit(),  # noqa: B008 - frozen
    dtype: AnyDType = "float32",
    made_by: str | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from files.

    Args:
        edges: text with a source id and a target id a line, separated by a comma, semicolon, tab or
            spaces, with or without a header.
        features: .npy, .npz with one array, or a SciPy CSR .npz, one row per node; becomes x. None:
            no x.
        labels: text with a node id and a label a line, or with one label a line in the nodes'
            order; becomes y. Whole numbers become int64, other numbers float32. Other labels become
            class ids, int64, in the labels' sorted order, and the names of the classes. A node
            without a label has -1 (nan among floats). None: no y.
        path: the folder to make.
        undirected: add each edge's reverse and drop repetitions, as PyG's `to_undirected`.
        splits: RandomSplit(train, val, test, seed) of the labelled nodes, also written ("random",
            train, val, test, seed); or a mapping from names to ids, a bool mask, or a file of these
            (.npy, or text with an id a line). None: no splits.
        dtype: dtype of x in the store; "bfloat16" is allowed.
        made_by: how the store was made; None: a text that names the files.
        if_exists: as for `from_data`; a store that is opened is not compared.
        progress: called as progress(what, bytes done, bytes in all).

    Returns:
        The open store. Its edge ids are positions in the list of edges; if `undirected`, in the
        sorted list of both directions.

    Raises:
        ConfigError: arguments do not fit together, or `path` exists.
        StoreError: a file is damaged; the message names the line.
    """
    if features is None and labels is None:
        raise ConfigError(NO_COUNT)
    table = None if features is None else open_features(Path(features))
    given = None if table is None else table.shape[0]
    y = None if labels is None else read_labels(Path(labels), given)
    num_nodes = given if given is not None else len(y.values) if y is not None else 0
    chosen = resolve(splits, y, num_nodes)
    ends = read_edges(Path(edges), num_nodes, progress)
    if not len(ends):
        warn_of_no_edges(edges)
    src, dst = ends[:, 0], ends[:, 1]
    if undirected:
        src, dst = to_undirected(src, dst, num_nodes)
    indptr, indices, edge_id = csc_from_edges(src, dst, num_nodes)
    files = ", ".join(os.fspath(file) for file in (edges, features, labels) if file is not None)
    made_by = made_by or f"gnndrive.from_csv({files}{', undirected' if undirected else ''})"
    with StoreWriter(
        path,
        num_nodes,
        len(indices),
        made_by=made_by,
        overwrite=if_exists == "replace",
        progress=progress,
    ) as writer:
        if table is not None:
            reserve(writer, table, dtype_name(dtype))
        writer.write("graph/indptr", indptr)
        writer.write("graph/indices", indices, index_dtype(num_nodes))
        writer.write("graph/edge_id", edge_id, index_dtype(len(indices)))
        if y is not None:
            write_labels(writer, y)
        for name, nodes in chosen.items():
            writer.split(name, nodes)
        if table is not None:
            write_features(writer, table, dtype_name(dtype), progress)
    return open_store(writer.path)


def warn_of_no_edges(files: object) -> None:
    """Warn that a list of edges is empty, which is rarely meant."""
    warnings.warn(
        f"{files} holds no edges, so no node of the store has neighbours: check the file, and "
        "whether its first line is a header (header=, --header, --no-header)",
        stacklevel=2,
    )


def reserve(writer: StoreWriter, table: Features, dtype: str) -> None:
    """Check that the disk has room for x and the graph; labels and splits are small beside them."""
    x = ArrayInfo("nodes/x", dtype, table.shape, "")
    writer.reserve(x.nbytes + 24 * writer.num_nodes + 16 * writer.num_edges)


def write_labels(writer: StoreWriter, y: Labels) -> None:
    """Write nodes/y and the names of its classes."""
    writer.write("nodes/y", y.values)
    if y.classes is not None:
        writer.classes(y.classes)


def write_features(
    writer: StoreWriter,
    table: Features,
    dtype: str,
    progress: Progress | None,
    name: str = "nodes/x",
) -> None:
    """Write an array of rows, chunk by chunk."""
    x = writer.array(name, dtype, table.shape)
    rows = rows_per_chunk(table.shape, max(x.info.storage.itemsize, table.dtype.itemsize, 4))
    for chunk in table.chunks(rows):
        x.write(chunk)
        if progress is not None:
            row_bytes = x.info.row_bytes
            progress(name, x.rows_written * row_bytes, table.shape[0] * row_bytes)
