"""Frozen records that one part of the package hands to another.

A batch starts as `Seeds` and becomes a `Sample` (or a `Subgraph`); the reads of its missing rows
report progress as `Stretch`es, and the loader yields it as a torch_geometric `Data`. This module
imports only `items`, so that every folder may use its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.items import Item, Owner, Phase, Shape, Use

EdgeType: TypeAlias = tuple[str, str, str]
"""(source, relation, target), as in PyG."""
NodeKey: TypeAlias = "str | None"
"""A node type; None in a homogeneous graph."""
EdgeKey: TypeAlias = "EdgeType | None"
"""An edge type; None in a homogeneous graph."""
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint16]
IndexPointers = npt.NDArray[np.int64] | npt.NDArray[np.uint32]


def ends_of(type: EdgeKey) -> tuple[NodeKey, NodeKey]:
    """Return the node types that edges of a type come from and go to."""
    return (None, None) if type is None else (type[0], type[2])


FAILURE = np.dtype([("slot", np.int32), ("error", np.int32), ("offset", np.int64)])
"""A row that could not be read: `slot` is its place in the landing (see `Landing`) until the
device's commit turns it into a slot; errno and file offset; the C `gd_failure`."""


EVICTED = np.dtype(
    [("row", np.int64), ("key", np.int64), ("slot", np.int32), ("known", np.uint16),
     ("unused", np.uint16)]
)  # fmt: skip
"""A row that an admission took out of its slot; the C `gd_evicted`."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Rows that an admission took out of their slots.

    Attributes:
        rows: `EVICTED` [n], contiguous; the row that the policy gives up first comes
            first. Their slots have their bytes until rows that are fetched later are committed.
        next_use: the index of the batch that needs each row next, int64 [n]; the largest int64: no
            known batch does.
        now: the index of the newest batch that is being admitted.
    """

    rows: npt.NDArray[np.void]
    next_use: Int64Array
    now: int


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds of one batch.

    Attributes:
        index: the batch's place among those that this process loads in the epoch, from 0.
        node: global node ids, int64 [batch_size]; for seed edges only its length has a meaning.
        input_id: what PyG calls `input_id`: positions in `input_nodes`, or node ids if the input
            nodes are a mask; int64 [batch_size].
        given: makes the NodeSamplerInput or EdgeSamplerInput that PyG's samplers take, which may
            read the graph; None: `node` alone describes the seeds.
        of_edges: whether the seeds are edges, and `given` makes an EdgeSamplerInput.
        type: the node or edge type of the seeds; None in a homogeneous graph.
        dealt: the batch's number among the batches of all ranks; None: there is one rank.
        again: how often the batch comes again later in the epoch, as it is, with this number.
    """

    index: int
    node: Int64Array
    input_id: Int64Array
    given: Callable[[], Any] | None = None
    of_edges: bool = False
    type: NodeKey | EdgeKey = None
    dealt: int | None = None
    again: int = 0

    @property
    def number(self) -> int:
        """The batch's number in its epoch, which its random draws depend on: `dealt` or `index`."""
        return self.index if self.dealt is None else self.dealt

    def dealt_as(self, dealt: int, index: int) -> Seeds:
        """The same seeds with these numbers: what `dataclasses.replace` makes, in a third of its
        time."""
        return Seeds(
            index, self.node, self.input_id, self.given, self.of_edges, self.type, dealt, self.again
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a recorded batch brings beside its sample.

    Attributes:
        seeds: the seeds that it was recorded with, under the index that it has in this epoch.
        rows: table name → where the batch's rows lie in the packed file, int64 [n].
    """

    seeds: Seeds
    rows: Mapping[str, Int64Array]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled subgraph (GNNDrive §4.1, sample stage): seeds first, then the nodes of each hop.

    Attributes:
        node: global node ids, int64 [nodes].
        row: edge `e` comes from `node[row[e]]`; int32 [edges].
        colptr: edges `colptr[p]` to `colptr[p + 1]` go to `node[p]`; int32 [expanded + 1], for the
            first nodes, which were expanded.
        edge: positions of the edges in the CSC graph, int32 or int64 [edges].
        num_sampled_nodes: the number of new nodes in each hop, the seeds first; hops + 1 numbers.
        num_sampled_edges: the number of edges in each hop; hops numbers.
        numbered: whether `edge` holds edge numbers in the original order instead of CSC positions.
        replayed: what a recorded batch brings; None: the sample was drawn.
        rows: table name → where the rows of the nodes lie in the table, int64 [nodes], for tables
            whose rows do not lie at the node ids; None: there are no such tables.
    """

    node: Int64Array
    row: Int32Array
    colptr: Int32Array
    edge: Int32Array | Int64Array
    num_sampled_nodes: tuple[int, ...]
    num_sampled_edges: tuple[int, ...]
    numbered: bool = False
    replayed: Replayed | None = None
    rows: Mapping[str, Int64Array] | None = None

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self.node)

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return len(self.row)

    @property
    def col(self) -> Int32Array:
        """Edge `e` goes to `node[col[e]]`; int32 [edges], made anew at each call."""
        return np.repeat(np.arange(len(self.colptr) - 1, dtype=np.int32), np.diff(self.colptr))


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A sampled subgraph in PyG's own form: several types, disjoint trees, times, seed edges.

    Attributes:
        node: global node ids by node type, int64 [nodes]; with disjoint trees a node may occur
            several times.
        edge: CSC positions of the edges by edge type, int64 [edges]; None for edges that are not
            edges of the graph.
        num_edges: the number of edges of all types.
        output: PyG's SamplerOutput or HeteroSamplerOutput.
        numbered: whether `edge` holds edge numbers in the original order instead of CSC positions.
        replayed: what a recorded batch brings; None: the sample was drawn.
        rows: see `Sample`.
        ends: both ends of the edges by edge type, places among the nodes, int64 [2, edges], if
            `node`, `edge` and they are as C has drawn them; None: `output` has the ends.
    """

    node: Mapping[NodeKey, Int64Array]
    edge: Mapping[EdgeKey, Int64Array | None]
    num_edges: int
    output: Any
    numbered: bool = False
    replayed: Replayed | None = None
    rows: Mapping[str, Int64Array] | None = None
    ends: Mapping[EdgeKey, Int64Array] | None = None

    @property
    def num_nodes(self) -> int:
        """The number of nodes of all types."""
        return sum(map(len, self.node.values()))


@dataclass(frozen=True, slots=True)
class NextUses:
    """When the rows of a batch are needed next, of one table, as far as its superbatch knows.

    Attributes:
        codes: for each row the code of the next batch that needs it, `GD_NO_CODE` for none, uint16
            [n]; the code of batch i is `i % GD_NO_CODE`.
        near: int64 [GD_NEAR]. near[0]: how many distinct rows the batch has; near[d]: how many of
            these the d-th batch behind it needs next. None: batches of other ranks come between.
    """

    codes: Codes
    near: Int64Array | None


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """Rows in memory of the host that a device reads itself.

    Attributes:
        memory: where they are among others, uint8 [n, row_bytes].
        rows: which of them, int32 [rows].
        leave: called once the device has read them.
    """

    memory: npt.NDArray[np.uint8]
    rows: Int32Array
    leave: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows of a read job whose reads have ended since its last stretch.

    Attributes:
        slots: places whose whole row has landed (see `Landing`), int32 [rows]; on the host a place
            is a slot, and the device's commit turns places into slots. The rows are valid after it.
        failures: rows that could not be read, `FAILURE` [rows]; likewise.
        pinned: where the device reads the rows of `slots`; None: at the landing.
    """

    slots: Int32Array
    failures: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, FAILURE))
    pinned: PinnedRows | None = None


@dataclass(frozen=True, slots=True)
class TableFile:
    """The place of a table of rows on disk.

    Attributes:
        data_offset: where row 0 starts, in bytes (a multiple of 4,096 in a store).
        row_bytes: bytes of one row; rows are consecutive.
        dtype: the name of the element type: a numpy name or "bfloat16".
    """

    path: str
    data_offset: int
    row_count: int
    row_bytes: int
    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """The memory in which rows land: place `p` starts at `address + p * slot_stride`.

    On the host a place is a slot. On a device with staging it is a place in a portion of staging;
    the device's commit turns places into slots.

    Attributes:
        address: an address in this process, aligned to 4,096 bytes; 0: rows are read and dropped,
            which only a table layout with `separate` reads can do.
        slot_stride: bytes from one place to the next.
        direct: whether a row of whole aligned sectors may be read straight into its place.
        owner: the object that owns the memory; a reference keeps the memory alive.
        places: the place of each row, int32 [rows]; None: the place of a row is its slot.
        leave: called once: after all rows have ended and those that landed are committed, or if
            the fetch could not start.
    """

    address: int
    slot_stride: int
    direct: bool
    owner: Any = None
    places: Int32Array | None = None
    leave: Callable[[], None] = lambda: None


NO_TOPOLOGY = "none"
"""The name of the topology of a loader that has none, or none yet."""


@dataclass(frozen=True, slots=True)
class TopologyChoice:
    """Which topology a loader uses, and why.

    Attributes:
        kind: the plug-in: its name, or the class itself.
        why: a text for users, which starts with the topology's name.
        nbytes: the most bytes that it takes besides the index pointers, staging included.
        cache_bytes: how many of `nbytes` are for the neighbour cache.
        has_ring: whether `nbytes` includes the staging of a ring for the adjacency.
    """

    kind: Any
    why: str
    nbytes: int
    cache_bytes: int = 0
    has_ring: bool = False

    @property
    def name(self) -> str:
        """The plug-in's name."""
        name: str = self.kind if isinstance(self.kind, str) else self.kind.name
        return name

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `gnndrive.common.items.Part`; a loader without a topology takes nothing for one."""
        if self.name != NO_TOPOLOGY:
            owner = Owner.RANK if self.has_ring else Owner.GRAPH
            during = Phase.SAMPLING if shape.apart else Phase.BOTH
            yield Item(
                "topology", self.nbytes, self.why, owner, during=during, argument="topology",
                use=Use.GRAPH,
            )  # fmt: skip


INFLIGHT_BYTES = 4 << 20
"""The bytes in flight that long reads need. With more, staged data leaves the processor's cache
before it is copied: a disk gave 7.5 GB/s in reads of 256 KiB with 4 MiB in flight, 5.5 GB/s with 32
MiB."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine reads.

    Attributes:
        depth: requests in flight at once (uring), or threads (threads: at most 16 of them).
        block_bytes: bytes of one staging block; no extent is longer.
        seed: decides the order of completions and the faults of the simulated engine.
        faults: the simulated engine's fault rates, see `gnndrive.testing`.
        submit_batch: uring submits after so many prepared requests; 0: an eighth of depth.
        complete_min: uring sleeps until so many requests have completed, or all in flight if these
            are fewer.
        measure: time each request; uring then submits and waits in two system calls.
        traffic: an `int32_t *` that several uring engines share, in which engines that do not give
            way count their jobs; None: the engine shares none.
        gives_way: keep at most a 64th of depth in flight while another engine with the same
            `traffic` has jobs and does not give way.
        inflight_bytes: uring starts no read while so many bytes of reads are in flight, and no
            write while so many of writes are; 0: no limit.
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
        model, serial: as the device reports them; empty if it does not.
        file_system: the file system's type, such as "ext4".
    """

    number: str
    model: str
    serial: str
    file_system: str

    def same_as(self, other: DiskIdentity) -> bool:
        """Return whether both are the same disk; a serial decides, because a number may change."""
        mine = (self.model, self.serial, self.file_system)
        same = mine == (other.model, other.serial, other.file_system)
        return same and bool(self.serial or self.number == other.number)


@dataclass(frozen=True, slots=True)
class DiskCost:
    """The cost of reads on a disk at full depth, as a line: seconds by requests and bytes; and that
    of long writes.

    Attributes:
        request_s: seconds for each request, without its bytes.
        byte_s: seconds for each byte.
        depth: requests in flight during the measurement.
        date: of the measurement, ISO 8601 in UTC.
        points: the measured points: bytes of one random read, and seconds for each request.
        write_byte_s: seconds for each byte of long writes, beside what long reads at the same time
            take; None: not measured.
    """

    request_s: float
    byte_s: float
    depth: int
    engine: str
    date: str
    disk: DiskIdentity
    points: tuple[tuple[int, float], ...]
    write_byte_s: float | None = None

    def seconds(self, requests: float, nbytes: float) -> float:
        """Return the seconds that `requests` requests for `nbytes` bytes in total take."""
        return requests * self.request_s + nbytes * self.byte_s
