"""Checks of a loader's arguments: each returns the argument in the form that the loader uses, or
says what to give.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import torch

from gnndrive.errors import ConfigError
from gnndrive.plugins import find
from gnndrive.schedules.base import InputNodes
from gnndrive.sizes import parse_size
from gnndrive.store.disk import gap_bytes, load_calibration
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


def size_or_none(size: Any, name: str) -> int:
    """Bytes of a size that may be 0."""
    if size in (0, "0") and not isinstance(size, bool):
        return 0
    return parse_size(size, name)


def checked_gap(gap: Any, store: Store, read_bytes_max: int) -> int:
    """`gap` in bytes; None: what the store's calibration says, else the default."""
    if gap is None:
        return gap_bytes(load_calibration(store), read_bytes_max)
    return size_or_none(gap, "gap")


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


def checked_device(
    device: str | torch.device, memory: str | int | None
) -> tuple[str, torch.device | None]:
    """The device plug-in for a torch device, and which of its kind; `memory` is its budget."""
    if device == "simulated-cuda":  # for tests
        return "simulated-cuda", None
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r} is no torch device; use 'cpu' or 'cuda'") from None
    if where.type == "cpu" and memory is not None:
        raise ConfigError("device_memory= is a GPU's: give memory= or buffer= for the host")
    if where.type == "cpu":
        return "host", None
    if where.type != "cuda":
        raise NotImplementedError(
            f"device={str(device)!r} is not built; use 'cpu' or 'cuda' and move batches yourself"
        )
    find("devices", "cuda").check(where)
    return "cuda", where


def checked_feature_dtype(dtype: Any) -> torch.dtype | None:
    """What features are delivered in: a floating torch dtype or its name; None: as stored."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ConfigError(f"feature_dtype={dtype!r}: give a floating dtype, such as 'float32'")
    return found


def feature_table(store: Store) -> str:
    """The node attribute that goes through the feature buffer."""
    if "x" not in store.node_names:
        raise ConfigError(
            f"{store.path} has no node features x; a loader without features is not built yet"
        )
    if store.num_nodes == 0 or store.table("x").row_bytes == 0:
        raise ConfigError(
            f"{store.path} has {store.num_nodes} nodes and rows of "
            f"{store.table('x').row_bytes} bytes in x: there is nothing to load"
        )
    return "x"


def checked_input_nodes(nodes: Any, num_nodes: int, time: Any = None) -> InputNodes:
    """The input nodes, and what PyG's `input_id` is of them: of a mask global ids, of anything else
    positions; with their times, if they have any."""
    inputs = _input_nodes(nodes, num_nodes)
    if time is None:
        return inputs
    time = torch.as_tensor(time)
    if time.shape != (len(inputs),) or time.is_floating_point():
        raise ConfigError(
            f"input_time is {time.dtype} {list(time.shape)}: give a whole number for each of the "
            f"{len(inputs)} input nodes"
        )
    return inputs.timed(time.to("cpu", torch.int64))


def _input_nodes(nodes: Any, num_nodes: int) -> InputNodes:
    if nodes is None:
        return InputNodes(num_nodes)
    try:
        nodes = torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError):
        raise NotImplementedError(
            "input_nodes with a node type is not built yet: give ids, a mask or None"
        ) from None
    if nodes.numel() == 0:
        nodes = nodes.to(torch.int64).view(-1)
    if nodes.dtype == torch.bool:
        if nodes.shape != (num_nodes,):
            raise ConfigError(
                f"input_nodes is a mask of shape {tuple(nodes.shape)}; it needs one entry a node, "
                f"({num_nodes},)"
            )
        nodes = nodes.nonzero().view(-1)
        return InputNodes(len(nodes), nodes, by_position=False)
    if nodes.dim() != 1 or nodes.is_floating_point() or nodes.is_complex():
        raise ConfigError("input_nodes must be a mask, or node ids as a 1-D tensor of integers")
    nodes = nodes.to("cpu", torch.int64, copy=True).contiguous()
    if len(nodes) and not (int(nodes.min()) >= 0 and int(nodes.max()) < num_nodes):
        raise ConfigError(f"input_nodes has ids outside 0 … {num_nodes - 1}")
    return InputNodes(len(nodes), nodes)


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
