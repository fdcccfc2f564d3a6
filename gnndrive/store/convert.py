"""Arrays of any kind as rows in a store's dtype: numpy, mapped, torch (bfloat16 too), lists.

Conversion to a narrower float may round. A value that does not fit at all (300 as uint8, 1e6 as
float16, 0.5 as int64) is an error that names the array and the value.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.store.format import dtype_name, storage_dtype

Rows: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
"""A numpy array or a torch tensor whose first dimension counts rows."""

ArrayLike: TypeAlias = "Rows | npt.ArrayLike"
"""What users may give: `Rows` or a list."""


def as_rows(array: ArrayLike, what: str) -> Rows:
    """Make a numpy array of a list; return numpy arrays and torch tensors without a copy. `what` is
    the array's name, for errors; ConfigError: no store can hold the array."""
    if is_sparse(array):
        raise sparse_error(what)
    if isinstance(array, torch.Tensor):
        if array.is_meta:
            raise ConfigError(f"{what} is on the device 'meta' and has no values: load them first")
        rows: Rows = array.detach().resolve_conj().resolve_neg()  # which numpy() refuses
    else:
        try:
            rows = np.asarray(array)
        except ValueError as error:
            raise ConfigError(f"{what} is not an array ({error}): give rows of one shape") from None
    if rows.ndim == 0:
        raise ConfigError(f"{what} is a single number: give one row per node or edge")
    try:
        dtype_of(rows)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    return rows


def is_sparse(array: Any) -> bool:
    """Whether an array is not a dense one: a sparse or nested torch tensor, a SparseTensor of
    torch_sparse, or a matrix of SciPy."""
    if isinstance(array, torch.Tensor):
        return array.layout != torch.strided or array.is_nested
    return any(hasattr(array, name) for name in ("tocoo", "to_torch_sparse_coo_tensor"))


def sparse_error(what: str) -> ConfigError:
    """The error for an array that `is_sparse`; `what` is its name."""
    return ConfigError(
        f"{what} is sparse, and a store holds dense rows: call .to_dense() on it (on a matrix of "
        "SciPy .toarray()); features whose dense form is larger than memory can be saved with "
        "scipy.sparse.save_npz as CSR and given as features= to gnndrive.from_edges"
    )


def dtype_of(rows: Rows) -> str:
    """The store's name of the rows' dtype; ConfigError: a store cannot hold it."""
    return dtype_name(rows.dtype)


def to_storage(rows: Rows, dtype: str, what: str) -> npt.NDArray[Any]:
    """Convert rows, on any device, to a C-contiguous array in the numpy dtype that stores `dtype`,
    a store's name of a dtype; ConfigError: a value does not fit. `what` is the array's name."""
    if dtype == "bfloat16":
        return _to_bfloat16(rows, what)
    target = storage_dtype(dtype)
    if isinstance(rows, torch.Tensor):
        rows = rows.cpu()
        rows = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
    elif rows.dtype.name == "bfloat16":  # a numpy dtype of the ml_dtypes package
        rows = rows.astype(np.float32)
    if rows.dtype == target:
        return np.ascontiguousarray(rows)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = np.ascontiguousarray(rows, dtype=target)
    if not np.can_cast(rows.dtype, target, "safe"):
        _check_fit(rows, converted, what)
    return converted


def _to_bfloat16(rows: Rows, what: str) -> npt.NDArray[Any]:
    if isinstance(rows, np.ndarray):
        if rows.dtype.name == "bfloat16":
            return np.ascontiguousarray(rows).view(np.uint16)
        if rows.dtype == np.uint16:
            raise ConfigError(
                f"{what}: uint16 for bfloat16 could be numbers or bits; give a torch.bfloat16 "
                "tensor (from bits: torch.from_numpy(array).view(torch.bfloat16))"
            )
        wide = np.promote_types(rows.dtype, np.float32)
        rows = torch.from_numpy(np.require(rows, wide, ["C", "W"]))
    narrow = rows.cpu().to(torch.bfloat16).contiguous()
    bits: npt.NDArray[Any] = narrow.view(torch.uint16).numpy()
    return bits


def _check_fit(rows: npt.NDArray[Any], converted: npt.NDArray[Any], what: str) -> None:
    """Refuse a conversion that did more to a value than round it to a narrower float."""
    if converted.dtype.kind == "f":
        bad = np.isinf(converted) & np.isfinite(rows)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            bad = converted.astype(rows.dtype) != rows
        if rows.dtype.kind in "iu":  # -1 becomes another number in uint64, but converts back to -1
            bad |= (converted < 0) != (rows < 0)
    if bad.any():
        value = rows[bad].flat[0]
        raise ConfigError(
            f"{what}: {value} does not fit {converted.dtype.name}; choose a wider dtype, or "
            "convert the array yourself if you want that"
        )


def holds_zeros_and_ones(values: Rows, count: int) -> bool:
    """Whether `values` are `count` whole numbers in one dimension, all of them 0 or 1."""
    if values.ndim != 1 or len(values) != count or not count or "int" not in dtype_of(values):
        return False
    if isinstance(values, torch.Tensor):
        values = values.to(torch.int64)  # torch has no minimum of uint16
    return bool(values.min() >= 0 and values.max() <= 1)


def is_mask_of_integers(ids: Rows, num_nodes: int) -> bool:
    """Whether what was given as node ids must be a mask: a 0 or 1 for each node, more than one 0.
    As ids they would be nodes 0 and 1, again and again."""
    return holds_zeros_and_ones(ids, num_nodes) and int((ids == 0).sum()) > 1


def split_ids(nodes: Rows, num_nodes: int, name: str) -> Rows:
    """The node ids of the split `name` that is given as ids [n] or as a bool mask [num_nodes];
    ConfigError: `nodes` is neither, or is a mask as integers."""
    dtype = dtype_of(nodes)
    if nodes.ndim != 1 or (dtype == "bool" and len(nodes) != num_nodes):
        raise ConfigError(
            f"split {name!r} has shape {list(nodes.shape)}: give node ids [n] or a bool mask "
            f"[{num_nodes}]"
        )
    if dtype == "bool":
        return np.flatnonzero(to_storage(nodes, "bool", name))
    if len(nodes) and "int" not in dtype:
        raise ConfigError(
            f"split {name!r} holds {dtype}: give node ids as whole numbers, or a bool mask"
        )
    if is_mask_of_integers(nodes, num_nodes):
        raise ConfigError(
            f"split {name!r} has a 0 or 1 for each of the {num_nodes} nodes, which looks like a "
            f"mask, but is {dtype}: give mask.bool(), in numpy mask.astype(bool); if these are "
            "node ids, give each once, numpy.unique(ids)"
        )
    return nodes
