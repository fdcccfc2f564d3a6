"""`Sharing`: what a host service has for a loader, which `Assembly` decides before it plans.

The service is one that the ranks of a host start together, or one that the user has started for
several loaders (`gnndrive serve`). It can have the graph for all of them, that is index pointers,
labels and a resident adjacency. It can have a feature buffer, which the ranks of one loader share,
if that lies in host memory and batches come in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find, name_of, names
from gnndrive.host.connect import service_of
from gnndrive.host.inquiry import ask
from gnndrive.loader.ranks import Ranks
from gnndrive.plan.plan import Served
from gnndrive.store.reader import Store
from gnndrive.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a host service has for a loader.

    Attributes:
        buffer: the feature buffer.
        graph: index pointers, labels and a resident adjacency.
        served: what a service that the user has started has left; None: the loader uses none.
    """

    buffer: bool = False
    graph: bool = False
    served: Served | None = None


def what_service_has(
    store: Store, ranks: Ranks, wanted: bool | str, strategy: Strategy, not_shared: str,
    topologies: Sequence[Any], engine: Any, policy: Any, device: tuple[Any, Any], in_order: bool,
) -> Sharing:  # fmt: skip
    """Decide what a host service has for a loader, or for its ranks of this host.

    Args:
        store: what the loader loads from; opened through a service, or from its folder.
        ranks: which rank this is, of how many.
        wanted: the loader's `host_service=`.
        not_shared: see `Scheme`.
        strategy, engine, policy, device, in_order: see `Assembly`.
        topologies: those that the plan may choose.

    Raises:
        ConfigError: a service is wanted (`host_service=True`) and cannot have anything.
        HostServiceError: the service that the store was opened through has ended, or does not
            answer.
    """
    service, why_not = service_of(store), ""
    if service is not None and ranks.group is None and ranks.on_host > 1:
        why_not = "a sampler deals batches to several ranks, and ranks= is not given"
    elif service is None and (ranks.group is None or ranks.on_host < 2):
        why_not = "there is one rank on this host, or ranks= is not given"
    else:
        why_not = not_shared
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
    buffer = known and in_order and find("devices", device[0]).shares_slots
    graph = all(is_known("topologies", each) for each in topologies)
    if service is None or not (buffer or graph):
        return Sharing(buffer, graph)
    report = ask(service)
    return Sharing(buffer, graph, Served(report.left, frozenset(report.graphs)))


def is_known(kind: str, plugin: Any) -> bool:
    """Whether a plug-in is gnndrive's, so that another process finds it by its name."""
    name = name_of(plugin)
    return name in names(kind) and find(kind, name) is find(kind, plugin)
