"""`SubgraphSampler`: samples in PyG's own form, through a PyG `BaseSampler`.

A loader uses it for everything beyond plain neighbour sampling: heterogeneous graphs, disjoint
trees, times, weights, seed edges, bidirectional or induced subgraphs, a sampler or a transform of
the user's. `Assembly.sampler` makes one for each epoch from the loader's `SubgraphSampling`, and
the sample stage calls it in worker threads. It calls gnndrive's `NeighborSampler`
(`pyg/sampler.py`) or the user's sampler, and uses PyG's code for negative edges and bidirectional
subgraphs unchanged.

When not to use it: for plain neighbour sampling. `sampling/samplers/uniform.py` needs a third of
the memory for a queued sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
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
from gnndrive.common.memory import return_free_memory
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Seeds, Subgraph, ends_of
from gnndrive.pyg.conversions import as_int64
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.pyg.seed_edges import SeedEdges
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.schedules.base import digest
from gnndrive.sampling.topologies.base import Topology

HOLES_BYTES_MIN = 16 << 20
"""After copies of so many bytes free memory is returned. No two samples are of one size, so copies
do not fit into the holes of earlier ones, and holes add up. It takes a tenth of the time of
sampling; of smaller samples it would take more, and their holes are small."""


@dataclass(frozen=True, slots=True)
class SubgraphSampling:
    """How a loader samples, in all its epochs.

    Attributes:
        sampler: gnndrive's `NeighborSampler` or the user's sampler.
        transform: the user's function that is applied to each sample, or None.
        negatives: how negative edges are drawn; None: there are none.
        excluded: what leaves seed edges out of each sample, before `transform`; None: nothing.
    """

    sampler: BaseSampler
    transform: Callable[[Any], Any] | None = None
    negatives: NegativeSampling | None = None
    excluded: SeedEdges | None = None

    @property
    def gnndrive_sampler(self) -> NeighborSampler | None:
        """The sampler if it is gnndrive's; None if it is the user's."""
        return self.sampler if isinstance(self.sampler, NeighborSampler) else None

    @property
    def identity(self) -> str:
        """A text that identifies these sampling options. Equal text means equal batches, unless the
        user's sampler or transform has changed under the same name."""
        parts = [type(self.sampler).__name__]
        if self.gnndrive_sampler is not None:
            parts.append(self.gnndrive_sampler.identity)
        if self.transform is not None:
            parts.append(getattr(self.transform, "__qualname__", type(self.transform).__name__))
        if self.negatives is not None:
            weights = (self.negatives.src_weight, self.negatives.dst_weight)
            parts.append(f"{self.negatives.mode.value} {self.negatives.amount} {digest(*weights)}")
        if self.excluded is not None:
            parts.append(f"without {self.excluded}")
        return ", ".join(parts)

    @property
    def needs_indices(self) -> str | None:
        """The reason why the adjacency's indices must be in memory or memory-mapped, for an error
        message after "because"; None: they need not be."""
        sampler = self.gnndrive_sampler
        if sampler is None:
            return "neighbor_sampler= reads the graph itself"
        if sampler.subgraph_type == SubgraphType.induced:
            return "induced subgraphs need whole lists of neighbours"
        if sampler.is_temporal and not sampler.edge_level:
            return "times of nodes are looked up by the ids of all neighbours"
        return None

    @property
    def graph_bytes(self) -> int:
        """Bytes of memory for times and weights."""
        return 0 if self.gnndrive_sampler is None else self.gnndrive_sampler.graph_bytes

    @property
    def candidate_bytes(self) -> int:
        """Bytes of a sampling thread's scratch for the longest list of neighbours, if times or
        weights are used."""
        return 0 if self.gnndrive_sampler is None else self.gnndrive_sampler.candidate_bytes

    @property
    def disjoint(self) -> bool:
        """Whether each seed has a tree of its own; True if it is unknown."""
        return self.gnndrive_sampler is None or bool(self.gnndrive_sampler.disjoint)

    @property
    def edge_temporaries(self) -> int:
        """Bytes for each edge of a sample that Python code takes while it samples."""
        return 0 if self.gnndrive_sampler is None else self.gnndrive_sampler.edge_temporaries

    @property
    def can_be_drawn(self) -> bool:
        """Whether a plan may draw a few batches, and count what they held."""
        return self.gnndrive_sampler is not None and not self.gnndrive_sampler.leaves_out

    def seed_nodes(self, edges: int, type: EdgeKey) -> dict[NodeKey, int]:
        """The number of seed nodes, by node type, of `edges` seed edges of an edge type: the ends
        of these edges and of their negative edges."""
        more = 0 if self.negatives is None else math.ceil(edges * float(self.negatives.amount))
        both = self.negatives is None or self.negatives.is_binary()
        source, target = ends_of(type)
        seeds: dict[NodeKey, int] = {source: edges + more * both}
        seeds[target] = seeds.get(target, 0) + edges + more
        return seeds


class SubgraphSampler(Sampler):
    """Samples for one epoch; several worker threads call it at once.

    Args:
        subgraphs: how to sample.
        of_edges: whether seeds are edges; else they are nodes.
        type: the type of the seeds; None in a homogeneous graph.
        limits: see `SamplerContext`; only gnndrive's sampler keeps to them.
    """

    name = "pyg"

    def __init__(
        self, subgraphs: SubgraphSampling, of_edges: bool = False, type: NodeKey | EdgeKey = None,
        limits: Bounds | None = None,
    ) -> None:  # fmt: skip
        self._subgraphs, self._of_edges, self._type = subgraphs, of_edges, type
        own = subgraphs.gnndrive_sampler
        most = () if limits is None else (limits.entries.values(), limits.edges.values())
        self._gnndrive_sampler = None if own is None else own.for_an_epoch(*map(tuple, most))

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        """See `Sampler.make`; the context has `subgraphs`."""
        assert context.subgraphs is not None
        return context.subgraphs()

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Subgraph:
        """See `Sampler.sample`. The user's sampler must be thread-safe."""
        sampler = self._subgraphs.sampler
        if self._gnndrive_sampler is not None:
            sampler = self._gnndrive_sampler.keyed(key, topologies)
        return self._subgraph(self._output(sampler, seeds, key), sampler)

    def samples(
        self, seeds: Sequence[Seeds], keys: Sequence[int], topologies: Sequence[Topology]
    ) -> Iterator[Subgraph]:
        """See `Sampler.samples`; one call of C samples a group where PyG's code allows it."""
        own = self._gnndrive_sampler
        if own is None or len(seeds) == 1 or not own.groups(self._of_edges, topologies):
            yield from map(self.sample, seeds, keys, repeat(topologies))
            return
        sampler, error, count = own.gathering(topologies), None, 0
        for each, key in zip(seeds, keys, strict=True):
            sampler.key = key
            try:
                self._output(sampler, each, key)
            except Exception as raised:  # at its batch's turn
                error = raised
                break
            count += 1
        found, failed = sampler.sample_gathered((sampler.gathered or [])[:count])
        changed = self._subgraphs.excluded is not None or self._subgraphs.transform is not None
        for sample in found:
            yield self._subgraph(sample.output, sampler) if changed else sample
        if (error := failed or error) is not None:
            raise error

    def _output(self, sampler: BaseSampler, seeds: Seeds, key: int) -> Any:
        given = seeds.given
        assert given is not None, "the loader's InputNodes or InputEdges set it"
        if not self._of_edges:
            return sampler.sample_from_nodes(given())
        negatives = self._subgraphs.negatives
        keyed = None if negatives is None else KeyedNegatives(negatives, key)
        return sampler.sample_from_edges(given(), neg_sampling=keyed)

    def _subgraph(self, out: Any, sampler: BaseSampler) -> Subgraph:
        if self._subgraphs.excluded is not None:
            out = self._subgraphs.excluded(out)
        if self._subgraphs.transform is not None:
            out = self._subgraphs.transform(out)
        expected = SamplerOutput if self._type is None else HeteroSamplerOutput
        if not isinstance(out, expected):
            raise ConfigError(
                f"neighbor_sampler= or transform_sampler_output= gave a {type(out).__name__}: "
                f"return a {expected.__name__}"
            )
        # The user's sampler may number edges by position; its permutation gives original numbers.
        perm = None if self._gnndrive_sampler is not None else sampler.edge_permutation
        if isinstance(out, HeteroSamplerOutput):
            node = {name: as_int64(torch.as_tensor(each)) for name, each in out.node.items()}
            edge = {
                name: _permuted(each, (perm or {}).get(name))
                for name, each in (out.edge or dict.fromkeys(out.row)).items()
            }
            count = sum(map(len, out.row.values()))
        else:
            node = {None: as_int64(torch.as_tensor(out.node))}
            edge = {None: _permuted(out.edge, perm)}
            count = len(out.row)
        if count * self._subgraphs.edge_temporaries >= HOLES_BYTES_MIN:
            return_free_memory()
        return Subgraph(node, edge, count, out, numbered=self._gnndrive_sampler is None)

    def stop(self) -> None:
        """See `Sampler.stop`; does not stop the user's sampler."""
        if self._gnndrive_sampler is not None:
            self._gnndrive_sampler.stop()

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`; the bounds of a user's sampler are the whole graph."""
        sampler = self._gnndrive_sampler
        if sampler is None:
            return Bounds(nodes, edges, nodes)
        seeds: dict[NodeKey, int] = {self._type: batch_size}  # type: ignore[dict-item]
        if self._of_edges:
            seeds = self._subgraphs.seed_nodes(batch_size, self._type)  # type: ignore[arg-type]
        found = sampler.bounds(seeds, nodes, edges, degrees)
        sampled, entries = dict(found.edges), found.nodes
        if sampler.disjoint:  # each tree has edges of its own, and a node may be in every tree
            entries, sampled = dict.fromkeys(nodes, 0), dict.fromkeys(edges, 0)
            for type, count in seeds.items():
                tree = sampler.bounds({type: 1}, nodes, edges, degrees)
                for name, each in tree.nodes.items():
                    entries[name] += count * each
                for edge_type, each in tree.edges.items():
                    sampled[edge_type] += count * each
        if sampler.subgraph_type == SubgraphType.induced:
            sampled = dict(edges)
        if sampler.subgraph_type == SubgraphType.bidirectional:
            sampled = {type: count + _reversed(type, sampled) for type, count in sampled.items()}
        return Bounds(found.nodes, sampled, entries)


def _reversed(type: EdgeKey, edges: Mapping[EdgeKey, int]) -> int:
    """The most edges that a bidirectional sample adds to an edge type: those of a type between the
    same ends, the other way round."""
    source, target = ends_of(type)
    return max((n for each, n in edges.items() if ends_of(each) == (target, source)), default=0)


def _permuted(edge: Any, perm: Any) -> Int64Array | None:
    """`perm[edge]`, or `edge` if `perm` is None; None if `edge` is None."""
    if edge is None:
        return None
    number = as_int64(torch.as_tensor(edge))
    if perm is None:
        return number
    if len(number) and not 0 <= int(number.min()) <= int(number.max()) < len(perm):
        raise ConfigError(
            f"neighbor_sampler= or transform_sampler_output= named edge {number.min()} or "
            f"{number.max()}, and its edge_permutation has {len(perm)}: give edges in its range"
        )
    return as_int64(torch.as_tensor(perm[torch.from_numpy(number)]))


class KeyedNegatives(NegativeSampling):  # type: ignore[misc]
    """PyG's negative sampling, with draws that depend on a batch's key instead of torch's random
    state."""

    def __init__(self, negatives: NegativeSampling, key: int) -> None:
        super().__init__(
            negatives.mode, negatives.amount, negatives.src_weight, negatives.dst_weight
        )
        self._generator = torch.Generator().manual_seed(key % (1 << 63))

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> torch.Tensor:
        """Draw `num_samples` ids of `num_nodes` nodes, int64, for one end ("src" or "dst") of
        negative edges; PyG's code calls this."""
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            assert num_nodes is not None, "PyG's edge_sample gives it"
            return torch.randint(num_nodes, (num_samples,), generator=self._generator)
        if num_nodes is not None and weight.numel() != num_nodes:
            raise ValueError(
                f"negative sampling has {weight.numel()} weights for {num_nodes} nodes: give "
                "one for each node"
            )
        return torch.multinomial(weight, num_samples, True, generator=self._generator)
