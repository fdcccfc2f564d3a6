"""The Topology interface: adjacency for the samplers, as CSC (in-neighbours of each node).

Index pointers are in memory in all of them, for each node that is sampled needs two. Where the
indices are is what sets topologies apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import IndexPointers, TableFile
from gnndrive.disk.layouts.base import Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.rounds import CancellableLock, CombinedFetch, StopToken


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
class Source:
    """What a topology is opened from; each takes what it needs.

    Attributes:
        indptr: index pointers in memory, int64 or uint32 [nodes + 1].
        indices: maps the indices, int32 or int64 [edges].
        file: where the indices are.
        layout: opens the file for planned reads, in which a row is one index and may be asked for
            twice; whoever made this object closes it.
        read: carries reads out and returns the failures; blocking, from any thread but the
            pipeline's.
        cache_bytes: what to keep of the adjacency in memory, at most.
        sources: nodes that edges come from, if they are others than those they go to.
        turns: shared by the topologies of a store.
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
    """A CSC graph that the C samplers can read; one object may be used by several threads.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of edges.
        path: what to name in errors.
        fetches: whether it reads what samplers want as they go, so that those who want it together
            read less.
    """

    name: str
    fetches: bool = False
    num_nodes: int
    num_edges: int
    path: str

    @classmethod
    @abstractmethod
    def open(cls, source: Source) -> Topology:
        """A store's graph.

        Raises:
            StoreError: the arrays cannot be a CSC graph.
            ReadError: the indices cannot be read.
        """

    @classmethod
    @abstractmethod
    def planned_bytes(cls, sizes: Sequence[GraphSize], cache_bytes: int, samplers: int) -> int:
        """The most memory that those of all edge types will hold beside the index pointers while so
        many samplers work on them, the page cache not counted."""

    @abstractmethod
    def csc(self) -> Any:
        """The C `gd_csc *`, valid while this object lives; its indices are NULL if they are not in
        memory, and then samplers are to be served."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """Bytes of process memory that it holds between two calls, the page cache not counted."""

    def joining(self, round: CombinedFetch[Any]) -> Topology:
        """The same graph for samples that are drawn together."""
        return self

    def serve(self, sampler: Any, stop: StopToken) -> int:
        """Give a C sampler some of the neighbours that it waits for; what `gd_sample_resume` says.

        Raises:
            ReadError: they could not be read.
            ClosedError: `stop` was set, or the loader closed.
        """
        raise NotImplementedError(f"{self.name} has its indices in memory")

    def stats(self) -> dict[str, int]:
        """Counters since the start: `neighbours_wanted`, of them `neighbours_cached`."""
        return {"neighbours_wanted": 0, "neighbours_cached": 0}
