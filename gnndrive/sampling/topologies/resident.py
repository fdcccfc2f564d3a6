"""Index pointers and indices in memory: the fastest to sample from, where they fit.

The indices are read once, in long direct reads, into memory of the process's own, so the page cache
holds no second copy and nothing can push them out. They are packed: each takes as many bits as the
largest node's number, 24 instead of 32 for 10 million nodes. Do not use it where the feature buffer
needs the memory more: rows are re-read far more often than lists.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.records import IndexPointers, TableFile, TopologyChoice
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.topologies._csc import check_indptr, make_csc
from gnndrive.sampling.topologies.base import (
    BUFFER_BATCHES,
    GraphSize,
    Topology,
    TopologyContext,
    TopologyQuestion,
)

HALVED_EDGES = 1 << 20
_SPILL = 128  # indices before a cut whose packing may write the bytes behind it: eight at a time


class Resident(Topology):
    """A CSC graph whose indices are read into memory when it is made.

    Args:
        indptr: int64 or uint32 [nodes + 1], non-decreasing from 0 to the number of edges (only the
            two ends are checked here, the rest by the C samplers as they go).
        file: where the indices are.

    Raises:
        StoreError: the arrays cannot be a CSC graph, or the file is not there.
        ReadError: the disk failed.
    """

    name = "resident"

    def __init__(self, indptr: IndexPointers, file: TableFile, sources: int | None = None) -> None:
        check_indptr(indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes = indptr.size - 1
        self.num_edges = file.row_count
        self._indptr = indptr
        size = GraphSize(self.num_nodes, self.num_edges, file.row_bytes, sources)
        packed, bits = _packed(file, size), size.packed_bits
        self._indices: npt.NDArray[Any]
        if packed is not None:
            self._indices = packed
        else:  # damaged: samplers are to find where
            self._indices, bits = _as_they_are(file, size), 0
        self.nbytes = indptr.nbytes + self._indices.nbytes
        self._csc = make_csc(indptr, self.num_edges, self._indices, file.row_bytes, bits)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """See `Topology.plan`: wherever the indices fit beside a feature buffer of one and a half
        of the largest batches (or of the size asked for)."""
        packed, why = question.packed_bytes, "as asked for"
        if not question.asked:
            if packed > question.room(BUFFER_BATCHES):
                return None
            why = f"because {question.indices} fit beside the feature buffer"
        return TopologyChoice(cls, f"resident, {why}", packed)

    @classmethod
    def make(cls, context: TopologyContext) -> Resident:
        """See `Topology.make`; reads all indices."""
        return cls(context.indptr, context.file, context.sources)

    def csc(self) -> Any:
        """The C `gd_csc *`, valid while this object lives."""
        return self._csc


def _packed(file: TableFile, size: GraphSize) -> npt.NDArray[np.uint8] | None:
    """All indices, packed; None: one of them is no node.

    Both halves are read and packed at once, for half of the time is spent on memory that is touched
    for the first time.
    """
    packed = _memory(size.packed_bytes)
    cut = size.edges // 2 if size.edges >= HALVED_EDGES else 0
    halves = [(0, cut - _SPILL), (cut, size.edges)] if cut else [(0, size.edges)]
    with ThreadPoolExecutor(len(halves)) as threads:
        good = all(threads.map(lambda half: _pack(file, size, packed, *half), halves))
    if cut:  # not beside the second half: what is written here reaches into it
        good = good and _pack(file, size, packed, cut - _SPILL, cut)
    return packed if good else None


def _pack(
    file: TableFile, size: GraphSize, packed: npt.NDArray[np.uint8], first: int, last: int
) -> bool:
    """Pack the indices [first, last); False: one of them is no node."""
    with SequentialReader(file) as stream:
        for start, indices in stream.stretches(first, last):
            code = lib.gd_pack_indices(
                ffi.from_buffer(indices), size.index_bytes, start, indices.size, size.num_sources,
                size.packed_bits, ffi.from_buffer(packed),
            )  # fmt: skip
            if code == -errno.ERANGE:
                return False
            check(code, "gd_pack_indices")
    return True


def _as_they_are(file: TableFile, size: GraphSize) -> npt.NDArray[Any]:
    """All indices as the file has them."""
    with SequentialReader(file) as stream:
        whole = _memory(size.indices_bytes).view(stream.dtype)
        for first, indices in stream.stretches():
            whole[first : first + indices.size] = indices
    return whole


def _memory(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed.

    Raises:
        ConfigError: there is not so much.
    """
    try:
        return np.frombuffer(private_map(nbytes, huge=True), np.uint8, nbytes)
    except MemoryError as error:
        raise ConfigError(
            f'topology="resident" cannot hold the graph ({error}): say topology="direct"'
        ) from error
