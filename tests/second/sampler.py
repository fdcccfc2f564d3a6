"""A sampler in numpy that draws runs of neighbouring edges instead of single ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.common.ffi import ffi
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample, Seeds
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers.base import (
    Bounds,
    Sampler,
    SamplerContext,
    checked_fanout,
    most,
    position_dtype,
)
from gnndrive.sampling.topologies.base import Topology
from tests.second.use import used


class Runs(Sampler):
    """Takes as many in-neighbours of a node as asked for, one behind the other from a place that
    (key, node) determine, and goes on at the list's start behind its end."""

    name = "runs"

    def __init__(self, context: SamplerContext) -> None:
        self._fanout = checked_fanout(context.num_neighbors)
        self._replace, self._empty = context.replace, context.empty
        self._stopped = threading.Event()

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        return cls(context) if context.subgraphs is None else context.subgraphs()

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        (topology,) = topologies
        graph, frontier = _Graph(topology), np.array(seeds.node, np.int64)
        graph.check_seeds(frontier)
        node, counts, found, edges = frontier, [], [], [len(seeds.node)]
        positions: list[Int64Array] = []
        sources: list[Int64Array] = []
        for fanout in self._fanout:
            self._refuse_stopped()
            count, position = self._drawn(graph, frontier, fanout, key)
            source = graph.sources(position)
            distinct, first = np.unique(source, return_index=True)
            fresh = ~np.isin(distinct, node)
            frontier = distinct[fresh][np.argsort(first[fresh])]
            node = np.concatenate([node, frontier])
            counts.append(count)
            positions.append(position)
            sources.append(source)
            found.append(len(position))
            edges.append(len(frontier))
        self._refuse_stopped()
        used["samplers"] += 1
        none = np.empty(0, np.int64)
        by_id = np.argsort(node, kind="stable")  # of equal seeds the first comes first
        row = by_id[np.searchsorted(node, np.concatenate([none, *sources]), sorter=by_id)]
        colptr = np.concatenate([[0], np.cumsum(np.concatenate([none, *counts]))])
        edge = np.concatenate([none, *positions])
        return Sample(
            self._made(node, np.int64), self._made(row, np.int32), self._made(colptr, np.int32),
            self._made(edge, position_dtype(topology.num_edges)), tuple(edges), tuple(found),
        )  # fmt: skip

    def stop(self) -> None:
        self._stopped.set()

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        return most({None: batch_size}, {None: self._fanout}, nodes, edges, self._replace, degrees)

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise ClosedError("the sampler was stopped: its loader or iterator was closed")

    def _drawn(
        self, graph: _Graph, targets: Int64Array, fanout: int, key: int
    ) -> tuple[Int64Array, Int64Array]:
        """How many edges were drawn for each target, and their CSC positions."""
        begin, degree = graph.lists(targets)
        count = degree if fanout < 0 else np.minimum(degree, fanout)
        if self._replace and fanout >= 0:
            count = np.where(degree > 0, fanout, 0)
        start = _mixed(targets, key) % np.maximum(degree, 1).astype(np.uint64)
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        place += np.repeat(start.astype(np.int64), count)
        return count, np.repeat(begin, count) + place % np.repeat(np.maximum(degree, 1), count)

    def _made(self, values: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
        """`values` in memory from where samples get theirs."""
        array = self._empty(len(values), dtype)
        array[:] = values
        return array


def _mixed(node: Int64Array, key: int) -> npt.NDArray[np.uint64]:
    """64 bits for each node."""
    mixed = (node.astype(np.uint64) + np.uint64(key % (1 << 64))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))


class _Graph:
    """A topology's arrays as numpy arrays; keeps the topology alive."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self._csc = topology, topology.csc()
        csc = self._csc
        if csc.indices == ffi.NULL and csc.edges:
            raise ConfigError(
                f"the sampler 'runs' reads indices in memory, and topology={topology.name!r} has "
                "none there: say topology='mmap'"
            )
        width = {4: np.uint32, 8: np.int64}[csc.indptr_bytes]
        self._indptr = _array(csc.indptr, csc.nodes + 1, width)

    def check_seeds(self, seeds: Int64Array) -> None:
        wrong = seeds[(seeds < 0) | (seeds >= self._csc.nodes)]
        if len(wrong):
            raise ConfigError(
                f"seed {wrong[0]} is not a node of {self._topology.path}: seeds go from 0 to "
                f"{self._csc.nodes - 1}; check input_nodes"
            )

    def lists(self, targets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where the lists of nodes begin, and how long they are."""
        begin = self._indptr[targets].astype(np.int64)
        end = self._indptr[targets + 1].astype(np.int64)
        self._refuse((begin < 0) | (begin > end) | (end > self._csc.edges), targets, "pointers of")
        return begin, end - begin

    def sources(self, position: Int64Array) -> Int64Array:
        """The neighbours at these positions."""
        csc = self._csc
        if not len(position):
            return np.empty(0, np.int64)
        if csc.packed_bits:
            source = self._unpacked(position)
        else:
            width = {4: np.int32, 8: np.int64}[csc.index_bytes]
            source = _array(csc.indices, csc.edges, width)[position].astype(np.int64)
        self._refuse((source < 0) | (source >= csc.nodes), source, "a neighbour is")
        return source

    def _unpacked(self, position: Int64Array) -> Int64Array:
        csc = self._csc
        packed = _array(csc.indices, -(-csc.edges * csc.packed_bits // 8) + 8, np.uint8)
        bit = position * csc.packed_bits
        eight = packed[(bit >> 3)[:, None] + np.arange(8)].view("<u8")[:, 0]
        shifted = eight >> (bit & 7).astype(np.uint64)
        return (shifted & np.uint64((1 << csc.packed_bits) - 1)).astype(np.int64)

    def _refuse(self, wrong: npt.NDArray[np.bool_], named: Int64Array, what: str) -> None:
        if wrong.any():
            raise StoreError(
                f"{self._topology.path}: {what} node {named[wrong][0]}, which cannot be; the graph "
                "is damaged: run `gnndrive verify` and import it again"
            )


def _array(address: Any, count: int, dtype: Any) -> npt.NDArray[Any]:
    """An array over memory of the C core's."""
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", address), nbytes), dtype)
