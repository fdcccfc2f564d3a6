"""The Sampler interface: turn the seeds of a batch into a `Sample`, in a worker thread.

The sample stage (`pipeline/sample.py`) calls `sample`; the plan (`gnndrive/plan`) calls `bounds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, NodeKey, Sample, Seeds, Subgraph, ends_of
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.labor import DRAWN_APART, Sampling
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.reader import Store

if TYPE_CHECKING:
    from gnndrive.store.packed.recording import Recording

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class BatchKey(int):
    """64 bits that identify (seed, epoch, batch), as a number, and what they were made from.

    Attributes:
        epoch: 64 bits that identify (seed, epoch).
        batch: the batch's number in its epoch.
    """

    epoch: int
    batch: int

    def __new__(cls, epoch: int, batch: int) -> Self:
        """Make the key of a batch."""
        self = super().__new__(cls, _mixed(epoch, batch))
        self.epoch, self.batch = epoch, batch
        return self

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        """What copies and pickles are made from."""
        return self.epoch, self.batch


def batch_key(seed: int, epoch: int, batch: int) -> BatchKey:
    """Return the key of a batch, for `Sampler.sample`.

    Each number is added to the state, which SplitMix64's finalizer then mixes. The finalizer is
    bijective, so no two batches of one seed and epoch share a key; a change of one number changes
    about half of the key's bits.
    """
    return BatchKey(_mixed(_mixed(0, seed), epoch), batch)


def _mixed(state: int, part: int) -> int:
    state = (state + part + _GOLDEN) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one sample can hold.

    Attributes:
        nodes: distinct nodes, by node type, in the order of the store's types.
        edges: by edge type, likewise.
        entries: nodes by node type; a node in several disjoint trees is counted once for each tree.
        expanded: nodes of all types for which a sample says where their edges start; None: all.
    """

    nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, int]
    entries: Mapping[NodeKey, int]
    expanded: int | None = None


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """What `Sampler.make` gets; a sampler uses the attributes that it needs.

    Attributes:
        num_neighbors: the fanout for each hop, or such a list by edge type; already checked.
        replace: whether to sample with replacement.
        empty: allocates the arrays of samples.
        limits: a sample with more nodes or edges of a type may be given up with `BatchTooLarge`;
            then a sampler's scratch holds no more. None: no limits.
        subgraphs: makes the sampler for loader arguments that need more than plain neighbour
            sampling of one edge type, such as times or weights; its samples are in PyG's own form.
            None: the arguments need no more.
        store: the store of the graph; None in tests without a store.
        recording: the recorded batches that a loader replays; None: it draws batches.
        window_nodes: the most nodes of the graph of a window, if the batches are drawn inside
            windows; else None.
        sampling: how neighbours are drawn; shared numbers are given only to samplers that have
            `shares_numbers`, for plain sampling without replacement.
    """

    num_neighbors: Any
    replace: bool = False
    empty: Allocate = np.empty
    limits: Bounds | None = None
    subgraphs: Callable[[], Sampler] | None = None
    store: Store | None = None
    recording: Recording | None = None
    window_nodes: int | None = None
    sampling: Sampling = DRAWN_APART


class Sampler(ABC):
    """Samples subgraphs; several threads may use one object at once.

    A sample depends on the key, the seeds and the topologies only, never on threads or on the order
    of calls.
    """

    name: str
    shares_numbers: ClassVar[bool] = False
    """Whether it draws as `SamplerContext.sampling` says, if that shares numbers."""

    @classmethod
    @abstractmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """Make a sampler: for one epoch, for a plan's `bounds`, or for a single call of the
        loader's `collate_fn`.

        A class for plain sampling only returns `context.subgraphs()` if that is not None.
        """

    @abstractmethod
    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample | Subgraph:
        """Sample around the seeds of a batch; blocks, and is called in a worker thread.

        Args:
            seeds: nodes or edges, with or without times.
            key: 64 bits that identify (seed, epoch, batch): a `BatchKey`, see `batch_key`.
            topologies: one for each edge type, in the order of the store's edge types.

        Raises:
            StoreError: the graph names a node that does not exist.
            ReadError: neighbours could not be read from disk.
            ClosedError: `stop` was called.
        """

    def samples(
        self, seeds: Sequence[Seeds], keys: Sequence[int], topologies: Sequence[Topology]
    ) -> Iterator[Sample | Subgraph]:
        """What `sample` returns for each batch of a group, in order, or raises at its turn; the
        iterator is of no use after an error."""
        return map(self.sample, seeds, keys, repeat(topologies))

    @abstractmethod
    def stop(self) -> None:
        """Make running and later calls of `sample` end at once with ClosedError."""

    @abstractmethod
    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """Return the most that a sample can hold.

        Args:
            batch_size: the number of distinct seeds.
            nodes, edges: the numbers of the graph's nodes and edges, by type.
            degrees: the in-degrees of the graph, by edge type; None: unknown.
        """


def checked_fanout(num_neighbors: Any) -> list[int]:
    """Return `num_neighbors` as a list of whole numbers of at least -1.

    Raises:
        ConfigError: it is not such a list, or a number is too large for C.
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
    degrees: Mapping[EdgeKey, Degrees] | None = None,
) -> Bounds:
    """Return the most that one sample of distinct seeds can hold.

    A sample without replacement, or with a fanout of -1, contains no edge twice, so it has at most
    as many edges as the graph.

    Args:
        seeds: the number of seeds of each node type.
        fanouts: neighbours for each hop, by edge type; -1: all.
        nodes, edges: the numbers of the graph's nodes and edges, by type.
        replace: whether the sampler draws with replacement.
        degrees: the in-degrees of the graph, by edge type; None: unknown.
    """
    total = {type: min(seeds.get(type, 0), count) for type, count in nodes.items()}
    frontier = dict(total)
    drawn, every = dict.fromkeys(edges, 0), dict.fromkeys(edges, False)
    for hop in range(max(map(len, fanouts.values()), default=0)):
        found = dict.fromkeys(nodes, 0)
        for type, fanout in fanouts.items():
            source, target = ends_of(type)
            if degrees is not None:
                found_edges = degrees[type].edges_most(frontier[target], fanout[hop], replace)
                drawn[type] += found_edges
                found[source] += found_edges
            elif fanout[hop] < 0 and frontier[target]:
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
            drawn[type] = count if every[type] else drawn[type]
        if not replace or all(fanout < 0 for fanout in fanouts[type]):
            drawn[type] = min(drawn[type], count)
    return Bounds(total, drawn, total)


def position_dtype(num_edges: int) -> type[np.int32 | np.int64]:
    """Return the dtype of CSC positions in a graph of `num_edges` edges."""
    return np.int32 if num_edges < 1 << 31 else np.int64
