"""The symmetric lists of a store: of each node its distinct neighbours in both directions.

A partition with few edges across it is found from both directions of every edge, and a store has
only in-neighbours. The lists are made by a counting sort (native/symmetric.c): one pass over the
edges counts the entries of each node; then the nodes are taken in ranges whose lists fit in memory,
with one more pass for each. If all lists fit they stay there, else they are written to a file,
which is read once in each pass over the graph. The lists are the same whatever the memory.

When not to use it: where in-neighbours suffice; this costs a few passes over the edges.

Too little memory is refused. Counted are the arrays with an entry for each node or
partition, the store's index pointers among them, the symmetric lists in memory, and all buffers;
not the interpreter and its libraries.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.io.direct_file import PAGE_BYTES, whole_pages
from gnndrive.common.io.direct_writer import WRITER_BYTES, DirectWriter
from gnndrive.common.io.write_errors import disk_full, free_bytes
from gnndrive.common.memory import require_memory
from gnndrive.common.progress import Progress
from gnndrive.common.records import TableFile
from gnndrive.store.layout.arrays import Ids
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.partitioned.arrays import zeros
from gnndrive.store.partitioned.renumbering import no_such_node
from gnndrive.store.reader import Store

COUNT, LISTS = "counting neighbours", "edges in both directions"  # phases, for progress
PART_BYTES = (4 << 20) + 2 * PAGE_BYTES
FIXED_BYTES = 4 * PART_BYTES + WRITER_BYTES + (4 << 20)
NUMBERS_MOST = (1 << 32) - 1  # of a range; a place in it is 32 bits
_CHUNK_NUMBERS = 1 << 20
# Left for the interpreter and its libraries, which are not counted, where more ranges cost little.
_SPARE_SHARE, _SPARE_BYTES = 4, 256 << 20


def pointer_bytes(store: Store) -> int:
    """Bytes of the store's index pointers in memory."""
    return (store.num_nodes + 1) * (4 if store.num_edges < 1 << 32 else 8)


class SymmetricLists:
    """The lists of all nodes, in memory or in the file `path`: of each node its length and its
    neighbours, of which all lists together have so many `entries`."""

    def __init__(
        self, path: Path | None, numbers: Ids | None, index_bytes: int, nodes: int
    ) -> None:
        self.path, self.index_bytes, self._numbers = path, index_bytes, numbers
        count = 0 if numbers is None else len(numbers)
        if path is not None:
            count = path.stat().st_size // index_bytes
        self._count, self.entries = count, count - nodes
        self._parts: TableParts | None = None

    def chunks(self) -> Generator[Ids, None, None]:
        """Yield all numbers in order; a list may be cut anywhere. Close it if you leave it
        early."""
        if self._numbers is not None:
            for first in range(0, self._count, _CHUNK_NUMBERS):
                yield self._numbers[first : first + _CHUNK_NUMBERS]
            return
        dtype = f"int{8 * self.index_bytes}"
        if self._parts is None:
            table = TableFile(str(self.path), 0, self._count, self.index_bytes, dtype, ())
            self._parts = TableParts(table, PART_BYTES)
        with closing(self._parts.parts(0, self._count)) as parts:
            for part in parts:
                yield part.rows.view(dtype)


def memory_of(nodes: int) -> int:
    """Bytes that making the lists takes beside the index pointers, the buffers and the lists."""
    return 4 * nodes + whole_pages(nodes // 8 + 1)  # the entries of each node, and a bit for each


def symmetric_lists(
    store: Store, path: Path, memory: int, report: Progress, later: int, in_file: bool = False
) -> SymmetricLists:
    """Make the symmetric lists of a homogeneous store, or take those that are there.

    Args:
        path: the file, if the lists do not fit in memory; another call goes on with a file that an
            earlier one has left.
        memory: bytes that may be used, see the module.
        later: bytes that the caller will use beside the lists.
        in_file: whether to write the file in any case.

    Raises:
        ConfigError: the memory is too little, or a node has too many edges.
    """
    width, nodes = store.edges().indices_file.row_bytes, store.num_nodes
    if path.exists():
        return SymmetricLists(path, None, width, nodes)
    making = _Making(store, memory, report)
    making.count()
    if not in_file and making.numbers <= making.most(max(making.own, later)):
        return SymmetricLists(None, making.in_memory(), width, nodes)
    making.write(path)
    return SymmetricLists(path, None, width, nodes)


class _Making:
    """The lists while they are made; arguments as for `symmetric_lists`."""

    def __init__(self, store: Store, memory: int, report: Progress) -> None:
        self._store, self._memory, self._report = store, memory, report
        self._fixed = FIXED_BYTES + pointer_bytes(store)
        self.own = memory_of(store.num_nodes)
        self._require(0)
        edges = store.edges()
        self._pointers, self._path = edges.index_pointers, edges.indices_path
        self._parts = TableParts(edges.indices_file, PART_BYTES)
        self._width, self._edges = edges.indices_file.row_bytes, store.num_edges
        self._counts = zeros(store.num_nodes, np.uint32)
        self._seen = np.zeros(store.num_nodes // 8 + 1, np.uint8)

    def _require(self, longest: int) -> None:
        least = self._fixed + self.own + longest
        require_memory(self._memory, least, f"to partition {self._store.num_nodes:,} nodes")

    def _each(self, call: Callable[[Any], int], tell: Callable[[int], object]) -> None:
        """Give all edges, in the order of their CSC positions, to a C function, which takes a
        `gd_edges *`; `tell` is called with how many edges are done."""
        csc, edges = ffi.new("gd_csc *"), ffi.new("gd_edges *")
        csc.indptr = ffi.cast("void *", self._pointers.ctypes.data)
        csc.indptr_bytes, csc.index_bytes = self._pointers.itemsize, self._width
        csc.nodes, csc.edges, edges.csc = self._store.num_nodes, self._edges, csc
        with closing(self._parts.parts(0, self._edges)) as parts:
            for part in parts:
                edges.sources = ffi.cast("void *", part.rows.ctypes.data)
                edges.first, edges.count = part.first, part.count
                try:
                    check(call(edges), "a pass over the edges")
                except OSError as error:
                    raise self._named(error) from error
                tell(part.first + part.count)

    def _named(self, error: OSError) -> Exception:
        if error.errno == errno.EOVERFLOW:
            return ConfigError(
                f"{self._path}: a node has 2^32 or more edges, and partitions are found for fewer: "
                "drop duplicates before you import the graph, or give method='random'"
            )
        return StoreError(no_such_node(self._store)) if error.errno == errno.ERANGE else error

    def count(self) -> None:
        """Count the entries of each node; `numbers` is then how many numbers the lists have, their
        duplicates included."""
        counts = _uint32(self._counts)
        self._each(
            lambda part: int(lib.gd_symmetric_count(part, counts)),
            lambda done: self._report(COUNT, done, self._edges),
        )
        self._longest = int(self._counts.max(initial=0)) + 1
        self._require(self._longest * self._width)
        self.numbers = int(self._counts.sum(dtype=np.int64)) + self._store.num_nodes

    def most(self, other: int) -> int:
        """How many numbers may be in memory at a time, beside `other` bytes."""
        left = self._memory - self._fixed - other
        comfortable = (left - min(left // _SPARE_SHARE, _SPARE_BYTES)) // self._width
        return min(max(comfortable, self._longest), NUMBERS_MOST)

    def in_memory(self) -> Ids:
        """The lists of all nodes, in memory."""
        lists = zeros(self.numbers, f"int{8 * self._width}")
        self._done, self._total = 0, self._edges
        return lists[: self._make(0, self._store.num_nodes, lists)]

    def write(self, path: Path) -> None:
        """Write the lists of all nodes to a file, durably."""
        nodes = self._store.num_nodes
        most = min(self.most(self.own), self.numbers)
        if free_bytes(path.parent) < self.numbers * self._width:
            raise disk_full(path.parent, self.numbers * self._width)
        counts, ranges = _uint32(self._counts), [0]
        while ranges[-1] < nodes:
            ranges.append(int(lib.gd_symmetric_fitting(counts, nodes, ranges[-1], most)))
            assert ranges[-1] > ranges[-2], "each list fits"
        self._done, self._total = 0, self._edges * (len(ranges) - 1)
        lists = zeros(most, f"int{8 * self._width}")
        with DirectWriter(path, whole=True) as writer:
            for first, last in pairwise(ranges):
                writer.append(lists[: self._make(first, last, lists)])
            writer.finish()

    def _make(self, first: int, last: int, lists: Ids) -> int:
        """Make the lists of the nodes [first, last); returns how many numbers they have."""
        places, into = _uint32(self._counts), ffi.cast("void *", lists.ctypes.data)
        count = int(lib.gd_symmetric_places(places, first, last))
        assert count <= len(lists)
        self._each(
            lambda part: int(lib.gd_symmetric_fill(part, first, last, places, into, count)),
            lambda done: self._report(LISTS, self._done + done, self._total),
        )
        self._done += self._edges
        seen = ffi.cast("uint8_t *", self._seen.ctypes.data)
        nodes, width = self._store.num_nodes, self._width
        found = lib.gd_symmetric_close(places, first, last, nodes, width, seen, into, count)
        if found < 0:  # the edges were not those that were counted
            raise StoreError(f"{self._store.path} has changed: partition it again")
        return int(found)


def _uint32(array: npt.NDArray[np.uint32]) -> Any:
    return ffi.cast("uint32_t *", array.ctypes.data)
