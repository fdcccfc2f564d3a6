"""Uniform neighbour sampling (GNNDrive §4.1, sample stage), with PyG's `NeighborLoader` contract.

`_uniform.py` has the drawing. Do not use it for weighted, temporal or disjoint sampling:
`SamplerContext.subgraphs` makes the sampler for these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling.samplers._uniform import UniformDraws
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology


class Uniform(UniformDraws):
    """Draws from the whole graph; see `UniformDraws`."""

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

    def samples(
        self, seeds: Sequence[Seeds], keys: Sequence[int], topologies: Sequence[Topology]
    ) -> Iterator[Sample]:
        """See `Sampler.samples`."""
        (topology,) = topologies
        return self.samples_of_nodes([each.node for each in seeds], keys, topology)
