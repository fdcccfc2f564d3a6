"""The Sampler interface: seeds become a `Sample`, synchronously, in a worker thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, NodeKey, Sample, Seeds, Subgraph, ends_of
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.reader import Store

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one sample can hold.

    Attributes:
        nodes: distinct nodes, by node type.
        edges: by edge type.
        entries: nodes by node type, one that comes in several disjoint trees counted as often.
    """

    nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, int]
    entries: Mapping[NodeKey, int]


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """What a sampler is made from; each takes what it needs.

    Attributes:
        num_neighbors: fanout for each hop, or lists of it by edge type, checked.
        replace: whether to sample with replacement.
        empty: where samples get their arrays from.
        subgraphs: makes the sampler that draws in PyG's own form, where the loader's arguments ask
            for more than plain neighbour sampling of one type; None: they do not.
        store: the graph's; None: there is none, as in some tests.
    """

    num_neighbors: Any
    replace: bool = False
    empty: Allocate = np.empty
    subgraphs: Callable[[], Sampler] | None = None
    store: Store | None = None


class Sampler(ABC):
    """Samples subgraphs; several threads may use one object at once.

    What is sampled depends on the key, the seeds and the topologies alone, never on threads or on
    the order of calls.
    """

    name: str

    @classmethod
    @abstractmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """A sampler for one epoch; the context's `subgraphs()` where this class does plain sampling
        only."""

    @abstractmethod
    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample | Subgraph:
        """Sample around the seeds of a batch; blocking, in a worker thread.

        Args:
            seeds: nodes or edges, with times or without.
            key: 64 bits that stand for (seed, epoch, batch), see `batch_key`.
            topologies: one an edge type, in the order of the store's edge types.

        Raises:
            StoreError: the graph names a node that does not exist.
            ReadError: neighbours could not be read.
            ClosedError: `stop` was called.
        """

    @abstractmethod
    def stop(self) -> None:
        """Make running and later calls of `sample` end at once with ClosedError."""

    @abstractmethod
    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int]
    ) -> Bounds:
        """The most that a sample of `batch_size` distinct seeds can hold of a graph of so many
        nodes and edges of each type."""


def checked_fanout(num_neighbors: Any) -> list[int]:
    """`num_neighbors` as a list of whole numbers, -1 and more.

    Raises:
        ConfigError: it is none, or a number is too large for C.
    """
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


def most(
    seeds: Mapping[NodeKey, int],
    fanouts: Mapping[EdgeKey, Sequence[int]],
    nodes: Mapping[NodeKey, int],
    edges: Mapping[EdgeKey, int],
    replace: bool = False,
) -> Bounds:
    """The most that one sample can hold, its seeds being distinct (duplicates add entries, not
    nodes).

    Without replacement, and wherever the fanout is -1, no edge comes twice, so their number bounds
    them too.

    Args:
        seeds: how many of each node type.
        fanouts: neighbours for each hop, -1: all; by edge type.
        nodes, edges: of the graph.
        replace: whether with replacement.
    """
    total = {type: min(seeds.get(type, 0), count) for type, count in nodes.items()}
    frontier = dict(total)
    drawn, every = dict.fromkeys(edges, 0), dict.fromkeys(edges, False)
    for hop in range(max(map(len, fanouts.values()), default=0)):
        found = dict.fromkeys(nodes, 0)
        for type, fanout in fanouts.items():
            source, target = ends_of(type)
            if fanout[hop] < 0 and frontier[target]:
                every[type], found[source] = True, nodes[source]
            elif frontier[target]:
                drawn[type] += frontier[target] * fanout[hop]
                found[source] += frontier[target] * fanout[hop]
        frontier = {type: min(count, nodes[type]) for type, count in found.items()}
        total = {type: min(count + frontier[type], nodes[type]) for type, count in total.items()}
    for type, count in edges.items():
        if replace:
            drawn[type] += count * every[type]
        else:
            drawn[type] = count if every[type] else min(drawn[type], count)
    return Bounds(total, drawn, total)


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
