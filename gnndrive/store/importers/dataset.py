"""A dataset of many files, which an importer has opened but not read; write it as a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import least_text
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey
from gnndrive.store.format import AnyDType, ArrayInfo, dtype_name
from gnndrive.store.importers.ends import Ends
from gnndrive.store.importers.features import Features
from gnndrive.store.importers.link_task import LinkTask, write_task
from gnndrive.store.importers.plain_files import write_features
from gnndrive.store.importers.text import wrong_count
from gnndrive.store.link_split.opened import LINKS, TASKS
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.types import array_name
from gnndrive.store.writer import StoreWriter


@dataclass(frozen=True, slots=True)
class Dataset:
    """The sources of a store's arrays; `rows` and `dtypes` are by the arrays' names in it, `splits`
    by node type and name, `classes`, `classes_min` and `values` as a `StoreWriter` has them,
    `links` by the name of a task, in the order of the tasks."""

    num_nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, Ends]
    rows: dict[str, Features] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    splits: dict[tuple[NodeKey, str], Int64Array] = field(default_factory=dict)
    classes: dict[NodeKey, tuple[str, ...]] = field(default_factory=dict)
    classes_min: dict[NodeKey, int] = field(default_factory=dict)
    values: dict[NodeKey | EdgeKey, dict[str, Any]] = field(default_factory=dict)
    links: dict[str, LinkTask] = field(default_factory=dict)

    def add(
        self,
        group: str,
        type: NodeKey | EdgeKey,
        leaf: str,
        rows: Features,
        dtype: AnyDType | None = None,
    ) -> None:
        """Add an array of "nodes" or "edges" (`group`), with one row for each of the type; `leaf`
        is the last part of its name, such as "x". dtype None: the dtype in the file."""
        name = array_name(group, type, leaf)
        if name in self.rows:
            raise ConfigError(f"{name} would be made of two arrays of the source: rename one there")
        self.rows[name] = rows
        self.dtypes[name] = rows.stored if dtype is None else dtype_name(dtype)


def write_dataset(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    memory: int,
    made_by: str,
    overwrite: bool,
    progress: Progress | None,
) -> Store:
    """Write a store from a dataset and open it; `memory` is for sorting the edges of a type."""
    nodes: Any = dict(dataset.num_nodes)
    edges: Any = {type: ends.count for type, ends in dataset.edges.items()}
    if 8 * max(nodes.values(), default=0) > memory:
        raise ConfigError(
            f"the index pointers of {max(nodes.values()):,} nodes alone are more than memory=: "
            f"give {least_text(9 * max(nodes.values()))} or more"
        )
    if None in nodes:
        nodes, edges = nodes[None], edges[None]
    with StoreWriter(
        path, nodes, edges, made_by=made_by, overwrite=overwrite, progress=progress
    ) as writer:
        arrays = (
            ArrayInfo(name, dataset.dtypes[name], rows.shape, "")
            for name, rows in dataset.rows.items()
        )
        links = (
            each.nbytes
            for task in dataset.links.values()
            for sets in task.values()
            for each in sets.values()
        )
        writer.reserve(
            writer.types.graph_bytes + sum(array.nbytes for array in arrays) + sum(links)
        )
        for type, ends in dataset.edges.items():
            ends.write(writer, type, memory, progress)
        for (node_type, name), ids in dataset.splits.items():
            writer.split(name, ids, node_type)
        for node_type, classes in dataset.classes.items():
            writer.classes(classes, node_type)
        writer.values, writer.classes_min = dataset.values, dataset.classes_min
        for name, rows in dataset.rows.items():
            write_features(writer, rows, dataset.dtypes[name], progress, name)
        for place, (name, task) in enumerate(dataset.links.items()):
            write_task(writer.folder / (f"{TASKS}/{name}" if place else LINKS), name, task)
    return open_store(writer.path)


def checked_rows(rows: Features, count: int, where: str, count_source: str) -> Features:
    """Return the rows; StoreError if there are not `count`, as `count_source` says."""
    if rows.shape[0] != count:
        raise wrong_count(where, rows.shape[0], count, count_source)
    return rows


def require(path: Path) -> Path:
    """Return the path of a file; StoreError if it is missing."""
    if not path.is_file():
        raise StoreError(f"{path} is missing: fetch or unzip the dataset again")
    return path
