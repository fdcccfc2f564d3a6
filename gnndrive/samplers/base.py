"""The Sampler interface: seeds become a `Sample`, synchronously, in a worker thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import index
from typing import Any

import numpy as np

from gnndrive.errors import ConfigError
from gnndrive.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.topologies.base import Topology

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Sampler(ABC):
    """Samples subgraphs; one object may be used by several threads at once.

    What is sampled depends on the key, the seeds and the topology alone, never on threads or
    arrival.
    """

    name: str

    @abstractmethod
    def sample(self, seeds: Int64Array, key: int, topology: Topology) -> Sample:
        """Sample around `seeds` (global ids, int64 [n], duplicates allowed).

        Args:
            seeds: the seed nodes.
            key: 64 bits that stand for (seed, epoch, batch).
            topology: whose neighbours.

        Raises:
            StoreError: the graph names a node that is not there.
            ReadError: neighbours could not be read.
            ClosedError: `stop` was called.
        """

    def draw(self, seeds: Seeds, key: int, topology: Topology) -> Sample | Subgraph:
        """Sample around a batch's seeds, of whatever kind they are; what the pipeline calls."""
        return self.sample(seeds.node, key, topology)

    @abstractmethod
    def stop(self) -> None:
        """Make running and later calls of `sample` end at once with ClosedError."""

    @abstractmethod
    def bounds(self, batch_size: int, num_nodes: int, num_edges: int) -> tuple[int, int]:
        """The most distinct nodes and the most edges that a sample of `batch_size` seeds can
        have."""

    def entries_max(self, batch_size: int, num_nodes: int) -> int:
        """The most nodes that a sample of `batch_size` distinct seeds can have; more than distinct
        ones only if a node may come more than once; 0: never."""
        return 0


def checked_fanout(num_neighbors: Any) -> list[int]:
    """`num_neighbors` as a list of whole numbers, -1 and more.

    Raises:
        ConfigError: it is none, or a number is too large for C.
    """
    if isinstance(num_neighbors, dict):
        raise NotImplementedError("num_neighbors as a dict (heterogeneous graphs) is not built yet")
    try:
        fanout = [index(count) for count in num_neighbors]
    except TypeError:
        fanout = [-2]
    if any(not -1 <= count < 1 << 63 for count in fanout):
        raise ConfigError(
            f"num_neighbors={num_neighbors!r}: give a list with a whole number for each hop, "
            "0 or more, or -1 for all neighbours"
        )
    return fanout


def position_dtype(num_edges: int) -> type[np.int32 | np.int64]:
    """What holds the CSC position of one of so many edges."""
    return np.int32 if num_edges < 1 << 31 else np.int64


def batch_key(seed: int, epoch: int, batch: int) -> int:
    """64 bits that stand for (seed, epoch, batch): `Sampler.sample`'s key.

    Each number is added to the state and the state mixed by SplitMix64's bijective finalizer, so
    that for one seed and epoch no two batches share a key, and keys that differ in any one number
    have nothing else in common.
    """
    state = 0
    for part in (seed, epoch, batch):
        state = (state + part + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
