"""Index pointers and indices in memory: the fastest topology, if they fit.

The indices are read once, in long direct reads, into the process's own memory, so that the page
cache holds no second copy and the kernel cannot evict them. They are packed: each index takes as
many bits as the largest node id, 24 instead of 32 for 10 million nodes. Processes of one host may
share them: one packs them into memory that the others map. Do not use it if the feature buffer
needs the memory more, because rows are read again far more often than lists.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.progress import report
from gnndrive.common.records import TableFile, TopologyChoice
from gnndrive.common.threads import submit, thread_pool
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.topologies._csc import check_indptr, make_csc
from gnndrive.sampling.topologies.base import (
    BUFFER_BATCHES,
    GraphSize,
    IndicesInMemory,
    Topology,
    TopologyContext,
    TopologyQuestion,
)

HALVED_EDGES = 1 << 20  # graphs of as many edges or more are read in two halves at once
_OVERLAP_INDICES = 128  # indices before the cut whose packing may write bytes after the cut
_Allocate: TypeAlias = Callable[[int], npt.NDArray[np.uint8]]


class Resident(Topology):
    """A CSC graph whose indices are read into memory when it is made."""

    name = "resident"
    shares_indices = True

    def __init__(self, context: TopologyContext) -> None:
        indptr, file = context.indptr, context.file
        check_indptr(indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes = indptr.size - 1
        self.num_edges = file.row_count
        self._indptr = indptr
        size = GraphSize(self.num_nodes, self.num_edges, file.row_bytes, context.sources)
        self.in_memory = context.in_memory or _read(file, size, context.allocate)
        assert size.fits(self.in_memory)
        indices, bits = self.in_memory.array, self.in_memory.bits
        self.nbytes = indptr.nbytes + indices.nbytes
        self._csc = make_csc(indptr, self.num_edges, indices, file.row_bytes, bits)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """See `Topology.plan`; suits a graph whose packed indices fit beside a feature buffer with
        room for one and a half of the largest batches, or of the size that the user asked for."""
        packed, why = question.packed_bytes, "as asked for"
        if not question.asked:
            if packed > question.room(BUFFER_BATCHES):
                return None
            why = f"because {question.indices} fit beside the feature buffer"
        why = f"neighbours in memory (resident), {question.why or why}"
        return TopologyChoice(cls, why, packed)

    @classmethod
    def make(cls, context: TopologyContext) -> Resident:
        """See `Topology.make`; reads all indices, unless another process has read them."""
        return cls(context)

    def csc(self) -> Any:
        """See `Topology.csc`; the indices are packed."""
        return self._csc


def _read(file: TableFile, size: GraphSize, allocate: _Allocate) -> IndicesInMemory:
    """Read all indices into memory, packed if all of them are nodes."""
    try:
        packed = _read_packed(file, size, allocate)
        if packed is not None:
            return IndicesInMemory(packed, size.packed_bits)
        # An index is no node: the C samplers report it if they read it, and only then.
        return IndicesInMemory(_read_unpacked(file, size, allocate), 0)
    except MemoryError as error:
        raise ConfigError(
            f'topology="resident" cannot hold the graph ({error}): give '
            'tuning=Tuning(topology="direct")'
        ) from error


def _read_packed(
    file: TableFile, size: GraphSize, allocate: _Allocate
) -> npt.NDArray[np.uint8] | None:
    """Read and pack all indices; return None if an index is not a node.

    Two threads read and pack one half each, because half of the time is spent on memory that is
    touched for the first time.
    """
    packed = allocate(size.packed_bytes)
    cut = size.edges // 2 if size.edges >= HALVED_EDGES else 0
    halves = [(0, cut - _OVERLAP_INDICES), (cut, size.edges)] if cut else [(0, size.edges)]
    with thread_pool(len(halves), "gnndrive-resident") as threads:
        # The last one tells its progress for both, as it runs in the caller's context.
        calls = [(_pack, file, size, packed, *half) for half in halves]
        packing = [submit(threads, *call) for call in calls[:-1]]
        packing.append(submit(threads, copy_context().run, *calls[-1]))
        good = all(each.result() for each in packing)
    if cut:  # after the second half is done, because C writes eight bytes at a time into it
        good = good and _pack(file, size, packed, cut - _OVERLAP_INDICES, cut)
    return packed if good else None


def _pack(
    file: TableFile, size: GraphSize, packed: npt.NDArray[np.uint8], first: int, last: int
) -> bool:
    """Read and pack the indices [first, last); return False if one of them is not a node."""
    with SequentialReader(file) as reader:
        for start, indices in reader.stretches(first, last):
            code = lib.gd_pack_indices(
                ffi.from_buffer(indices), size.index_bytes, start, indices.size, size.num_sources,
                size.packed_bits, ffi.from_buffer(packed),
            )  # fmt: skip
            if code == -errno.ERANGE:
                return False
            check(code, "gd_pack_indices")
            report("reading neighbours", start + indices.size - first, last - first)
    return True


def _read_unpacked(file: TableFile, size: GraphSize, allocate: _Allocate) -> npt.NDArray[Any]:
    with SequentialReader(file) as reader:
        whole = allocate(size.indices_bytes).view(reader.dtype)
        for first, indices in reader.stretches():
            whole[first : first + indices.size] = indices
    return whole
