"""`LinksInside`: samples around seed edges inside the graph of a window (MariusGNN §5).

`Assembly.sampler` makes it for a link loader whose windows are partitions, such as one with
strategy="marius". Its schedule gives a window the edges whose ends both lie in it. This sampler
draws around them as `inside` does, and leaves seeds, labels and negative edges to PyG's code, so
that batches are in PyG's own form. Negative nodes are drawn among the nodes of the window, as in
the paper, because the rows of others are not in memory.

When not to use it: for seed nodes (`sampling/samplers/inside.py`); for times, weights, disjoint
trees, induced and bidirectional subgraphs, which need more of a graph than a window has
(`subgraph_sampler.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch_geometric.sampler import NegativeSampling, SamplerOutput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample, Seeds, Subgraph
from gnndrive.pyg.subgraph_sampler import KeyedNegatives, SubgraphSampling
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers._inside import InsideDraws
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.window_graph import WindowGraph


class LinksInside(InsideDraws):
    """Samples around seed edges, in the graph of their window; see `InsideDraws`."""

    name = "links inside"

    def __init__(
        self, subgraphs: SubgraphSampling, of_edges: bool, context: SamplerContext
    ) -> None:
        check_inside(subgraphs, of_edges)
        super().__init__(
            context.num_neighbors, context.replace, np.empty, context.limits, context.window_nodes
        )
        self._subgraphs = subgraphs

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`; the context has `subgraphs`."""
        assert context.subgraphs is not None
        return context.subgraphs()

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Subgraph:
        """See `Sampler.sample`; `topologies` holds the graph of the batch's window."""
        assert seeds.given is not None, "the loader's InputEdges set it"
        graph, drawn = self.window(topologies), list[Sample]()

        def around(nodes: torch.Tensor, time: None) -> SamplerOutput:
            sample = self.sample_window(nodes.numpy(), key, graph)
            drawn.append(sample)
            node, row, col, edge = (
                torch.from_numpy(each).to(torch.int64)
                for each in (sample.node, sample.row, sample.col, sample.edge)
            )
            return SamplerOutput(
                node, row, col, edge, num_sampled_nodes=list(sample.num_sampled_nodes),
                num_sampled_edges=list(sample.num_sampled_edges),
            )  # fmt: skip

        given = self._subgraphs.negatives
        negatives = None if given is None else _WindowNegatives(given, key, graph)
        out = edge_sample(
            seeds.given(), around, graph.store_nodes, disjoint=False, neg_sampling=negatives
        )
        if self._subgraphs.excluded is not None:
            out = self._subgraphs.excluded(out)
        (sample,) = drawn
        node: dict[NodeKey, Int64Array] = {None: sample.node}
        edge: dict[EdgeKey, Int64Array | None] = {None: out.edge.numpy()}
        return Subgraph(node, edge, len(out.row), out, rows=sample.rows)

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`; seeds are the ends of `batch_size` edges and of their negatives."""
        (seeds,) = self._subgraphs.seed_nodes(batch_size, None).values()
        return super().bounds(seeds, nodes, edges, degrees)


class _WindowNegatives(KeyedNegatives):
    """Negative nodes among those of a window, each as likely."""

    def __init__(self, negatives: NegativeSampling, key: int, graph: WindowGraph) -> None:
        super().__init__(negatives, key)
        self._graph = graph

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> torch.Tensor:
        """See `KeyedNegatives.sample`."""
        drawn = super().sample(num_samples, endpoint, self._graph.num_distinct)
        return torch.from_numpy(self._graph.distinct_ids(drawn.numpy()))


def check_inside(subgraphs: SubgraphSampling, of_edges: bool) -> None:
    """ConfigError: a loader's arguments ask for more than a window has."""
    refused = _refused(subgraphs)
    if refused or not of_edges:
        raise ConfigError(
            "inside a window, neighbours are drawn with one probability, around nodes or "
            f"edges, by gnndrive's own sampler: leave {', '.join(refused) or 'the rest'} out, "
            "or give strategy='gnndrive'"
        )


def _refused(subgraphs: SubgraphSampling) -> list[str]:
    """The arguments of a loader that ask for more than a window has."""
    sampler, negatives = subgraphs.gnndrive_sampler, subgraphs.negatives
    found = []
    if subgraphs.transform is not None:
        found.append("transform_sampler_output=")
    if negatives is not None and (negatives.src_weight, negatives.dst_weight) != (None, None):
        found.append("the weights of neg_sampling=")
    if sampler is None:
        return [*found, "neighbor_sampler="]
    if sampler.is_temporal:
        found.append("time_attr=")
    elif sampler.disjoint:
        found.append("disjoint=")
    if sampler.is_weighted:
        found.append("weight_attr=")
    if sampler.subgraph_type != SubgraphType.directional:
        found.append(f"subgraph_type={sampler.subgraph_type.value!r}")
    return found
