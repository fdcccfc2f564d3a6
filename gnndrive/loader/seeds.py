"""Checks of the arguments that say what a loader's seeds are, and how negative edges are drawn.

The ends of seed edges are looked up batch by batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import NegativeSampling

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, TableFile
from gnndrive.pyg.choices import refuse_sparse
from gnndrive.sampling.schedules.base import InputEdges, InputNodes, digest
from gnndrive.store.convert import is_mask_of_integers
from gnndrive.store.format import torch_dtype
from gnndrive.store.mapped_rows import pick_rows
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges

Ends: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Source, target and number of seed edges, each int64 [n]."""


def checked_input_nodes(
    store: Store, nodes: Any, time: Any = None, input_id: Any = None
) -> InputNodes:
    """Check `input_nodes=`, `input_time=` and `input_id=`; see `NeighborLoader`. As in PyG, a
    node's `input_id` is the given one, else its id if `nodes` is a mask, else its position."""
    type, nodes = checked_node_type(store.node_types, nodes)
    refuse_sparse(input_nodes=nodes, input_time=time)
    nodes, by_position = _node_ids(nodes, store.nodes(type).num_nodes)
    count = store.nodes(type).num_nodes if nodes is None else len(nodes)
    if time is not None:
        time = torch.as_tensor(time)
        if time.shape != (count,) or time.is_floating_point():
            raise ConfigError(
                f"input_time is {time.dtype} {list(time.shape)}: give a whole number for each of "
                f"the {count} input nodes"
            )
        time = time.to("cpu", torch.int64)
    ids = checked_input_id(input_id, count)
    return InputNodes(count, nodes, by_position, time, type, ids)


def checked_input_id(input_id: Any, count: int) -> torch.Tensor | None:
    """Check `input_id=`, a whole number for each of `count` inputs; int64 [count], or None."""
    if input_id is None:
        return None
    ids = torch.as_tensor(input_id)
    if ids.shape != (count,) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ConfigError(
            f"input_id is {ids.dtype} {list(ids.shape)}: give a whole number for each of the "
            f"{count} inputs"
        )
    return ids.to("cpu", torch.int64, copy=True)


def checked_node_type(types: list[str], nodes: Any) -> tuple[NodeKey, Any]:
    """Split `input_nodes=` into the node type, one of `types` (None if there are none), and the
    nodes."""
    if isinstance(nodes, str):
        type, nodes = nodes, None
    elif isinstance(nodes, tuple | list) and len(nodes) == 2 and isinstance(nodes[0], str):
        type, nodes = nodes
    elif types:
        raise ConfigError(
            "the nodes have types: give input_nodes as a node type, or as (type, ids or mask); the "
            f"types are {', '.join(types)}"
        )
    else:
        return None, nodes
    if types and type not in types:
        raise ConfigError(
            f"input_nodes: there is no {type!r}{did_you_mean(type, types)}; the types are "
            f"{', '.join(types)}"
        )
    return type, nodes


def _node_ids(nodes: Any, num_nodes: int) -> tuple[torch.Tensor | None, bool]:
    """The node ids, int64 [n], or None for all; and whether `input_id` is their position."""
    if nodes is None:
        return None, True
    try:
        nodes = torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            "input_nodes is neither node ids nor a mask: give one of them, or None for all nodes"
        ) from None
    if nodes.numel() == 0:
        nodes = nodes.to(torch.int64).view(-1)
    if nodes.dtype == torch.bool:
        if nodes.shape != (num_nodes,):
            raise ConfigError(
                f"input_nodes is a mask of shape {tuple(nodes.shape)}: give one entry for each "
                f"node, ({num_nodes},)"
            )
        return nodes.nonzero().view(-1).cpu(), False
    if nodes.dim() != 1 or nodes.is_floating_point() or nodes.is_complex():
        raise ConfigError(
            f"input_nodes is {nodes.dtype} {list(nodes.shape)}: give a mask, or node ids as "
            "integers in one dimension"
        )
    if is_mask_of_integers(nodes, num_nodes):
        raise ConfigError(
            f"input_nodes has a 0 or 1 for each of the {num_nodes} nodes, which looks like a mask, "
            f"but is {nodes.dtype}: give mask.bool(); if these are node ids, give them as "
            "sampler=ids instead, and the node type or None as input_nodes"
        )
    nodes = nodes.to("cpu", torch.int64, copy=True).contiguous()
    if len(nodes) and not (int(nodes.min()) >= 0 and int(nodes.max()) < num_nodes):
        raise ConfigError(
            f"input_nodes has ids outside 0 … {num_nodes - 1}: give ids in that range"
        )
    return nodes, True


def checked_negatives(
    neg_sampling: Any, ratio: float | None, label: torch.Tensor | None
) -> NegativeSampling | None:
    """Check `neg_sampling=` and `neg_sampling_ratio=`; returns None for no negative edges."""
    try:
        if ratio is not None and ratio != 0.0:
            neg_sampling = NegativeSampling("binary", ratio)
        negatives: NegativeSampling | None = NegativeSampling.cast(neg_sampling)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"neg_sampling={neg_sampling!r} cannot be used ({error}): give 'binary', 'triplet', or "
            "torch_geometric.sampler.NegativeSampling(mode, amount) with an amount above 0"
        ) from None
    if negatives is not None and negatives.is_triplet() and label is not None:
        raise ConfigError(
            "edge_label= cannot be used with triplets: leave it out, and use the batch's "
            "src_index, dst_pos_index and dst_neg_index"
        )
    return negatives


def checked_input_edges(
    store: Store, edges: Any, label: torch.Tensor | None, time: torch.Tensor | None,
    negatives: NegativeSampling | None, input_id: Any,
) -> InputEdges:  # fmt: skip
    """Check `edge_label_index=`, `edge_label=`, `edge_label_time=` and `input_id=`; see
    `LinkNeighborLoader`. The label of negative edges is 0, so labels with a 0 grow by 1, as in PyG.
    """
    type, edges = _edge_type(store, edges)
    refuse_sparse(edge_label_index=edges, edge_label=label, edge_label_time=time)
    graph = store.edges(type)
    count = graph.num_edges
    if edges is not None:
        edges = _checked_edges(torch.as_tensor(edges), graph)
        count = edges.shape[1]
    for name, value in (("edge_label", label), ("edge_label_time", time)):
        if value is not None and len(value) != count:
            raise ConfigError(
                f"{name} has {len(value)} entries for {count} edges: give one for each"
            )
    if label is not None:
        label = torch.as_tensor(label).cpu()
        if negatives is not None and negatives.is_binary() and len(label) and label.min() == 0:
            label = label + 1
    if time is not None:
        time = torch.as_tensor(time)
        if time.is_floating_point():
            raise ConfigError(f"edge_label_time is {time.dtype}: give whole numbers")
        time = time.to("cpu", torch.int64)
    ids = checked_input_id(input_id, count)
    if edges is None:
        every = partial(_stored_ends, graph)
        return InputEdges(count, every, "all", label, time, type=type, input_id=ids)
    ends = partial(_given_ends, edges)
    return InputEdges(count, ends, digest(edges), label, time, edges.nbytes, type, ids)


def _edge_type(store: Store, edges: Any) -> tuple[EdgeKey, Any]:
    """Split `edge_label_index=` into the edge type (None in a homogeneous store) and the edges."""
    if not store.is_hetero:
        return None, edges
    key = store.info.types.edge_key
    names = edges if isinstance(edges, tuple | list) and len(edges) in (2, 3) else ()
    if isinstance(edges, str) or (names and all(isinstance(each, str) for each in names)):
        return key(edges), None
    if len(names) == 2 and isinstance(names[0], str | tuple):
        return key(names[0]), names[1]
    raise ConfigError(
        "this store is heterogeneous: give edge_label_index as an edge type, or as (type, edges); "
        f"the types are {', '.join(map(str, store.edge_types))}"
    )


def _checked_edges(edges: torch.Tensor, graph: StoredEdges) -> torch.Tensor:
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point():
        raise ConfigError(
            f"edge_label_index is {edges.dtype} {list(edges.shape)}: give the source and target of "
            "each edge as integers, [2, edges]"
        )
    edges = edges.to("cpu", torch.int64, copy=True).contiguous()
    for ends, nodes in zip(edges, (graph.source, graph.target), strict=True):
        if ends.numel() and not (int(ends.min()) >= 0 and int(ends.max()) < nodes.num_nodes):
            last = nodes.num_nodes - 1
            raise ConfigError(
                f"edge_label_index has ids outside 0 … {last}: give ids in that range"
            )
    return edges


def _given_ends(edges: torch.Tensor, position: torch.Tensor) -> Ends:
    """Source, target and position of the seed edges [2, edges] of the user at `position`."""
    return edges[0, position], edges[1, position], position


def _stored_ends(graph: StoredEdges, position: torch.Tensor) -> Ends:
    """Source, target and original number of the graph's own edges at CSC positions."""
    at = position.numpy()
    source = _picked(graph.indices_file, graph.indices, at)
    target = np.searchsorted(graph.index_pointers, at, side="right") - 1
    number = position
    if graph.edge_id_file is not None and graph.edge_id is not None:
        number = _picked(graph.edge_id_file, graph.edge_id, at)
    return source, torch.from_numpy(target), number


def _picked(file: TableFile, mapped: npt.NDArray[Any], at: Int64Array) -> torch.Tensor:
    out = torch.empty(len(at), dtype=torch_dtype(file.dtype))
    return pick_rows(file, mapped, at, out).to(torch.int64)
