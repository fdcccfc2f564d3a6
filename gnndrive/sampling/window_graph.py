"""`WindowGraph`: the graph of a window (HierBatching), the mega-batch that is in memory.

A window is a set of partitions. Its graph has the edges between nodes of these partitions and the k
hottest static nodes; samplers draw from it as from a whole graph. Its nodes have local ids: first
the static nodes by rank, then the nodes of the partitions, in ascending order. A static node that
lies in one of the partitions has its rank for a local id. Its place among the nodes of its
partition stays, with an empty list, and no edge begins there.

`load_window.py` makes it from a partitioned store; the sampler `inside` draws from it. Do not use
it where edges that leave the window must not be lost: other topologies have them.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import IndexPointers, Int32Array, Int64Array, TopologyChoice
from gnndrive.common.shared_memory import ALIGNED
from gnndrive.sampling.topologies._csc import make_csc
from gnndrive.sampling.topologies.base import Topology, TopologyContext, TopologyQuestion
from gnndrive.store.partitioned.format import MEND

_KEY_BITS = 63  # of a key for sorting: a store id, then a local id
_NONE = np.empty(0, np.int32)


class WindowArrays(NamedTuple):
    """The arrays of a window's graph, which lie in one memory, so that processes can share them.
    `keys` are those of `sort_keys`; for the others see `WindowGraph`. `indices` and `positions`
    are longer than the edges that the window keeps, whose number is known only when they are read;
    pages that are not written take no memory."""

    indptr: npt.NDArray[Any]
    store_ids: npt.NDArray[Any]
    new_ids: npt.NDArray[Any]
    keys: Int64Array
    empty: Int32Array
    indices: Int32Array
    positions: npt.NDArray[Any]

    def first(self, nodes: int, empty: int) -> WindowArrays:
        """The beginnings of the arrays, for a smaller window."""
        return WindowArrays(
            self.indptr[: nodes + 1], self.store_ids[:nodes], self.new_ids[:nodes],
            self.keys[:nodes], self.empty[:empty], self.indices, self.positions,
        )  # fmt: skip


class ArraySizes(NamedTuple):
    """The sizes of `WindowArrays`: local ids, static nodes in the partitions, and edges that there
    is room for; of a store of so many rows of x in the partitioned store, and edges."""

    nodes: int
    empty: int
    room: int
    store_rows: int
    store_edges: int

    @property
    def _shapes(self) -> list[tuple[np.dtype[Any], int]]:
        ids, counts = np.dtype(id_dtype(self.store_rows)), np.dtype(count_dtype(self.store_edges))
        int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
        return [
            (counts, self.nodes + 1), (ids, self.nodes), (ids, self.nodes), (int64, self.nodes),
            (int32, self.empty), (int32, self.room), (counts, self.room),
        ]  # fmt: skip

    @property
    def _offsets(self) -> list[int]:
        sizes = (-(-dtype.itemsize * n // ALIGNED) * ALIGNED for dtype, n in self._shapes)
        return list(accumulate(sizes, initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of the memory, of which those for edges that are left out are never touched."""
        return self._offsets[-1]

    def arrays_in(self, memory: npt.NDArray[np.uint8]) -> WindowArrays:
        """The arrays in a memory, uint8, of at least `nbytes`."""
        assert len(memory) >= self.nbytes
        return WindowArrays(*(
            memory[first : first + dtype.itemsize * count].view(dtype)
            for first, (dtype, count) in zip(self._offsets, self._shapes, strict=False)
        ))  # fmt: skip


class WindowGraph(Topology):
    """The graph of a window, in memory; a topology that no plan chooses.

    Args:
        partitions: its partitions, ascending.
        indptr: uint32 or int64 [n + 1], for n local ids.
        indices: the in-neighbours of each node, local ids, int32 [e].
        positions: the CSC position of each edge in the store, uint32 or int64 [e].
        store_ids: of each local id, int32 or int64 [n].
        new_ids: of each local id the row of x in the partitioned store: the new id, or of a static
            node N + its rank; int32 or int64 [n].
        store_nodes, store_edges: how many nodes and edges the store has.
        path: the file of the lists, for errors.
        empty: the second local ids of static nodes that lie in the partitions, ascending, int32
            [m].
        keys: those of `sort_keys`; None: they are made.

    Attributes:
        sizes: those that another process needs to attach it: its local ids, static nodes in the
            partitions, and edges.
        num_distinct: how many of its nodes differ; static ones in the partitions are once in it.
        nbytes: bytes of all arrays but `empty`.
    """

    name = "window"

    def __init__(
        self,
        partitions: Int32Array,
        indptr: IndexPointers,
        indices: Int32Array,
        positions: npt.NDArray[np.uint32] | Int64Array,
        store_ids: Int32Array | Int64Array,
        new_ids: Int32Array | Int64Array,
        store_nodes: int,
        store_edges: int,
        path: str = "<memory>",
        empty: Int32Array = _NONE,
        keys: Int64Array | None = None,
    ) -> None:
        self.partitions, self.path, self._empty = partitions, path, empty
        self.num_nodes, self.num_edges = len(store_ids), len(indices)
        self.positions, self.store_ids, self.new_ids = positions, store_ids, new_ids
        self.store_nodes, self.store_edges = store_nodes, store_edges
        self._indptr, self._indices = indptr, indices
        self._local_bits = self.num_nodes.bit_length()
        self.num_distinct = self.num_nodes - len(empty)
        self.sizes = self.num_nodes, len(empty), self.num_edges
        if keys is None:
            keys = sort_keys(store_ids, store_nodes, np.empty(len(store_ids), np.int64))
        self._keys = keys
        self.nbytes = sum(
            each.nbytes for each in (indptr, indices, positions, store_ids, new_ids, self._keys)
        )
        self._csc = make_csc(indptr, len(indices), indices, indices.itemsize, ids=store_ids)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """See `Topology.plan`; None, because it is no choice for the graph of a whole epoch."""
        return None

    @classmethod
    def make(cls, context: TopologyContext) -> WindowGraph:
        """See `Topology.make`; refuses, because it takes a partitioned store to make one."""
        raise ConfigError(
            "the graph of a window is no topology to choose: use a strategy with windows, such as "
            "'hierbatching', and leave topology= out"
        )

    def csc(self) -> Any:
        """See `Topology.csc`. Random draws depend on the nodes' ids in the store, so that a batch
        does not depend on how a window numbers its nodes."""
        return self._csc

    def to_local(self, store_ids: Int64Array) -> Int64Array:
        """The local id of each node, int64 [n]; a node may occur several times. ConfigError if a
        seed is no node, StoreError if a node is not in the window."""
        keys, bits = self._keys, self._local_bits
        valid = (store_ids >= 0) & (store_ids < self.store_nodes)
        if not valid.all():
            raise ConfigError(
                f"seed {store_ids[~valid][0]} is no node: give node ids from 0 to "
                f"{self.store_nodes - 1}"
            )
        # Of a static node's two local ids the lower one, its rank, is found.
        place = np.searchsorted(keys, store_ids << bits)
        inside = place < len(keys)
        place[~inside] = 0
        if len(keys):
            inside &= keys[place] >> bits == store_ids
        if not inside.all():
            raise StoreError(
                f"seed {store_ids[~inside][0]} is not in the window, which has the nodes of "
                f"{len(self.partitions)} partitions: give each batch seeds of its window; if "
                f"gnndrive's schedule gave it, order.npy and place.npy beside {self.path} do not "
                f"fit together: {MEND}"
            )
        return keys[place] & ((1 << bits) - 1) if len(keys) else np.empty(0, np.int64)

    def distinct_ids(self, numbers: Int64Array) -> Int64Array:
        """The ids in the store of the window's nodes of some numbers below `num_distinct`, of which
        each node has one."""
        before = self._empty - np.arange(len(self._empty))
        local = numbers + np.searchsorted(before, numbers, side="right")
        found: Int64Array = self.store_ids[local].astype(np.int64)
        return found


def sort_keys(store_ids: Int32Array | Int64Array, store_nodes: int, out: Int64Array) -> Int64Array:
    """Write (store id, local id) of each node as one number to `out`, ascending; returns it."""
    check_size(len(store_ids), store_nodes)
    out[:] = store_ids
    out <<= len(store_ids).bit_length()
    out += np.arange(len(store_ids), dtype=np.int32)
    out.sort()
    return out


def check_size(nodes: int, store_nodes: int) -> None:
    """Refuse a window of more nodes than local ids can number."""
    if nodes >= 1 << 31 or nodes.bit_length() + store_nodes.bit_length() > _KEY_BITS:
        raise ConfigError(
            f"a window of {nodes:,} nodes of {store_nodes:,} is too large: lower megabatch= or "
            "memory="
        )


def id_dtype(rows: int) -> type[np.int32 | np.int64]:
    """The dtype of store ids and new ids if the partitioned store has so many rows of x."""
    return np.int32 if rows < 1 << 31 else np.int64


def count_dtype(store_edges: int) -> type[np.uint32 | np.int64]:
    """The dtype of index pointers and positions in a store of so many edges."""
    return np.uint32 if store_edges < 1 << 32 else np.int64


def window_bytes(nodes: int, kept_edges: int, store_rows: int, store_edges: int) -> int:
    """Return `WindowGraph.nbytes` of a window of so many nodes of partitions and static nodes, and
    edges between them. `store_rows`: rows of x in the partitioned store."""
    ids, counts = np.dtype(id_dtype(store_rows)), np.dtype(count_dtype(store_edges))
    of_nodes = nodes * (2 * ids.itemsize + 8) + (nodes + 1) * counts.itemsize
    return of_nodes + kept_edges * (4 + counts.itemsize)
