"""Uniform neighbour sampling (GNNDrive §4.1, sample stage), with PyG's `NeighborLoader` contract.

The work is in native/sample.c. Do not use it for weighted, temporal or disjoint sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample, Seeds
from gnndrive.sampling.samplers._native import Native, Relation, SamplingOptions, SeedGroup
from gnndrive.sampling.samplers.base import (
    Bounds,
    Sampler,
    SamplerContext,
    checked_fanout,
    most,
)
from gnndrive.sampling.topologies.base import Topology


class Uniform(Sampler):
    """Draws `num_neighbors[h]` in-neighbours, all equally likely, of each node of hop h.

    Seeds come first and in order, duplicates among them kept and each expanded; every other node is
    there once, where it was first found; hop h + 1 expands what hop h found. What is drawn for a
    node depends on (key, node) and its fanout alone. One object may be used by any number of
    threads.

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
        self._replace = bool(replace)
        self._native = Native()

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`."""
        if context.subgraphs is not None:
            return context.subgraphs()
        return cls(context.num_neighbors, context.replace, context.empty)

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        """See `Sampler.sample`; the graph has one type of edges."""
        (topology,) = topologies
        return self.sample_nodes(seeds.node, key, topology)

    def sample_nodes(self, seeds: Int64Array, key: int, topology: Topology) -> Sample:
        """Sample around nodes.

        Args:
            seeds: global ids, int64 [n], duplicates allowed.
            key: 64 bits that stand for (seed, epoch, batch), see `batch_key`.
            topology: whose neighbours.

        Raises:
            StoreError: the graph names a node or an edge that does not exist.
            ConfigError: a seed is not a node of the graph, or the sample has more than 2^31 - 1
                nodes or edges.
            ReadError: neighbours could not be read from disk.
            ClosedError: `stop` was called.
            MemoryError: there is no memory for the sample.
        """
        relation = Relation(topology, self._fanout)
        options = SamplingOptions(key, self._replace)
        nodes, seeding = [topology.num_nodes], [SeedGroup(seeds)]
        with self._native.sampled([relation], nodes, seeding, options) as sampled:
            node, _, nodes_per_hop = sampled.nodes(0, self._empty)
            row, colptr, edge, edges_per_hop = sampled.edges(0, self._empty)
            return Sample(node, row, colptr, edge, nodes_per_hop, edges_per_hop)

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int]
    ) -> Bounds:
        """See `Sampler.bounds`."""
        return most({None: batch_size}, {None: self._fanout.tolist()}, nodes, edges, self._replace)

    def stop(self) -> None:
        """Make running and later calls of `sample` end at once with ClosedError."""
        self._native.stop()
