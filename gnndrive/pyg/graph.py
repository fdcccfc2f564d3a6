"""A store's graph as a sampler wants it: topology, times and weights."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnndrive.adjacency import mapped
from gnndrive.errors import ConfigError
from gnndrive.pyg.arrays import as_times
from gnndrive.store.reader import Store
from gnndrive.topologies.base import Topology


class StoredGraph:
    """The graph of a store. Times and weights are read into memory when they are first wanted.

    Args:
        store: whose.
        time_attr: the attribute of nodes or edges that is the time, or None.
        weight_attr: the attribute of edges that is the weight, or None.

    Attributes:
        of_nodes: whether the times are nodes'.

    Raises:
        ConfigError: the store has no such attribute.
    """

    def __init__(self, store: Store, time_attr: str | None, weight_attr: str | None) -> None:
        self.store, self._time, self._weight = store, time_attr, weight_attr
        self._read: dict[str, Tensor] = {}
        self._lock = threading.Lock()
        self.of_nodes = time_attr in store.node_names
        if not self.of_nodes:
            self._check("time_attr", time_attr, (*store.node_names, *store.edge_names))
        self._check("weight_attr", weight_attr, store.edge_names)

    def _check(self, what: str, name: str | None, names: Any) -> None:
        if name is not None and name not in names:
            raise ConfigError(
                f"{what}={name!r}: {self.store.path} has no such attribute, but "
                f"{', '.join(sorted(names)) or 'none'}"
            )

    @property
    def temporal(self) -> bool:
        """Whether there are times."""
        return self._time is not None

    @property
    def identity(self) -> str:
        """Which attributes they are."""
        return f"time={self._time} weight={self._weight}"

    @property
    def nbytes(self) -> int:
        """Bytes of times and weights in memory."""
        timed = self.store.num_nodes if self.of_nodes else self.store.num_edges
        return 8 * timed * self.temporal + 8 * self.store.num_edges * (self._weight is not None)

    def topology(self) -> Topology:
        """The graph on mapped indices, for a sample here and there."""
        return mapped(self.store)

    def times(self) -> Tensor | None:
        """Times of nodes, or of edges at CSC positions, int64.

        Raises:
            ConfigError: they are no whole numbers.
        """
        with self._lock:
            if self._time is not None and "times" not in self._read:
                of_nodes = f"nodes/{self._time}"
                found = self.store.tensor(of_nodes) if self.of_nodes else self._of_edges(self._time)
                self._read["times"] = torch.from_numpy(np.array(as_times(found)))
            return self._read.get("times")

    def weights(self) -> Tensor | None:
        """Weights of edges at CSC positions."""
        with self._lock:
            if self._weight is not None and "weights" not in self._read:
                self._read["weights"] = self._of_edges(self._weight)
            return self._read.get("weights")

    def edge_id(self) -> Tensor | None:
        """The original number of the edge at each CSC position, int64 [edges]; None: that is it."""
        edge_id = self.store.edge_id
        return None if edge_id is None else torch.from_numpy(np.array(edge_id, np.int64))

    def _of_edges(self, name: str) -> Tensor:
        value, edge_id = self.store.tensor(f"edges/{name}"), self.edge_id()
        return value.clone() if edge_id is None else value[edge_id]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_read": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
