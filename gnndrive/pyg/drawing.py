"""How the pipeline samples whatever is more than plain neighbour sampling: in trees, by time or
weight, around edges, both ways, with a sampler or a transform of the user's.

A batch's seeds go through a PyG `BaseSampler`, gnndrive's or the user's, and come out in PyG's own
form, so that PyG's code for negative edges and both-way subgraphs is used as it is. The plain case
has a shorter way (`samplers/uniform.py`) with a third of the memory a queued sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.samplers.base import Sampler
from gnndrive.samplers.uniform import edges_max, nodes_max
from gnndrive.schedules.base import digest
from gnndrive.topologies.base import Topology


@dataclass(frozen=True, slots=True)
class Drawing:
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

    def nodes_of(self, edges: int) -> int:
        """How many nodes so many seed edges begin with."""
        if self.negatives is None:
            return 2 * edges
        ends = 2 if self.negatives.is_binary() else 1
        return 2 * edges + ends * math.ceil(edges * float(self.negatives.amount))


class Drawn(Sampler):
    """Draws one epoch's samples; see `Drawing`.

    Args:
        drawing: with what.
        of_edges: whether seeds are edges.
    """

    name = "pyg"

    def __init__(self, drawing: Drawing, of_edges: bool = False) -> None:
        self._drawing, self._of_edges = drawing, of_edges
        self._ours = None if drawing.ours is None else drawing.ours.for_an_epoch()

    def draw(self, seeds: Seeds, key: int, topology: Topology) -> Subgraph:
        """Sample around seeds; see `Sampler.draw`. A sampler of the user's is to be thread-safe."""
        sampler, given = self._drawing.sampler, seeds.given
        assert given is not None, "its inputs say all that there is to say"
        if self._ours is not None:
            sampler = self._ours.keyed(key, [topology])
        if self._of_edges:
            negatives = self._drawing.negatives
            keyed = None if negatives is None else KeyedNegatives(negatives, key)
            out = sampler.sample_from_edges(given(), neg_sampling=keyed)
        else:
            out = sampler.sample_from_nodes(given())
        if self._drawing.transform is not None:
            out = self._drawing.transform(out)
        if self._ours is None and out.edge is not None:  # numbered as that sampler numbers them
            perm = sampler.edge_permutation
            out.edge = out.edge if perm is None else perm[out.edge.to(torch.int64)]
        node = torch.as_tensor(out.node).to(torch.int64).contiguous()
        return Subgraph(node.numpy(), len(out.row), out, numbered=self._ours is None)

    def sample(self, seeds: Int64Array, key: int, topology: Topology) -> Sample:
        """Not of use here: seeds are more than nodes."""
        raise NotImplementedError("this sampler draws from Seeds")

    def stop(self) -> None:
        """Make running and later calls of gnndrive's sampler end at once with ClosedError."""
        if self._ours is not None:
            self._ours.stop()

    def bounds(self, batch_size: int, num_nodes: int, num_edges: int) -> tuple[int, int]:
        """The most distinct nodes and the most edges that a sample can have; a user's sampler can
        bring the whole graph."""
        if self._ours is None:
            return num_nodes, num_edges
        seeds, fanout = self._seeds_and_fanout(batch_size, self._ours)
        nodes = nodes_max(seeds, fanout, num_nodes)
        edges = edges_max(seeds, fanout, num_nodes, num_edges, self._ours.replace)
        if self._ours.disjoint:  # each tree has its own
            one = edges_max(1, fanout, num_nodes, num_edges, self._ours.replace)
            edges = seeds * one
        if self._ours.subgraph_type == SubgraphType.induced:
            edges = num_edges
        if self._ours.subgraph_type == SubgraphType.bidirectional:
            edges *= 2
        return nodes, edges

    def entries_max(self, batch_size: int, num_nodes: int) -> int:
        """In trees a node comes once a tree; see `Sampler.entries_max`."""
        if self._ours is None or not self._ours.disjoint:
            return 0
        seeds, fanout = self._seeds_and_fanout(batch_size, self._ours)
        return seeds * nodes_max(1, fanout, num_nodes)

    def _seeds_and_fanout(self, batch_size: int, ours: NeighborSampler) -> tuple[int, list[int]]:
        """Nodes that a batch begins with, and neighbours for each hop."""
        seeds = self._drawing.nodes_of(batch_size) if self._of_edges else batch_size
        return seeds, list(ours.num_neighbors.get_mapped_values())


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
