"""`UniformDraws`: what the samplers share that draw all neighbours with one probability, each
target for itself, or all with shared numbers (`gnndrive/sampling/labor.py`).

`uniform.py` draws from the whole graph, `inside.py` from the graph of a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.labor import DRAWN_APART, Sampling
from gnndrive.sampling.samplers._native import (
    WEIGHT_ONE,
    Native,
    Relation,
    SamplingOptions,
    SeededBatch,
    SeedGroup,
    SharedNumbers,
)
from gnndrive.sampling.samplers.base import BatchKey, Bounds, Sampler, checked_fanout, most
from gnndrive.sampling.topologies.base import Topology

_QUARTER = 1.5707963267948966  # pi / 2
_TERMS = 14  # of the series, beyond which none changes a double


class UniformDraws(Sampler):
    """Draws `num_neighbors[h]` in-neighbours, all equally likely, of each node of hop h.

    The seeds are the first nodes of a sample, in their order; duplicate seeds are kept, and each is
    expanded. Every other node occurs once, where it was found first. Hop h + 1 expands the nodes
    that hop h found. The edges drawn for a node depend on the key, the node and its fanout only.
    Any number of threads may use one object.

    If `sampling` shares numbers (LABOR-0), a sample reads the whole list of each node that it
    expands: from memory, a mapped file, or with a topology that reads on demand from disk. With
    `replace` each node that has neighbours gets exactly its fanout. See `SamplerContext` for
    arguments.
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
        """Sample around nodes, whose ids may occur several times; for errors see `Native.sampled`.

        `key` is a `BatchKey`, or a number for a batch that depends on no other.
        """
        relation = Relation(topology, self._fanout)
        options = SamplingOptions(key, self._replace, shared=shared_numbers(self._sampling, key))
        nodes, groups = [topology.num_nodes], [SeedGroup(seeds)]
        with self._native.sampled([relation], nodes, groups, options) as sampled:
            node, _, nodes_per_hop = sampled.nodes(0, self._empty)
            row, colptr, edge, edges_per_hop = sampled.edges(0, self._empty)
            return Sample(node, row, colptr, edge, nodes_per_hop, edges_per_hop)

    def samples_of_nodes(
        self, seeds: Sequence[Int64Array], keys: Sequence[int], topology: Topology
    ) -> Iterator[Sample]:
        """What `sample_nodes` returns for each batch of a group, over memory of the group. If the
        indices are in memory or mapped, one call samples all."""
        if len(seeds) == 1 or not topology.csc().indices:
            yield from map(self.sample_nodes, seeds, keys, repeat(topology))
            return
        relation = Relation(topology, self._fanout)
        batches = [
            SeededBatch(key, [SeedGroup(each)], shared_numbers(self._sampling, key))
            for each, key in zip(seeds, keys, strict=True)
        ]
        options = SamplingOptions(0, self._replace)
        native = self._native.sampled_group([relation], [topology.num_nodes], batches, options)
        with native as group:
            nodes, edges = group.nodes(0, self._empty), group.edges(0, self._empty)
            samples = [
                Sample(node, row, colptr, edge, nodes_per_hop, edges_per_hop)
                for (node, _, nodes_per_hop), (row, colptr, edge, edges_per_hop) in zip(
                    nodes, edges, strict=True
                )
            ]
            error = group.error
        yield from samples
        if error is not None:
            raise error

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`."""
        fanouts: dict[EdgeKey, list[int]] = {None: self._fanout.tolist()}
        return most({None: batch_size}, fanouts, nodes, edges, self._replace, degrees)

    def stop(self) -> None:
        """See `Sampler.stop`."""
        self._native.stop()


def shared_numbers(sampling: Sampling, key: int) -> SharedNumbers | None:
    """The nodes' numbers of the batch with this key (see `sample_nodes`); None: its targets share
    none."""
    if not sampling.shares:
        return None
    if sampling.batch_dependency == 1 or not isinstance(key, BatchKey):
        return SharedNumbers(int(key) % (1 << 64))
    group, step = divmod(key.batch, sampling.batch_dependency)
    now, later = (int(BatchKey(key.epoch, each)) for each in (group, group + 1))
    return SharedNumbers(now, later, *_quarter_circle(step / sampling.batch_dependency))


def _quarter_circle(share: float) -> tuple[int, int]:
    """cos and sin of `share` of a right angle, 0 <= share < 1, in units of 1 / `WEIGHT_ONE`.

    A machine's own cos and sin may differ in the last bit; sums and products do not.
    """
    angle, term, sums = share * _QUARTER, 1.0, [0.0, 0.0]
    for power in range(2 * _TERMS):
        sums[power % 2] += term if power % 4 < 2 else -term
        term *= angle / (power + 1)
    cos, sin = (round(each * WEIGHT_ONE) for each in sums)
    return min(max(cos, 0), WEIGHT_ONE), min(max(sin, 0), WEIGHT_ONE)
