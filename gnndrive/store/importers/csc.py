"""Sort edges to CSC in memory: the in-neighbours of each node, and the number of each edge.

When not to use it: for edge lists larger than memory; sorting takes about 40 bytes an edge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.distinct import distinct
from gnndrive.common.errors import ConfigError
from gnndrive.common.progress import report
from gnndrive.common.records import EdgeKey, Int64Array, ends_of
from gnndrive.store.checks import Bounds
from gnndrive.store.format import index_dtype
from gnndrive.store.types import GRAPH, array_name
from gnndrive.store.writer import StoreWriter

EdgeEnds = npt.NDArray[Any]
"""One end of each edge: whole numbers [num_edges]."""


def csc_from_edges(
    src: EdgeEnds, dst: EdgeEnds, num_nodes: int, num_sources: int | None = None
) -> tuple[Int64Array, EdgeEnds, Int64Array]:
    """Sort edges by destination; edges with one destination keep their order. They go to
    `num_nodes` nodes, and come from `num_sources` (None: as many).

    Returns:
        (indptr int64 [num_nodes + 1], indices [num_edges] in src's dtype, edge_id int64
        [num_edges]): the edge `edge_id[p]` goes from `indices[p]` to the node v with indptr[v] <= p
        < indptr[v + 1].

    Raises:
        ConfigError: src and dst differ in length, or are not whole numbers.
        StoreError: an edge names a node that does not exist; the message names the edge.
    """
    sources = num_nodes if num_sources is None else num_sources
    for what, ends, count in (("src", src, sources), ("dst", dst, num_nodes)):
        if ends.ndim != 1 or ends.dtype.kind not in "iu" or len(ends) != len(src):
            raise ConfigError(
                f"{what} is {ends.dtype} {list(ends.shape)}: give whole numbers [edges]"
            )
        Bounds(f"the edges' {what}", "edge", count, "nodes").feed(ends)
    # torch sorts whole numbers by radix, several times as fast as numpy's stable argsort.
    keys = torch.from_numpy(np.require(dst, index_dtype(num_nodes), ["C", "W"]))
    edge_id: Int64Array = torch.sort(keys, stable=True).indices.numpy()
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(keys.numpy(), minlength=num_nodes), out=indptr[1:])
    return indptr, src[edge_id], edge_id


def write_csc(writer: StoreWriter, type: EdgeKey, src: EdgeEnds, dst: EdgeEnds) -> None:
    """Sort the edges of a type and write them."""
    source, target = (writer.types.nodes[end].num_nodes for end in ends_of(type))
    report("sorting edges", 0, 1)
    indptr, indices, edge_id = csc_from_edges(src, dst, target, source)
    report("sorting edges", 1, 1)
    dtypes = "int64", index_dtype(source), index_dtype(len(edge_id))
    for leaf, array, dtype in zip(GRAPH, (indptr, indices, edge_id), dtypes, strict=True):
        writer.write(array_name("graph", type, leaf), array, dtype)


def to_undirected(src: EdgeEnds, dst: EdgeEnds, num_nodes: int) -> tuple[EdgeEnds, EdgeEnds]:
    """Add the other direction of every edge, drop repetitions and sort by (src, dst), as PyG's
    `to_undirected`; returns int64. ConfigError: there are more than 2**31 nodes."""
    if num_nodes > 2**31:
        raise ConfigError(
            "undirected works up to 2**31 nodes: add the reverse edges to the list yourself"
        )
    report("adding reverse edges", 0, 1)
    pairs = np.concatenate([src, dst]).astype(np.int64)
    pairs *= num_nodes
    pairs[: len(src)] += dst
    pairs[len(src) :] += src
    both = np.divmod(distinct(pairs), max(1, num_nodes))
    report("adding reverse edges", 1, 1)
    return both
