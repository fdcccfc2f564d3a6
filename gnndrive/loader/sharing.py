"""`Sharing`: what the ranks of a host share, which `Assembly` decides before it plans.

The graph, that is index pointers, labels and a resident adjacency, can be shared by all ranks. A
feature buffer can be shared if it lies in host memory and batches come in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find, name_of, names
from gnndrive.loader.ranks import Ranks
from gnndrive.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the ranks of a host share.

    Attributes:
        buffer: the feature buffer.
        graph: index pointers, labels and a resident adjacency.
    """

    buffer: bool = False
    graph: bool = False


def what_ranks_share(
    ranks: Ranks, wanted: bool | str, strategy: Strategy, engine: Any, policy: Any,
    device: tuple[Any, Any], in_order: bool,
) -> Sharing:  # fmt: skip
    """Decide what a loader's ranks of this host share.

    Args:
        ranks: which rank this is, of how many.
        wanted: the loader's `host_service=`.
        strategy, engine, policy, device, in_order: see `Assembly`.

    Raises:
        ConfigError: they are to share (`host_service=True`) and cannot share anything.
    """
    why_not = ""
    if ranks.group is None or ranks.on_host < 2:
        why_not = "there is one rank on this host, or ranks= is not given"
    elif strategy.replays:
        why_not = f"strategy={strategy.name!r} replays a pack, in which each batch has its place"
    if why_not and wanted is True:
        raise ConfigError(
            f"host_service=True cannot be had, because {why_not}: give host_service='auto'"
        )
    if why_not or wanted is False:
        return Sharing()
    parts = [("layouts", strategy.layout), ("policies", policy), ("devices", device[0])]
    parts += [("tiers", tier) for tier in strategy.tiers]
    parts += [] if engine == "auto" else [("engines", engine)]
    known = all(is_known(kind, part) for kind, part in parts)
    return Sharing(known and in_order and find("devices", device[0]).shares_slots, True)


def is_known(kind: str, plugin: Any) -> bool:
    """Whether a plug-in is gnndrive's, so that another process finds it by its name."""
    name = name_of(plugin)
    return name in names(kind) and find(kind, name) is find(kind, plugin)
