"""Checks of a loader's arguments, for `neighbor_loader.py` and `store_loader.py`.

Each `checked_…` function returns the argument in the form that the loader uses, or raises
ConfigError with what to give instead. A new argument of gnndrive's goes into `OWN_ARGUMENTS`.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader
from torch_geometric.sampler import NumNeighbors

from gnndrive.buffer.devices import choose as choose_device
from gnndrive.buffer.devices.base import Device
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size, size_or_none
from gnndrive.common.names import Arguments, did_you_mean
from gnndrive.common.plugins import find
from gnndrive.loader.ranks import checked_ranks
from gnndrive.loader.tracing import check_trace
from gnndrive.pyg.padding import padding_of
from gnndrive.sampling.samplers.base import checked_fanout
from gnndrive.store.reader import Store
from gnndrive.strategies.base import refuse_strategy_arguments

OnStats: TypeAlias = Callable[[dict[str, float]], object]

PYG_ARGUMENTS = (
    "input_nodes", "input_time", "subgraph_type", "disjoint", "temporal_strategy", "time_attr",
    "weight_attr", "transform_sampler_output", "is_sorted", "filter_per_worker",
    "neighbor_sampler", "directed",
)  # fmt: skip
"""PyG's arguments that a loader keeps as attributes, unchanged."""

PYG_LINK_ARGUMENTS = (
    "edge_label_index", "edge_label", "edge_label_time", "neg_sampling_ratio", *PYG_ARGUMENTS[2:],
)  # fmt: skip
"""The same for a link loader."""

OF_KWARGS = ("custom_cls", "input_id", "input_time")
"""PyG's arguments that a loader takes in `kwargs`, beside torch's."""


def is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether PyG's arguments ask for plain neighbour sampling, without a `SubgraphSampler`."""
    not_given = (
        "input_time", "time_attr", "weight_attr", "transform_sampler_output", "neighbor_sampler",
    )  # fmt: skip
    kind = arguments["subgraph_type"]
    return (
        all(arguments[name] is None for name in not_given)
        and getattr(kind, "value", kind) == "directional"  # the value of PyG's SubgraphType
        and not arguments["disjoint"]
        and arguments["directed"]
    )


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


def named_folder(argument: str, named: Any, within: Path, remedy: str) -> Path:
    """The folder that an argument names, in `within` or by its path; ConfigError: none is there."""
    try:
        text = os.fsdecode(named)
    except TypeError:
        text = ""
    if not text or "\0" in text:
        raise ConfigError(f"{argument}={named!r} is no name or path of a folder; {remedy}")
    inside = [] if {".", ".."}.intersection(text.split("/")) else [within / text]
    places = [*inside, Path(os.path.abspath(text))]
    for path in places:
        if os.path.isdir(path):
            return path
    tried = " or ".join(dict.fromkeys(map(str, places)))  # one place if the path is absolute
    raise ConfigError(f"{argument}={named!r} is not there: no folder is at {tried}; {remedy}")


def checked_device(device: Any, memory: str | int | None) -> tuple[Any, torch.device | None]:
    """Check `device=` and `device_memory=`; the device plug-in, and the torch.device or None."""
    plugin, where = choose_device(device)
    if memory is None:
        return plugin, where
    kind: type[Device] = find("devices", plugin)
    if size_or_none(memory, "device_memory") == 0 and (slots := kind.host_slots()) is not None:
        return slots, where
    if kind.free_bytes(where) is None:
        raise ConfigError("device_memory= is for a GPU: give memory= or buffer= for the host")
    return plugin, where


def checked_feature_dtype(dtype: Any) -> torch.dtype | None:
    """Check `feature_dtype=`, a floating dtype or its name; None: the dtype of the store."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ConfigError(f"feature_dtype={dtype!r}: give a floating dtype, such as 'float32'")
    return found


def checked_neighbors(store: Store, num_neighbors: Any) -> Any:
    """Check `num_neighbors=`; returns a list, or a dict of one list for each edge type."""
    if isinstance(num_neighbors, NumNeighbors):
        types = store.edge_types if store.is_hetero else None
        num_neighbors = num_neighbors.get_values(types)  # with its default for types not listed
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
        meant = did_you_mean(next(iter(unknown), ""), store.edge_types)
        raise ConfigError(
            f"num_neighbors= names {sorted(unknown) or 'no'} edge types that the store does not "
            f"have{meant} and leaves out {sorted(missing) or 'none'}: give one list, or one "
            f"for each of {', '.join(map(str, store.edge_types))}"
        )
    fanouts = {type: checked_fanout(num_neighbors[type]) for type in store.edge_types}
    if len({len(fanout) for fanout in fanouts.values()}) > 1:
        raise ConfigError(
            f"num_neighbors={fanouts!r} has lists of several lengths: give one length"
        )
    return fanouts


@dataclass(frozen=True, kw_only=True)
class Tuning(Arguments):
    """How a loader's pipeline works; none of it changes a batch. Sizes are bytes or a text.

    Args:
        topology: where the adjacency lives: "resident" (in memory), "mmap" (memory-mapped),
            "direct" (on disk, read by gnndrive), or a topology plug-in's class. "auto": the first
            of the strategy's topologies that suits the memory.
        neighbour_cache: with topology="direct", the memory for adjacency that is kept; 0: none.
            None: a tenth of the memory if there is room.
        engine: how to read: "uring" (io_uring), "threads", or an engine plug-in's class. "auto":
            io_uring if the kernel allows it, else threads.
        io_depth: the number of reads in flight at once.
        gap: rows with at most this many unneeded bytes between them on disk are read in one
            request; 0: only rows that touch or share a sector, as in the paper. None: what
            `gnndrive bench disk` measured for this disk, else 8192.
        policy: which rows leave the feature buffer first: "lru" (as in the paper), "belady" (those
            that the queued samples need last or not at all), "static" (those of nodes with few
            out-edges), "hybrid" (by next use and reverse PageRank), or a policy plug-in's class.
            "auto": the strategy's policy, or none if the buffer holds all rows.
        sweep: how many waiting batches are read in one sorted pass; 1: one, as in the paper, even
            if batches are small.
            "auto": as many as the buffer has room for, up to eight; one if it holds all rows.
        samplers: the most batches that are sampled at once; with topology="direct" they share their
            reads. The loader's pool has samplers + 2 threads for all blocking work, gathers
            included. A positive `num_workers` of the loader replaces it. "auto": 4, or with
            `memory` as many as pay for their memory.
        extractors: the number of tasks that read batches' rows into the feature buffer.
        extracting_queue: how many batches may be sampled or wait for an extractor. "auto": 6, or
            with `memory` as many as pay for their memory.
        training_queue: how many batches may be extracted or wait to be delivered. "auto": likewise,
            4 at most.
        exchange: with `ranks`, whether the ranks' feature buffers act as one: each row has an owner
            that alone reads and keeps it, and sends it to the ranks that need it, over TCP, or
            has their GPUs copy it. For ranks on several hosts, whose caches would hold the same
            rows, or whose stores have a part of the rows each, and for GPUs of one host. "auto":
            with "lsm-gnn", if all ranks are on one host and have GPUs. "stride": as in
            LSM-GNN's paper, row i belongs to rank i modulo their number, not to that of its stretch
            of 4 MiB.
        remote_cache: with an exchange, each rank's memory for rows that others own, which it keeps
            so that they come over the network less often; for networks that are slower than the
            disk. 0: none.
    """

    topology: Any = "auto"
    neighbour_cache: str | int | None = None
    engine: Any = "auto"
    io_depth: int = 128
    gap: str | int | None = None
    policy: Any = "auto"
    sweep: str | int = "auto"
    samplers: str | int = "auto"
    extractors: int = 4
    extracting_queue: str | int = "auto"
    training_queue: str | int = "auto"
    exchange: bool | str = "auto"
    remote_cache: str | int = 0


TUNING = tuple(each.name for each in fields(Tuning))
"""The names of its arguments."""

OWN_ARGUMENTS = {
    "memory": None, "buffer": None, "device": "cpu", "device_memory": None, "feature_dtype": None,
    "attrs": None, "pad": None, "strategy": "gnndrive", "sampling": "neighbor", "seed": None,
    "ranks": None, "host_service": "auto", "trace": None, "on_stats": None, "stats_interval": 10.0,
    "tuning": None,
}  # fmt: skip
"""gnndrive's own arguments, beside PyG's and torch's, with their defaults. A loader has an
attribute of the same name for each."""

IO_DEPTH_MAX = 4096
"""The most reads in flight: a ring's limit in the C core (native/ring.c)."""

STAGE_COUNTS = ("samplers", "extracting_queue", "training_queue")
"""Arguments of `Tuning` that are whole numbers, or "auto": the plan's choice."""


def refuse_own(data: Any, given: Mapping[str, Any]) -> None:
    """Refuse values of `OWN_ARGUMENTS` for data that is not a store."""
    for name, default in OWN_ARGUMENTS.items():
        if given[name] != default and str(given[name]) != default:
            raise ConfigError(
                f"{name}={given[name]!r} is for a store, and this {type(data).__name__} is in "
                "memory: leave it out, or write a store with gnndrive.from_data(data, path) and "
                "give gnndrive.open(path)"
            )


def refuse_old_names(given: Mapping[str, Any], named: Any) -> None:
    """Refuse arguments that belong to a strategy, to `tuning=` or to `sampling=`, where they are
    given beside these. The message says the form that works; `named` is the loader's `strategy=`.
    """
    refuse_strategy_arguments(given, named)
    for name, value in given.items():
        if name in TUNING:
            raise ConfigError(
                f"{name}={value!r} belongs to tuning=: give "
                f"tuning=gnndrive.Tuning({name}={value!r})"
            )
        if name == "batch_dependency":
            raise ConfigError(
                f"{name}={value!r} belongs to sampling=: give "
                f"sampling=gnndrive.Labor(dependency={value!r})"
            )


def refuse_unknown(loader: str, arguments: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that are neither the loader's, of whose `arguments` they are those
    in "kwargs", nor torch's: torch's own error names none that may be meant."""
    known = [*arguments, *OF_KWARGS, *inspect.signature(DataLoader).parameters]
    for name in arguments["kwargs"]:
        if name not in known:
            raise ConfigError(
                f"{loader} has no argument {name}{did_you_mean(name, [*known, *TUNING])}; "
                f"help({loader}) says what there is"
            )


def flat(own: Mapping[str, Any]) -> dict[str, Any]:
    """gnndrive's own arguments of a loader, with those of `tuning=` beside the others."""
    return {**own, **vars(own["tuning"] or Tuning())}


def preset(own: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """The flat arguments of a loader with other values of `Tuning` where the user gave none."""
    default = vars(Tuning())
    return {**own, **{each: values[each] for each in values if own[each] == default[each]}}


def checked_tuning(tuning: Any, num_workers: int | None) -> Tuning:
    """Check `tuning=`; torch's `num_workers`, if positive, replaces `samplers`."""
    if not isinstance(tuning, Tuning | None):
        raise ConfigError(f"tuning={tuning!r}: give gnndrive.Tuning(…)")
    workers = {"samplers": num_workers} if whole(num_workers=num_workers or 0) > 0 else {}
    given = vars(tuning or Tuning()) | workers
    counts = ["io_depth", "extractors"]
    counts += [name for name in STAGE_COUNTS if given[name] != "auto"]
    checked = {name: positive(**{name: given[name]}) for name in counts}
    if checked["io_depth"] > IO_DEPTH_MAX:
        raise ConfigError(
            f"io_depth={given['io_depth']!r}: give at most {IO_DEPTH_MAX:,} reads in flight; disks "
            "need 64 to 256"
        )
    for kind, name in (("policies", "policy"), ("topologies", "topology"), ("engines", "engine")):
        if given[name] != "auto":
            find(kind, given[name])
    for name in ("gap", "neighbour_cache", "remote_cache"):
        if given[name] is not None:
            size_or_none(given[name], name)
    if not isinstance(given["exchange"], bool) and given["exchange"] not in ("auto", "stride"):
        raise ConfigError(f"exchange={given['exchange']!r}: give 'auto', True, False or 'stride'")
    if (sweep := given["sweep"]) != "auto":
        if isinstance(sweep, str):
            raise ConfigError(f"sweep={sweep!r}: give a number of batches, or 'auto'")
        checked["sweep"] = positive(sweep=sweep)
    return Tuning(**given | checked)


def checked_own(given: dict[str, Any]) -> dict[str, Any]:
    """Check the values of `OWN_ARGUMENTS`, except `device`, `feature_dtype`, `strategy`, `sampling`
    and `tuning`; whole numbers as int."""
    for name in ("memory", "buffer"):
        if given[name] is not None:
            parse_size(given[name], name)
    checked_ranks(given["ranks"])
    padding_of(given["pad"])
    on_stats, interval = given["on_stats"], given["stats_interval"]
    if on_stats is not None and not callable(on_stats):
        raise ConfigError(
            f"on_stats={on_stats!r}: give a function that takes a dict, such as "
            "on_stats=print, or None"
        )
    number = isinstance(interval, Real) and not isinstance(interval, bool)
    if not number or not 0 < float(interval) < math.inf:
        raise ConfigError(f"stats_interval={interval!r}: give a positive number of seconds")
    check_trace(given)
    service = given["host_service"]
    if service != "auto" and not isinstance(service, bool):
        raise ConfigError(f"host_service={service!r}: give True, False or 'auto'")
    seed = given["seed"]
    return given | {"seed": None if seed is None else whole(seed=seed)}
