"""What topologies share: cheap checks of the arrays, and the C `gd_csc` that points to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import ffi
from gnndrive.common.records import IndexPointers


def check_indptr(indptr: IndexPointers, edges: int, path: str) -> None:
    """Refuse index pointers of a wrong dtype or form, or that do not run from 0 to `edges`. The C
    samplers check the index pointers between the two ends when they read them."""
    check_form(indptr, (np.int64, np.uint32), f"{path}: indptr")
    if indptr.size == 0 or indptr[0] != 0 or indptr[-1] != edges:
        ends = "is empty" if indptr.size == 0 else f"runs from {indptr[0]} to {indptr[-1]}"
        raise StoreError(
            f"{path}: indptr {ends}, but there are {edges} indices; the graph is damaged: run "
            "`gnndrive verify` and import it again"
        )


def check_form(array: npt.NDArray[Any], dtypes: tuple[type, ...], what: str) -> None:
    """Refuse an array that C cannot read because of its dtype, byte order, rank or strides."""
    if array.ndim != 1 or array.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        raise StoreError(
            f"{what} is {array.dtype} {list(array.shape)}, not one-dimensional "
            f"{' or '.join(dtype.__name__ for dtype in dtypes)}: convert it with numpy.astype, "
            "or import the graph again"
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise StoreError(f"{what} is not contiguous and aligned: use numpy.ascontiguousarray")


def make_csc(
    indptr: IndexPointers,
    edges: int,
    indices: npt.NDArray[Any] | None,
    width: int,
    packed_bits: int = 0,
    ids: npt.NDArray[Any] | None = None,
) -> Any:
    """Return a `gd_csc *`; the caller keeps the arrays alive as long as it is used.

    Args:
        indices: int32 or int64 [edges], or packed bytes; None: the indices are not in memory.
        width: bytes of one index in the file, 4 or 8.
        packed_bits: bits of one index in `indices`; 0: the indices are not packed.
        ids: int32 or int64 [nodes], the number of each node that random draws depend on; None: the
            nodes' own numbers.
    """
    fields = {
        "indptr": ffi.cast("void *", indptr.ctypes.data),
        "indptr_bytes": indptr.itemsize,
        "indices": ffi.NULL if indices is None else ffi.cast("void *", indices.ctypes.data),
        "index_bytes": width,
        "nodes": indptr.size - 1,
        "edges": edges,
        "packed_bits": packed_bits,
        "ids": ffi.NULL if ids is None else ffi.cast("void *", ids.ctypes.data),
        "id_bytes": 0 if ids is None else ids.itemsize,
    }
    return ffi.new("gd_csc *", fields)
