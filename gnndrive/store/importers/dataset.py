"""A dataset of many files, opened and not yet read: what importers of datasets make of theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey
from gnndrive.store.format import AnyDType, ArrayInfo, Progress, dtype_name
from gnndrive.store.importers.ends import Ends, write_edges
from gnndrive.store.importers.features import Features
from gnndrive.store.importers.tables import write_features
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.types import array_name
from gnndrive.store.writer import StoreWriter


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a store is made of.

    Attributes:
        num_nodes: nodes by type; of a homogeneous graph of type None.
        edges: by type; of a homogeneous graph of type None.
        rows: what each array of nodes or edges is made of, by its name in the store.
        dtypes: element types in the store, of arrays that are not as in their files.
        splits: node ids by node type and name.
    """

    num_nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, Ends]
    rows: dict[str, Features] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    splits: dict[tuple[NodeKey, str], Int64Array] = field(default_factory=dict)

    def add(
        self,
        group: str,
        type: NodeKey | EdgeKey,
        leaf: str,
        rows: Features,
        dtype: AnyDType | None = None,
    ) -> None:
        """Add an array.

        Args:
            group: "nodes" or "edges".
            type: their type.
            leaf: the array's own name.
            rows: one for each of them.
            dtype: element type in the store; None: as in the file.

        Raises:
            ConfigError: there is one of the name already, or a store has no such dtype.
        """
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
    """Write a store from a dataset.

    Args:
        dataset: what of.
        path: where the store shall be.
        memory: bytes for sorting the edges of a type.
        made_by: how it was made, for people.
        overwrite: replace a store that is at `path`.
        progress: called as progress(what, done, total).

    Returns:
        The store, open.

    Raises:
        ConfigError: arguments that do not fit together, or names that a store cannot have.
        StoreError: a file is damaged, or the disk is full; nothing is left behind.
    """
    nodes: Any = dict(dataset.num_nodes)
    edges: Any = {type: ends.count for type, ends in dataset.edges.items()}
    if 8 * max(nodes.values(), default=0) > memory:
        raise ConfigError(
            f"the index pointers of {max(nodes.values())} nodes alone are more than memory=: give "
            f"{9 * max(nodes.values())} bytes or more (--memory)"
        )
    if None in nodes:
        nodes, edges = nodes[None], edges[None]
    with StoreWriter(
        path, nodes, edges, made_by=made_by, overwrite=overwrite, progress=progress
    ) as writer:
        writer.reserve(_nbytes(writer, dataset))
        for type, ends in dataset.edges.items():
            write_edges(writer, type, ends, memory, progress)
        for (node_type, name), ids in dataset.splits.items():
            writer.split(name, ids, node_type)
        for name, rows in dataset.rows.items():
            write_features(writer, rows, dataset.dtypes[name], progress, name)
    return open_store(writer.path)


def checked_rows(rows: Features, count: int, where: str, said: str) -> Features:
    """The rows, if there are as many as there must be.

    Raises:
        StoreError: there are not; `where` is the file, `said` who says how many.
    """
    if rows.shape[0] != count:
        raise StoreError(
            f"{where} has {rows.shape[0]} rows, but {said} says {count}: one of them is damaged; "
            "correct it, or fetch the dataset again"
        )
    return rows


def require(path: Path) -> Path:
    """A file that must be there.

    Raises:
        StoreError: it is not.
    """
    if not path.is_file():
        raise StoreError(f"{path} is missing: fetch or unzip the dataset again")
    return path


def _nbytes(writer: StoreWriter, dataset: Dataset) -> int:
    """About how many bytes the store will have."""
    arrays = (
        ArrayInfo(name, dataset.dtypes[name], rows.shape, "").nbytes
        for name, rows in dataset.rows.items()
    )
    return writer.types.graph_bytes + sum(arrays)
