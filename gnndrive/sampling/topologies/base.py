"""The Topology interface: adjacency for the samplers, as CSC (in-neighbours of each node).

Index pointers are in memory in all of them, for each node that is sampled needs two. Where the
indices are is what sets topologies apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.memory import format_size
from gnndrive.common.records import IndexPointers, TableFile, TopologyChoice
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.rounds import CancellableLock, CombinedFetch, StopToken

IO_DEPTH = 64  # of the adjacency's ring; the features' ring is deeper and has more to read
RING_BYTES = IO_DEPTH * SWEEP_BLOCK_BYTES  # of its staging
BUFFER_BATCHES = 1.5  # largest batches that the feature buffer shall hold beside all indices


@dataclass(frozen=True, slots=True)
class GraphSize:
    """How large a graph is.

    Attributes:
        nodes, edges: their numbers.
        index_bytes: bytes of one index, 4 or 8.
        sources: nodes that edges come from, if they are others than those they go to.
    """

    nodes: int
    edges: int
    index_bytes: int
    sources: int | None = None

    @property
    def num_sources(self) -> int:
        """Nodes that edges come from."""
        return self.nodes if self.sources is None else self.sources

    @property
    def index_pointer_bytes(self) -> int:
        """Bytes of the index pointers, which every topology keeps in memory."""
        return (4 if self.edges < 1 << 32 else 8) * (self.nodes + 1)

    @property
    def indices_bytes(self) -> int:
        """Bytes of all indices."""
        return self.edges * self.index_bytes

    @property
    def packed_bits(self) -> int:
        """Bits that a node's number needs."""
        return max((self.num_sources - 1).bit_length(), 1)

    @property
    def packed_bytes(self) -> int:
        """Bytes of all indices with no more bits than that, and eight behind the last."""
        return -(-self.edges * self.packed_bits // 8) + 8


@dataclass(frozen=True, slots=True)
class TopologyQuestion:
    """What a topology's plan depends on.

    Attributes:
        sizes: of the graph, one an edge type.
        samplers: samples that are drawn at once.
        room: bytes that the adjacency may take beside everything else and a feature buffer of so
            many of the largest batches; less than 0 if there is too little without it.
        given: bytes of memory that loading may use in all.
        budget: whether the user gave that number, so that memory which is not counted, such as the
            page cache, would break it.
        cache: bytes asked for the neighbour cache; None: the topology decides.
        spare: bytes that are counted for the time after opening and free until then.
        asked: whether the user named the topology.
    """

    sizes: Sequence[GraphSize]
    samplers: int
    room: Callable[[float], int]
    given: int
    budget: bool
    cache: int | None = None
    spare: int = 0
    asked: bool = False

    @property
    def indices(self) -> str:
        """How much the packed indices are, for people."""
        return f"{format_size(self.packed_bytes)} of indices"

    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed indices."""
        return sum(size.packed_bytes for size in self.sizes)


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """What a topology of one edge type is made from; each takes what it needs.

    Attributes:
        indptr: index pointers in memory, int64 or uint32 [nodes + 1].
        indices: maps the indices, int32 or int64 [edges].
        file: where the indices are.
        layout: opens the file for planned reads, in which a row is one index and may be asked for
            several times; closed by whoever made this object.
        read: carries reads out and returns the failures; blocking, from any thread except the
            pipeline's.
        cache_bytes: the most that may be kept of the adjacency in memory.
        sources: nodes that edges come from, if they are of another type than those they go to.
        lock: held by the sampler that fetches; shared by the topologies of a store.
    """

    indptr: IndexPointers
    indices: Callable[[], npt.NDArray[Any]]
    file: TableFile
    layout: Callable[[], Layout]
    read: Callable[[ReadJob], npt.NDArray[np.void]]
    cache_bytes: int = 0
    sources: int | None = None
    lock: CancellableLock = field(default_factory=CancellableLock)


class Topology(ABC):
    """A CSC graph that the C samplers can read; several threads may use one object at once.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of edges.
        path: what to name in errors.
        has_indices: whether C finds the indices in memory or in a map; if not, samplers that look
            at whole lists cannot use it.
        keeps_lists: whether it uses a neighbour cache.
        fetches: whether samplers must be served, so that samples that are drawn together read less.
        nbytes: bytes of process memory that it holds between two calls, page cache not counted.
        counted: counters since the start: `neighbours_wanted`, of them `neighbours_cached`.
    """

    name: str
    has_indices: ClassVar[bool] = True
    keeps_lists: ClassVar[bool] = False
    fetches: bool = False
    num_nodes: int
    num_edges: int
    path: str
    nbytes: int
    counted: Mapping[str, int] = {"neighbours_wanted": 0, "neighbours_cached": 0}

    @classmethod
    @abstractmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """How much memory the topologies of all edge types take, and why this one; None: another
        one suits better, and the user did not ask for this one.

        Raises:
            ConfigError: what was asked for cannot work.
        """

    @classmethod
    @abstractmethod
    def make(cls, context: TopologyContext) -> Self:
        """The graph of one edge type of a store.

        Raises:
            StoreError: the arrays cannot be a CSC graph.
            ReadError: the indices cannot be read.
        """

    @abstractmethod
    def csc(self) -> Any:
        """The C `gd_csc *`, valid while this object lives; its indices are NULL if they are not in
        memory, and then samplers must be served."""

    def joining(self, group: CombinedFetch[Any]) -> Topology:
        """The same graph for one of the samples that fetch together in `group`."""
        return self

    def serve(self, sampler: Any, stop: StopToken) -> int:
        """Give a C sampler some of the neighbours that it waits for; returns `gd_sample_resume`'s
        result.

        Raises:
            ReadError: they could not be read.
            ClosedError: `stop` was set, or the loader closed.
        """
        raise NotImplementedError(f"{self.name} has its indices in memory")
