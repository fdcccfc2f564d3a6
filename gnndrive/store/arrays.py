"""Write existing arrays as a store in one call: numpy, memory-mapped or torch.

When not to use it: for arrays that are computed and do not fit in memory; `StoreWriter` takes them
piece by piece.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.store.convert import ArrayLike, Rows, as_rows, dtype_of
from gnndrive.store.format import ArrayInfo, Progress, index_dtype
from gnndrive.store.if_exists import Counts, IfExists, with_if_exists
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.writer import StoreWriter


def _counts(given: Mapping[str, Any]) -> Counts:
    """The number of nodes and of edges of `write_store`'s arrays."""
    arrays = _graph_arrays(given["indptr"], given["indices"], None)
    return {None: len(arrays["graph/indptr"]) - 1}, {None: len(arrays["graph/indices"])}


@with_if_exists(_counts)
def write_store(
    path: str | os.PathLike[str],
    *,
    indptr: ArrayLike,
    indices: ArrayLike,
    edge_id: ArrayLike | None = None,
    nodes: Mapping[str, ArrayLike],
    edges: Mapping[str, ArrayLike] | None = None,
    splits: Mapping[str, ArrayLike] | None = None,
    classes: Sequence[str] | None = None,
    made_by: str = "gnndrive.write_store",
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write arrays as a store, chunk by chunk; large ones may be memory-mapped.

    Args:
        path: the folder to make.
        indptr: CSC index pointers, whole numbers [num_nodes + 1].
        indices: in-neighbours, whole numbers [num_edges]; those of node v are
            indices[indptr[v]:indptr[v + 1]].
        edge_id: the original number of the edge at each position of `indices`, a permutation
            [num_edges]; None: each edge's number is its position.
        nodes: per-node arrays [num_nodes, …] by name; "x" are features and "y" labels, as in PyG.
        edges: per-edge arrays [num_edges, …] by name, in the original order.
        splits: node ids [n] or bool masks [num_nodes] by name.
        classes: names of the classes of y, in the order of their ids.
        made_by: a text that says how the store was made.
        if_exists: if `path` exists, "error", "open" the store, or "replace" it. Of several
            processes with "open" or "replace" one writes; the others wait and open what it wrote.
            A store of another number of nodes or edges is not opened.
        progress: called as progress(array, bytes done, bytes in all).

    Returns:
        The open store.

    Raises:
        ConfigError: arguments do not fit together, or `path` exists.
        StoreError: an index is out of range, or the disk is full; nothing is left behind.
    """
    arrays = _graph_arrays(indptr, indices, edge_id)
    num_nodes, num_edges = arrays["graph/indptr"].shape[0] - 1, arrays["graph/indices"].shape[0]
    dtypes = {
        "graph/indptr": "int64",
        "graph/indices": index_dtype(num_nodes),
        "graph/edge_id": index_dtype(num_edges),
    }
    for group, given in (("nodes", nodes), ("edges", edges or {})):
        for name, rows in given.items():
            arrays[f"{group}/{name}"] = as_rows(rows, f"{group}/{name}")
    with StoreWriter(
        path,
        num_nodes,
        num_edges,
        made_by=made_by,
        overwrite=if_exists == "replace",
        progress=progress,
    ) as writer:
        infos = (
            ArrayInfo(name, dtypes.get(name, dtype_of(array)), tuple(array.shape), "")
            for name, array in arrays.items()
        )
        writer.reserve(sum(info.nbytes for info in infos))
        for name, array in arrays.items():
            writer.write(name, array, dtypes.get(name))
        for name, ids in (splits or {}).items():
            writer.split(name, ids)
        if classes is not None:
            writer.classes(classes)
    return open_store(writer.path)


def _graph_arrays(
    indptr: ArrayLike, indices: ArrayLike, edge_id: ArrayLike | None
) -> dict[str, Rows]:
    graph = {
        "graph/indptr": as_rows(indptr, "indptr"),
        "graph/indices": as_rows(indices, "indices"),
    }
    if edge_id is not None:
        graph["graph/edge_id"] = as_rows(edge_id, "edge_id")
    for name, rows in graph.items():
        dtype = dtype_of(rows)
        if rows.ndim != 1 or ("int" not in dtype and len(rows)):
            raise ConfigError(f"{name} is {dtype} {list(rows.shape)}: give whole numbers [n]")
    if not len(graph["graph/indptr"]):
        raise ConfigError("indptr is empty: give one entry more than there are nodes")
    return graph
