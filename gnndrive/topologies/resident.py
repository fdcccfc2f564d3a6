"""Index pointers and indices in memory: the fastest to sample from, where they fit.

The indices are read once, in long direct reads, into memory of the process's own, so the page cache
holds no second copy and nothing can push them out. Do not use it where the feature buffer needs the
memory more: rows are re-read far more often than lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnndrive.blocks import private_map
from gnndrive.errors import ConfigError
from gnndrive.records import Int64Array, TableFile
from gnndrive.topologies._csc import check_indptr, make_csc
from gnndrive.topologies._stream import IndexStream, whole_pages
from gnndrive.topologies.base import GraphSize, Source, Topology


class Resident(Topology):
    """A CSC graph whose indices are read into memory when it is made.

    Args:
        indptr: int64 [nodes + 1], non-decreasing from 0 to the number of edges (only the two ends
            are checked here, the rest by the C samplers as they go).
        file: where the indices are.

    Raises:
        StoreError: the arrays cannot be a CSC graph, or the file is not there.
        ReadError: the disk failed.
    """

    name = "resident"

    def __init__(self, indptr: Int64Array, file: TableFile) -> None:
        check_indptr(indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes = indptr.size - 1
        self.num_edges = file.row_count
        self._indptr = indptr
        try:
            pages = private_map(whole_pages(file.row_count * file.row_bytes))
        except MemoryError as error:
            raise ConfigError(
                f'topology="resident" cannot hold the graph ({error}): say topology="direct"'
            ) from error
        with IndexStream(file) as stream:
            stream.read_into(pages)
            self._indices = np.frombuffer(pages, stream.dtype, file.row_count)
        self._csc = make_csc(indptr, file.row_count, self._indices, file.row_bytes)

    @classmethod
    def open(cls, source: Source) -> Resident:
        """See `Topology.open`; reads all indices."""
        return cls(source.indptr, source.file)

    @classmethod
    def planned_bytes(cls, size: GraphSize, cache_bytes: int, samplers: int) -> int:
        """Bytes of the indices."""
        return size.indices_bytes

    def csc(self) -> Any:
        """The C `gd_csc *`, valid while this object lives."""
        return self._csc

    def resident_bytes(self) -> int:
        """Bytes of the index pointers and the indices."""
        return self._indptr.nbytes + self._indices.nbytes
