"""Write the graph of some edges of a store: CSC, their numbers, their attributes.

Edges keep their order in CSC and in the list that their numbers refer to. One bit for each edge of
the store, and one 64-bit count for 64 of them, are in memory; everything else passes in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.records import Int64Array, ends_of
from gnndrive.store.format import index_dtype
from gnndrive.store.link_split.classes import CHUNK, Chunk, chunks
from gnndrive.store.mapped_arrays import MappedArrays
from gnndrive.store.types import GRAPH, array_name
from gnndrive.store.views import StoredEdges
from gnndrive.store.writer import StoreWriter

_ROWS_BYTES = 1 << 20  # rows of an attribute that are looked at together

Keep = Callable[[Int64Array, Int64Array], npt.NDArray[np.bool_]]
"""Takes the sources and targets of edges and says which are kept."""


class KeptEdges:
    """The set of edges that are kept, by their numbers; says how many come before each.

    Args:
        num_edges: edges in the store.
    """

    def __init__(self, num_edges: int) -> None:
        self._bytes = np.zeros(-(-num_edges // 64) * 8 + 8, np.uint8)
        self._before: Int64Array | None = None

    def add(self, number: Int64Array) -> None:
        """Add edges; none twice."""
        np.bitwise_or.at(self._bytes, number >> 3, np.left_shift(1, number & 7).astype(np.uint8))

    def part(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Whether the edges `start` to `stop` - 1 are in the set; `start` is a multiple of 8."""
        bits = np.unpackbits(self._bytes[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[: stop - start].astype(bool)

    def rank(self, number: Int64Array) -> Int64Array:
        """How many edges of the set have a smaller number, int64 [n]."""
        words = self._bytes.view(np.dtype("<u8")).astype(np.uint64, copy=False)
        if self._before is None:
            self._before = np.zeros(len(words), np.int64)
            for start in range(0, len(words) - 1, CHUNK):
                part = _ones(words[start : min(start + CHUNK, len(words) - 1)])
                self._before[start + 1 : start + 1 + len(part)] = part
            np.cumsum(self._before, out=self._before)
        word = number >> 6
        below = (np.uint64(1) << (number & 63).astype(np.uint64)) - np.uint64(1)
        before: Int64Array = self._before[word]
        return before + _ones(words[word] & below)


def _ones(words: npt.NDArray[np.uint64]) -> Int64Array:
    """The number of ones in each word, int64 [n]."""
    one, two, four = (
        np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)
    )
    words = words - ((words >> np.uint64(1)) & one)
    words = (words & two) + ((words >> np.uint64(2)) & two)
    words = (words + (words >> np.uint64(4))) & four
    return ((words * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)


def write_kept(
    writer: StoreWriter,
    store: MappedArrays,
    edges: StoredEdges,
    keep: Keep,
    left_out: tuple[str, ...] = (),
) -> None:
    """Write the edges of a type that are kept.

    Args:
        writer: the writer of a store that has as many edges of this type as are kept.
        store: the store that has the edges.
        edges: the edges of the type.
        keep: which of them are kept.
        left_out: attributes of the edges that the new store does not have.

    Raises:
        StoreError: the disk is full.
    """
    type = edges.type
    count = writer.types.edges[type]
    source, target = (writer.types.nodes[end].num_nodes for end in ends_of(type))
    names = [array_name("graph", type, leaf) for leaf in GRAPH]
    leaves = store.info.leaves.get(array_name("edges", type, ""), ())
    attributes = [name for name in leaves if name not in left_out]
    numbers = edges.edge_id
    kept = KeptEdges(edges.num_edges if numbers is not None or attributes else 0)
    indptr = np.zeros(target + 1, np.int64)
    indices = writer.array(names[1], index_dtype(source), (count,))
    for chunk in chunks(edges):
        mask = keep(chunk.source, chunk.target)
        indices.write(chunk.source[mask])
        indptr[chunk.low + 1 : chunk.high + 1] = np.bincount(
            chunk.target[mask] - chunk.low, minlength=chunk.high - chunk.low
        )
        if numbers is not None or attributes:
            kept.add(numbers_of(chunk, numbers)[mask])
    writer.write(names[0], np.cumsum(indptr, out=indptr))
    if numbers is not None:
        edge_id = writer.array(names[2], index_dtype(count), (count,))
        for chunk in chunks(edges):
            mask = keep(chunk.source, chunk.target)
            edge_id.write(kept.rank(numbers_of(chunk, numbers)[mask]))
    for name in attributes:
        _write_attribute(writer, store, edges, name, kept)


def numbers_of(chunk: Chunk, numbers: npt.NDArray[Any] | None) -> Int64Array:
    """The original numbers of a chunk's edges, int64 [n]: their CSC positions if `numbers`, the
    store's edge_id, is None."""
    stop = chunk.first + len(chunk.source)
    if numbers is None:
        return np.arange(chunk.first, stop)
    return np.asarray(numbers[chunk.first : stop], np.int64)


def _write_attribute(
    writer: StoreWriter, store: MappedArrays, edges: StoredEdges, name: str, kept: KeptEdges
) -> None:
    full = edges.name_of(name)
    info, rows = store.info.arrays[full], store.tensor(full)
    array = writer.array(full, info.dtype, (writer.types.edges[edges.type], *info.shape[1:]))
    step = max(8, _ROWS_BYTES // max(1, info.row_bytes) // 8 * 8)
    for start in range(0, edges.num_edges, step):
        stop = min(start + step, edges.num_edges)
        array.write(rows[start:stop][torch.from_numpy(kept.part(start, stop))])
