"""A power-law graph of any size, written to a store in chunks, for bench/scale.py.

It has 16 edges a node. Destinations are nodes of rank N·u^1.6, sources of rank N·u^2.2, where u is
uniform; one random permutation assigns ranks to nodes. So a few nodes have many edges, and ids do
not tell which. Rows are 128 uniform float32, labels one of 50 classes. u is a double, because the
24 bits of a float would leave most of 50 M nodes without an edge.

Sources are drawn independently of destinations, so edges need no sorting: destinations are drawn
chunk by chunk and only counted, and the list of each node takes the next draws of sources. At 50 M
nodes that takes some 1.6 GB of memory and 29.6 GB of disk. The same size and the same numpy give
the same store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.store.format import DATA_OFFSET, Progress, index_dtype
from gnndrive.store.writer import StoreWriter

DEGREE, COLUMNS, CLASSES = 16, 128, 50
IN_POWER, OUT_POWER = 1.6, 2.2  # of destinations, of sources
SEED = 1
COUNTED_AT_ONCE = 1 << 25  # large, because each chunk makes a pass over all counts
DRAWN_AT_ONCE = 1 << 22
ROWS_AT_ONCE = 1 << 16

Array = npt.NDArray[Any]


def made_by(nodes: int) -> str:
    """The `made_by` text of such a store; a different text means a different graph."""
    return f"bench/_powerlaw.py, {nodes} nodes of degree {DEGREE}, seed {SEED}"


def store_bytes(nodes: int) -> int:
    """Bytes of the store's files: index pointers, labels, indices, rows, four headers."""
    indices = DEGREE * np.dtype(index_dtype(nodes)).itemsize
    return nodes * (8 + 8 + indices + 4 * COLUMNS) + 8 + 4 * DATA_OFFSET


def write_powerlaw(path: Path, nodes: int, progress: Progress | None = None) -> None:
    """Make the store of a graph with so many nodes; an interruption leaves nothing behind.

    Args:
        path: path of the store; its folder must exist.
        nodes: number of nodes, at least 1.
        progress: called as progress(what, rows done, rows in all).

    Raises:
        ConfigError: `path` exists.
        StoreError: the disk is too full.
    """
    edges = DEGREE * nodes
    node_of_rank = random(0).permutation(nodes).astype(index_dtype(nodes))
    streams = {
        "graph/indices": ((edges,), node_of_rank.dtype, sources(node_of_rank, edges)),
        "nodes/x": ((nodes, COLUMNS), np.dtype(np.float32), features(nodes)),
    }
    with StoreWriter(path, nodes, edges, made_by=made_by(nodes)) as writer:
        writer.reserve(store_bytes(nodes))
        writer.write("graph/indptr", index_pointers(node_of_rank, edges, progress))
        writer.write("nodes/y", random(4).integers(0, CLASSES, nodes))
        for name, (shape, dtype, chunks) in streams.items():
            array = writer.array(name, dtype, shape)
            for chunk in chunks:
                array.write(chunk)
                if progress is not None:
                    progress(name, array.rows_written, shape[0])


def index_pointers(node_of_rank: Array, edges: int, progress: Progress | None) -> Array:
    """Draw and count destinations, and assign the counts to nodes; int64 [nodes + 1]."""
    nodes, drawn = len(node_of_rank), random(1)
    counts = np.zeros(nodes, np.int64)
    for start, count in chunks_of(edges, COUNTED_AT_ONCE):
        counts += np.bincount(ranks(drawn, count, nodes, IN_POWER), minlength=nodes)
        if progress is not None:
            progress("in-degrees", start + count, edges)
    indptr = np.zeros(nodes + 1, np.int64)
    indptr[1:][node_of_rank] = counts
    del counts
    return np.cumsum(indptr, out=indptr)


def sources(node_of_rank: Array, edges: int) -> Iterator[Array]:
    """Yield the indices in chunks."""
    drawn = random(2)
    for _, count in chunks_of(edges, DRAWN_AT_ONCE):
        yield node_of_rank[ranks(drawn, count, len(node_of_rank), OUT_POWER)]


def features(nodes: int) -> Iterator[Array]:
    """Yield the rows in chunks."""
    drawn = random(3)
    for _, count in chunks_of(nodes, ROWS_AT_ONCE):
        yield drawn.random((count, COLUMNS), np.float32)


def ranks(drawn: np.random.Generator, count: int, nodes: int, power: float) -> Array:
    """Draw `count` ranks, int64; small ranks are more frequent."""
    position = drawn.random(count)
    np.power(position, power, out=position)
    position *= nodes
    rank = position.astype(np.int64)
    return np.minimum(rank, nodes - 1, out=rank)  # a u close to 1 may be rounded up to 1


def chunks_of(total: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the chunks of `total`."""
    yield from ((start, min(most, total - start)) for start in range(0, total, most))


def random(stream: int) -> np.random.Generator:
    """A random generator for one kind of draws."""
    return np.random.default_rng([SEED, stream])
