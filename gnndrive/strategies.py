"""The papers, one line each: the schedule, sampler, topologies, layout, policy and tiers of each.

Each name on the right is a file in the folder of its kind. A strategy is listed once all its parts
are built. A strategy of your own is a `Strategy` whose parts are names or plug-in classes; give it
to a loader as `strategy=`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a published design is made of; see `gnndrive.common.plugins`.

    Attributes:
        name: what loaders call it.
        paper: where it was published.
        schedule, sampler, layout: plug-ins, by name or as classes. The layout is the features'
            alone; the adjacency and other attributes lie as the store has them.
        topologies: the loader takes the first that suits the memory, unless the user names one.
        policy: what leaves the feature buffer first, unless the user names another.
        tiers: what lies below the feature buffer, the highest first.
    """

    name: str
    paper: str
    schedule: Any
    sampler: Any
    topologies: tuple[Any, ...]
    layout: Any
    policy: Any
    tiers: tuple[Any, ...]


STRATEGIES = {
    each.name: each
    for each in (
        Strategy(
            "gnndrive", "GNNDrive (ICPP 2024)", "shuffled", "uniform",
            ("resident", "direct", "mmap"), "table", "belady", ("disk",),
        ),
    )
}  # fmt: skip


def strategy(name: str | Strategy) -> Strategy:
    """The strategy of that name; a `Strategy` as it is.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if isinstance(name, Strategy):
        return name
    if name not in STRATEGIES:
        raise ConfigError(
            f"no strategy is called {name!r}; there are: {', '.join(sorted(STRATEGIES))}"
        )
    return STRATEGIES[name]
