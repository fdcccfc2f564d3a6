"""All edges of a store in the order of their CSC positions, each given once to a C function.

The index file is read in parts with long direct reads, while C works on the part before. When not
to use it: for the lists of some nodes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import check, ffi
from gnndrive.common.io.direct_file import PAGE_BYTES
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.reader import Store

PART_BYTES = (4 << 20) + 2 * PAGE_BYTES
BUFFER_BYTES = 2 * PART_BYTES


class EdgeStream:
    """The edges of a homogeneous store.

    Args:
        store: the store; its index pointers are read into memory.

    Attributes:
        index_bytes: bytes of an index, 4 or 8.
        nodes, edges: how many there are.
    """

    def __init__(self, store: Store) -> None:
        edges = store.edges()
        self._path, self._pointers = edges.indices_path, edges.index_pointers
        self._parts = TableParts(edges.indices_file, PART_BYTES)
        self.index_bytes = edges.indices_file.row_bytes
        self.nodes, self.edges = store.num_nodes, store.num_edges
        self._csc = ffi.new("gd_csc *")
        self._csc.indptr = ffi.cast("void *", self._pointers.ctypes.data)
        self._csc.indptr_bytes, self._csc.index_bytes = self._pointers.itemsize, self.index_bytes
        self._csc.nodes, self._csc.edges = self.nodes, self.edges

    def each(self, call: Callable[[Any], int], tell: Callable[[int], object]) -> None:
        """Give all edges to a C function.

        Args:
            call: takes a `gd_edges *`, returns 0 or -errno.
            tell: called with how many edges are done.

        Raises:
            StoreError: an index is not a node, or the store is damaged.
            ConfigError: a node has too many edges.
            ReadError: the store cannot be read.
            OSError: another error of `call`.
        """
        edges = ffi.new("gd_edges *")
        edges.csc = self._csc
        with closing(self._parts.parts(0, self.edges)) as parts:
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
        if error.errno != errno.ERANGE:
            return error
        return StoreError(
            f"{self._path} names a node that is not in the store: check it (gnndrive verify), and "
            "import or copy it again"
        )
