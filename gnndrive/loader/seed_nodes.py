"""Checks of the arguments that say which nodes a loader's seeds are; `seed_edges.py` has edges."""

from __future__ import annotations

from typing import Any

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import NodeKey
from gnndrive.pyg.choices import refuse_sparse
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.store.convert import is_mask_of_integers
from gnndrive.store.reader import Store


def checked_input_nodes(
    store: Store, nodes: Any, time: Any = None, input_id: Any = None
) -> InputNodes:
    """Check `input_nodes=`, `input_time=` and `input_id=`.

    Args:
        store: the store that has the nodes.
        nodes: ids, a mask or None for all nodes; of a heterogeneous store a node type, or a pair
            (node type, ids, mask or None).
        time: a whole number for each input node, or None.
        input_id: a whole number for each input node, or None.

    Returns:
        The input nodes. As in PyG, their `input_id` is the given one, else the node's id if `nodes`
        is a mask, else the position among the input nodes.

    Raises:
        ConfigError: an argument has another form, `nodes` is a mask as integers, or an id is out of
            range.
    """
    type, nodes = _split_type(store, nodes)
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
    """Check `input_id=`, a whole number for each of `count` inputs; int64 [count], or None.

    Raises:
        ConfigError: it has another shape or dtype.
    """
    if input_id is None:
        return None
    ids = torch.as_tensor(input_id)
    if ids.shape != (count,) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ConfigError(
            f"input_id is {ids.dtype} {list(ids.shape)}: give a whole number for each of the "
            f"{count} inputs"
        )
    return ids.to("cpu", torch.int64, copy=True)


def _split_type(store: Store, nodes: Any) -> tuple[NodeKey, Any]:
    """Split `input_nodes=` into the node type (None in a homogeneous store) and the nodes."""
    if isinstance(nodes, str):
        return nodes, None
    pair = isinstance(nodes, tuple | list) and len(nodes) == 2 and isinstance(nodes[0], str)
    if store.is_hetero and not pair:
        raise ConfigError(
            "this store is heterogeneous: give input_nodes as a node type, or as (type, ids or "
            f"mask); the types are {', '.join(store.node_types)}"
        )
    return tuple(nodes) if pair else (None, nodes)


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
