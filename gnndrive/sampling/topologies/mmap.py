"""Index pointers in memory, indices memory-mapped: the topology of GNNDrive (§4.1) and of PyG+.

Index pointers take 4 bytes for each node and every sampled node needs two, so they stay in memory.
Indices are the bulk of a graph and a batch needs few of their pages, so the page cache keeps the
pages that are used often. MADV_RANDOM turns off the kernel's readahead, which would read 32 pages
for each page that is needed. Do not use it if features and adjacency compete for little memory: the
page cache then holds neither (the paper's memory contention), and `direct` has memory of a fixed
size. If the indices fit in memory beside everything else, use `resident`, which never waits.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import IndexPointers, TopologyChoice
from gnndrive.sampling.topologies._csc import check_form, check_indptr, make_csc
from gnndrive.sampling.topologies.base import Topology, TopologyContext, TopologyQuestion


class Mmap(Topology):
    """A CSC graph over two arrays.

    Args:
        indptr: int64 or uint32 [nodes + 1], non-decreasing from 0 to `len(indices)` (only the two
            ends are checked here; the C samplers check the rest when they read it). Copied into
            memory if it is a numpy.memmap of a file.
        indices: int32 or int64 [edges], the in-neighbours of each node; an array or a memory map.
        path: the file that errors name.
    """

    name = "mmap"

    def __init__(
        self, indptr: IndexPointers, indices: npt.NDArray[Any], path: str = "<memory>"
    ) -> None:
        self.path = path
        check_form(indices, (np.int32, np.int64), f"{path}: indices")
        check_indptr(indptr, indices.size, path)
        self.num_nodes = indptr.size - 1
        self.num_edges = indices.size
        self._indptr = indptr.copy() if _is_memmap(indptr) else indptr
        self._indices = indices
        self.data_offset = getattr(indices, "offset", 0)
        mapped = _memory_map(indices)
        self.nbytes = self._indptr.nbytes + (indices.nbytes if mapped is None else 0)
        if mapped is not None:
            mapped.madvise(mmap.MADV_RANDOM)
        self._csc = make_csc(self._indptr, indices.size, indices, indices.itemsize)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice:
        """See `Topology.plan`; counts no memory, because the indices are in the page cache."""
        why = f"because {question.indices} are too many and no memory= asks to count them"
        if question.asked:
            why = "as asked for"
        elif question.budget:
            why = f"because {question.indices} do not fit beside the feature buffer"
        return TopologyChoice(cls, f"neighbours in a memory map (mmap), {question.why or why}", 0)

    @classmethod
    def make(cls, context: TopologyContext) -> Mmap:
        """See `Topology.make`; reads nothing."""
        return cls(context.indptr, context.indices(), context.file.path)

    def csc(self) -> Any:
        """See `Topology.csc`."""
        return self._csc


def _is_memmap(array: Any) -> bool:
    """Whether a numpy.memmap of a file holds the array; memory that processes share does not
    count."""
    while isinstance(array, np.ndarray):
        if getattr(array, "_mmap", None) is not None:  # None: a copy of a memmap
            return True
        array = array.base
    return False


def _memory_map(array: npt.NDArray[Any]) -> mmap.mmap | None:
    """The memory map that holds the array; None: it is in ordinary memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
