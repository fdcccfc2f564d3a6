"""Index pointers in memory, indices memory-mapped: GNNDrive's topology (§4.1), and PyG+'s.

Index pointers are 8 bytes a node and touched for every node, so they stay resident; indices are the
bulk of a graph and only a few of their pages are wanted by one batch, so the page cache keeps what
is hot. MADV_RANDOM turns the kernel's readahead off, which would bring 32 pages for each one
wanted. Do not use it where the indices fit in memory beside everything else and the disk is slow:
load them first and hand them over as plain arrays.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive._ffi import ffi
from gnndrive.errors import StoreError
from gnndrive.topologies.base import Topology


class Mapped(Topology):
    """A CSC graph over two arrays.

    Args:
        indptr: int64 [nodes + 1], non-decreasing from 0 to `len(indices)` (only the two
            ends are checked here, the rest by the C samplers as they go). Copied into memory if it
            is memory-mapped.
        indices: int32 or int64 [edges], the in-neighbours of each node; an array or a memory map.
        path: what to name in errors.

    Raises:
        StoreError: the arrays cannot be a CSC graph.
    """

    name = "mapped"

    def __init__(
        self, indptr: npt.NDArray[np.int64], indices: npt.NDArray[Any], path: str = "<memory>"
    ) -> None:
        self.path = path
        _require(indptr, (np.int64,), f"{path}: indptr")
        _require(indices, (np.int32, np.int64), f"{path}: indices")
        if indptr.size == 0 or indptr[0] != 0 or indptr[-1] != indices.size:
            ends = "is empty" if indptr.size == 0 else f"runs from {indptr[0]} to {indptr[-1]}"
            raise StoreError(
                f"{path}: indptr {ends}, but there are {indices.size} indices; the graph "
                "is damaged: run `gnndrive verify` and import it again"
            )
        self.num_nodes = indptr.size - 1
        self.num_edges = indices.size
        self._indptr = np.array(indptr) if _memory_map(indptr) is not None else indptr
        self._indices = indices
        mapped = _memory_map(indices)
        self._indices_resident_bytes = indices.nbytes if mapped is None else 0
        if mapped is not None:
            mapped.madvise(mmap.MADV_RANDOM)
        self._csc = ffi.new(
            "gd_csc *",
            {
                "indptr": ffi.cast("int64_t *", self._indptr.ctypes.data),
                "indices": ffi.cast("void *", self._indices.ctypes.data),
                "index_bytes": self._indices.itemsize,
                "nodes": self.num_nodes,
                "edges": self.num_edges,
            },
        )

    def csc(self) -> Any:
        """The C `gd_csc *`, valid while this object lives."""
        return self._csc

    def resident_bytes(self) -> int:
        """Bytes of the index pointers, and of the indices if they are not memory-mapped."""
        return self._indptr.nbytes + self._indices_resident_bytes


def _require(array: npt.NDArray[Any], dtypes: tuple[type, ...], what: str) -> None:
    """Refuse what C cannot read: another dtype, byte order, rank or stride."""
    if array.ndim != 1 or array.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        raise StoreError(
            f"{what} is {array.dtype} {list(array.shape)}, not one-dimensional "
            f"{' or '.join(dtype.__name__ for dtype in dtypes)}: convert it with numpy.astype, "
            "or import the graph again"
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise StoreError(f"{what} is not contiguous and aligned: use numpy.ascontiguousarray")


def _memory_map(array: npt.NDArray[Any]) -> mmap.mmap | None:
    """The map that the array lies in, or None if it lies in ordinary memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
