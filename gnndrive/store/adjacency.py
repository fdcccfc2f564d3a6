"""Turn the sparse adjacency of a PyG graph, `adj_t` or `adj`, into edges: `edge_index` and values.

Its entries are the edges, in their order and with repetitions: nothing is sorted or summed. That
order is by target, then source, after PyG's `ToSparseTensor`, which sorts the attributes of edges
that stay outside the matrix in the same way.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import ends_of
from gnndrive.store.convert import is_sparse

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

NAMES = ("adj", "adj_t")  # in PyG's order; the second is [targets, sources]
_OF_EDGES = "edge_index has the edges: transform=ToSparseTensor() makes adj_t in each batch"
_NO_MATRIX = "PyG's loaders take an attribute of that name for the adjacency: rename it"
_Entries: TypeAlias = "tuple[Tensor, Tensor, Tensor | None]"
"""Rows, columns and values of a matrix."""


def with_edge_index(data: Data | HeteroData, *, in_memory: bool = False) -> Data | HeteroData:
    """A graph with `edge_index` in place of `adj_t` or `adj`; `data` itself if nothing is to do.

    Values become `edge_weight` [num_edges], or `edge_attr` [num_edges, …] if each has several
    numbers. Where only the matrix says how many nodes there are, `num_nodes` is set.

    Args:
        data: a graph. It is not changed; the copy shares all else with it.
        in_memory: PyG's loaders are to read it. They take torch_sparse's SparseTensor as it is, and
            nothing else of these names, so it is left out beside an edge_index, with a warning.

    Raises:
        ConfigError: a matrix is not one of this graph, or has another form; or `data` has another
            attribute of the values' name.
    """
    from torch_geometric.typing import SparseTensor

    out, beside = copy.copy(data), dict[str, str]()
    changed = False
    for store in out.edge_stores:
        there = [name for name in NAMES if name in store]
        if in_memory:
            there = [name for name in there if not isinstance(store[name], SparseTensor)]
        if there and "edge_index" not in store:
            _convert(out, store, there.pop(0))
            changed = True
        if in_memory:
            for name in there:
                beside[name] = _OF_EDGES if is_sparse(store[name]) else _NO_MATRIX
                del store[name]
    for name, why in beside.items():
        warnings.warn(f"{name} is left out of batches, because {why}", stacklevel=4)
    return out if changed or beside else data


def edge_index_of(store: Any) -> Tensor:
    """The `edge_index` [2, num_edges] of a storage of edges, whole numbers; ConfigError: it has
    none, or another one."""
    found = store.edge_index if "edge_index" in store else None
    where = "data" if store._key is None else f"data[{store._key!r}]"
    if not isinstance(found, Tensor) or is_sparse(found) or found.dim() != 2 or len(found) != 2:
        raise ConfigError(
            f"{where} has no edge_index [2, num_edges], and no sparse adj_t in its place: set "
            f"{where}.edge_index = torch.stack([sources, targets])"
        )
    if found.is_meta or "int" not in str(found.dtype):
        held = "has no values on the device 'meta'" if found.is_meta else f"holds {found.dtype}"
        raise ConfigError(f"{where}.edge_index {held}: give whole numbers, such as torch.int64")
    return found.detach().resolve_neg()


def _convert(data: Any, store: Any, name: str) -> None:
    """Replace the matrix `name` of an edge storage of `data`."""
    key = store._key
    where = "data" if key is None else f"data[{key!r}]"
    matrix = store[name]
    rows, columns, values = _entries(matrix, f"{where}.{name}")
    source, target = (columns, rows) if name == "adj_t" else (rows, columns)
    del store[name]
    sizes = (
        (matrix.size(1), matrix.size(0)) if name == "adj_t" else (matrix.size(0), matrix.size(1))
    )
    if key is None and sizes[0] != sizes[1]:
        raise ConfigError(
            f"{where}.{name} joins {sizes[0]} nodes with {sizes[1]}: give one row and one column "
            "for each node, or a HeteroData with two types of nodes"
        )
    for type, size in zip(ends_of(key), sizes, strict=True):
        _set_num_nodes(store if type is None else data[type], type, size, f"{where}.{name}")
    store.edge_index = torch.stack([source, target])
    store.edge_index = edge_index_of(store).to(torch.int64)
    if values is None:
        return
    values = values.detach()
    attribute = "edge_weight" if values.dim() == 1 else "edge_attr"
    if attribute not in store:
        store[attribute] = values
    elif not bool((values == 1).all()):  # with ToSparseTensor(attr=None) the values say nothing
        raise ConfigError(
            f"{where} has {attribute}, and the values of {where}.{name} would become {attribute} "
            f"too: rename one, {where}.edge_other = {where}.{attribute}; del {where}.{attribute}"
        )


def _entries(matrix: Any, what: str) -> _Entries:
    layout = getattr(matrix, "layout", type(matrix).__name__)
    if layout == torch.sparse_coo and matrix.sparse_dim() == 2:
        rows, columns = matrix._indices()  # of a tensor that is not coalesced, too
        return rows, columns, matrix._values()
    if not isinstance(matrix, Tensor) and callable(getattr(matrix, "coo", None)):
        found: _Entries = matrix.coo()
        return found
    by_row, pointers, minor = layout == torch.sparse_csr, None, None
    if by_row:
        pointers, minor = matrix.crow_indices(), matrix.col_indices()
    elif layout == torch.sparse_csc:
        pointers, minor = matrix.ccol_indices(), matrix.row_indices()
    if pointers is None or minor is None or pointers.dim() != 1:  # it is dense, or is several
        raise ConfigError(
            f"{what} is {layout} {list(getattr(matrix, 'shape', []))}: give a matrix as "
            "torch.sparse_csr, torch.sparse_csc or torch.sparse_coo, such as "
            f"{what}.to_sparse_csr(), or give edge_index [2, num_edges] in its place"
        )
    counts = pointers.diff()
    if bool((counts < 0).any()) or int(counts.sum()) != len(minor):
        raise ConfigError(f"{what} has index pointers that do not fit its entries: make it anew")
    major = torch.repeat_interleave(torch.arange(len(counts), device=minor.device), counts)
    return (major, minor, matrix.values()) if by_row else (minor, major, matrix.values())


def _set_num_nodes(store: Any, type: str | None, size: int, what: str) -> None:
    """Set `num_nodes` of a storage of nodes if nothing else in it says how many there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's, that it cannot tell
        known = store.num_nodes
    if known is None:
        store.num_nodes = size
    elif size > known:
        nodes = "nodes" if type is None else f"nodes of type {type!r}"
        raise ConfigError(
            f"{what} has {size} rows or columns for {known} {nodes}: set num_nodes, or make the "
            "matrix anew"
        )
