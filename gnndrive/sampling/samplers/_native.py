"""`Native`: calls the C sampler (native/sample.c) for all samplers.

It gives each call its scratch memory, fills the C job, serves neighbours from the topology when the
C code waits for some, and turns error numbers into exceptions; `InScratch` copies the result out.
`uniform.py` and `gnndrive/pyg/sampler.py` call it. Node and edge types are numbers here: indexes
into the caller's lists of types.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import (
    BatchTooLarge,
    ClosedError,
    ConfigError,
    GNNDriveError,
    StoreError,
)
from gnndrive.common.ffi import address, check, core_for, ffi, holding_gil, lib, pointer
from gnndrive.common.forks import ForkLock
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.sampling.rounds import STOPPED, StopToken
from gnndrive.sampling.samplers.base import Bounds, position_dtype
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.mapped_rows import unreadable

_MORE = 256  # native/grow.h: room beyond the most nodes
_LEAST = 4096  # native/grow.h: the first capacity of an array
WEIGHT_ONE = 1 << 30  # native/sampling.h: GD_WEIGHT_ONE


@dataclass(frozen=True, slots=True)
class Relation:
    """The edges of one type, and how to sample them.

    Attributes:
        topology: the in-neighbours of each target node, as node ids of the source type.
        fanout: neighbours for each hop, int64 [hops]; -1: all.
        source, target: the node types that edges come from and go to.
        node_time: times of the source nodes, int64 [nodes], or None.
        edge_time: times of the edges by CSC position, int64 [edges], or None.
        weight: weights of the edges by CSC position, float32 or float64 [edges], or None.
    """

    topology: Topology
    fanout: Int64Array
    source: int = 0
    target: int = 0
    node_time: Int64Array | None = None
    edge_time: Int64Array | None = None
    weight: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Seeds of one node type.

    Attributes:
        node: global ids, int64 [n], duplicates allowed.
        time: for each seed the latest time of a neighbour or edge that may be sampled, int64 [n];
            None: no limit.
    """

    node: Int64Array
    type: int = 0
    time: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class SeededBatch:
    """What one batch of a group is sampled from: see `SamplingOptions` for `key` and `shared`."""

    key: int
    seeds: Sequence[SeedGroup]
    shared: SharedNumbers | None = None


@dataclass(frozen=True, slots=True)
class SharedNumbers:
    """What the nodes' numbers of a batch are: the C struct `gd_shared`.

    Attributes:
        key, next_key: 64 bits each.
        weight, next_weight: whole numbers from 0 to `WEIGHT_ONE`.
    """

    key: int
    next_key: int = 0
    weight: int = WEIGHT_ONE
    next_weight: int = 0


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How neighbours are drawn.

    Attributes:
        key: see `Sampler.sample`.
        disjoint: sample a separate tree for each seed.
        latest: if edges or nodes have times, take the latest allowed edges instead of random ones.
        induced: return all edges between the sampled nodes instead of the drawn edges.
        shared: the nodes' numbers, if targets share them (LABOR-0); the key is then not used. It
            takes one edge type without times and weights, and neither `replace` nor `disjoint`.
    """

    key: int
    replace: bool = False
    disjoint: bool = False
    latest: bool = False
    induced: bool = False
    shared: SharedNumbers | None = None


class Native:
    """Calls the C sampler; any number of threads may share one object.

    Each call in progress has its own scratch memory, which is kept for later calls. It is as large
    as its largest batch so far needed (`scratch_bytes`): about 40 MB for 800,000 nodes and 900,000
    edges.

    Args:
        nodes_most: the most nodes of a sample, by the number of the node type; 0: no limit.
        edges_most: the most edges of a sample, by the number of the edge type; likewise.
    """

    def __init__(self, nodes_most: Sequence[int] = (), edges_most: Sequence[int] = ()) -> None:
        self._limits = tuple(nodes_most), tuple(edges_most)
        self._stop = StopToken()
        self._lock = ForkLock()
        self._idle: list[Any] = []

    def stop(self) -> None:
        """Make running and later calls end at once with ClosedError, and free their memory, which
        the tracebacks of errors refer to for a while."""
        self._stop.set()
        with self._lock:
            self._idle.clear()

    @contextmanager
    def sampled(
        self, relations: Sequence[Relation], nodes: Sequence[int], seeds: Sequence[SeedGroup],
        options: SamplingOptions,
    ) -> Iterator[InScratch]:  # fmt: skip
        """Sample, and yield the result, which the caller copies out within the `with` block.

        Raises:
            StoreError: the graph names a node or an edge that does not exist.
            ConfigError: a seed is not a node, a weight is negative or not finite, or the sample has
                more than 2^31 - 1 nodes or edges of a type.
            ReadError: neighbours could not be read from disk, or from a mapped file.
            BatchTooLarge: it has more nodes or edges than this object's limits.
            ClosedError: `stop` was called.
            MemoryError: there is not enough memory for the sample.
        """
        scratch = self._take_scratch()
        try:
            job = _Job(relations, nodes, seeds, options, self._stop.flag, *self._limits)
            code = lib.gd_sample(scratch, job.handle)
            while code == lib.GD_WANTS:
                code = relations[_waiting_edge_type(scratch)].topology.serve(scratch, self._stop)
            if code == 0 and options.induced:
                code = lib.gd_sampler_induce(scratch)
            if code < 0:
                raise _error(code, scratch, relations, nodes)
            yield InScratch(scratch, relations, options)
        finally:
            self._give_back(scratch)
            del scratch

    @contextmanager
    def sampled_group(
        self, relations: Sequence[Relation], nodes: Sequence[int], batches: Sequence[SeededBatch],
        options: SamplingOptions,
    ) -> Iterator[GroupInScratch]:  # fmt: skip
        """Sample several batches in one call, up to the first that fails, and yield the result,
        which the caller copies out within the `with` block. The graph's indices are in memory or
        mapped. `options` has neither key nor shared numbers, which the batches have, and no induced
        edges."""
        scratch = self._take_scratch()
        try:
            job = _Job(relations, nodes, (), options, self._stop.flag, *self._limits)
            done = ffi.new("int64_t *")
            code = lib.gd_sample_group(
                scratch, job.handle, job.batches(batches), len(batches), done
            )
            error = None if code == 0 else _error(code, scratch, relations, nodes)
            yield GroupInScratch(scratch, relations, len(nodes), options, done[0], error)
        finally:
            self._give_back(scratch)
            del scratch

    def _give_back(self, scratch: Any) -> None:
        with self._lock:
            if not self._stop:
                self._idle.append(scratch)

    def _take_scratch(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        scratch = lib.gd_sampler_new()
        if scratch == ffi.NULL:
            raise MemoryError("no memory for a sampler's scratch: lower `memory=` or the fanout")
        return ffi.gc(scratch, lib.gd_sampler_free)

    def __reduce__(self) -> tuple[type[Native], tuple[()]]:
        return Native, ()  # a copy in another process makes its own scratch memory


def scratch_bytes(size: Bounds, disjoint: bool = False, limited: bool = True) -> int:
    """Return the most bytes of scratch memory that samples up to `size` take in one thread;
    `limited`: `size` is the limits of `Native`, else arrays grow by doubling."""
    grown = 1 if limited else 2
    total = 0
    for count in size.entries.values():
        room = grown * (count + _MORE)
        slots = 1 << (2 * (count + 2 * _MORE) - 1).bit_length()
        total += 8 * max(slots, _LEAST) + (8 + 12 * disjoint) * max(room, _LEAST)
        total += 4 * max(2 * count, _LEAST)  # colptr, which grows by doubling
    return total + sum(12 * max(grown * count, _LEAST) for count in size.edges.values())


class InScratch:
    """A sample in the C scratch memory, valid within the `with` block of `Native.sampled`."""

    def __init__(
        self, scratch: Any, relations: Sequence[Relation], options: SamplingOptions
    ) -> None:
        self._scratch, self._relations, self._options = scratch, relations, options
        self._hops = len(relations[0].fanout) if relations else 0

    def nodes(
        self, type: int, empty: Allocate = np.empty
    ) -> tuple[Int64Array, Int32Array | None, tuple[int, ...]]:
        """Copy out the nodes of a type: global ids, int64 [nodes]; the tree of each node, int32
        [nodes], or None if trees are not disjoint; and the number of new nodes in each hop, the
        seeds first."""
        count = holding_gil.gd_sampler_nodes(self._scratch, type)
        node, tree = empty(count, np.int64), None
        if self._options.disjoint:
            tree = empty(count, np.int32)
        per_hop = np.empty(self._hops + 1, np.int64)
        core_for(count).gd_sampler_found(
            self._scratch, type, pointer(node), ffi.NULL if tree is None else pointer(tree),
            pointer(per_hop),
        )  # fmt: skip
        return node, tree, tuple(per_hop.tolist())

    def edges(
        self, relation: int, empty: Allocate = np.empty
    ) -> tuple[Int32Array, Int32Array, Int32Array | Int64Array, tuple[int, ...]]:
        """Copy out the edges of a type: the index of each edge's source among the sampled nodes,
        int32 [edges]; where the edges of each expanded target start, int32 [expanded + 1]; CSC
        positions, int32 or int64 [edges]; and the number of edges in each hop."""
        edges = holding_gil.gd_sampler_edges(self._scratch, relation)
        row = empty(edges, np.int32)
        colptr = empty(holding_gil.gd_sampler_expanded(self._scratch, relation) + 1, np.int32)
        dtype = position_dtype(self._relations[relation].topology.num_edges)
        edge: Any = empty(edges, dtype)
        per_hop = np.empty(self._hops, np.int64)
        core_for(edges).gd_sampler_drawn(
            self._scratch, relation, pointer(row), pointer(colptr), address(edge), edge.itemsize,
            pointer(per_hop),
        )  # fmt: skip
        return row, colptr, edge, tuple(per_hop.tolist())


class GroupInScratch:
    """The samples of a group in the C scratch memory, one behind the other, valid within the `with`
    block of `Native.sampled_group`.

    Attributes:
        error: why the batch behind them could not be sampled, or None; see `Native.sampled`.
    """

    def __init__(
        self, scratch: Any, relations: Sequence[Relation], types: int, options: SamplingOptions,
        batches: int, error: Exception | None,
    ) -> None:  # fmt: skip
        self._scratch, self._relations, self._options = scratch, relations, options
        self.error, self._types = error, types
        hops = len(relations[0].fanout) if relations else 0
        # native/sampling.h: gd_group_counts
        self._counts = np.empty((batches, types + len(relations), hops + 1), np.int64)
        lib.gd_group_counts(scratch, pointer(self._counts))

    def __len__(self) -> int:
        return len(self._counts)

    def nodes(
        self, type: int, empty: Allocate = np.empty
    ) -> Iterator[tuple[Int64Array, Int32Array | None, tuple[int, ...]]]:
        """Yield for each batch what `InScratch.nodes` returns, over the memory of the group."""
        per_hop = self._counts[:, type]
        ends = _ends(per_hop.sum(1))
        node, tree = empty(ends[-1], np.int64), None
        if self._options.disjoint:
            tree = empty(ends[-1], np.int32)
        core_for(ends[-1]).gd_group_found(
            self._scratch, type, pointer(node), ffi.NULL if tree is None else pointer(tree)
        )
        for begin, end, counts in zip(ends, ends[1:], per_hop.tolist(), strict=False):
            yield node[begin:end], None if tree is None else tree[begin:end], tuple(counts)

    def edges(
        self, relation: int, empty: Allocate = np.empty
    ) -> Iterator[tuple[Int32Array, Int32Array, Int32Array | Int64Array, tuple[int, ...]]]:
        """Yield for each batch what `InScratch.edges` returns, over the memory of the group."""
        counts = self._counts[:, self._types + relation]
        ends, colptr_ends = _ends(counts[:, 1:].sum(1)), _ends(counts[:, 0] + 1)
        row, colptr = empty(ends[-1], np.int32), empty(colptr_ends[-1], np.int32)
        dtype = position_dtype(self._relations[relation].topology.num_edges)
        edge: Any = empty(ends[-1], dtype)
        core_for(ends[-1]).gd_group_drawn(
            self._scratch, relation, pointer(row), pointer(colptr), address(edge), edge.itemsize
        )
        for number, (_, *per_hop) in enumerate(counts.tolist()):
            of_edges = slice(ends[number], ends[number + 1])
            of_targets = slice(colptr_ends[number], colptr_ends[number + 1])
            yield row[of_edges], colptr[of_targets], edge[of_edges], tuple(per_hop)

    def ends(self, relation: int) -> Iterator[tuple[Int64Array, Int64Array, tuple[int, ...]]]:
        """Yield for each batch both ends of its edges of a type as places among the sampled nodes,
        int64 [2, edges]; their CSC positions, int64 [edges]; and the number of edges in each hop;
        over the memory of the group."""
        counts = self._counts[:, self._types + relation, 1:]
        until = _ends(counts.sum(1))
        ends, position = np.empty(2 * until[-1], np.int64), np.empty(until[-1], np.int64)
        core = core_for(until[-1])
        core.gd_group_ends(self._scratch, relation, pointer(ends))
        core.gd_group_drawn(
            self._scratch, relation, ffi.NULL, ffi.NULL, address(position), position.itemsize
        )
        for begin, end, per_hop in zip(until, until[1:], counts.tolist(), strict=False):
            own = ends[2 * begin : 2 * end].reshape(2, end - begin)
            yield own, position[begin:end], tuple(per_hop)

    def samples(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield for each batch what `nodes` yields of each node type, and what `ends` yields of
        each edge type."""
        nodes = [list(self.nodes(type)) for type in range(self._types)]
        ends = [list(self.ends(relation)) for relation in range(len(self._relations))]
        for batch in range(len(self)):
            yield [each[batch] for each in nodes], [each[batch] for each in ends]


def _ends(counts: Int64Array) -> list[int]:
    """0 and where each of the batches ends that have so many entries one behind the other."""
    return [0, *np.cumsum(counts).tolist()]


class _Job:
    """The C `gd_sampling *` (`handle`), and references that keep alive what it points to."""

    def __init__(
        self, relations: Sequence[Relation], nodes: Sequence[int], seeds: Sequence[SeedGroup],
        options: SamplingOptions, stop: Any, nodes_most: Sequence[int] = (),
        edges_most: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._kept: list[Any] = [relations, stop]
        for relation in relations:
            _check_sizes(relation, nodes[relation.source])
        edge_types = ffi.new(
            "gd_edge_type[]",
            [
                self._edge_type(each) | {"edges_most": most}
                for each, most in zip(relations, edges_most or [0] * len(relations), strict=True)
            ],
        )
        counts = ffi.new("int64_t[]", list(nodes))
        nodes_limits = ffi.new("int64_t[]", list(nodes_most or [0] * len(nodes)))
        groups = ffi.new("gd_seeds[]", [self._seeds(group) for group in seeds])
        self._kept += [edge_types, counts, nodes_limits, groups]
        hops = {len(relation.fanout) for relation in relations} or {0}
        if len(hops) > 1:
            raise ConfigError(
                f"num_neighbors has {sorted(hops)} hops for different edge types: give all as many"
            )
        self.handle = ffi.new("gd_sampling *", {
            "edge_types": edge_types, "edge_type_count": len(relations),
            "nodes": counts, "nodes_most": nodes_limits, "node_type_count": len(nodes),
            "seeds": groups, "seeds_count": len(seeds),
            "hops": hops.pop(), "replace": options.replace, "disjoint": options.disjoint,
            "latest": options.latest, "key": options.key % (1 << 64), "stop": stop,
            "shared": self._shared(options.shared),
        })  # fmt: skip

    def batches(self, batches: Sequence[SeededBatch]) -> Any:
        """The C `gd_batch[]` of batches that are sampled as this job."""
        made = []
        for batch in batches:
            seeds = ffi.new("gd_seeds[]", [self._seeds(group) for group in batch.seeds])
            self._kept.append(seeds)
            made.append((batch.key % (1 << 64), self._shared(batch.shared), seeds, len(seeds)))
        self._kept.append(ffi.new("gd_batch[]", made))
        return self._kept[-1]

    def _shared(self, shared: SharedNumbers | None) -> Any:
        if shared is None:
            return ffi.NULL
        numbers = shared.key, shared.next_key, shared.weight, shared.next_weight
        self._kept.append(ffi.new("gd_shared *", numbers))
        return self._kept[-1]

    def _edge_type(self, relation: Relation) -> dict[str, Any]:
        weight = relation.weight
        return {
            "csc": relation.topology.csc(), "source": relation.source, "target": relation.target,
            "fanout": self._pointer(relation.fanout),
            "node_time": self._pointer(relation.node_time),
            "edge_time": self._pointer(relation.edge_time),
            "weight": ffi.NULL if weight is None else ffi.from_buffer(weight),
            "weight_bytes": 0 if weight is None else weight.itemsize,
        }  # fmt: skip

    def _seeds(self, group: SeedGroup) -> dict[str, Any]:
        return {
            "node": self._pointer(group.node), "time": self._pointer(group.time),
            "count": len(group.node), "type": group.type,
        }  # fmt: skip

    def _pointer(self, array: npt.NDArray[Any] | None) -> Any:
        if array is None:
            return ffi.NULL
        array = np.ascontiguousarray(array, dtype=np.int64)
        self._kept.append(array)
        return pointer(array)


def _check_sizes(relation: Relation, sources: int) -> None:
    """Refuse an array of another size than the graph: C reads one entry for each node or edge."""
    edges = relation.topology.num_edges
    for name, size in (("node_time", sources), ("edge_time", edges), ("weight", edges)):
        array = getattr(relation, name)
        if array is not None and array.shape != (size,):
            raise ConfigError(
                f"{relation.topology.path}: {name.replace('_', ' ')} has the shape "
                f"{list(array.shape)} and needs {[size]}, a number for each "
                f"{'node' if name == 'node_time' else 'edge'}"
            )


def _waiting_edge_type(scratch: Any) -> int:
    wanted = ffi.new("gd_wanted *")
    lib.gd_sampler_wanted(scratch, wanted)
    return int(wanted.edge_type)


def _error(
    code: int, scratch: Any, relations: Sequence[Relation], nodes: Sequence[int]
) -> Exception:
    if code == -errno.ECANCELED:
        return ClosedError(STOPPED)
    if code == -errno.ENOMEM:
        return MemoryError("no memory for a sample's scratch: lower batch_size or num_neighbors")
    if code == -errno.E2BIG:
        return BatchTooLarge("a sample has more nodes or edges than the loader's plan counts")
    if code == -errno.EOVERFLOW:
        return ConfigError(
            "a sample has more than 2^31 - 1 nodes or edges: lower batch_size or num_neighbors"
        )
    edge_type = ffi.new("int32_t *")
    culprit = lib.gd_sampler_culprit(scratch, edge_type)
    if code == -errno.ENXIO:
        counts = " or ".join(str(count - 1) for count in nodes)
        return ConfigError(
            f"seed {culprit} is not a node of {relations[0].topology.path if relations else 'it'}: "
            f"seeds go from 0 to {counts}; check input_nodes"
        )
    if code in (-errno.EFAULT, -errno.ERANGE, -errno.EDOM, -errno.EIO):
        relation = relations[edge_type[0]]
        return _graph_error(code, culprit, relation.topology, nodes[relation.source])
    check(code, "gd_sample")
    raise AssertionError("gd_sample failed without an error number")


def _graph_error(code: int, culprit: int, topology: Topology, sources: int) -> GNNDriveError:
    if code == -errno.EIO:
        return unreadable(topology.path, topology.data_offset + max(culprit, 0))
    if code == -errno.EDOM:
        return ConfigError(
            f"{topology.path}: the weight of the edge at position {culprit} is negative, infinite "
            "or no number: check the attribute that weight_attr names"
        )
    if code == -errno.EFAULT:
        fault = f"the index pointers of node {culprit} do not lie within {topology.num_edges} edges"
    else:
        fault = f"a neighbour is node {culprit}, but nodes go from 0 to {sources - 1}"
    return StoreError(
        f"{topology.path}: {fault}; the graph is damaged: run `gnndrive verify` and import it again"
    )
