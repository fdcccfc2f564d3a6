"""Checks of a loader's arguments, for `neighbor_loader.py` and `store_loader.py`.

Each `checked_…` function returns the argument in the form that the loader uses, or raises
ConfigError with what to give instead. A new argument of gnndrive's goes into `OWN_ARGUMENTS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import index
from typing import Any

import torch
from torch_geometric.sampler import NumNeighbors

from gnndrive.buffer.devices import choose as choose_device
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size, size_or_none
from gnndrive.common.plugins import find
from gnndrive.loader.intervals import check_on_stats
from gnndrive.loader.ranks import checked_ranks
from gnndrive.loader.tracing import check_trace
from gnndrive.sampling.samplers.base import checked_fanout
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
)
"""PyG's arguments that a loader keeps as attributes, unchanged."""

PYG_LINK_ARGUMENTS = (
    "edge_label_index",
    "edge_label",
    "edge_label_time",
    "neg_sampling_ratio",
    *PYG_ARGUMENTS[2:],
)
"""The same for a link loader."""

PLAIN_SAMPLING = {
    "input_time": None,
    "subgraph_type": "directional",
    "disjoint": False,
    "time_attr": None,
    "weight_attr": None,
    "transform_sampler_output": None,
    "neighbor_sampler": None,
    "directed": True,
}
"""The values with which the `uniform` sampler is used; with others, it is `SubgraphSampler`."""


def is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether PyG's arguments have the values of `PLAIN_SAMPLING`."""
    for name, plain in PLAIN_SAMPLING.items():
        value = arguments.get(name, plain)
        value = getattr(value, "value", value)  # of an enumeration, such as SubgraphType
        if value is not plain if plain is None else value != plain:
            return False
    return True


def whole(**argument: Any) -> int:
    """Check that the one keyword argument is a whole number, and return it as an int."""
    ((name, value),) = argument.items()
    try:
        return index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} must be a whole number") from None


def positive(**argument: int) -> int:
    """Check that the one keyword argument is a whole number of at least 1; returns it as an int."""
    ((name, value),) = argument.items()
    if whole(**argument) < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
    return index(value)


def checked_device(device: Any, memory: str | int | None) -> tuple[Any, torch.device | None]:
    """Check `device=`.

    Args:
        device: the user's argument.
        memory: the argument `device_memory=`.

    Returns:
        The device plug-in, by name or as a class, and the torch.device, or None for the host.

    Raises:
        ConfigError: there is no such device, or `memory` is given and the device is the host.
    """
    plugin, where = choose_device(device)
    if memory is not None and find("devices", plugin).free_bytes(where) is None:
        raise ConfigError("device_memory= is for a GPU: give memory= or buffer= for the host")
    return plugin, where


def checked_feature_dtype(dtype: Any) -> torch.dtype | None:
    """The torch dtype in which features are delivered; None: the dtype of the store.

    Raises:
        ConfigError: `dtype` is not a floating dtype, or the name of one.
    """
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ConfigError(f"feature_dtype={dtype!r}: give a floating dtype, such as 'float32'")
    return found


def checked_neighbors(store: Store, num_neighbors: Any) -> Any:
    """Check `num_neighbors=`; returns a list, or a dict of one list for each edge type.

    Raises:
        ConfigError: a number is not a whole number of at least -1, the lists have several lengths,
            or an edge type is missing or unknown.
    """
    if isinstance(num_neighbors, NumNeighbors):
        types = store.edge_types if store.is_hetero else None
        num_neighbors = num_neighbors.get_values(
            types
        )  # includes its default for types that it does not list
    if not isinstance(num_neighbors, Mapping):
        return checked_fanout(num_neighbors)
    if not store.is_hetero:
        raise ConfigError(
            f"num_neighbors={num_neighbors!r} is by edge type and this store is homogeneous: give "
            "one list"
        )
    num_neighbors = store.info.types.by_edge_key(num_neighbors)
    unknown = set(num_neighbors) - set(store.edge_types)
    missing = set(store.edge_types) - set(num_neighbors)
    if unknown or missing:
        raise ConfigError(
            f"num_neighbors= names {sorted(unknown) or 'no'} edge types that the store does not "
            f"have and leaves out {sorted(missing) or 'none'}: give one list, or one for each of "
            f"{', '.join(map(str, store.edge_types))}"
        )
    fanouts = {type: checked_fanout(num_neighbors[type]) for type in store.edge_types}
    if len({len(fanout) for fanout in fanouts.values()}) > 1:
        raise ConfigError(
            f"num_neighbors={fanouts!r} has lists of several lengths: give one length"
        )
    return fanouts


OWN_ARGUMENTS = {
    "memory": None,
    "buffer": None,
    "device": "cpu",
    "device_memory": None,
    "feature_dtype": None,
    "attrs": None,
    "strategy": "gnndrive",
    "sampling": "neighbor",
    "batch_dependency": 1,
    "topology": "auto",
    "neighbour_cache": None,
    "engine": "auto",
    "io_depth": 128,
    "gap": None,
    "policy": "auto",
    "sweep": "auto",
    "samplers": "auto",
    "extractors": 4,
    "extracting_queue": "auto",
    "training_queue": "auto",
    "seed": None,
    "ranks": None,
    "host_service": "auto",
    "trace": None,
    "on_stats": None,
    "stats_interval": 10.0,
}
"""gnndrive's own arguments, beside PyG's and torch's, with their defaults. A loader has an
attribute of the same name for each."""

IO_DEPTH_MAX = 4096
"""The most reads in flight: a ring's limit in the C core (native/ring.c)."""

STAGE_COUNTS = ("samplers", "extracting_queue", "training_queue")
"""Those of them that are whole numbers, or "auto": the plan's choice."""


def given_size(own: Mapping[str, Any], name: str) -> int | None:
    """The bytes of a size among gnndrive's own arguments; None: it is not given."""
    return None if own[name] is None else parse_size(own[name], name)


def refuse_own(data: Any, given: Mapping[str, Any]) -> None:
    """Refuse gnndrive's own arguments for data in memory, and a path in the place of data.

    Args:
        data: the user's data, which is not a store.
        given: the values of `OWN_ARGUMENTS`.

    Raises:
        ConfigError: one of them is not at its default, or `data` is a path.
    """
    if isinstance(data, str | os.PathLike):
        raise ConfigError(
            f"data={os.fspath(data)!r}: a loader takes an open store: give "
            f"gnndrive.open({os.fspath(data)!r})"
        )
    for name, default in OWN_ARGUMENTS.items():
        if given[name] != default and str(given[name]) != default:
            raise ConfigError(
                f"{name}={given[name]!r} is for a store, and this {type(data).__name__} is in "
                "memory: leave it out, or write a store with gnndrive.from_data(data, path) and "
                "give gnndrive.open(path)"
            )


def checked_own(given: dict[str, Any]) -> dict[str, Any]:
    """Check gnndrive's own arguments, except `device`, `feature_dtype` and `strategy`.

    Args:
        given: the values of `OWN_ARGUMENTS`.

    Returns:
        The values, whole numbers as int.

    Raises:
        ConfigError: one of them cannot work.
    """
    counts = ["io_depth", "extractors", "batch_dependency"]
    counts += [name for name in STAGE_COUNTS if given[name] != "auto"]
    checked = given | {name: positive(**{name: given[name]}) for name in counts}
    if checked["io_depth"] > IO_DEPTH_MAX:
        raise ConfigError(
            f"io_depth={given['io_depth']!r}: give at most {IO_DEPTH_MAX:,} reads in flight; disks "
            "need 64 to 256"
        )
    for kind, name in (("policies", "policy"), ("topologies", "topology"), ("engines", "engine")):
        if given[name] != "auto":
            find(kind, given[name])
    for name in ("memory", "buffer", "device_memory"):
        if given[name] is not None:
            parse_size(given[name], name)
    for name in ("gap", "neighbour_cache"):
        if given[name] is not None:
            size_or_none(given[name], name)
    checked_ranks(given["ranks"])
    check_on_stats(given)
    check_trace(given)
    service = given["host_service"]
    if service != "auto" and not isinstance(service, bool):
        raise ConfigError(f"host_service={service!r}: give True, False or 'auto'")
    sweep, seed = given["sweep"], given["seed"]
    if sweep != "auto":
        if isinstance(sweep, str):
            raise ConfigError(f"sweep={sweep!r}: give a number of batches, or 'auto'")
        checked["sweep"] = positive(sweep=sweep)
    checked["seed"] = None if seed is None else whole(seed=seed)
    return checked
