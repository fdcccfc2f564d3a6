"""Convert PyG's tensors to the arrays that the C sampler reads, and its arrays to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data.data import BaseData
from torch_geometric.sampler.base import DataType

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, core_for, pointer
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.sampling.samplers.base import checked_fanout
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.adjacency import edge_index_of, with_edge_index
from gnndrive.store.checks import Bounds

_MEND = "correct the edge, or the number of nodes"
# torch holds these dtypes and has no `index_select` for them; a row's bytes are the same as signed.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def select(value: Tensor, dim: int, at: Tensor, out: Tensor | None = None) -> Tensor:
    """`torch.index_select`, for unsigned integers too."""
    signed = _SIGNED.get(value.dtype)
    if signed is None:
        return torch.index_select(value, dim, at, out=out)
    into = None if out is None else out.view(signed)
    return torch.index_select(value.view(signed), dim, at, out=into).view(value.dtype)


def with_edge_index_in_memory(data: Any) -> Any:
    """`data` of a loader in memory, with edge_index in place of a sparse matrix that PyG's loaders
    cannot read; see `with_edge_index`. A pair of FeatureStore and GraphStore stays as it is."""
    return with_edge_index(data, in_memory=True) if isinstance(data, BaseData) else data


def check_ends(data: Any) -> None:
    """Check that the edges of a Data or HeteroData join nodes that exist, because torch writes out
    of bounds when it makes index pointers of others; StoreError: they do not. ConfigError: they are
    no whole numbers [2, num_edges]."""
    for store in data.edge_stores if isinstance(data, BaseData) else ():
        if "edge_index" in store:
            where = "data" if store._key is None else f"data[{store._key!r}]"
            for ends, count in zip(edge_index_of(store), store.size(), strict=True):
                if count is not None:
                    bounds = Bounds(f"{where}.edge_index", "edge", count, "nodes", _MEND)
                    bounds.feed(ends.cpu().numpy())


def check_rows(data: Any, what: str, name: str | None) -> None:
    """Check that an attribute of a Data or HeteroData is an array; ConfigError, which names the
    argument `what`: it is not, or is missing. None is no attribute."""
    if name is None or not isinstance(data, BaseData):
        return
    found = [store[name] for store in data.node_stores + data.edge_stores if name in store]
    wrong = [each for each in found if not isinstance(each, Tensor | np.ndarray) or not each.ndim]
    if wrong or not found:
        kind = f"a {type(wrong[0]).__name__} without rows" if wrong else "no such attribute"
        raise ConfigError(
            f"{what}={name!r}: data has {kind}: give the name of an attribute with a row for each "
            "node or edge"
        )


def is_edge_level(data: Any, name: str) -> bool:
    """Whether an attribute belongs to edges and not to nodes, decided as PyG's sampler does."""
    kind = DataType.from_data(data)
    if kind == DataType.homogeneous:
        return not data.is_node_attr(name) and bool(data.is_edge_attr(name))
    if kind == DataType.heterogeneous:
        of_nodes = any(name in store for store in data.node_stores)
        return not of_nodes and any(name in store for store in data.edge_stores)
    groups = [a.group_name for a in data[0].get_all_tensor_attrs() if a.attr_name == name]
    if [edge.edge_type for edge in data[1].get_all_edge_attrs()] == [None]:
        return name != "time" and len(groups) == 1
    return bool(groups) and all(isinstance(group, tuple) for group in groups)


def permuted(value: Any, perm: Tensor | None) -> Tensor:
    """`value[perm]` on the CPU; `value` itself if `perm` is None."""
    tensor: Tensor = torch.as_tensor(value).cpu()
    return tensor if perm is None else tensor[perm.cpu()]


def as_topology(colptr: Tensor, row: Tensor, nodes: int, name: str) -> Topology:
    """CSC tensors of a graph whose edges go to `nodes` nodes, of which the last may be missing."""
    pointers, indices = colptr.cpu().numpy(), row.cpu().numpy()
    missing = nodes + 1 - len(pointers)
    if missing > 0:
        last = pointers[-1] if len(pointers) else 0
        pointers = np.concatenate([pointers, np.full(missing, last, pointers.dtype)])
    if pointers.dtype == np.int32:
        pointers = pointers.view(np.uint32)
    return over_arrays(np.ascontiguousarray(pointers), np.ascontiguousarray(indices), name)


def as_fanout(values: Sequence[int] | Mapping[Any, Any]) -> Int64Array:
    """Numbers of neighbours to sample, one for each hop, int64 [hops]."""
    return np.array(checked_fanout(values), dtype=np.int64)


def as_int64(value: Tensor) -> Int64Array:
    """The values as a flat int64 array; no copy if they are one already."""
    if value.dtype == torch.int64 and value.device.type == "cpu" and value.dim() == 1:
        return np.ascontiguousarray(value.numpy())
    flat: Int64Array = value.detach().cpu().reshape(-1).to(torch.int64).contiguous().numpy()
    return flat


def as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value.to(dtype)`, which releases the GIL even if it has nothing to do."""
    return value if value.dtype == dtype else value.to(dtype)


def edge_index(row: Int32Array, colptr: Int32Array, empty: Allocate = np.empty) -> Int64Array:
    """Both ends of edges, int64 [2, edges]: `row` has their sources, int32 [edges], and those from
    `colptr[p]` to `colptr[p + 1]` go to place `p`."""
    count, ends = len(row), empty((2, len(row)), np.int64)
    core, targets = core_for(count), len(colptr) - 1
    code = core.gd_edge_index(pointer(row), count, pointer(colptr), targets, pointer(ends))
    check(code, "gd_edge_index")
    return ends


def as_times(value: Tensor) -> Int64Array:
    """Times, which must be integers, as a flat int64 array."""
    if value.is_floating_point() or value.is_complex():
        raise ConfigError(
            f"times are {value.dtype}: give whole numbers, such as seconds, as torch.int64"
        )
    return as_int64(value)


def as_weights(value: Tensor) -> npt.NDArray[Any]:
    """Weights as a flat array of float32 or float64."""
    value = value.detach().cpu().reshape(-1)
    if value.dtype not in (torch.float32, torch.float64):
        value = value.to(torch.float64)
    return value.contiguous().numpy()


def each_of(convert: Callable[[Tensor], npt.NDArray[Any]], values: Any) -> Any:
    """Convert a tensor, or tensors by type, and return tensors again; None stays None."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {key: torch.from_numpy(convert(value)) for key, value in values.items()}
    return torch.from_numpy(convert(values))


def as_array(value: Tensor | None) -> npt.NDArray[Any] | None:
    """A converted tensor as the array that C reads."""
    return None if value is None else value.numpy()
