"""Scores of nodes: how likely a batch needs a row, as far as the graph alone says it.

- "degree": a node's out-degree, over all edge types. It is an in-neighbour that often, so a sampler
  draws it about that often (PaGraph).
- "pagerank": reverse PageRank (LSM-GNN). It is the probability that a random walk from a random
  node along in-neighbours is at the node. It tells a neighbour of hubs from one of rare nodes.

Both stream through the lists of in-neighbours, "degree" once and "pagerank" three times. Nothing is
kept here: `row_classes.py` keeps the classes that it makes of scores. When not to use it: if all
seeds lie in one part of the graph, scores of the whole graph say little.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.records import NodeKey, ends_of
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges

Scores = dict[NodeKey, npt.NDArray[Any]]
"""By node type: a score for each node, float32 or uint32 [nodes], at least 0."""

STEPS = 3  # of a walk
DAMPING = 0.85  # the probability that a walk goes on
_PART_BYTES = 8 << 20


def out_degrees(store: Store) -> Scores:
    """The out-degrees of the nodes of each type, uint32 [nodes], over all edge types.

    Raises:
        StoreError: a list has an id of no node, or cannot be read.
        ReadError: the disk failed.
    """
    scores: Scores = {
        type: np.zeros(nodes.num_nodes, np.uint32) for type, nodes in store.info.types.nodes.items()
    }
    for edges in store.all_edges():
        degrees, width = scores[edges.source.type], edges.indices_file.row_bytes
        into = ffi.cast("uint32_t *", degrees.ctypes.data)
        for indices, count in _lists(edges):
            if lib.gd_count_out_degrees(indices, width, count, len(degrees), into):
                raise _damaged(edges)
    return scores


def reverse_pagerank(store: Store) -> Scores:
    """The reverse PageRank of the nodes of each type, float32 [nodes], times their number.

    A walk takes each edge type that leads to its node equally often. The nodes that no walk reaches
    have 0. It takes 8 bytes of memory for each node.

    Raises:
        StoreError: a list has an id of no node, or cannot be read.
        ReadError: the disk failed.
    """
    types = store.info.types
    leading = Counter(ends_of(type)[1] for type in types.edges)
    now: Scores = {
        type: np.ones(nodes.num_nodes, np.float32) for type, nodes in types.nodes.items()
    }
    for step in range(STEPS):
        # The walks that begin here are left out of the last step: they say nothing of the node.
        start = 1 - DAMPING if step < STEPS - 1 else 0.0
        next = {type: np.full(len(each), start, np.float32) for type, each in now.items()}
        for edges in store.all_edges():
            target = edges.target.type
            share = DAMPING / leading[target]
            _step(edges, now[target], next[edges.source.type], share)
        now = next
    return now


SCORES: dict[str, Callable[[Store], Scores]] = {
    "degree": out_degrees,
    "pagerank": reverse_pagerank,
}


def _step(edges: StoredEdges, now: npt.NDArray[Any], next: npt.NDArray[Any], share: float) -> None:
    """Add to `next` what a step along `edges` brings there."""
    pointers, file = edges.index_pointers, edges.indices_file
    csc = ffi.new("gd_csc *")
    csc.indptr, csc.indptr_bytes = ffi.cast("void *", pointers.ctypes.data), pointers.itemsize
    csc.index_bytes, csc.nodes, csc.edges = file.row_bytes, len(pointers) - 1, edges.num_edges
    walks = ffi.new("gd_walks *")
    walks.csc, walks.sources, walks.share = csc, len(next), share
    walks.now = ffi.cast("float *", now.ctypes.data)
    walks.next = ffi.cast("float *", next.ctypes.data)
    for indices, count in _lists(edges):
        code = lib.gd_walks_step(walks, indices, count)
        if code == -errno.ERANGE:
            raise _damaged(edges)
        check(code, "walks")


def _lists(edges: StoredEdges) -> Iterator[tuple[Any, int]]:
    """All entries of the lists of in-neighbours, in stretches: where they are, and how many."""
    file = edges.indices_file
    with closing(TableParts(file, _PART_BYTES).parts(0, file.row_count)) as parts:
        for part in parts:
            yield ffi.cast("void *", part.rows.ctypes.data), part.count


def _damaged(edges: StoredEdges) -> StoreError:
    return StoreError(
        f"{edges.indices_path} has an id of no node: run gnndrive verify, then copy or import the "
        "store again"
    )
