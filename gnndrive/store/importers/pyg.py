"""Import a PyTorch Geometric `Data` or `HeteroData`: its edges and attributes of nodes and edges.

When not to use it: for a graph that does not fit in memory (`from_edges`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.adjacency import edge_index_of, with_edge_index
from gnndrive.store.convert import (
    ArrayLike,
    as_rows,
    dtype_of,
    holds_zeros_and_ones,
    is_sparse,
    sparse_error,
)
from gnndrive.store.format import AnyDType, ArrayInfo, dtype_name
from gnndrive.store.graph_values import encode
from gnndrive.store.if_exists import Counts, IfExists, Kinds, settle, with_if_exists
from gnndrive.store.importers.csc import write_csc
from gnndrive.store.importers.splits import (
    RandomSplit,
    SplitSpec,
    as_random,
    labelled,
    random_split,
    resolve,
)
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.types import Types, array_name, is_value_name
from gnndrive.store.writer import StoreWriter

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

Splits = Mapping[str, ArrayLike]
Key: TypeAlias = "NodeKey | EdgeKey"
_PARTS = "train", "val", "test"  # of a RandomSplit
_BY_TYPE = "splits of a HeteroData: give {node type: {name: ids or mask}}"


def _counts(given: Mapping[str, Any]) -> Counts:
    """Numbers of nodes and edges of `from_data`'s data; of edges only without `undirected`."""
    nodes, edges = _types(_with_edges(given["data"]))
    num_nodes = {key: num_nodes_of(each) for key, each in nodes.items()}
    if given["undirected"]:
        return num_nodes, None
    return num_nodes, {key: each.edge_index.shape[1] for key, each in edges.items()}


def _kinds(given: Mapping[str, Any]) -> Kinds:
    """Attributes of `from_data`'s data; those of edges only without `undirected`."""
    nodes, edges = _types(_with_edges(given["data"]))
    arrays, _ = _arrays(nodes, edges)
    return {
        name: (dtype_name(dtype_of(rows)), tuple(rows.shape[1:]))
        for name, rows in arrays.items()
        if name.startswith("nodes/") or not given["undirected"]
    }


@with_if_exists(_counts, _kinds)
def from_data(
    data: Data | HeteroData,
    path: str | os.PathLike[str],
    *,
    splits: SplitSpec | Mapping[str, Splits] = None,
    undirected: bool = False,
    made_by: str = "gnndrive.from_data",
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a PyG `Data` or `HeteroData` as a store.

    Every attribute that PyG takes for an attribute of nodes or of edges is written; if a Data has
    as many nodes as edges, it takes those with "edge" in their name for the edges'. Edge ids are
    positions in `edge_index`. Masks `NAME_mask` [num_nodes] also become splits NAME: bool, or
    integers that are all 0 or 1. Attributes of the whole graph (numbers, text, small dense tensors
    and arrays, and lists, tuples and dicts of these) are in each batch, as in PyG, if they take no
    more than 64 KiB each; others are left out.

    In place of `edge_index` a graph may have a sparse `adj_t` [targets, sources], or `adj`
    [sources, targets]: a SparseTensor of torch_sparse, or a tensor of torch in COO, CSR or CSC.
    Edge ids are then positions among its entries; those of a COO tensor are taken as they are,
    without coalescing, so that parallel edges stay apart. Its values become `edge_weight`
    [num_edges], or `edge_attr` if they have more dimensions. A tensor of torch always has values:
    PyG's `ToSparseTensor` makes ones where there were no weights.

    Args:
        data: a graph with `edge_index` or `adj_t`; a HeteroData has one for each edge type.
        path: the folder to make.
        splits: node ids, bool masks or, for a Data, files of these by name; for a HeteroData, by
            node type and name. Or the shares of train, val and test of the labelled nodes, (0.6,
            0.2, 0.2), or a RandomSplit; masks of `data` stay, and with a train_mask (0, 0.5, 0.5)
            divides the labelled nodes that are not in it. None: the masks of `data`.
        undirected: apply PyG's `ToUndirected` to a copy of `data` first: every edge gets its
            reverse, in an edge type of its own if it joins two node types. Edge ids are positions
            in its `edge_index`.
        made_by: a text that says how the store was made.
        if_exists: if `path` exists, "error", "open" the store, or "replace" it. Of several
            processes with "open" or "replace" one writes; the others wait and open what it wrote.
            A store of other numbers, or other names, dtypes or row shapes, is not opened.
        progress: called as progress(array, bytes done, bytes in all).

    Returns:
        The open store.

    Raises:
        ConfigError: `data` has no edge_index or adj_t, both edge_weight and values of adj_t, or an
            attribute that a store cannot hold; `path` exists, or is the store of another graph.
        StoreError: an edge names a node that does not exist, or the disk is full.

    Warns:
        UserWarning: features hold nan or infinity; attributes are left out; or a mask is not made a
            split, because it holds several or other values.
    """
    return write_data(
        data, path, splits=splits, undirected=undirected, made_by=made_by,
        overwrite=if_exists == "replace", progress=progress,
    )  # fmt: skip


def _sort_in_memory(writer: StoreWriter, type: EdgeKey, ends: Any) -> None:
    write_csc(writer, type, *ends)


def write_data(
    data: Data | HeteroData,
    path: str | os.PathLike[str],
    *,
    splits: SplitSpec | Mapping[str, Splits] = None,
    undirected: bool,
    dtype: AnyDType | None = None,
    sort: Callable[[StoreWriter, EdgeKey, Any], None] = _sort_in_memory,
    made_by: str,
    overwrite: bool,
    progress: Progress | None,
) -> Store:
    """Write a graph as `from_data` does.

    Args:
        dtype: dtype of x in the store; None: that of the graph.
        sort: sorts the edges of a type, numpy [2, num_edges], and writes them.
    """
    data = _with_edges(data)
    of_edges: dict[str, bool] = {}
    if undirected:
        from torch_geometric.data import Data as DataClass
        from torch_geometric.transforms import ToUndirected

        if isinstance(data, DataClass):  # reverse edges may make as many edges as nodes
            of_edges = {name: data.is_edge_attr(name) for name, _ in data}
        data = ToUndirected()(data)
    nodes, edges = _types(data)
    hetero = None not in nodes
    edge_index = {
        key: each.edge_index.detach().cpu().resolve_neg().numpy() for key, each in edges.items()
    }
    num_nodes: Any = {key: num_nodes_of(each) for key, each in nodes.items()}
    num_edges: Any = {key: each.shape[1] for key, each in edge_index.items()}
    if not hetero:
        num_nodes, num_edges = num_nodes[None], num_edges[None]
    arrays, others = _arrays(nodes, edges, of_edges)
    values = _values(data, nodes, edges, others, Types.of(num_nodes, num_edges))
    splits = as_random(splits)
    if splits is None:
        found = _mask_splits(nodes, arrays)
    elif isinstance(splits, RandomSplit):
        found = _drawn(splits, nodes, arrays)
    else:
        found = _by_type(splits, hetero, num_nodes)
    with StoreWriter(
        path,
        num_nodes,
        num_edges,
        made_by=made_by,
        overwrite=overwrite,
        progress=progress,
    ) as writer:
        dtypes = {
            name: dtype_of(array) if dtype is None or not name.endswith("/x") else dtype_name(dtype)
            for name, array in arrays.items()
        }
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        nbytes = sum(ArrayInfo(name, dtypes[name], shapes[name], "").nbytes for name in arrays)
        writer.reserve(writer.types.graph_bytes + nbytes)
        for edge_type, ends in edge_index.items():
            sort(writer, edge_type, ends)
        for name, array in arrays.items():
            writer.write(name, array, dtypes[name])
        for (node_type, name), ids in found.items():
            writer.split(name, ids, node_type)
        writer.values = values
    return open_store(writer.path)


def open_or_make(
    path: str | os.PathLike[str],
    make: Data | HeteroData | Callable[[], Data | HeteroData | Store],
    *,
    splits: SplitSpec | Mapping[str, Splits] = None,
    undirected: bool = False,
    made_by: str = "gnndrive.open_or_make",
    progress: Progress | None = None,
) -> Store:
    """Open the store at `path`; if there is none, make it of a PyG graph.

        store = gnndrive.open_or_make("products.gnn", lambda: PygNodePropPredDataset(NAME)[0])

    A second run does not load the dataset, because the function is called only if the store has to
    be made. If several processes call this at once, one makes the store; the others wait for it and
    open the store. If that process fails or is killed, the next one makes the store.

    Args:
        path: the store's folder.
        make: a graph, or a function without arguments that returns a graph, or that writes the
            store at `path` with another importer and returns it. gnndrive cannot tell whether a
            store that is there was made by the same function. To make it anew, remove the folder.
        splits, undirected, made_by, progress: as for `from_data`.

    Returns:
        The open store.

    Raises:
        ConfigError, StoreError: as `from_data`. What `make` raises is passed on.
    """
    from torch_geometric.data.data import BaseData

    arguments: dict[str, Any] = {
        "splits": splits, "undirected": undirected, "made_by": made_by, "progress": progress,
    }  # fmt: skip
    if isinstance(make, BaseData) or not callable(make):  # a Data has a __call__ of its own
        return from_data(make, path, if_exists="open", **arguments)

    def write(_: bool) -> Store:
        made = make()
        if not isinstance(made, Store):
            return from_data(made, path, **arguments)
        if made.path.resolve() != Path(path).resolve():
            raise ConfigError(
                f"make= returned the store {made.path}: write it at {Path(path).absolute()}, or "
                "return a Data or HeteroData"
            )
        return made

    return settle(path, "open", write)


def _with_edges(data: object) -> Data | HeteroData:
    """The graph with an edge_index for each edge type that has a sparse matrix in its place."""
    from torch_geometric.data import Data as DataClass
    from torch_geometric.data import HeteroData

    if not isinstance(data, DataClass | HeteroData):
        raise ConfigError(
            f"from_data takes a torch_geometric Data or HeteroData, not a {type(data).__name__}; "
            "of a dataset give one graph, dataset[0]; of a file that torch.save wrote, "
            "gnndrive.from_pt(file, path)"
        )
    found = with_edge_index(data)
    for store in found.edge_stores:
        edge_index_of(store)
    return found


def _types(data: Data | HeteroData) -> tuple[dict[NodeKey, Any], dict[EdgeKey, Any]]:
    """The storages of a graph's node types and edge types; those of a Data are itself."""
    from torch_geometric.data import HeteroData

    if isinstance(data, HeteroData):
        nodes = {name: data[name] for name in data.node_types}
        return nodes, {name: data[name] for name in data.edge_types}
    return {None: data}, {None: data}


def _arrays(
    nodes: Mapping[NodeKey, Any],
    edges: Mapping[EdgeKey, Any],
    known: Mapping[str, bool] = MappingProxyType({}),
) -> tuple[dict[str, Any], dict[tuple[Key, str], Any]]:
    """Attributes of nodes and edges by name in the store, and the others by type and name. Of those
    in `known` it says whether they are the edges'; PyG says it of the others."""
    arrays: dict[str, Any] = {}
    others: dict[tuple[Key, str], Any] = {}
    for group, stores in (("nodes", nodes), ("edges", edges)):
        for key, store in stores.items():
            for name, value in store.to_dict().items():
                if name in ("edge_index", "num_nodes"):
                    continue
                of_nodes = group == "nodes"
                of_one = store.is_node_attr if of_nodes else store.is_edge_attr
                count = store.num_nodes if of_nodes else store.edge_index.shape[1]
                if is_sparse(value):
                    # an adjacency beside edge_index is left out, because it says the same
                    if "adj" not in name and _length(value) == count:
                        raise sparse_error(f"data.{name}" if key is None else f"{name} of {key}")
                    others[key, name] = value
                    continue
                # PyG takes edge_label_index [2, n] for an attribute of n edges, but a store needs
                # one row for each edge.
                rows = isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0
                mine = known[name] != of_nodes if name in known else rows and of_one(name)
                if rows and mine and len(value) == count:
                    full = array_name(group, key, name)
                    arrays[full] = as_rows(value, full)
                else:
                    others[key, name] = value
    if None in nodes:  # a Data is in `nodes` and in `edges`: keep what neither of them took
        for name in arrays:
            others.pop((None, name.rpartition("/")[2]), None)
    return arrays, others


def _values(
    data: Data | HeteroData,
    nodes: Mapping[Any, Any],
    edges: Mapping[Any, Any],
    others: Mapping[tuple[Key, str], Any],
    types: Types,
) -> dict[Key, dict[str, Any]]:
    """The values, among what `_arrays` did not take, that a store can hold, as `StoreInfo.values`
    has them; warns once of those that it cannot hold."""
    of_types = {**nodes, **edges}
    if None not in nodes:
        others = {**others, **{(None, name): each for name, each in data._global_store.items()}}
    values: dict[Key, dict[str, Any]] = {}
    left_out = []
    for (key, name), value in others.items():
        whose = of_types.get(key)
        try:
            if is_sparse(value):  # PyG cannot say of it whether it has rows
                raise ConfigError("an adjacency is no value of the whole graph")
            has_rows = whose is not None and (whose.is_node_attr(name) or whose.is_edge_attr(name))
            if has_rows or not is_value_name(name, key, types):
                raise ConfigError("it is no value of the whole graph")
            values.setdefault(key, {})[name] = encode(value)
        except ConfigError:
            left_out.append(name if key is None else f"{key}.{name}")
    if left_out:
        warnings.warn(
            "a store holds attributes of nodes and edges, and small values of the whole graph; "
            f"left out: {', '.join(sorted(left_out))}",
            stacklevel=3,
        )
    return values


def _length(value: Any) -> int:
    """Number of rows of a sparse value."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return len(value.unbind())
    return int(value.size(0) if callable(value.size) else value.shape[0])


def num_nodes_of(store: Any) -> int:
    """The number of nodes of a storage of nodes; ConfigError: it says none, or a wrong one."""
    key, found = getattr(store, "_key", None), store.num_nodes  # a Data is its own storage
    whose = "data" if key is None else f"data[{key!r}]"
    if not isinstance(found, int | np.integer | torch.Tensor):
        raise ConfigError(f"{whose} does not say how many nodes it has: set {whose}.num_nodes")
    if int(found) < 0:
        raise ConfigError(f"{whose}.num_nodes is {int(found)}: give 0 or more")
    return int(found)


def _by_type(splits: Any, hetero: bool, num_nodes: int) -> dict[tuple[NodeKey, str], ArrayLike]:
    by_name = isinstance(splits, Mapping)
    if not hetero and by_name:
        return {(None, name): ids for name, ids in resolve(splits, None, num_nodes).items()}
    if not hetero:
        raise ConfigError(f"splits={splits!r}: give shares, as (0.6, 0.2, 0.2), or ids by name")
    if not by_name or not all(isinstance(each, Mapping) for each in splits.values()):
        raise ConfigError(_BY_TYPE)
    return {(key, name): ids for key, each in splits.items() for name, ids in each.items()}


def _drawn(
    split: RandomSplit, nodes: Mapping[NodeKey, Any], arrays: Mapping[str, Any]
) -> dict[tuple[NodeKey, str], ArrayLike]:
    """The splits of the masks, and those that are drawn for each type from the labelled nodes that
    are in no mask: of a Data without labels from all, of a HeteroData of types with labels."""
    found = _mask_splits(nodes, arrays)
    labels = {key: arrays.get(array_name("nodes", key, "y")) for key in nodes}
    if None not in nodes and all(y is None for y in labels.values()):
        raise ConfigError(f"no type of nodes has labels y to draw from; {_BY_TYPE}")
    for key, y in labels.items():
        if y is None and key is not None:
            continue
        masks = {name: np.asarray(mask) for (type, name), mask in found.items() if type == key}
        if twice := [name for name in _PARTS if name in masks and getattr(split, name)]:
            left = [name for name in _PARTS if name not in masks]
            shares = ", ".join("0" if name in masks else f"{1 / len(left):g}" for name in _PARTS)
            remedy = (
                f"give it the share 0, as splits=({shares}), which draws {' and '.join(left)} "
                "from the labelled nodes in no mask"
            )
            if not left:
                remedy = "leave out splits=, because it has all"
            raise ConfigError(
                f"the data has {twice[0]}_mask, which is the split {twice[0]!r}: {remedy}; or "
                "delete the mask"
            )
        free = np.arange(num_nodes_of(nodes[key])) if y is None else labelled(np.asarray(y))
        for mask in masks.values():
            free = free[~mask[free]]
        drawn = random_split(free, split).items()
        found.update({(key, name): ids for name, ids in drawn if name not in masks})
    return found


def _mask_splits(
    node_stores: Mapping[NodeKey, Any], arrays: Mapping[str, Any]
) -> dict[tuple[NodeKey, str], ArrayLike]:
    splits: dict[tuple[NodeKey, str], ArrayLike] = {}
    for key in node_stores:
        prefix = array_name("nodes", key, "")
        for full, value in arrays.items():
            name = full.removeprefix(f"{prefix}/")
            if name == full or not name.endswith("_mask"):
                continue
            split = name.removesuffix("_mask")
            if (dtype := dtype_name(dtype_of(value))) != "bool":
                if not holds_zeros_and_ones(value, len(value)):
                    warnings.warn(
                        f"{name} is {dtype} {list(value.shape)} and is not made a split: if it is "
                        f"a mask, make it bool before (data.{name} = data.{name}.bool())",
                        stacklevel=3,
                    )
                    continue
                value = value == 1
            if value.ndim == 1:
                splits[key, split] = value
            else:
                warnings.warn(
                    f"{name} holds {value.shape[-1]} splits and is not made a split: "
                    f"pass splits={{'{split}': data.{name}[:, 0], …}}",
                    stacklevel=3,
                )
    return splits
