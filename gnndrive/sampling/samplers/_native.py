"""What samplers share: scratch for each thread, the C job, results copied out, errors in words.

The sampling itself is in native/sample.c. Node and edge types are numbers here: their places in the
lists that a sampler was made with.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ClosedError, ConfigError, GNNDriveError, StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.samplers.base import position_dtype
from gnndrive.sampling.topologies.base import Topology


@dataclass(frozen=True, slots=True)
class Relation:
    """The edges of one type, as they are sampled.

    Attributes:
        topology: their in-neighbours: index pointers of the target's nodes, indices of the
            source's.
        fanout: for each hop, int64 [hops]; -1: all.
        source, target: the node types.
        node_time: of the source's nodes, int64 [nodes], or None.
        edge_time: at CSC positions, int64 [edges], or None.
        weight: at CSC positions, float32 or float64 [edges], or None.
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
        type: their node type.
        time: what is later than it is not there, int64 [n]; None: the end of time.
    """

    node: Int64Array
    type: int = 0
    time: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How neighbours are drawn.

    Attributes:
        key: 64 bits that stand for (seed, epoch, batch).
        replace: with replacement.
        disjoint: each seed has a tree of its own.
        latest: where there are times, not any of the edges that were there but the latest.
        induced: all edges between the nodes that were found, instead of those drawn.
    """

    key: int
    replace: bool = False
    disjoint: bool = False
    latest: bool = False
    induced: bool = False


class Native:
    """Calls the C sampler; any number of threads may share one.

    Each call in progress has scratch of its own, as large as the largest batch so far needed (some
    40 MB for 800,000 nodes and 900,000 edges), kept for the next.
    """

    def __init__(self) -> None:
        self._stop = StopToken()
        self._lock = threading.Lock()
        self._idle: list[Any] = []

    def stop(self) -> None:
        """Make running and later calls end at once with ClosedError."""
        self._stop.set()

    @contextmanager
    def sampled(
        self, relations: Sequence[Relation], nodes: Sequence[int], seeds: Sequence[SeedGroup],
        options: SamplingOptions,
    ) -> Iterator[InScratch]:  # fmt: skip
        """Sample; the result is to be copied out within the `with`.

        Args:
            relations: one an edge type.
            nodes: how many there are of each node type.
            seeds: a group or several.
            how: how to draw.

        Raises:
            StoreError: the graph names a node or an edge that is not there.
            ConfigError: a seed is not a node, a weight is none, or the sample has more than
                2^31 - 1 nodes or edges of a type.
            ReadError: neighbours could not be read from disk.
            ClosedError: `stop` was called.
            MemoryError: there is no memory for the sample.
        """
        scratch = self._take()
        try:
            job = _Job(relations, nodes, seeds, options, self._stop.flag)
            code = lib.gd_sample(scratch, job.handle)
            while code == lib.GD_WANTS:
                code = relations[_waiting(scratch)].topology.serve(scratch, self._stop)
            if code == 0 and options.induced:
                code = lib.gd_sampler_induce(scratch)
            if code < 0:
                raise _error(code, scratch, relations, nodes)
            yield InScratch(scratch, relations, options)
        finally:
            with self._lock:
                self._idle.append(scratch)

    def _take(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        scratch = lib.gd_sampler_new()
        if scratch == ffi.NULL:
            raise MemoryError("no memory for a sampler's scratch: lower `memory=` or the fanout")
        return ffi.gc(scratch, lib.gd_sampler_free)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy in another process has scratch of its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class InScratch:
    """A sample that is still in its scratch."""

    def __init__(
        self, scratch: Any, relations: Sequence[Relation], options: SamplingOptions
    ) -> None:
        self._scratch, self._relations, self._options = scratch, relations, options
        self._hops = len(relations[0].fanout) if relations else 0

    def nodes(
        self, type: int, empty: Allocate = np.empty
    ) -> tuple[Int64Array, Int32Array | None, tuple[int, ...]]:
        """Nodes of a type: global ids, int64 [nodes]; if disjoint their trees, int32 [nodes]; and
        how many were new in each hop, the seeds first."""
        count = lib.gd_sampler_nodes(self._scratch, type)
        node, tree = empty(count, np.int64), None
        if self._options.disjoint:
            tree = empty(count, np.int32)
        per_hop = np.empty(self._hops + 1, np.int64)
        lib.gd_sampler_found(
            self._scratch, type, pointer(node), ffi.NULL if tree is None else pointer(tree),
            pointer(per_hop),
        )  # fmt: skip
        return node, tree, tuple(per_hop.tolist())

    def edges(
        self, relation: int, empty: Allocate = np.empty
    ) -> tuple[Int32Array, Int32Array, Int32Array | Int64Array, tuple[int, ...]]:
        """Edges of a type: where their sources are among the nodes, int32 [edges]; where each
        target's start, int32 [expanded + 1]; CSC positions, int32 or int64 [edges]; and how many
        there are of each hop."""
        edges = lib.gd_sampler_edges(self._scratch, relation)
        row = empty(edges, np.int32)
        colptr = empty(lib.gd_sampler_expanded(self._scratch, relation) + 1, np.int32)
        dtype = position_dtype(self._relations[relation].topology.num_edges)
        edge: Any = empty(edges, dtype)
        per_hop = np.empty(self._hops, np.int64)
        lib.gd_sampler_drawn(
            self._scratch, relation, pointer(row), pointer(colptr), pointer(edge), edge.itemsize,
            pointer(per_hop),
        )  # fmt: skip
        return row, colptr, edge, tuple(per_hop.tolist())


class _Job:
    """A C `gd_sampling *`, `handle`, and what it points to."""

    def __init__(
        self, relations: Sequence[Relation], nodes: Sequence[int], seeds: Sequence[SeedGroup],
        options: SamplingOptions, stop: Any,
    ) -> None:  # fmt: skip
        self._kept: list[Any] = [relations, stop]
        for relation in relations:
            _check_sizes(relation, nodes[relation.source])
        edge_types = ffi.new("gd_edge_type[]", [self._edge_type(each) for each in relations])
        counts = ffi.new("int64_t[]", list(nodes))
        groups = ffi.new("gd_seeds[]", [self._seeds(group) for group in seeds])
        self._kept += [edge_types, counts, groups]
        hops = {len(relation.fanout) for relation in relations} or {0}
        if len(hops) > 1:
            raise ConfigError(
                f"num_neighbors has {sorted(hops)} hops for different edge types: give all as many"
            )
        self.handle = ffi.new("gd_sampling *", {
            "edge_types": edge_types, "edge_type_count": len(relations),
            "nodes": counts, "node_type_count": len(nodes),
            "seeds": groups, "seeds_count": len(seeds),
            "hops": hops.pop(), "replace": options.replace, "disjoint": options.disjoint,
            "latest": options.latest, "key": options.key % (1 << 64), "stop": stop,
        })  # fmt: skip

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
    """C reads as far as the graph reaches."""
    edges = relation.topology.num_edges
    for name, size in (("node_time", sources), ("edge_time", edges), ("weight", edges)):
        array = getattr(relation, name)
        if array is not None and array.shape != (size,):
            raise ConfigError(
                f"{relation.topology.path}: {name.replace('_', ' ')} has the shape "
                f"{list(array.shape)} and needs {[size]}, a number for each"
            )


def _waiting(scratch: Any) -> int:
    wanted = ffi.new("gd_wanted *")
    lib.gd_sampler_wanted(scratch, wanted)
    return int(wanted.edge_type)


def _error(
    code: int, scratch: Any, relations: Sequence[Relation], nodes: Sequence[int]
) -> Exception:
    """What a failed sample means to the caller."""
    if code == -errno.ECANCELED:
        return ClosedError("the sampler was stopped: its loader or iterator was closed")
    if code == -errno.ENOMEM:
        return MemoryError("no memory for a sample's scratch: lower batch_size or num_neighbors")
    if code == -errno.EOVERFLOW:
        return ConfigError(
            "a sample has more than 2^31 - 1 nodes or edges: lower batch_size or num_neighbors"
        )
    turn = ffi.new("int32_t *")
    culprit = lib.gd_sampler_culprit(scratch, turn)
    if code == -errno.ENXIO:
        counts = " or ".join(str(count - 1) for count in nodes)
        return ConfigError(
            f"seed {culprit} is not a node of {relations[0].topology.path if relations else 'it'}: "
            f"seeds go from 0 to {counts}; check input_nodes"
        )
    if code in (-errno.EFAULT, -errno.ERANGE, -errno.EDOM):
        relation = relations[turn[0]]
        return _graph_error(code, culprit, relation.topology, nodes[relation.source])
    check(code, "gd_sample")
    raise AssertionError("gd_sample failed without an error number")


def _graph_error(code: int, culprit: int, topology: Topology, sources: int) -> GNNDriveError:
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
