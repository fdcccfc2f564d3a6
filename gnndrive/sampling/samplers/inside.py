"""Sampling inside the mega-batch (HierBatching): uniform, from the graph of a window.

Seeds and samples have the store's ids and the store's CSC positions, as those of all samplers, and
a sample says where the rows of its nodes lie in the partitioned table. Neighbours outside of the
window do not exist for it: a node has fewer in-edges than in the store, or none. Do not use it if
each batch must have a fair sample of all neighbours: `uniform` draws from the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling.samplers._inside import InsideDraws
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology


class Inside(InsideDraws):
    """Draws around nodes; see `InsideDraws`."""

    name = "inside"

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`."""
        if context.subgraphs is not None:
            if context.window_nodes is None:
                raise ConfigError(
                    f"the sampler {cls.name!r} draws inside windows, and the strategy has none: "
                    "for edges as seeds, types, times, weights, disjoint trees, induced subgraphs "
                    "or a sampler of your own use the sampler 'uniform'"
                )
            return context.subgraphs()
        return cls(
            context.num_neighbors, context.replace, context.empty, context.limits,
            context.window_nodes, context.sampling,
        )  # fmt: skip

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        """See `Sampler.sample`; `topologies` holds the graph of the batch's window."""
        return self.sample_window(seeds.node, key, self.window(topologies))
