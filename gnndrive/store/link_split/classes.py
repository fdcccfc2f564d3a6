"""Which part of a split an edge is in: a function of the seed and of the edge's two ends.

Each pair of nodes has a number that looks random (`PairHash`). The edges with the smallest numbers
are for tests, the next ones for validation, the next ones for supervision alone; the others are
trained on and pass messages. So both directions of an undirected edge, an edge and its reverse in
another edge type, and all copies of an edge are in one part, without a search for one another; and
nothing is kept for each edge. `smallest` finds the numbers that give parts of the right sizes, in
two passes over the edges. Of a split by time, the number of an edge follows from its time
(`TimeOrder`), and edges of one time are in one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Int64Array
from gnndrive.store.views import Chunk, StoredEdges

CHUNK = 1 << 15  # edges, or nodes without edges, that are looked at together
TRAIN, DISJOINT, VAL, TEST = range(4)
"""The classes of edges; DISJOINT are edges of the training set that pass no messages there."""

UInt64Array: TypeAlias = "npt.NDArray[np.uint64]"
_BUCKET_BITS = 16


def chunks(edges: StoredEdges) -> Iterator[Chunk]:
    """The edges of a type in CSC order, some `CHUNK` at a time."""
    return edges.chunks(CHUNK)


class PairHash:
    """Numbers that look random, one for each pair of nodes; other seeds give other numbers.

    If `undirected`, (u, v) and (v, u) have the same. If `reverse`, (u, v) has the number that
    (v, u) has without it, for an edge type that holds the reverses of another.
    """

    def __init__(self, seed: tuple[int, ...], undirected: bool, reverse: bool = False) -> None:
        self.undirected, self.reverse = undirected, reverse
        words = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._first, self._second = np.uint64(words[0]), np.uint64(words[1])

    def __call__(self, chunk: Chunk) -> UInt64Array:
        """The numbers of edges, uint64 [n]."""
        source, target = chunk.source, chunk.target
        if self.undirected:
            source, target = np.minimum(source, target), np.maximum(source, target)
        elif self.reverse:
            source, target = target, source
        mixed = _mixed(source.view(np.uint64) ^ self._first)
        return _mixed((mixed + target.view(np.uint64)) ^ self._second)

    def counted(self, chunk: Chunk) -> Any:
        """Which edges are counted and become labels: of an undirected edge one direction, as in
        PyG; bool [n]."""
        if self.undirected:
            return chunk.source <= chunk.target
        return np.ones(len(chunk.source), bool)


class TimeOrder(PairHash):
    """Numbers of edges by their times, int64 [num_edges], the latest first: those between `least`
    and `latest` spread over all numbers, in order."""

    def __init__(
        self, edges: StoredEdges, times: Int64Array, undirected: bool, least: int, latest: int
    ) -> None:
        self.undirected, self.reverse = undirected, False
        self._edges, self._times, self._latest = edges, times, latest
        self._least, self._shift = least, np.uint64(64 - max(1, (latest - least).bit_length()))

    def __call__(self, chunk: Chunk) -> UInt64Array:
        """The numbers of edges, uint64 [n]."""
        times = self._times[numbers_of(chunk, self._edges.edge_id)].astype(np.int64)
        times = np.clip(times, self._least, self._latest)
        latest = np.array(self._latest, np.int64).view(np.uint64)
        return (latest - times.view(np.uint64)) << self._shift


def numbers_of(chunk: Chunk, numbers: npt.NDArray[Any] | None) -> Int64Array:
    """The original numbers of a chunk's edges, int64 [n]: their CSC positions if `numbers`, the
    store's edge_id, is None."""
    stop = chunk.first + len(chunk.source)
    if numbers is None:
        return np.arange(chunk.first, stop)
    return np.asarray(numbers[chunk.first : stop], np.int64)


def _mixed(values: UInt64Array) -> UInt64Array:
    """The finalizer of splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Which edges are in which class: those whose number in `hash` is below `test`, `val` or
    `disjoint` are in these classes, in this order."""

    hash: PairHash
    test: int
    val: int
    disjoint: int

    def classes(self, chunk: Chunk) -> npt.NDArray[np.uint8]:
        """The classes of edges, uint8 [n]."""
        limits = np.array([self.test, self.val, self.disjoint], np.uint64)
        order = np.array([TEST, VAL, DISJOINT, TRAIN], np.uint8)
        return order[np.searchsorted(limits, self.hash(chunk), side="right")]


def count_edges(edges: StoredEdges, hash: PairHash) -> int:
    """How many edges are counted; see `PairHash.counted`."""
    if not hash.undirected:
        return edges.num_edges
    return sum(int(hash.counted(each).sum()) for each in chunks(edges))


def smallest(edges: StoredEdges, hash: PairHash, ranks: list[int]) -> list[int]:
    """The numbers of the counted edges at the places `ranks`, from 0, of their ascending order."""
    shift = np.uint64(64 - _BUCKET_BITS)
    counts = np.zeros(1 << _BUCKET_BITS, np.int64)
    for numbers in _counted_numbers(edges, hash):
        counts += np.bincount((numbers >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    buckets = [int(np.searchsorted(ends, rank, side="right")) for rank in ranks]
    wanted = np.unique(np.array(buckets, np.uint64))
    found = [
        numbers[np.isin(numbers >> shift, wanted)] for numbers in _counted_numbers(edges, hash)
    ]
    values = np.sort(np.concatenate(found))
    # `values` has the edges of the wanted buckets only; this many are before them in all others.
    skipped = [
        int(counts[:bucket].sum()) - int(np.searchsorted(values, np.uint64(bucket) << shift))
        for bucket in buckets
    ]
    return [int(values[rank - skip]) for rank, skip in zip(ranks, skipped, strict=True)]


def _counted_numbers(edges: StoredEdges, hash: PairHash) -> Iterator[UInt64Array]:
    for each in chunks(edges):
        numbers = hash(each)
        yield numbers[hash.counted(each)] if hash.undirected else numbers
