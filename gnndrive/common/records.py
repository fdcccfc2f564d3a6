"""The frozen records that cross rooms: what one part hands to the next, and nothing else.

A batch is a list of seeds (`Seeds`), becomes a `Sample`, its missing rows become C reads whose
progress comes back as `Stretch`es, and ends as a torch_geometric `Data`. Records know nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

EdgeType: TypeAlias = tuple[str, str, str]
"""Source, relation and target, as PyG has it."""
NodeKey: TypeAlias = "str | None"
"""A node type; None in a homogeneous graph."""
EdgeKey: TypeAlias = "EdgeType | None"
"""An edge type; None in a homogeneous graph."""
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
IndexPointers = npt.NDArray[np.int64] | npt.NDArray[np.uint32]


def ends_of(type: EdgeKey) -> tuple[NodeKey, NodeKey]:
    """The node types that edges of a type come from and go to."""
    return (None, None) if type is None else (type[0], type[2])


FAILURE = np.dtype([("slot", np.int32), ("error", np.int32), ("offset", np.int64)])
"""A row that could not be read: its slot, errno and where in the file; C's gd_failure."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds of one batch.

    Attributes:
        index: the batch's place in its epoch, from 0.
        node: global node ids, int64 [batch_size].
        input_id: what PyG calls `input_id`: positions in `input_nodes`, or ids for a mask; int64
            [batch_size].
        given: makes what PyG's samplers take, a NodeSamplerInput or EdgeSamplerInput, which may
            read the graph; None: nodes are all there is to say.
        of_edges: whether it is the latter, and `node` only as long as it.
        type: the node or edge type that they are of.
    """

    index: int
    node: Int64Array
    input_id: Int64Array
    given: Callable[[], Any] | None = None
    of_edges: bool = False
    type: NodeKey | EdgeKey = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled subgraph (GNNDrive §4.1, sample stage): seeds first, then by hop.

    Attributes:
        node: global node ids, int64 [nodes].
        row: edge `e` comes from `node[row[e]]`; int32 [edges].
        colptr: edges `colptr[p]` to `colptr[p + 1]` go to `node[p]`; int32 [p + 1] for as many of
            the first nodes as were expanded.
        edge: the edges' positions in the CSC graph, int32 or int64 [edges].
        num_sampled_nodes: new nodes per hop, hops + 1 numbers, the seeds first.
        num_sampled_edges: edges per hop, hops numbers.
    """

    node: Int64Array
    row: Int32Array
    colptr: Int32Array
    edge: Int32Array | Int64Array
    num_sampled_nodes: tuple[int, ...]
    num_sampled_edges: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """How many nodes."""
        return len(self.node)

    @property
    def num_edges(self) -> int:
        """How many edges."""
        return len(self.row)

    @property
    def col(self) -> Int32Array:
        """Edge `e` goes to `node[col[e]]`; int32 [edges], made anew at each call."""
        return np.repeat(np.arange(len(self.colptr) - 1, dtype=np.int32), np.diff(self.colptr))


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A sampled subgraph in PyG's own form, for what a `Sample` cannot say.

    Attributes:
        node: global node ids by node type, int64 [nodes]; in disjoint trees a node may come more
            than once.
        edge: its edges' CSC positions by edge type, or None where they are none of the graph's;
            int64 [edges].
        num_edges: how many edges, of all types.
        output: PyG's SamplerOutput or HeteroSamplerOutput.
        numbered: whether `edge` is numbers in the original order instead.
    """

    node: Mapping[NodeKey, Int64Array]
    edge: Mapping[EdgeKey, Int64Array | None]
    num_edges: int
    output: Any
    numbered: bool = False

    @property
    def num_nodes(self) -> int:
        """How many nodes, of all types."""
        return sum(map(len, self.node.values()))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows whose reads have ended since the last stretch of the same reads.

    Attributes:
        slots: slots whose row has landed whole, int32 [rows]; not valid before the device's commit.
        failures: rows that could not be read, `FAILURE` [rows].
    """

    slots: Int32Array
    failures: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, FAILURE))


@dataclass(frozen=True, slots=True)
class TableFile:
    """Where a table of rows lies on disk.

    Attributes:
        path: the file.
        data_offset: where row 0 starts, in bytes (a multiple of 4,096 in a store).
        row_count: number of rows.
        row_bytes: bytes of one row; rows lie one behind the other.
        dtype: the name of the element type: a numpy name or "bfloat16".
        row_shape: the shape of one row.
    """

    path: str
    data_offset: int
    row_count: int
    row_bytes: int
    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """Where rows land: slot `s` of the feature buffer starts at `address + s * slot_stride`.

    Attributes:
        address: an address in this process, aligned to 4,096 bytes; 0: rows are read and dropped,
            which only a layout with `separate` reads can do.
        slot_stride: bytes from one slot to the next.
        direct: whether a row of whole aligned sectors may be read straight into its slot.
        owner: keeps the memory alive for as long as somebody may land rows in it.
        places: where the rows land if not in their slots, int32 [rows]: counted in `slot_stride`
            from `address` too; None: in their slots.
        leave: called when nobody will land rows any more and those that landed are committed.
    """

    address: int
    slot_stride: int
    direct: bool
    owner: Any = None
    places: Int32Array | None = None
    leave: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class TopologyChoice:
    """Which topology, and why.

    Attributes:
        kind: the plug-in: its name, or the class itself.
        why: for people, beginning with its name.
        nbytes: the most memory that it takes beside the index pointers, staging included.
        cache_bytes: of that, for the neighbour cache.
        has_ring: whether staging of a ring of its own is among that.
    """

    kind: Any
    why: str
    nbytes: int
    cache_bytes: int = 0
    has_ring: bool = False


INFLIGHT_BYTES = 4 << 20
"""As much as long reads need in flight. More falls out of the processor's cache before it is copied
on: a disk read 256 KiB at a time at 7.5 GB/s with 4 MiB in flight, at 5.5 GB/s with 32."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine reads.

    Attributes:
        depth: requests in flight at once (uring), or threads (threads: at most 16 of them).
        block_bytes: bytes of one staging block; no extent is longer.
        seed: what the simulated engine draws its faults and its order from.
        faults: the simulated engine's fault rates, see `gnndrive.testing`.
        submit_batch: uring hands over after each so many prepared requests; 0: an eighth of depth.
        complete_min: uring sleeps until so many have completed, fewer if fewer are in flight.
        measure: time each request; uring then hands over and waits in two system calls.
        traffic: an `int32_t *` that several uring engines share, or None.
        gives_way: keep no more than a 64th of depth in flight while another engine with the
            same `traffic`, which does not give way, has something to read.
        inflight_bytes: uring begins no read while so many bytes are in flight; 0: however many.
    """

    depth: int = 128
    block_bytes: int = 65536
    seed: int = 0
    faults: Any = None
    submit_batch: int = 0
    complete_min: int = 1
    measure: bool = False
    traffic: Any = None
    gives_way: bool = False
    inflight_bytes: int = INFLIGHT_BYTES


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    """Which disk a folder is on.

    Attributes:
        number: the device's "major:minor".
        model, serial: what the device says of itself; empty where it says nothing.
        file_system: the file system's type, such as "ext4".
    """

    number: str
    model: str
    serial: str
    file_system: str

    def same_as(self, other: DiskIdentity) -> bool:
        """Whether both are one disk; its number may change from boot to boot, a serial does not."""
        mine = (self.model, self.serial, self.file_system)
        same = mine == (other.model, other.serial, other.file_system)
        return same and bool(self.serial or self.number == other.number)


@dataclass(frozen=True, slots=True)
class DiskCost:
    """What reading costs on a disk: `request_s` a request and `byte_s` a byte, at full depth.

    Attributes:
        request_s: seconds a request of no length.
        byte_s: seconds a byte.
        depth: requests in flight when it was measured.
        engine: the engine that measured it.
        date: when, ISO 8601 in UTC.
        disk: which disk.
        points: what was measured: bytes of a random read, and seconds a request.
    """

    request_s: float
    byte_s: float
    depth: int
    engine: str
    date: str
    disk: DiskIdentity
    points: tuple[tuple[int, float], ...]

    def seconds(self, requests: float, nbytes: float) -> float:
        """How long so many requests for so many bytes in all take."""
        return requests * self.request_s + nbytes * self.byte_s
