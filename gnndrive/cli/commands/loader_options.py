"""`LoaderOptions`: the options of the commands that say how batches are loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from gnndrive.common.memory import parse_size
from gnndrive.common.plugins import find
from gnndrive.loader.arguments import checked_device
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.store.reader import Store
from gnndrive.strategies.base import strategy as find_strategy

SAMPLERS = 4  # of batches that are drawn


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How batches are loaded; `NeighborLoader` explains the arguments.

    `samplers` is None where the strategy decides: 4 to draw from the whole graph, else "auto".
    """

    fanout: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    seed: int = 0
    buffer: str | int | None = None
    memory: str | int | None = None
    engine: str = "auto"
    samplers: int | None = None
    extractors: int = 4
    topology: str = "auto"
    neighbour_cache: str | int | None = None
    device: str = "cpu"
    device_memory: str | int | None = None
    strategy: str = "gnndrive"
    sampling: Literal["neighbor", "labor"] = "neighbor"
    batch_dependency: int = 1

    def drawn(self) -> LoaderOptions:
        """The same for batches of an evaluation, which are drawn from the whole graph."""
        if find_strategy(self.strategy).whole_graph:
            return self
        return replace(self, strategy="gnndrive")

    def where(self) -> torch.device:
        """Where the batches are.

        Raises:
            ConfigError, NotImplementedError: there is no such device.
        """
        device: torch.device | None = checked_device(self.device, self.device_memory)[1]
        return torch.device("cpu") if device is None else device

    def device_bytes(self) -> int | None:
        """Bytes of the device's own memory that loading may use; None: it uses the host's."""
        plugin, where = checked_device(self.device, self.device_memory)
        if self.device_memory is not None:
            return parse_size(self.device_memory, "device_memory")
        free: int | None = find("devices", plugin).free_bytes(where)
        return free

    def loader(self, store: Store, seeds: Any, shuffle: bool, **more: Any) -> NeighborLoader:
        """Make a loader over `seeds`; `more` has further arguments of it, or arguments in place of
        these options. Batches have what training reads, whatever else the store has."""
        decides = not find_strategy(self.strategy).whole_graph
        given = asdict(self)
        given["attrs"] = trained(store)
        given["samplers"] = self.samplers or ("auto" if decides else SAMPLERS)
        fanout = list(given.pop("fanout"))
        return NeighborLoader(store, fanout, seeds, shuffle=shuffle, **{**given, **more})


def trained(store: Store) -> list[str]:
    """The names of the attributes that training reads, of those that the store has."""
    there = {name for view in (*store.all_nodes(), *store.all_edges()) for name in view.row_names}
    return [name for name in ("x", "y") if name in there]
