"""Import plain files: edges in CSV or Parquet, features in .npy or .npz, labels in CSV.

`from_csv` holds all edges in memory and needs no DuckDB; `from_edges` sorts edge lists of any
length with DuckDB. Both read features in chunks.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import available_memory, parse_size
from gnndrive.common.progress import Progress
from gnndrive.store.convert import ArrayLike, as_rows, dtype_of, to_storage
from gnndrive.store.format import AnyDType, ArrayInfo, dtype_name
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.csc import to_undirected, write_csc
from gnndrive.store.importers.edge_list import EdgeList, write_columns, write_graph
from gnndrive.store.importers.ends import as_parquet
from gnndrive.store.importers.features import (
    Features,
    open_features,
    rows_per_chunk,
    two_dimensional,
)
from gnndrive.store.importers.label_file import Labels, read_labels
from gnndrive.store.importers.matrix_market import MatrixMarket, is_matrix, open_matrix
from gnndrive.store.importers.splits import RandomSplit, SplitSpec, resolve
from gnndrive.store.importers.table_files import WHOLE, TableFiles, files_in, is_table, table_of
from gnndrive.store.importers.table_rows import FEATURES, TableRows, feature_columns, kind_of
from gnndrive.store.importers.text import read_edges
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.temporary_folders import clear
from gnndrive.store.writer import StoreWriter, path_exists

File = str | os.PathLike[str]


@with_if_exists()
def from_csv(
    edges: File,
    features: File | None,
    labels: File | None,
    path: File,
    *,
    undirected: bool = False,
    first_id: int = 0,
    splits: SplitSpec = RandomSplit(),  # noqa: B008 - frozen
    dtype: AnyDType = "float32",
    made_by: str | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from files.

    Args:
        edges: text with a source id and a target id a line, separated by a comma, semicolon, tab or
            spaces, with or without a header; or MatrixMarket, .mtx, in which entries go from rows
            to columns. The number of nodes is that of the features or the matrix, else that of
            labels in the nodes' order, else the largest id of edges and labels + 1.
        features: .npy, .npz with one array, or a SciPy CSR .npz, one row per node; becomes x. Or a
            table, as for `from_edges`, which then makes the store. None: no x.
        labels: text with a node id and a label a line, or with one label a line in the nodes'
            order, with or without a header; becomes y. Whole numbers, 3.0 too, become int64, other
            numbers float32, and all of them if one is -1.0 or less. Other labels become class ids,
            int64, in the labels' sorted order, and the names of the classes. A node without a label
            has -1 (nan among floats); in the file it has no line, or an empty label, or among
            numbers NA, nan or null, or among whole numbers written without a point -1. In the
            nodes' order a blank line is such a node if there are as many lines as nodes, and is
            skipped if there are as many labels. None: no y.
        path: the folder to make.
        undirected: add each edge's reverse and drop repetitions, as PyG's `to_undirected`.
        first_id: the least node id, in edges (not MatrixMarket), labels, and files and arrays of
            splits: 1 if ids count from 1. Nodes of the store are numbered from 0.
        splits: RandomSplit(train, val, test, seed) of the labelled nodes, also written ("random",
            train, val, test, seed), or with seed 0 (train, val, test); or a mapping from
            names to ids, a bool mask, or a file of these (.npy, or text with an id a line). None:
            no splits.
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
    _check_first_id(first_id)
    if features is not None and is_table(features):
        return from_edges(
            edges, path, features=features, labels=labels, undirected=undirected,
            first_id=first_id, splits=splits, dtype=dtype, if_exists=if_exists, progress=progress,
        )  # fmt: skip
    table = None if features is None else open_features(Path(features))
    matrix = open_matrix(Path(edges)) if is_matrix(Path(edges)) else None
    given = _count_nodes(None, table, matrix)
    y = None if labels is None else read_labels(Path(labels), given, None, first_id)
    if given is None and y is not None and y.in_order:
        given = y.num_nodes
    if matrix is None:
        ends = read_edges(Path(edges), given, first_id, progress)
    else:
        ends = matrix.ends(progress)
    if not len(ends):
        _warn_of_no_edges(edges)
    num_nodes = _infer_nodes(ends.max(initial=-1), y) if given is None else given
    if 8 * num_nodes > available_memory():
        raise _too_many_nodes(num_nodes, "the memory that is free", "", matrix is not None)
    if given is None and not first_id and len(ends):
        _warn_of_ids_from_1(ends.min(), y)
    chosen = resolve(splits, y, num_nodes, None, first_id)
    if matrix is not None and not first_id:
        _warn_of_matrix_from_1(y, chosen if isinstance(splits, Mapping) else {})
    src, dst = ends[:, 0], ends[:, 1]
    if undirected:
        src, dst = to_undirected(src, dst, num_nodes)
    files = ", ".join(os.fspath(file) for file in (edges, features, labels) if file is not None)
    notes = _notes(given, matrix, ())
    made_by = made_by or f"gnndrive.from_csv({files}{', undirected' if undirected else ''}){notes}"
    with StoreWriter(
        path, num_nodes, len(src), made_by=made_by, overwrite=if_exists == "replace",
        progress=progress,
    ) as writer:  # fmt: skip
        if table is not None:
            _reserve(writer, table, dtype_name(dtype))
        write_csc(writer, None, src, dst)
        _write_nodes(writer, None, y, chosen)
        if table is not None:
            write_features(writer, table, dtype_name(dtype), progress)
    return open_store(writer.path)


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
    first_id: int = 0,
    features: File | None = None,
    x: str | Sequence[str] = (),
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
            the other. Or one file in MatrixMarket, .mtx, whose columns are "source", "target" and,
            if entries have values, "weight".
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
        num_nodes: number of nodes; None: as for `from_csv`, or that of mapped ids.
        features: as for `from_csv`; or a table in Parquet, Arrow or CSV, whose columns of numbers
            or lists of numbers become x: FILE with the rows in the nodes' order, or FILE:COLUMN
            with the column of the nodes' ids, one row for each node.
        x: columns of that table, side by side; names may be patterns such as "f*". Empty: the only
            column of lists, or all columns, which then are numbers.
        first_id, labels, splits, dtype, if_exists, progress: as for `from_csv`.
        undirected: add the other direction of every edge and drop repetitions.
        header: whether each text file begins with the columns' names; None: it does if no field of
            its first row is a number. Labels of mapped ids may lack them in either case.

    Returns:
        The open store. Its edge ids are positions in the list; if `undirected`, CSC positions.

    Raises:
        ConfigError: arguments do not fit together, `path` exists, or DuckDB is not installed.
        StoreError: a file is damaged, or the disk is full; nothing is left behind.
    """
    files = _files(edges)
    if undirected and columns:
        raise ConfigError("columns= are of one direction: leave out columns= or undirected=")
    _check_first_id(first_id, map_ids)
    budget, store = parse_size(memory, "memory"), checked_target(path, if_exists)
    matrix = _only_matrix(files, map_ids, header)
    with ExitStack() as stack:
        if matrix is None:
            read, name = files, None
        else:
            name, tables = str(files[0]), matrix.edges(first_id, progress)
            read = [stack.enter_context(as_parquet(store, matrix.columns, tables))]
        found = stack.enter_context(
            closing(
                EdgeList(
                    read, budget, store, source, target, map_ids, columns, header, name, first_id
                )
            )
        )
        table, place_rows = _open_features(found, features, x, map_ids)
        if map_ids:
            place_rows(found.last + 1)
        given = _count_nodes(num_nodes, table, matrix, found.last + 1 if map_ids else None)
        numbers = found.numbers if map_ids else None
        y = None if labels is None else read_labels(Path(labels), given, numbers, first_id, header)
        if given is None and y is not None and y.in_order:
            given = y.num_nodes
        nodes = _infer_nodes(found.last, y) if given is None else given
        if 8 * nodes > budget:
            fixed = map_ids or matrix is not None
            raise _too_many_nodes(nodes, "memory=", "raise memory=", fixed)
        if given is None and not first_id:
            _warn_of_ids_from_1(found.least, y)
        found.refuse_above(nodes)
        if not map_ids:
            place_rows(nodes)
        chosen = resolve(splits, y, nodes, numbers, first_id)
        if matrix is not None and not first_id:
            _warn_of_matrix_from_1(y, chosen if isinstance(splits, Mapping) else {})
        count = found.count_undirected() if undirected else found.count
        names = ", ".join(map(str, files))
        made_by = f"gnndrive.from_edges({names}){_notes(given, matrix, columns)}"
        if not count:
            _warn_of_no_edges(names)
        with StoreWriter(
            path, nodes, count, made_by=made_by,
            overwrite=if_exists == "replace", progress=progress,
        ) as writer:  # fmt: skip
            if table is not None:
                _reserve(writer, table, dtype_name(dtype))
            write_graph(found, writer, undirected, progress)
            write_columns(found, writer, columns, progress)
            _write_nodes(writer, found if map_ids else None, y, chosen)
            if table is not None:
                write_features(writer, table, dtype_name(dtype), progress)
    return open_store(writer.path)


def _open_features(
    edges: EdgeList, features: File | None, x: str | Sequence[str], map_ids: bool
) -> tuple[Features | None, Callable[[int], None]]:
    """Open the features of `from_edges`; the function returned, called with the number of nodes,
    finds the nodes of the rows of a table with ids."""
    if features is None or not is_table(features):
        if x:
            raise ConfigError("x= names columns of a table: give features=")
        return None if features is None else open_features(Path(features)), lambda nodes: None
    path, keys = table_of(features)
    if len(keys) > 1:
        raise ConfigError(f"features={os.fspath(features)!r}: give one column of ids, FILE:COLUMN")
    names = [x] if isinstance(x, str) else list(x)
    key = keys[0] if keys else None
    table = TableFiles(edges.database, files_in(path), None, keys)
    table.load(keys)
    (count,) = edges.database.row(f"SELECT count(*) FROM {table.sql}")
    chosen = feature_columns(table, key, names)
    if key is None:
        _check_order(edges, table, path, chosen if names else (), count, map_ids)
    rows = TableRows(edges.database, table, chosen, count=count, kinds=FEATURES)

    def place_rows(nodes: int) -> None:
        if key is not None:
            rows.order = edges.places_of(table, key, nodes)

    return two_dimensional(rows), place_rows


def _check_order(
    edges: EdgeList, table: TableFiles, file: Path, named: Sequence[str], count: int, map_ids: bool
) -> None:
    """Check that the rows of a table of features may be in the nodes' order: no column that is not
    one of `named` has the nodes' ids in another order."""
    texts = []
    for name, type in table.columns.items():
        is_text = kind_of(type) == "category"
        if name in named or not (is_text or type in WHOLE):
            continue
        in_order = edges.order_of(table, name, count)
        if in_order:
            return
        if in_order is False:
            raise ConfigError(
                f"{file}: the column {name!r} has ids of nodes, but not in the nodes' order: give "
                f"features={file}:{name} to find rows by them, or leave the column out of "
                "the file if the rows are in the nodes' order"
            )
        texts += [name] * is_text
    if map_ids and texts:
        warnings.warn(
            f"{file}: the rows are taken in the order of the sorted ids, because few of them are "
            f"in {', '.join(map(repr, texts))}: if a column has them, write them as in the edges, "
            f"and give features={file}:COLUMN",
            stacklevel=4,
        )


def _files(edges: File | Sequence[File]) -> list[Path]:
    files = [Path(each) for each in ([edges] if isinstance(edges, str | os.PathLike) else edges)]
    if not files:
        raise ConfigError("edges names no file: give at least one")
    for file in files:
        if not file.exists():
            raise StoreError(f"{file} is missing: give a file that is there")
    return files


def checked_target(path: File, if_exists: IfExists) -> Path:
    """Check the store's path now, because the writer checks it only after the sort, and remove what
    processes that were killed have left beside it; returns it without links."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {target.parent} is not there: make it first")
    clear(target)
    if os.path.lexists(path) and if_exists != "replace":
        raise ConfigError(path_exists(path))
    return target


def _only_matrix(files: Sequence[Path], map_ids: bool, header: bool | None) -> MatrixMarket | None:
    """Open the file if it is in MatrixMarket."""
    if not any(map(is_matrix, files)):
        return None
    if len(files) > 1:
        raise ConfigError(
            f"{', '.join(map(str, files))}: a file in MatrixMarket is all edges of a graph: give "
            "one and no other file"
        )
    if map_ids:
        raise ConfigError(
            "map_ids=True is for ids of any kind, and those of a matrix are its rows: leave it out"
        )
    if header is not None:
        raise ConfigError(
            "header= is for CSV, and the first lines of a matrix say what they are: leave it out"
        )
    return open_matrix(files[0])


def _count_nodes(
    num_nodes: int | None,
    table: Features | None,
    matrix: MatrixMarket | None,
    mapped: int | None = None,
) -> int | None:
    """The number of nodes, None if nothing says it; ConfigError: arguments and files say different
    ones. `mapped` is that of mapped ids."""
    counts = {
        "num_nodes": num_nodes,
        "features": None if table is None else table.shape[0],
        "the mapped ids": mapped,
        "rows of the matrix": None if matrix is None else matrix.num_nodes,
    }
    given = {name: count for name, count in counts.items() if count is not None}
    if len(set(given.values())) > 1:
        words = ", ".join(f"{name} say {count}" for name, count in given.items())
        by_id = ", or features in a table by the ids, FILE:COLUMN"
        raise ConfigError(
            f"the numbers of nodes differ: {words}: give the same number"
            f"{by_id * (mapped is not None and table is not None)}"
        )
    return next(iter(given.values()), None)


def _check_first_id(first_id: int, map_ids: bool = False) -> None:
    if not isinstance(first_id, int | np.integer) or not 0 <= first_id < 2**63:
        raise ConfigError(f"first_id={first_id!r}: give the least node id, 0 or 1")
    if first_id and map_ids:
        raise ConfigError("map_ids=True numbers ids of any kind: leave out first_id=")


def _infer_nodes(last: int, y: Labels | None) -> int:
    """The largest node number of edges, which is `last`, and of labels, plus 1."""
    return max(int(last) + 1, 0 if y is None else y.num_nodes)


def _warn_of_ids_from_1(least: int, y: Labels | None) -> None:
    """Warn of a node 0 that no edge and no label names, if the least id of the edges is 1."""
    if least == 1 and (y is None or 0 not in y.nodes[:1]):
        warnings.warn(
            "no edge has the id 0, so that node 0 of the store has no neighbours: if ids count "
            "from 1, give first_id=1",
            stacklevel=3,
        )


def _warn_of_matrix_from_1(y: Labels | None, splits: Mapping[str, ArrayLike]) -> None:
    """Warn if the least id of the labels and splits of a matrix is 1."""
    least = [] if y is None or y.in_order else [y.nodes[:1]]
    for name, ids in splits.items():
        rows = as_rows(ids, f"split {name!r}")
        if "int" in dtype_of(rows):
            least.append(to_storage(rows, "int64", name))
    if min((int(ids.min()) for ids in least if len(ids)), default=0) == 1:
        warnings.warn(
            "no label and no split has the id 0: if their ids count from 1, as those in the matrix "
            "do, give first_id=1",
            stacklevel=3,
        )


def _too_many_nodes(nodes: int, memory: str, remedy: str, fixed: bool) -> ConfigError:
    """The error for a number of nodes whose index pointers do not fit into memory; `fixed`: it
    cannot be less with mapped ids."""
    pointers = f"the index pointers of {nodes} nodes alone are more than {memory}"
    if fixed:
        return ConfigError(f"{pointers}: {remedy or 'free some, or take a smaller graph'}")
    few = "if few of the ids are used give map_ids=True to gnndrive.from_edges"
    remedies = f"{remedy}, or {few}" if remedy else few
    return ConfigError(f"ids go up to {nodes - 1}: {pointers}: {remedies}")


def _notes(given: int | None, matrix: MatrixMarket | None, columns: Sequence[str]) -> str:
    """What is to be said of a store beside the names of its files."""
    notes = ["; the number of nodes is the largest id + 1"] if given is None else []
    if matrix is not None and matrix.dtype is not None and "weight" not in columns:
        notes.append(
            '; the values of the matrix are left out: columns=["weight"] of gnndrive.from_edges '
            "(--edge-column weight) keeps them"
        )
    return "".join(notes)


def _write_nodes(
    writer: StoreWriter, edges: EdgeList | None, y: Labels | None, splits: Mapping[str, Any]
) -> None:
    """Write the ids of mapped nodes, the labels and the splits."""
    if edges is not None:
        ids = edges.ids()
        write_features(writer, ids, ids.stored, None, "nodes/id")
    if y is not None:
        writer.write("nodes/y", y.of_all(writer.num_nodes))
        if y.classes is not None:
            writer.classes(y.classes)
    for name, nodes in splits.items():
        writer.split(name, nodes)


def _warn_of_no_edges(files: object) -> None:
    """Warn that a list of edges is empty, which is rarely meant."""
    warnings.warn(
        f"{files} holds no edges, so no node of the store has neighbours: check the file, and "
        "whether its first line is a header (header=)",
        stacklevel=2,
    )


def _reserve(writer: StoreWriter, table: Features, dtype: str) -> None:
    """Check that the disk has room for x and the graph; labels and splits are small beside them."""
    x = ArrayInfo("nodes/x", dtype, table.shape, "")
    writer.reserve(x.nbytes + 24 * writer.num_nodes + 16 * writer.num_edges)


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
