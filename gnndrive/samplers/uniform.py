"""Uniform neighbour sampling (GNNDrive §4.1, sample stage), with PyG's `NeighborLoader` contract.

The work is in native/sample.c. What is here gives each thread scratch of its own, copies the result
into arrays of its exact size and turns error numbers into errors. Do not use it for weighted,
temporal or disjoint sampling.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnndrive._ffi import check, ffi, lib, pointer
from gnndrive.blocks import Allocate
from gnndrive.errors import ClosedError, ConfigError, GNNDriveError, StoreError
from gnndrive.records import Int64Array, Sample
from gnndrive.samplers.base import Sampler, checked_fanout, position_dtype
from gnndrive.topologies.base import Stop, Topology


class Uniform(Sampler):
    """Draws `num_neighbors[h]` in-neighbours, all equally likely, of each node of hop h.

    Seeds come first and in order, duplicates among them kept and each expanded; every other node is
    there once, where it was first found; hop h + 1 expands what hop h found. What is drawn for a
    node depends on (key, node) and its fanout alone. One object may be used by any number of
    threads; each call in progress has scratch of its own, as large as the largest batch so far
    needed (some 40 MB for 800,000 nodes and 900,000 edges), kept for the next.

    Args:
        num_neighbors: fanout per hop, -1 for all neighbours.
        replace: draw with replacement: a node with any neighbours gets exactly its fanout of them.
        empty: where samples get their arrays from.

    Raises:
        ConfigError: a fanout that is not an integer of at least -1.
    """

    name = "uniform"

    def __init__(
        self, num_neighbors: Sequence[int], replace: bool = False, empty: Allocate = np.empty
    ) -> None:
        self._empty = empty
        self._fanout = np.array(checked_fanout(num_neighbors), dtype=np.int64)
        self._replace = int(replace)
        self._stop = Stop()
        self._lock = threading.Lock()
        self._idle: list[Any] = []

    def sample(self, seeds: Int64Array, key: int, topology: Topology) -> Sample:
        """Sample around `seeds` (global ids, int64 [n], duplicates allowed); see `Sampler.sample`.

        Args:
            seeds: the seed nodes.
            key: 64 bits that stand for (seed, epoch, batch), see `batch_key`.
            topology: whose neighbours.

        Raises:
            StoreError: the graph names a node or an edge that is not there.
            ConfigError: a seed is not a node of the graph, or the sample has more than 2^31 - 1
                nodes or edges.
            ReadError: neighbours could not be read from disk.
            ClosedError: `stop` was called.
            MemoryError: there is no memory for the sample.
        """
        seeds = np.ascontiguousarray(seeds, dtype=np.int64)
        scratch = self._take()
        try:
            code = lib.gd_sample(
                scratch, topology.csc(), pointer(seeds), seeds.size, pointer(self._fanout),
                self._fanout.size, self._replace, key % (1 << 64), self._stop.flag,
            )  # fmt: skip
            while code == lib.GD_WANTS:
                code = topology.serve(scratch, self._stop)
            if code < 0:
                raise _error(code, lib.gd_sampler_culprit(scratch), seeds, topology)
            return self._result(scratch, topology.num_edges)
        finally:
            with self._lock:
                self._idle.append(scratch)

    def bounds(self, batch_size: int, num_nodes: int, num_edges: int) -> tuple[int, int]:
        """See `nodes_max` and `edges_max`."""
        fanout = self._fanout.tolist()
        edges = edges_max(batch_size, fanout, num_nodes, num_edges, bool(self._replace))
        return nodes_max(batch_size, fanout, num_nodes), edges

    def stop(self) -> None:
        """Make running and later calls of `sample` end at once with ClosedError."""
        self._stop.set()

    def _take(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        scratch = lib.gd_sampler_new()
        if scratch == ffi.NULL:
            raise MemoryError("no memory for a sampler's scratch: lower `memory=` or the fanout")
        return ffi.gc(scratch, lib.gd_sampler_free)

    def _result(self, scratch: Any, num_edges: int) -> Sample:
        nodes, edges = lib.gd_sampler_nodes(scratch), lib.gd_sampler_edges(scratch)
        node, row = self._empty(nodes, np.int64), self._empty(edges, np.int32)
        colptr = self._empty(lib.gd_sampler_expanded(scratch) + 1, np.int32)
        edge: Any = self._empty(edges, position_dtype(num_edges))
        nodes_per_hop = np.empty(self._fanout.size + 1, np.int64)
        edges_per_hop = np.empty(self._fanout.size, np.int64)
        lib.gd_sampler_result(
            scratch, pointer(node), pointer(row), pointer(colptr), pointer(edge), edge.itemsize,
            pointer(nodes_per_hop), pointer(edges_per_hop),
        )  # fmt: skip
        return Sample(
            node, row, colptr, edge, tuple(nodes_per_hop.tolist()), tuple(edges_per_hop.tolist())
        )


def nodes_max(batch_size: int, num_neighbors: Sequence[int], num_nodes: int) -> int:
    """The most distinct nodes that one sample can have (duplicate seeds add entries, not nodes)."""
    total = frontier = min(batch_size, num_nodes)
    for fanout in checked_fanout(num_neighbors):
        if fanout < 0:
            return num_nodes if total else 0
        frontier = min(frontier * fanout, num_nodes)
        total += frontier
    return min(total, num_nodes)


def edges_max(
    batch_size: int,
    num_neighbors: Sequence[int],
    num_nodes: int,
    num_edges: int,
    replace: bool = False,
) -> int:
    """The most edges that one sample can have, its seeds being distinct.

    Without replacement, and wherever the fanout is -1, no edge comes twice, so `num_edges` bounds
    them too.
    """
    drawn, frontier, every = 0, min(batch_size, num_nodes), False
    for fanout in checked_fanout(num_neighbors):
        if fanout < 0:
            every, frontier = True, num_nodes
        else:
            drawn += frontier * fanout
            frontier = min(frontier * fanout, num_nodes)
    if replace:
        return drawn + (num_edges if every else 0)
    return num_edges if every else min(drawn, num_edges)


def _error(code: int, culprit: int, seeds: Int64Array, topology: Topology) -> Exception:
    """What a failed `gd_sample` means to the caller."""
    if code == -errno.ECANCELED:
        return ClosedError("the sampler was stopped: its loader or iterator was closed")
    if code == -errno.ENOMEM:
        return MemoryError("no memory for a sample's scratch: lower batch_size or num_neighbors")
    if code == -errno.EOVERFLOW:
        return ConfigError(
            "a sample has more than 2^31 - 1 nodes or edges: lower batch_size or num_neighbors"
        )
    if code == -errno.ERANGE:
        return _out_of_range(culprit, seeds, topology)
    check(code, "gd_sample")
    raise AssertionError("gd_sample failed without an error number")


def _out_of_range(culprit: int, seeds: Int64Array, topology: Topology) -> GNNDriveError:
    nodes = topology.num_nodes
    if 0 <= culprit < nodes:  # a valid node, so not an id: its index pointers are what is wrong
        fault = f"the index pointers of node {culprit} do not lie within {topology.num_edges} edges"
    elif culprit in seeds:
        return ConfigError(
            f"seed {culprit} is not a node of {topology.path}: seeds go from 0 to {nodes - 1}; "
            "check input_nodes"
        )
    else:
        fault = f"a neighbour is node {culprit}, but nodes go from 0 to {nodes - 1}"
    return StoreError(
        f"{topology.path}: {fault}; the graph is damaged: run `gnndrive verify` and import it again"
    )
