"""Import a dataset that a metadata.yaml of DGL's GraphBolt describes, before its preprocessing.

The files are GraphBolt's OnDiskDataset's: edges in CSV or .npy, features and sets of seeds in .npy
or as tensors. When not to use it: for the preprocessed folder that GraphBolt makes of them, whose
graph is a pickle.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey
from gnndrive.store.format import AnyDType, Progress
from gnndrive.store.importers.changes import as_labels, flat, two_dimensional
from gnndrive.store.importers.csv_numbers import count_rows
from gnndrive.store.importers.dataset import Dataset, checked_rows, write_dataset
from gnndrive.store.importers.ends import CsvEnds, Ends, NpyEnds
from gnndrive.store.importers.features import (
    Array,
    Features,
    as_numpy,
    open_features,
    open_tensor,
    rows_per_chunk,
)
from gnndrive.store.importers.metadata import Entry, read_metadata
from gnndrive.store.reader import Store
from gnndrive.store.types import Types

_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}
_SEEDS = ("seeds", "seed_nodes")
_LABELS = ("labels", "label")
_OF_LINKS = ("node_pairs", "negative_srcs", "negative_dsts", "indexes")


def from_graphbolt(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    memory: str | int = "4GB",
    dtype: AnyDType | None = None,
    made_by: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Store:
    """Write a store from a dataset of GraphBolt's OnDiskDataset, as it is before preprocessing.

    The node feature "feat" becomes x [nodes, columns], the edge feature "feat" edge_attr [edges,
    columns], others keep their names and shapes. The first task of nodes gives the splits train,
    val and test, and the labels y of the nodes that are in one of them; where it has no labels, a
    node feature "label" or "labels" becomes y. Edge ids are positions in the list of edges.

    Args:
        source: metadata.yaml, or the folder that holds it.
        path: where the store shall be.
        memory: bytes or text. Edges of a type that need more to be sorted, 40 bytes each, are
            sorted by DuckDB beside the store.
        dtype: of x in the store; "bfloat16" too. None: as it is there.
        made_by: how it was made, for people; None: says the source.
        overwrite: replace a store that is at `path`.
        progress: called as progress(what, done, total).

    Returns:
        The store, open: homogeneous where types are left out. y is int64 [nodes], −1 where there is
        no label, or, of labels that are not whole, float32 with nan; of several labels a node
        [nodes, labels].

    Raises:
        ConfigError: arguments that do not fit together; PyYAML, or for CSV pyarrow, or DuckDB, is
            needed and is not installed.
        StoreError: the metadata says what cannot be, a file is missing or damaged (the message
            names it, and the line), an edge, seed or feature does not fit, or the disk is full;
            nothing is left behind.

    Warns:
        UserWarning: what is left out: tasks of links, further tasks of nodes, what a set of seeds
            has beside labels, features of the whole graph.
    """
    budget = parse_size(memory, "memory")
    top = read_metadata(Path(source))
    if "graph" not in top and "graph_topology" in top:
        raise StoreError(
            f"{top.file} is of a preprocessed dataset, whose graph is a pickle: give the "
            "metadata.yaml in the folder above it"
        )
    graph = top.entry("graph")
    num_nodes = _nodes(graph)
    dataset = Dataset(num_nodes, dict(_edges(graph, num_nodes)))
    labels = _add_task(dataset, top, budget)
    for entry in [*graph.entries("feature_data"), *top.entries("feature_data")]:
        _add_feature(dataset, entry, labels, dtype)
    said = f"gnndrive.from_graphbolt({os.fspath(source)})"
    return write_dataset(
        dataset, path, memory=budget, made_by=made_by or said, overwrite=overwrite,
        progress=progress,
    )  # fmt: skip


# ---- the graph


def _nodes(graph: Entry) -> dict[NodeKey, int]:
    """How many nodes there are of each type; None is the type of a homogeneous graph."""
    found: dict[NodeKey, int] = {}
    entries = graph.entries("nodes")
    for entry in entries:
        name = entry.text_or_none("type")
        if name in found or (name is None and len(entries) > 1):
            raise entry.error("has no 'type' of its own")
        found[name] = entry.count("num")
    if not found:
        raise graph.error("has no 'nodes'")
    return found


def _edges(graph: Entry, num_nodes: dict[NodeKey, int]) -> Iterator[tuple[EdgeKey, Ends]]:
    entries = graph.entries("edges")
    seen: set[EdgeKey] = set()
    for entry in entries:
        key: EdgeKey = None if None in num_nodes else entry.edge_type()
        if None in num_nodes and "type" in entry:
            raise entry.error("has a 'type', but the nodes have none")
        if key in seen:
            raise entry.error("has no 'type' of its own")
        seen.add(key)
        if key is not None:
            try:
                Types.of({str(name): count for name, count in num_nodes.items()}, {key: 0})
            except ConfigError as error:
                raise entry.error(f"cannot be: {error}") from None
        path = entry.path()
        if entry.text("format", "csv", "numpy") == "numpy":
            yield key, NpyEnds(path)
        else:
            yield key, CsvEnds(path, count_rows(path, 2), "the first reading of it")
    if None in num_nodes and not entries:
        raise graph.error("has no 'edges'")


# ---- features


def _open(entry: Entry) -> Features:
    """The rows that an entry names."""
    numpy = entry.text("format", "numpy", "torch") == "numpy"
    return open_features(entry.path()) if numpy else open_tensor(entry.path())


def _add_feature(
    dataset: Dataset, entry: Entry, labels: set[NodeKey], dtype: AnyDType | None
) -> None:
    domain, name = entry.text("domain", "node", "edge", "graph"), entry.text("name")
    if domain == "graph":
        warnings.warn(
            f"a store holds features of nodes and edges; left out: {name}, of the whole graph",
            stacklevel=3,
        )
        return
    counts: dict[Any, int] = dict(dataset.num_nodes)
    if domain == "edge":
        counts = {type: ends.count for type, ends in dataset.edges.items()}
    key: Any = entry.text_or_none("type")
    if domain == "edge" and key is not None:
        key = entry.edge_type()
    if key not in counts:
        known = ", ".join(map(str, counts)) if None not in counts else "none, for there is one"
        raise entry.error(f"is of the {domain} type {key!r}, but the types are {known}")
    rows = checked_rows(_open(entry), counts[key], str(entry.path()), f"{entry.file.name}'s graph")
    if name == "feat":
        leaf, wanted = ("x", dtype) if domain == "node" else ("edge_attr", None)
        dataset.add(f"{domain}s", key, leaf, two_dimensional(rows), wanted)
    elif domain == "node" and name in _LABELS and key not in labels:
        dataset.add("nodes", key, "y", as_labels(rows))
    else:
        dataset.add(f"{domain}s", key, name, rows)


# ---- tasks


def _add_task(dataset: Dataset, top: Entry, budget: int) -> set[NodeKey]:
    """Splits and labels of the first task of nodes; returns the types that it gives labels of."""
    tasks = top.entries("tasks")
    links = [task for task in tasks if _is_of_links(task)]
    of_nodes = [task for task in tasks if task not in links]
    for task in links:
        warnings.warn(
            f"{task.file}: {_called(task)} is of links: it makes no splits of nodes; give its seed "
            "edges to a LinkNeighborLoader yourself",
            stacklevel=3,
        )
    for task in of_nodes[1:]:
        warnings.warn(
            f"{task.file}: {_called(task)} is left out, for a store has one set of splits: that of "
            f"{_called(of_nodes[0])}",
            stacklevel=3,
        )
    labelled: dict[NodeKey, list[tuple[Int64Array, Features, Entry]]] = {}
    for set_name, split in _SETS.items() if of_nodes else ():
        for entry in of_nodes[0].entries(set_name):
            key = entry.text_or_none("type")
            if key not in dataset.num_nodes:
                known = ", ".join(map(str, dataset.num_nodes))
                raise entry.error(f"is of the node type {key!r}, but the types are {known}")
            seeds, labels = _seeds_and_labels(entry, dataset.num_nodes[key])
            earlier = dataset.splits.get((key, split))
            joined = seeds if earlier is None else np.concatenate([earlier, seeds])
            dataset.splits[key, split] = joined
            if labels is not None:
                labelled.setdefault(key, []).append((seeds, labels, entry))
    for key, parts in labelled.items():
        dataset.add("nodes", key, "y", Array(_y(dataset.num_nodes[key], parts, budget)))
    return set(labelled)


def _called(task: Entry) -> str:
    name = task.text_or_none("name")
    return f"{task.what} ({name})" if name else task.what


def _is_of_links(task: Entry) -> bool:
    for set_name in _SETS:
        for entry in task.entries(set_name):
            if ":" in (entry.text_or_none("type") or ""):
                return True
            for data in entry.entries("data"):
                name = data.text("name")
                if name in _OF_LINKS or (name in _SEEDS and len(_open(data).shape) != 1):
                    return True
    return False


def _seeds_and_labels(entry: Entry, num_nodes: int) -> tuple[Int64Array, Features | None]:
    """Node ids, checked, and what labels there are of them."""
    data = {each.text("name"): each for each in entry.entries("data")}
    left_out = [name for name in data if name not in (*_SEEDS, *_LABELS)]
    if left_out:
        warnings.warn(
            f"{entry.file}: {entry.what} has more than seeds and labels; left out: "
            f"{', '.join(left_out)}",
            stacklevel=4,
        )
    given = next((data[name] for name in _SEEDS if name in data), None)
    if given is None:
        raise entry.error("has no data named 'seeds'")
    seeds = _open(given).all_rows()
    if seeds.dtype.kind not in "iu":
        raise given.error(f"names {given.path()}, which holds {seeds.dtype} and no node ids")
    bad = np.flatnonzero((seeds < 0) | (seeds >= num_nodes))
    if len(bad):
        raise given.error(
            f"names {given.path()}, whose entry {bad[0]} is node {seeds[bad[0]]}, but there are "
            f"{num_nodes} nodes, numbered from 0"
        )
    labels = next((data[name] for name in _LABELS if name in data), None)
    if labels is None:
        return seeds.astype(np.int64), None
    rows = checked_rows(_open(labels), len(seeds), str(labels.path()), str(given.path()))
    return seeds.astype(np.int64), rows


def _y(
    num_nodes: int, parts: list[tuple[Int64Array, Features, Entry]], budget: int
) -> npt.NDArray[Any]:
    """Labels of all nodes, of those of some; whole if they are in every set.

    Raises:
        ConfigError: they are more than `budget` bytes.
        StoreError: sets have labels of other shapes, or a file is damaged.
    """
    row = flat(parts[0][1]).shape[1:]
    needed = 8 * num_nodes * math.prod(row)
    if needed > budget:
        raise ConfigError(
            f"the labels of {num_nodes} nodes, {needed} bytes, are more than memory=: give more "
            "(--memory)"
        )
    whole = all(as_labels(labels).dtype.kind == "i" for _, labels, _ in parts)
    y = np.full((num_nodes, *row), -1 if whole else np.nan, np.int64 if whole else np.float32)
    for seeds, labels, entry in parts:
        if flat(labels).shape[1:] != row:
            raise entry.error(f"has labels of shape {list(labels.shape)}, another set of {[*row]}")
        # In a set of integers -1 is missing; -1.0 beside 0.5 is a number.
        given = as_labels(labels) if whole else flat(labels)
        done = 0
        for chunk in map(as_numpy, given.chunks(rows_per_chunk(given.shape, 8))):
            values = chunk
            if not whole and chunk.dtype.kind in "iu":
                values = np.where(chunk == -1, np.nan, chunk)
            y[seeds[done : done + len(chunk)]] = values
            done += len(chunk)
    return y
