"""The papers, one line each: which schedule, sampler, layout, policy and tiers make it up.

Each name on the right is a file in the folder of its kind. A strategy whose parts are not all built
yet is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a published design is made of; names of plug-ins, see `gnndrive.common.plugins`.

    Attributes:
        topology, policy: what the loader takes unless it is told; "auto": by the memory there is.
    """

    paper: str
    schedule: str
    sampler: str
    topology: str
    layout: str
    policy: str
    tier: str


STRATEGIES = {
    "gnndrive": Strategy(
        "GNNDrive (ICPP 2024)", "shuffled", "uniform", "auto", "table", "auto", "disk"
    ),
}


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise ConfigError(
            f"no strategy is called {name!r}; there are: {', '.join(sorted(STRATEGIES))}"
        )
    return STRATEGIES[name]
