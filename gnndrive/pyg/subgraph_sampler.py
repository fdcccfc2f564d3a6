"""How the pipeline samples whatever is more than plain neighbour sampling: in trees, by time or
weight, around edges, both ways, with a sampler or a transform of the user's.

A batch's seeds go through a PyG `BaseSampler`, gnndrive's or the user's, and come out in PyG's own
form, so that PyG's code for negative edges and both-way subgraphs is used as it is. The plain case
has a shorter way (`samplers/uniform.py`) with a third of the memory a queued sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.sampler import (
    BaseSampler,
    HeteroSamplerOutput,
    NegativeSampling,
    SamplerOutput,
)
from torch_geometric.sampler.base import SubgraphType

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Seeds, Subgraph, ends_of
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext, most
from gnndrive.sampling.schedules.base import digest
from gnndrive.sampling.topologies.base import Topology


@dataclass(frozen=True, slots=True)
class SubgraphSampling:
    """What samples are drawn with, for all epochs of a loader.

    Attributes:
        sampler: gnndrive's or the user's.
        transform: the user's, of what was sampled; or None.
        negatives: how negative edges are drawn; None: there are none.
    """

    sampler: BaseSampler
    transform: Callable[[Any], Any] | None = None
    negatives: NegativeSampling | None = None

    @property
    def ours(self) -> NeighborSampler | None:
        """The sampler, if it is gnndrive's."""
        return self.sampler if isinstance(self.sampler, NeighborSampler) else None

    @property
    def identity(self) -> str:
        """What tells it from others, as far as that can be said in words."""
        said = [type(self.sampler).__name__]
        if self.ours is not None:
            said.append(self.ours.identity)
        if self.transform is not None:
            said.append(getattr(self.transform, "__qualname__", type(self.transform).__name__))
        if self.negatives is not None:
            weights = (self.negatives.src_weight, self.negatives.dst_weight)
            said.append(f"{self.negatives.mode.value} {self.negatives.amount} {digest(*weights)}")
        return ", ".join(said)

    @property
    def needs_indices(self) -> str | None:
        """Why the adjacency's indices are to be in memory or mapped; None: they need not be."""
        if self.ours is None:
            return "neighbor_sampler= reads the graph itself"
        if self.ours.subgraph_type == SubgraphType.induced:
            return "induced subgraphs look at whole lists of neighbours"
        if self.ours.is_temporal and not self.ours.edge_level:
            return "times of nodes are those of the neighbours that may be drawn"
        return None

    @property
    def graph_bytes(self) -> int:
        """Bytes of memory for times and weights."""
        return 0 if self.ours is None else self.ours.graph_bytes

    @property
    def candidate_bytes(self) -> int:
        """Bytes of a sampling thread's scratch where times or weights have a say."""
        return 0 if self.ours is None else self.ours.candidate_bytes

    def seeds(self, edges: int, type: EdgeKey) -> dict[NodeKey, int]:
        """How many nodes so many seed edges of a type begin with, by node type."""
        more = 0 if self.negatives is None else math.ceil(edges * float(self.negatives.amount))
        both = self.negatives is None or self.negatives.is_binary()
        source, target = ends_of(type)
        seeds: dict[NodeKey, int] = {source: edges + more * both}
        seeds[target] = seeds.get(target, 0) + edges + more
        return seeds


class SubgraphSampler(Sampler):
    """Draws one epoch's samples; see `SubgraphSampling`.

    Args:
        drawing: with what.
        of_edges: whether seeds are edges.
        type: of which type they are; None in a homogeneous graph.
    """

    name = "pyg"

    def __init__(
        self, subgraphs: SubgraphSampling, of_edges: bool = False, type: NodeKey | EdgeKey = None
    ) -> None:
        self._subgraphs, self._of_edges, self._type = subgraphs, of_edges, type
        self._ours = None if subgraphs.ours is None else subgraphs.ours.for_an_epoch()

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`; the context has `subgraphs`."""
        assert context.subgraphs is not None
        return context.subgraphs()

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Subgraph:
        """See `Sampler.sample`. A sampler of the user's must be thread-safe."""
        sampler, given = self._subgraphs.sampler, seeds.given
        assert given is not None, "its inputs say all that there is to say"
        if self._ours is not None:
            sampler = self._ours.keyed(key, topologies)
        if self._of_edges:
            negatives = self._subgraphs.negatives
            keyed = None if negatives is None else KeyedNegatives(negatives, key)
            out = sampler.sample_from_edges(given(), neg_sampling=keyed)
        else:
            out = sampler.sample_from_nodes(given())
        if self._subgraphs.transform is not None:
            out = self._subgraphs.transform(out)
        expected = SamplerOutput if self._type is None else HeteroSamplerOutput
        if not isinstance(out, expected):
            raise ConfigError(
                f"neighbor_sampler= or transform_sampler_output= gave a {type(out).__name__}: "
                f"return a {expected.__name__}"
            )
        # The user's numbers edges as it numbers them.
        perm = None if self._ours is not None else sampler.edge_permutation
        if isinstance(out, HeteroSamplerOutput):
            node = {name: _as_int64(each) for name, each in out.node.items()}
            edge = {
                name: _permuted(each, (perm or {}).get(name))
                for name, each in (out.edge or dict.fromkeys(out.row)).items()
            }
            count = sum(map(len, out.row.values()))
        else:
            node, edge = {None: _as_int64(out.node)}, {None: _permuted(out.edge, perm)}
            count = len(out.row)
        return Subgraph(node, edge, count, out, numbered=self._ours is None)

    def stop(self) -> None:
        """Make running and later calls of gnndrive's sampler end at once with ClosedError."""
        if self._ours is not None:
            self._ours.stop()

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int]
    ) -> Bounds:
        """See `Sampler.bounds`; a user's sampler can bring the whole graph."""
        ours = self._ours
        if ours is None:
            return Bounds(nodes, edges, nodes)
        seeds: dict[NodeKey, int] = {self._type: batch_size}  # type: ignore[dict-item]
        if self._of_edges:
            seeds = self._subgraphs.seeds(batch_size, self._type)  # type: ignore[arg-type]
        fanouts = ours.fanouts
        found = most(seeds, fanouts, nodes, edges, ours.replace)
        drawn, entries = dict(found.edges), found.nodes
        if ours.disjoint:  # each tree has its own, and a node comes once a tree
            entries, drawn = dict.fromkeys(nodes, 0), dict.fromkeys(edges, 0)
            for type, count in seeds.items():
                tree = most({type: 1}, fanouts, nodes, edges, ours.replace)
                for name, each in tree.nodes.items():
                    entries[name] += count * each
                for edge_type, each in tree.edges.items():
                    drawn[edge_type] += count * each
        if ours.subgraph_type == SubgraphType.induced:
            drawn = dict(edges)
        if ours.subgraph_type == SubgraphType.bidirectional:
            drawn = {type: 2 * count for type, count in drawn.items()}
        return Bounds(found.nodes, drawn, entries)


def _as_int64(node: Any) -> Int64Array:
    """Node ids as C reads them."""
    numbers: Int64Array = torch.as_tensor(node).to(torch.int64).contiguous().numpy()
    return numbers


def _permuted(edge: Any, perm: Any) -> Int64Array | None:
    """`perm[edge]`; None: there are none, or `edge` as it is."""
    if edge is None:
        return None
    if perm is None:
        return _as_int64(edge)
    edge = edge.to(torch.int64)
    if len(edge) and not 0 <= int(edge.min()) <= int(edge.max()) < len(perm):
        raise ConfigError(
            f"neighbor_sampler= or transform_sampler_output= named edge {edge.min()} or "
            f"{edge.max()}, and its edge_permutation has {len(perm)}"
        )
    return _as_int64(perm[edge])


class KeyedNegatives(NegativeSampling):  # type: ignore[misc]
    """PyG's negative sampling, whose draws depend on a key alone instead of on torch's random
    state."""

    def __init__(self, negatives: NegativeSampling, key: int) -> None:
        super().__init__(
            negatives.mode, negatives.amount, negatives.src_weight, negatives.dst_weight
        )
        self._generator = torch.Generator().manual_seed(key % (1 << 63))

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> torch.Tensor:
        """`num_samples` node ids of an endpoint, "src" or "dst", int64 [num_samples]."""
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            assert num_nodes is not None, "PyG's edge_sample says how many there are"
            return torch.randint(num_nodes, (num_samples,), generator=self._generator)
        if num_nodes is not None and weight.numel() != num_nodes:
            raise ValueError(
                f"negative sampling has {weight.numel()} weights for {num_nodes} nodes: give one a "
                "node"
            )
        return torch.multinomial(weight, num_samples, True, generator=self._generator)
