"""Write the edges that DuckDB sorts to a store's arrays, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnndrive.common.records import EdgeKey, ends_of
from gnndrive.store.format import Progress, index_dtype
from gnndrive.store.importers.edge_list import EdgeList
from gnndrive.store.types import GRAPH, array_name
from gnndrive.store.writer import StoreWriter


def write_graph(
    edges: EdgeList,
    writer: StoreWriter,
    undirected: bool,
    progress: Progress | None = None,
    type: EdgeKey = None,
) -> None:
    """Sort the edges of a type and write indptr, indices and, unless `undirected`, edge_id.

    Args:
        edges: all edges of the type.
        writer: the store's writer.
        undirected: see `EdgeList.by_target`.
        progress: called as progress(what, done, in all), with percent while the edges are sorted
            and with edges while they are written.
        type: the edges' type; None in a homogeneous store.

    Raises:
        StoreError: the disk is full, or a file cannot be read.
    """
    count = writer.types.edges[type]
    sources, targets = (writer.types.nodes[end].num_nodes for end in ends_of(type))
    names = [array_name("graph", type, leaf) for leaf in GRAPH]
    indices = writer.array(names[1], index_dtype(sources), (count,))
    numbers = None
    if not undirected:
        numbers = writer.array(names[2], index_dtype(count), (count,))
    indptr, done = np.zeros(targets + 1, np.int64), 0
    kind = "edges" if type is None else " ".join(type)

    def tell(percent: int) -> None:
        if progress is not None:
            progress(f"sorting {kind}", percent, 100)

    for target, source, number in edges.by_target(undirected, tell):
        first, last = int(target[0]), int(target[-1])
        indptr[first + 1 : last + 2] += np.bincount(target - first, minlength=last - first + 1)
        indices.write(source)
        if numbers is not None:
            numbers.write(number)
        done += len(source)
        if progress is not None:
            progress(f"writing {kind}", done, count)
    np.cumsum(indptr, out=indptr)
    writer.write(names[0], indptr)


def write_columns(
    edges: EdgeList, writer: StoreWriter, names: Sequence[str], progress: Progress | None = None
) -> None:
    """Write kept columns of an edge list as attributes of edges, in the list's order."""
    for name in names:
        array = writer.array(f"edges/{name}", edges.dtype(name), (writer.num_edges,))
        for values in edges.column(name):
            array.write(values)
            if progress is not None:
                progress(f"edges/{name}", array.rows_written, writer.num_edges)
