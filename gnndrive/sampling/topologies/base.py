"""The Topology interface: adjacency for the samplers, as CSC (in-neighbours of each node).

All topologies keep the index pointers in memory, because each node that is sampled needs two of
them; they differ in where the indices are. `plan/topology_choice.py` asks each topology for its
memory (`plan`), `sampling/graph.py` makes the chosen one, and the C sampler reads it (`csc`) or
waits until `serve` has fetched neighbours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.memory import format_size
from gnndrive.common.records import IndexPointers, TableFile, TopologyChoice
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.rounds import CancellableLock, CombinedFetch, StopToken

IO_DEPTH = 64  # reads in flight in the adjacency's ring; the features' ring is deeper
RING_BYTES = IO_DEPTH * SWEEP_BLOCK_BYTES  # staging of the adjacency's ring
BUFFER_BATCHES = 1.5  # largest batches for which the feature buffer must keep room


@dataclass(frozen=True, slots=True)
class GraphSize:
    """The size of one edge type's graph.

    Attributes:
        nodes: the number of nodes that edges go to.
        edges: the number of edges.
        index_bytes: bytes of one index, 4 or 8.
        sources: the number of nodes that edges come from, if they are of another type; else None.
    """

    nodes: int
    edges: int
    index_bytes: int
    sources: int | None = None

    @property
    def num_sources(self) -> int:
        """The number of nodes that edges come from."""
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
        """Bits of one packed index: as many as the largest node id needs."""
        return max((self.num_sources - 1).bit_length(), 1)

    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed indices, and eight more because C reads eight bytes at a time."""
        return -(-self.edges * self.packed_bits // 8) + 8

    def fits(self, indices: IndicesInMemory) -> bool:
        """Whether C reads no byte beyond these indices for a graph of this size."""
        if indices.bits:
            return indices.bits == self.packed_bits and indices.array.nbytes == self.packed_bytes
        return indices.array.nbytes == self.indices_bytes


@dataclass(frozen=True, slots=True)
class TopologyQuestion:
    """What a topology's plan depends on.

    Attributes:
        sizes: the size of each edge type's graph.
        samplers: the number of samples that are drawn at once.
        room: takes a number of largest batches, and returns the bytes that are left for the
            adjacency if the feature buffer holds that many; negative if the rest does not fit.
        given: bytes of memory that loading may use in total.
        budget: whether the user gave `given`; then memory that is not counted, such as the page
            cache, would exceed it.
        cache: bytes that the user asked for the neighbour cache; None: the topology decides.
        spare: bytes planned for the slot tables, still unused while topologies open.
        asked: whether the user named the topology.
        why: the reason to give for a topology that was chosen among several by what a batch costs;
            None: the topology gives its own.
        apart: whether the feature buffer is not there while batches are sampled, so that a
            topology may have all the room.
    """

    sizes: Sequence[GraphSize]
    samplers: int
    room: Callable[[float], int]
    given: int
    budget: bool
    cache: int | None = None
    spare: int = 0
    asked: bool = False
    why: str | None = None
    apart: bool = False

    @property
    def indices(self) -> str:
        """The size of the packed indices, for messages."""
        return f"{format_size(self.packed_bytes)} of indices"

    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed indices."""
        return sum(size.packed_bytes for size in self.sizes)


@dataclass(frozen=True, slots=True)
class IndicesInMemory:
    """All indices of one edge type in memory, as the C samplers read them.

    Attributes:
        array: packed, uint8 [`GraphSize.packed_bytes`], or as in the file, int32 or int64 [edges].
        bits: bits of one packed index; 0: they are not packed, because one of them is no node.
    """

    array: npt.NDArray[Any]
    bits: int


def private_memory(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return zeroed memory of this process, uint8 [nbytes], in huge pages if the kernel has them.

    Raises:
        MemoryError: there is not enough.
    """
    return np.frombuffer(private_map(nbytes, huge=True), np.uint8, nbytes)


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """What `Topology.make` gets; a topology uses the attributes that it needs.

    Attributes:
        indptr: index pointers in memory, int64 or uint32 [nodes + 1].
        indices: returns the memory-mapped indices, int32 or int64 [edges].
        file: the file of the indices.
        layout: opens a layout for planned reads of the file, in which a row is one index and may be
            requested several times; the maker of this context closes it.
        read: carries out a read job and returns its failures, `FAILURE` [n]; blocks, and may be
            called from any thread except the loop thread.
        cache_bytes: the most bytes of the neighbour cache; 0: no cache.
        sources: the number of nodes that edges come from, if they are of another type; else None.
        lock: the sampler that fetches holds it; shared by all topologies of a store.
        allocate: makes zeroed memory for all indices, uint8 [nbytes], or raises MemoryError; a
            topology that calls it again does not use the memory of the earlier call any more.
        in_memory: the indices, which another process has read; a topology that `shares_indices`
            uses these and reads nothing.
    """

    indptr: IndexPointers
    indices: Callable[[], npt.NDArray[Any]]
    file: TableFile
    layout: Callable[[], Layout]
    read: Callable[[ReadJob], npt.NDArray[np.void]]
    cache_bytes: int = 0
    sources: int | None = None
    lock: CancellableLock = field(default_factory=CancellableLock)
    allocate: Callable[[int], npt.NDArray[np.uint8]] = private_memory
    in_memory: IndicesInMemory | None = None


class Topology(ABC):
    """A CSC graph that the C samplers can read; several threads may use one object at once.

    Attributes:
        num_nodes: the number of nodes that edges go to.
        num_edges: the number of edges.
        path: the file that errors name.
        data_offset: where the indices start in it, if they are mapped.
        has_indices: whether C can read the indices directly, in memory or in a memory map; without
            them, whole lists cannot be read.
        keeps_lists: whether it uses a neighbour cache.
        fetches: whether samplers wait for `serve`; then samples that are drawn together read less.
        nbytes: bytes of process memory that it holds between two calls, without the page cache.
        counted: counters since the start: `neighbours_wanted`, and how many of these came from the
            cache, `neighbours_cached`.
        shares_indices: whether it keeps all indices in memory and can use those that another
            process has read.
        in_memory: these indices.
    """

    name: str
    has_indices: ClassVar[bool] = True
    keeps_lists: ClassVar[bool] = False
    shares_indices: ClassVar[bool] = False
    fetches: bool = False
    num_nodes: int
    num_edges: int
    path: str
    data_offset: int = 0
    nbytes: int
    counted: Mapping[str, int] = {"neighbours_wanted": 0, "neighbours_cached": 0}
    in_memory: IndicesInMemory | None = None

    @classmethod
    @abstractmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """Return how much memory the topologies of all edge types take, and why this kind is used.

        Returns None if another kind suits better and the user did not ask for this one.

        Raises:
            ConfigError: the settings that the user asked for cannot work.
        """

    @classmethod
    @abstractmethod
    def make(cls, context: TopologyContext) -> Self:
        """Make the topology of one edge type.

        Raises:
            StoreError: the arrays cannot be a CSC graph.
            ReadError: the indices cannot be read.
        """

    @abstractmethod
    def csc(self) -> Any:
        """Return the C `gd_csc *`, valid while this object lives.

        Its indices are NULL if they are not in memory; then samplers wait for `serve`.
        """

    def in_group(self, group: CombinedFetch[Any]) -> Topology:
        """Return the same topology for a sample whose fetches are combined with those of `group`.

        Only a topology that `fetches` needs to return another object than itself.
        """
        return self

    def serve(self, sampler: Any, stop: StopToken) -> int:
        """Give a C sampler some of the neighbours that it waits for, and continue it.

        Args:
            sampler: the C `gd_sampler *`.
            stop: ends the waiting.

        Returns:
            The result of `gd_sample_resume`.

        Raises:
            ReadError: the neighbours could not be read.
            ClosedError: `stop` was set, or the loader was closed.
        """
        raise NotImplementedError(f"{self.name} has its indices in memory")
