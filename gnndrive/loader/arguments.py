"""Checks of a loader's arguments: each returns the argument in the form that the loader uses, or
says what to give.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import torch
from torch_geometric.sampler import NumNeighbors

from gnndrive.buffer.devices import choose as choose_device
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size, size_or_none
from gnndrive.common.plugins import find
from gnndrive.common.records import NodeKey
from gnndrive.sampling.samplers.base import checked_fanout
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.store.reader import Store

PYG_ARGUMENTS = (
    "input_nodes",
    "input_time",
    "subgraph_type",
    "disjoint",
    "temporal_strategy",
    "time_attr",
    "weight_attr",
    "transform_sampler_output",
    "is_sorted",
    "filter_per_worker",
    "neighbor_sampler",
    "directed",
)  # kept as attributes as they were given
PYG_LINK_ARGUMENTS = (
    "edge_label_index",
    "edge_label",
    "edge_label_time",
    "neg_sampling_ratio",
    *PYG_ARGUMENTS[2:],
)
PLAIN = {
    "input_time": None,
    "subgraph_type": "directional",
    "disjoint": False,
    "time_attr": None,
    "weight_attr": None,
    "transform_sampler_output": None,
    "neighbor_sampler": None,
    "directed": True,
}  # what plain neighbour sampling is; anything else takes the longer way


def is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments of PyG's ask for plain neighbour sampling and no more."""
    for name, default in PLAIN.items():
        value = arguments.get(name, default)
        value = getattr(value, "value", value)  # an enumeration
        if value is not default if default is None else value != default:
            return False
    return True


def whole(**argument: Any) -> int:
    """The one keyword argument's value, a whole number."""
    ((name, value),) = argument.items()
    try:
        return index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} must be a whole number") from None


def positive(**argument: int) -> int:
    """The one keyword argument's value, a whole number of at least 1."""
    ((name, value),) = argument.items()
    if whole(**argument) < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
    return index(value)


def checked_device(device: Any, memory: str | int | None) -> tuple[Any, torch.device | None]:
    """The device plug-in for `device=`, and which device of its kind; `memory` is its budget.

    Raises:
        ConfigError: there is no such device, or it has no memory except the host's.
    """
    plugin, where = choose_device(device)
    if memory is not None and find("devices", plugin).free_bytes(where) is None:
        raise ConfigError("device_memory= is a GPU's: give memory= or buffer= for the host")
    return plugin, where


def checked_feature_dtype(dtype: Any) -> torch.dtype | None:
    """What features are delivered in: a floating torch dtype or its name; None: as stored."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ConfigError(f"feature_dtype={dtype!r}: give a floating dtype, such as 'float32'")
    return found


def checked_input_nodes(store: Store, nodes: Any, time: Any = None) -> InputNodes:
    """The input nodes, and what PyG's `input_id` is of them: of a mask global ids, of anything else
    positions; with their times, if they have any.

    Args:
        store: whose they are.
        nodes: ids, a mask or None; of a heterogeneous store a node type, or a type and one of them.
        time: whole numbers, one each, or None.

    Raises:
        ConfigError: they are none of these.
    """
    type, nodes = _typed(store, nodes)
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
    return InputNodes(count, nodes, by_position, time, type)


def _typed(store: Store, nodes: Any) -> tuple[NodeKey, Any]:
    """A node type, and nodes of it."""
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
    """Ids, int64 [n], or None for all; and whether `input_id` is their position."""
    if nodes is None:
        return None, True
    try:
        nodes = torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError("input_nodes must be a mask, node ids or None") from None
    if nodes.numel() == 0:
        nodes = nodes.to(torch.int64).view(-1)
    if nodes.dtype == torch.bool:
        if nodes.shape != (num_nodes,):
            raise ConfigError(
                f"input_nodes is a mask of shape {tuple(nodes.shape)}; it needs one entry a node, "
                f"({num_nodes},)"
            )
        return nodes.nonzero().view(-1).cpu(), False
    if nodes.dim() != 1 or nodes.is_floating_point() or nodes.is_complex():
        raise ConfigError("input_nodes must be a mask, or node ids as a 1-D tensor of integers")
    nodes = nodes.to("cpu", torch.int64, copy=True).contiguous()
    if len(nodes) and not (int(nodes.min()) >= 0 and int(nodes.max()) < num_nodes):
        raise ConfigError(f"input_nodes has ids outside 0 … {num_nodes - 1}")
    return nodes, True


def checked_neighbors(store: Store, num_neighbors: Any) -> Any:
    """`num_neighbors` as a list, or as lists by edge type.

    Raises:
        ConfigError: they are no whole numbers of at least -1, not of one length, or of edge types
            that the store has not.
    """
    if isinstance(num_neighbors, NumNeighbors):
        types = store.edge_types if store.is_hetero else None
        num_neighbors = num_neighbors.get_values(types)  # with what is said for all others
    if not isinstance(num_neighbors, Mapping):
        return checked_fanout(num_neighbors)
    if not store.is_hetero:
        raise ConfigError(
            f"num_neighbors={num_neighbors!r} is by edge type and this store is homogeneous: give "
            "one list"
        )
    unknown = set(num_neighbors) - set(store.edge_types)
    missing = set(store.edge_types) - set(num_neighbors)
    if unknown or missing:
        raise ConfigError(
            f"num_neighbors= names {sorted(unknown) or 'no'} edge types that there are not and "
            f"leaves out {sorted(missing) or 'none'}: give one list, or one for each of "
            f"{', '.join(map(str, store.edge_types))}"
        )
    fanouts = {type: checked_fanout(num_neighbors[type]) for type in store.edge_types}
    if len({len(fanout) for fanout in fanouts.values()}) > 1:
        raise ConfigError(f"num_neighbors={fanouts!r} has lists of several lengths: give one")
    return fanouts


OWN_ARGUMENTS = {
    "memory": None,
    "buffer": None,
    "device": "cpu",
    "device_memory": None,
    "feature_dtype": None,
    "strategy": "gnndrive",
    "topology": "auto",
    "neighbour_cache": None,
    "engine": "auto",
    "io_depth": 128,
    "gap": None,
    "policy": "auto",
    "sweep": "auto",
    "samplers": 4,
    "extractors": 4,
    "extracting_queue": 6,
    "training_queue": 4,
    "seed": None,
}
"""What gnndrive's loaders take beside PyG's and torch's arguments, with their defaults; attributes
of the same names."""


def refuse_own(data: Any, given: Mapping[str, Any]) -> None:
    """Refuse what only a store's loader can do, for data in memory.

    Raises:
        ConfigError: an argument of `OWN_ARGUMENTS` is not at its default.
    """
    for name, default in OWN_ARGUMENTS.items():
        if given[name] != default and str(given[name]) != default:
            raise ConfigError(
                f"{name}={given[name]!r} is for a store, and this {type(data).__name__} is in "
                "memory: leave it out, or write a store with gnndrive.from_data(data, path) and "
                "give gnndrive.open(path)"
            )


def checked_own(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `OWN_ARGUMENTS`, those that can be checked alone checked.

    Raises:
        ConfigError: one of them cannot work.
    """
    counts = ("io_depth", "samplers", "extractors", "extracting_queue", "training_queue")
    checked = given | {name: positive(**{name: given[name]}) for name in counts}
    for kind, name in (("policies", "policy"), ("topologies", "topology"), ("engines", "engine")):
        if given[name] != "auto":
            find(kind, given[name])
    for name in ("memory", "buffer", "device_memory"):
        if given[name] is not None:
            parse_size(given[name], name)
    for name in ("gap", "neighbour_cache"):
        if given[name] is not None:
            size_or_none(given[name], name)
    sweep, seed = given["sweep"], given["seed"]
    if sweep != "auto":
        if isinstance(sweep, str):
            raise ConfigError(f"sweep={sweep!r}: give a number of batches, or 'auto'")
        checked["sweep"] = positive(sweep=sweep)
    checked["seed"] = None if seed is None else whole(seed=seed)
    return checked
