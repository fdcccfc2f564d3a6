"""Draw pairs of nodes without an edge, uniformly, in one pass over the adjacency.

The number of pairs that end in a chunk's nodes is binomial in its share of all such pairs; within
the chunk they are drawn by rejection, or by enumeration if it has few pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnndrive.common.distinct import distinct
from gnndrive.common.records import Int64Array
from gnndrive.store.link_split.classes import CHUNK, Chunk, chunks
from gnndrive.store.views import StoredEdges

_ROUNDS = 50  # of rejection, for one chunk


def negatives(
    edges: StoredEdges, counts: list[int], random: np.random.Generator
) -> Iterator[list[tuple[Int64Array, Int64Array]]]:
    """Draw pairs of nodes that are joined by no edge, no two alike; loops are left out.

    Args:
        edges: the edges of a type.
        counts: how many pairs to draw for each of several purposes.
        random: the random numbers.

    Yields:
        Sources and targets, int64 [n] each, for each purpose; several times. Fewer than `counts` in
        all if the graph has not so many pairs without an edge.
    """
    sources, square = edges.source.num_nodes, edges.source.type == edges.target.type
    free = _free(0, edges.target.num_nodes, edges.num_edges, sources, square)
    left = list(counts)
    for chunk in chunks(edges):
        mine = _free(chunk.low, chunk.high, len(chunk.source), sources, square)
        share = 1.0 if free <= mine else mine / free
        free -= mine
        wanted = [int(random.binomial(count, share)) for count in left]
        if not sum(wanted):
            continue
        drawn = _draw(chunk, sum(wanted), sources, square, random)
        out, start = [], 0
        for each, count in enumerate(wanted):
            pairs = drawn[start : start + count]
            start += count
            left[each] -= len(pairs)
            out.append((pairs % sources, pairs // sources + chunk.low))
        yield out


def _free(low: int, high: int, num_edges: int, sources: int, square: bool) -> int:
    """How many pairs that end in the nodes `low` to `high` - 1 have no edge, if none is double."""
    return max(0, (high - low) * (sources - square) - num_edges)


def _draw(
    chunk: Chunk, count: int, sources: int, square: bool, random: np.random.Generator
) -> Int64Array:
    """Draw pairs that end in a chunk's nodes.

    Returns:
        (target - chunk.low) * sources + source of each, int64 [count] in random order; fewer if
        there are not so many.
    """
    rows = chunk.high - chunk.low
    taken = (chunk.target - chunk.low) * sources + chunk.source
    if square:
        taken = np.concatenate(
            [taken, np.arange(rows) * sources + np.arange(chunk.low, chunk.high)]
        )
    taken = distinct(taken)
    if rows * sources <= 8 * CHUNK:
        free = np.setdiff1d(np.arange(rows * sources), taken, assume_unique=True)
        return random.permutation(free)[:count]
    found = np.empty(0, np.int64)
    for _ in range(_ROUNDS):
        if len(found) >= count:
            break
        tries = random.integers(rows * sources, size=(count - len(found)) * 9 // 8 + 16)
        found = distinct(np.concatenate([found, tries]))
        found = found[~np.isin(found, taken, assume_unique=True)]
    return random.permutation(found)[:count]
