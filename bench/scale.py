"""Power-law graphs of any size, for the other scripts, written to stores in chunks.

usage: python bench/scale.py [--sizes 1,10,50] [--folder DIR]

Graphs of --sizes million nodes (fractions too) that are missing in DIR are made there. They have
16 edges a node and 128 × float32 rows; 593 bytes of disk a node, so 29.6 GB for 50 M nodes, some
minutes and 1.6 GB of memory.

Destinations are nodes of rank N·u^1.6, sources of rank N·u^2.2, where u is uniform; one random
permutation assigns ranks to nodes. So a few nodes have many edges, and ids do not tell which. Rows
are uniform, labels one of 50 classes. u is a double, because the 24 bits of a float would leave
most of 50 M nodes without an edge.

Sources are drawn independently of destinations, so edges need no sorting: destinations are drawn
chunk by chunk and only counted, and the list of each node takes the next draws of sources. The same
size and the same numpy give the same store.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _script
import numpy as np
import numpy.typing as npt

import gnndrive
from gnndrive.cli.report import Bars
from gnndrive.common.memory import format_size
from gnndrive.common.progress import Progress
from gnndrive.store.format import DATA_OFFSET, index_dtype
from gnndrive.store.writer import StoreWriter

DEGREE, COLUMNS, CLASSES = 16, 128, 50
IN_POWER, OUT_POWER = 1.6, 2.2  # of destinations, of sources
SEED = 1
COUNTED_AT_ONCE = 1 << 25  # large, because each chunk makes a pass over all counts
DRAWN_AT_ONCE = 1 << 22
ROWS_AT_ONCE = 1 << 16

Array = npt.NDArray[Any]


def made_by(nodes: int) -> str:
    """The `made_by` text of such a store. A store with another text is refused as another graph,
    so the text stays as the first ones have it."""
    return f"bench/_powerlaw.py, {nodes} nodes of degree {DEGREE}, seed {SEED}"


def store_bytes(nodes: int) -> int:
    """Bytes of the store's files: index pointers, labels, indices, rows, four headers."""
    indices = DEGREE * np.dtype(index_dtype(nodes)).itemsize
    return nodes * (8 + 8 + indices + 4 * COLUMNS) + 8 + 4 * DATA_OFFSET


def write_powerlaw(path: Path, nodes: int, progress: Progress | None = None) -> None:
    """Make the store of a graph with so many nodes; an interruption leaves nothing behind."""
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
    drawn = random(2)
    for _, count in chunks_of(edges, DRAWN_AT_ONCE):
        yield node_of_rank[ranks(drawn, count, len(node_of_rank), OUT_POWER)]


def features(nodes: int) -> Iterator[Array]:
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
    return np.random.default_rng([SEED, stream])


# ---- the script


def store_path(folder: Path, nodes: int) -> Path:
    return folder / f"powerlaw_{nodes / 1e6:g}m.gnn"


def make_missing(folder: Path, sizes: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {nodes: store_path(folder, nodes) for nodes in sizes}
    missing = {nodes: path for nodes, path in paths.items() if not path.exists()}
    needed, free = sum(map(store_bytes, missing)), shutil.disk_usage(folder).free
    if needed > free:
        names = ", ".join(path.name for path in missing.values())
        sys.exit(
            f"{names} take {format_size(needed)} and {folder} has {format_size(free)} free: free "
            f"{format_size(needed - free)}, or give another --folder or fewer --sizes"
        )
    for nodes, path in missing.items():
        _script.say(f"making {path}, {format_size(store_bytes(nodes))}")
        with Bars() as bars:
            write_powerlaw(path, nodes, bars)
    for nodes, path in paths.items():
        if (found := gnndrive.open(path).info.made_by) != made_by(nodes):
            sys.exit(f"{path} is another graph ({found}): move it away, or give another --folder")


def node_counts(text: str) -> list[int]:
    """Parse comma-separated millions of nodes to numbers of nodes."""
    nodes = [round(float(million) * 1e6) for million in text.split(",")]
    if min(nodes) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give millions of nodes above 0")
    return nodes


def main() -> None:
    parser = _script.parser(__doc__)
    parser.add_argument("--sizes", type=node_counts, default="1,10,50", help="million nodes")
    parser.add_argument("--folder", type=Path, default=Path("."), help="folder of the graphs")
    own = parser.parse_args()
    # So that an unfinished graph is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    make_missing(own.folder, own.sizes)


if __name__ == "__main__":
    _script.run(main)
