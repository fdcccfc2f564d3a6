"""A store's graph as a sampler wants it: topology, times and weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnndrive.adjacency import mapped
from gnndrive.errors import ConfigError
from gnndrive.pyg.arrays import as_times, as_weights
from gnndrive.store.reader import Store
from gnndrive.topologies.base import Topology

_STEP = 1 << 20  # numbers at once


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

    @property
    def degree_max(self) -> int:
        """The most in-edges of a node, all of which are looked at; 0: no list is."""
        if self._time is None and self._weight is None:
            return 0
        pointers = self.store.index_pointers
        steps = range(0, len(pointers) - 1, _STEP)
        return max((int(np.diff(pointers[at : at + _STEP + 1]).max()) for at in steps), default=0)

    def times(self) -> Tensor | None:
        """Times of nodes, or of edges at CSC positions, int64.

        Raises:
            ConfigError: they are no whole numbers.
        """
        with self._lock:
            if self._time is not None and "times" not in self._read:
                name = f"nodes/{self._time}" if self.of_nodes else f"edges/{self._time}"
                self._read["times"] = self._in_memory(name, as_times, torch.int64)
            return self._read.get("times")

    def weights(self) -> Tensor | None:
        """Weights of edges at CSC positions, float32 or float64."""
        with self._lock:
            if self._weight is not None and "weights" not in self._read:
                name = f"edges/{self._weight}"
                narrow = self.store.tensor(name).dtype == torch.float32
                dtype = torch.float32 if narrow else torch.float64
                self._read["weights"] = self._in_memory(name, as_weights, dtype)
            return self._read.get("weights")

    def edge_id(self) -> Tensor | None:
        """The original number of the edge at each CSC position, memory-mapped; None: that is it."""
        return None if self.store.edge_id is None else self.store.tensor("graph/edge_id")

    def _in_memory(
        self, name: str, convert: Callable[[Tensor], npt.NDArray[Any]], dtype: torch.dtype
    ) -> Tensor:
        """An attribute of nodes, or of edges at CSC positions, a piece at a time."""
        value, edge_id = self.store.tensor(name), self.edge_id()
        whole = torch.empty(len(value), dtype=dtype)
        for at in range(0, len(value), _STEP):
            piece = slice(at, at + _STEP)
            if edge_id is not None and name.startswith("edges/"):
                found = value[edge_id[piece].to(torch.int64)]
            else:
                found = value[piece]
            flat = torch.from_numpy(convert(found))
            if flat.shape != whole[piece].shape:
                raise ConfigError(f"{self.store.path}/{name}: give one number for each, not a row")
            whole[piece] = flat
        return whole

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_read": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
