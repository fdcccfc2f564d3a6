"""`Strategy`: the parts that a published design is made of; `STRATEGIES`: one for each paper.

A loader's `strategy=` names one. `Assembly`, `Runtime` and `BufferPool` (`loader/`) make the parts,
which are plug-ins: each name is a file in the folder of its kind, see `gnndrive.common.plugins`. A
strategy is added to `STRATEGIES` when all its parts are built. For a strategy of your own, make a
`Strategy` whose parts are names or plug-in classes, and give it to a loader as `strategy=`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find


@dataclass(frozen=True, slots=True)
class Strategy:
    """The parts of a published design. Each part is a plug-in's name or its class.

    Attributes:
        name: the name that `strategy=` takes.
        paper: where the design was published.
        schedule: chooses the seeds of each batch.
        sampler: samples around seeds. A class for plain sampling only returns, from `make`, the
            subgraph sampler for loader arguments that need more.
        topologies: where the adjacency may live; the loader takes the first that suits the memory,
            unless the user names one.
        layout: how the rows of features lie on disk; adjacency and other attributes lie as the
            store has them.
        policy: which rows leave the feature buffer first, unless the user names another; none is
            used where the buffer holds all rows, unless the user named one.
        tiers: where rows are fetched from, below the feature buffer; the highest first.
        replays: whether batches are those of a pack, which was recorded before (`gnndrive.pack`);
            then schedule, sampler and layout read the pack, and there is no topology.
        partitioned: whether batches are sampled inside windows of a partitioned store
            (`gnndrive.partition`); then each window brings its own topology.
        superbatch: how many batches are sampled before the first of them is extracted, a number or
            "auto", unless the user says another; None: batches are not sampled ahead.
        static: the share of the nodes that such a loader holds for the whole epoch, unless the user
            says another.
        mixed: whether its windows are to mix nodes, so that partitions at random suit it best.
    """

    name: str
    paper: str
    schedule: Any
    sampler: Any
    topologies: tuple[Any, ...]
    layout: Any
    policy: Any
    tiers: tuple[Any, ...]
    replays: bool = False
    partitioned: bool = False
    superbatch: int | str | None = None
    static: float = 0.0
    mixed: bool = False


STRATEGIES = {
    each.name: each
    for each in (
        Strategy(
            "gnndrive", "GNNDrive (ICPP 2024)", "shuffled", "uniform",
            ("resident", "direct", "mmap"), "table", "belady", ("disk",),
        ),
        Strategy(
            "ginex", "Ginex (VLDB 2022)", "shuffled", "uniform",
            ("resident", "direct", "mmap"), "table", "belady", ("disk",), superbatch="auto",
        ),
        Strategy(
            "ali+pg", "AliGraph (VLDB 2019), PaGraph (SoCC 2020)", "shuffled", "uniform",
            ("direct", "resident", "mmap"), "table", "static", ("disk",),
        ),
        Strategy(
            "lsm-gnn", "LSM-GNN (2024), GIDS (VLDB 2024)", "shuffled", "uniform",
            ("resident", "direct", "mmap"), "table", "hybrid", ("victim", "disk"), superbatch=128,
        ),
        Strategy(
            "diskgnn", "DiskGNN (SIGMOD 2025)", "recorded", "recorded",
            ("mmap",), "packed", "lru", ("host-rows", "disk"), replays=True,
        ),
        Strategy(
            "hierbatching", "HierBatching", "megabatch", "inside",
            ("mmap",), "partitioned", "lru", ("disk",), partitioned=True, static=0.01,
        ),
        Strategy(
            "marius", "MariusGNN (EuroSys 2023)", "marius", "inside",
            ("mmap",), "partitioned", "lru", ("disk",), partitioned=True, mixed=True,
        ),
    )
}  # fmt: skip

AUTO = replace(STRATEGIES["gnndrive"], name="auto", paper="the cheapest with the same batches")
"""Stands for the strategy of a loader until one is chosen (`loader/strategy_choice.py`). It has the
parts of "gnndrive", whose batches all choices have."""


def strategy(name: str | Strategy) -> Strategy:
    """Find a strategy by name, or check one that was composed.

    Raises:
        ConfigError: no strategy has that name (the message lists all names), or a part of the
            strategy is no plug-in.
    """
    if isinstance(name, Strategy):
        _check_parts(name)
        return name
    if name == AUTO.name:
        return AUTO
    if not isinstance(name, str) or name not in STRATEGIES:
        names = ", ".join([AUTO.name, *sorted(STRATEGIES)])
        raise ConfigError(f"no strategy is called {name!r}; there are: {names}")
    return STRATEGIES[name]


def batches_of(strategy: Strategy) -> str:
    """The name of the first strategy in the list that has the same batches: those with the same
    schedule and sampler. A state of one resumes with another."""
    for each in STRATEGIES.values():
        if (each.schedule, each.sampler) == (strategy.schedule, strategy.sampler):
            return each.name
    return strategy.name


def _check_parts(composed: Strategy) -> None:
    """Raise ConfigError unless every part of a strategy is a plug-in of its kind."""
    for part in ("topologies", "tiers"):
        given = getattr(composed, part)
        if not isinstance(given, tuple) or not given:
            raise ConfigError(
                f"the strategy {composed.name!r} has {part}={given!r}: give a tuple of at least one"
            )
    parts = {
        "schedules": (composed.schedule,),
        "samplers": (composed.sampler,),
        "topologies": composed.topologies,
        "layouts": (composed.layout,),
        "policies": (composed.policy,),
        "tiers": composed.tiers,
    }
    for kind, plugins in parts.items():
        for plugin in plugins:
            find(kind, plugin)
