"""`UniformDraws`: what the samplers have in common that draw all neighbours with one probability:
each target for itself, or all with shared numbers (`gnndrive/sampling/labor.py`).

It calls native/sample.c through `_native.py`. `uniform.py` draws from the whole graph, `inside.py`
from the graph of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.labor import DRAWN_APART, Sampling
from gnndrive.sampling.samplers._native import Native, Relation, SamplingOptions, SeedGroup
from gnndrive.sampling.samplers.base import (
    Bounds,
    Sampler,
    checked_fanout,
    most,
)
from gnndrive.sampling.topologies.base import Topology


class UniformDraws(Sampler):
    """Draws `num_neighbors[h]` in-neighbours, all equally likely, of each node of hop h.

    The seeds are the first nodes of a sample, in their order; duplicate seeds are kept, and each is
    expanded. Every other node occurs once, where it was found first. Hop h + 1 expands the nodes
    that hop h found. The edges drawn for a node depend on the key, the node and its fanout only.
    Any number of threads may use one object.

    If `sampling` shares numbers (LABOR-0), a sample reads the whole list of each node that it
    expands: from memory, a mapped file, or with a topology that reads on demand from disk.

    Args:
        num_neighbors: fanout per hop, -1 for all neighbours.
        replace: draw with replacement; each node that has neighbours then gets exactly its fanout.
        empty: allocates the arrays of samples.
        limits, sampling: see `SamplerContext`.

    Raises:
        ConfigError: a fanout is not an integer of at least -1, or `sampling` and `replace`
            contradict each other.
    """

    shares_numbers = True

    def __init__(
        self, num_neighbors: Sequence[int], replace: bool = False, empty: Allocate = np.empty,
        limits: Bounds | None = None, sampling: Sampling = DRAWN_APART,
    ) -> None:  # fmt: skip
        sampling.check(replace)
        self._empty, self._sampling = empty, sampling
        self._fanout = np.array(checked_fanout(num_neighbors), dtype=np.int64)
        self._replace = bool(replace)
        self._native = Native()
        if limits is not None:
            self._native = Native(tuple(limits.entries.values()), tuple(limits.edges.values()))

    def sample_nodes(self, seeds: Int64Array, key: int, topology: Topology) -> Sample:
        """Sample around nodes.

        Args:
            seeds: global ids, int64 [n], duplicates allowed.
            key: 64 bits that identify (seed, epoch, batch), see `batch_key`.

        Raises:
            StoreError: the graph names a node or an edge that does not exist.
            ConfigError: a seed is not a node of the graph, or the sample has more than 2^31 - 1
                nodes or edges.
            ReadError: neighbours could not be read from disk.
            BatchTooLarge: the sample has more nodes or edges than `limits`.
            ClosedError: `stop` was called.
            MemoryError: there is not enough memory for the sample.
        """
        relation = Relation(topology, self._fanout)
        options = SamplingOptions(key, self._replace, shared=self._sampling.numbers(key))
        nodes, groups = [topology.num_nodes], [SeedGroup(seeds)]
        with self._native.sampled([relation], nodes, groups, options) as sampled:
            node, _, nodes_per_hop = sampled.nodes(0, self._empty)
            row, colptr, edge, edges_per_hop = sampled.edges(0, self._empty)
            return Sample(node, row, colptr, edge, nodes_per_hop, edges_per_hop)

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`."""
        fanouts: dict[EdgeKey, list[int]] = {None: self._fanout.tolist()}
        return most({None: batch_size}, fanouts, nodes, edges, self._replace, degrees)

    def stop(self) -> None:
        """Make running and later calls of `sample` end at once with ClosedError."""
        self._native.stop()
