"""Uniform neighbour sampling (GNNDrive §4.1, sample stage), with PyG's `NeighborLoader` contract.

`_uniform.py` has the drawing. Do not use it for weighted, temporal or disjoint sampling:
`SamplerContext.subgraphs` makes the sampler for these.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling.samplers._uniform import UniformDraws
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology


class Uniform(UniformDraws):
    """Draws `num_neighbors[h]` in-neighbours, all equally likely, of each node of hop h: each node
    for itself, or with shared numbers (LABOR-0).

    See `UniformDraws` for arguments and errors.
    """

    name = "uniform"

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`."""
        if context.subgraphs is not None:
            return context.subgraphs()
        return cls(
            context.num_neighbors, context.replace, context.empty, context.limits, context.sampling
        )

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        """See `Sampler.sample`; `topologies` holds one topology."""
        (topology,) = topologies
        return self.sample_nodes(seeds.node, key, topology)
