"""`HGTSampler`: samples about as many nodes of every type, as the Heterogeneous Graph Transformer
does (Hu et al., WWW 2020, section 3.3, algorithm 2).

Each node type has a budget: the in-neighbours of the nodes sampled so far that are not sampled
themselves. A node's share of it grows by 1 / degree for each sampled node that it is a neighbour
of. In each hop, nodes are drawn from each budget without replacement, with probabilities
proportional to the squares of their shares. A sample has the edges among its nodes, in every
direction. As in PyG's class of that name, which needs torch-sparse, of a node with more than 50
neighbours of an edge type a random 50 count. Here they are the same for budgets and edges, so the
edges by which a node was found are always in the sample.

The C sampler draws the neighbours, one hop at a time, on any topology; numpy does the rest. When
not to use it: for models that need a sample of each node's neighbours. `NeighborSampler` gives
that, and draws twenty times as many nodes in the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import HeteroSamplerOutput

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey
from gnndrive.pyg.conversions import as_int64
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers._native import (
    InScratch,
    Relation,
    SamplingOptions,
    SeedGroup,
)
from gnndrive.sampling.samplers.base import Bounds, checked_fanout, most
from gnndrive.store.reader import Store

NEIGHBORS_MAX = 50
"""The neighbours of an edge type that count, of a node that has more; PyG's number."""

Shares: TypeAlias = tuple[Int64Array, npt.NDArray[np.float64]]
"""Distinct nodes, int64 [n], and the share of each in a budget, float64 [n]."""

Edges: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Sources by id, targets by place in the sample, CSC positions; each [edges]."""

_EMPTY: Shares = np.empty(0, np.int64), np.empty(0)


class HGTSampler(NeighborSampler):
    """Samples a heterogeneous graph in memory or in a store.

    Args:
        data: a HeteroData, or a heterogeneous store.
        num_samples: how many nodes to draw in each hop, for all node types or a dict by node type.
        is_sorted, share_memory: as for `NeighborSampler`.

    Raises:
        ConfigError: num_samples cannot work.
        NotImplementedError: the graph is of another kind.
    """

    edge_temporaries = 136  # 56 of C's scratch for a neighbour, 80 of numpy's (measured)
    leaves_out = True

    def __init__(
        self, data: Any, num_samples: Any, is_sorted: bool = False, share_memory: bool = False
    ) -> None:
        hetero = data.is_hetero if isinstance(data, Store) else isinstance(data, HeteroData)
        if not hetero:
            raise NotImplementedError(
                f"HGT samples node types and this {type(data).__name__} does not have them: give a "
                "HeteroData or a heterogeneous store, or use NeighborLoader"
            )
        super().__init__(data, [NEIGHBORS_MAX], is_sorted=is_sorted, share_memory=share_memory)
        self.num_samples = _checked(num_samples, self._hetero_types[0])

    @property
    def identity(self) -> str:
        """See `NeighborSampler.identity`."""
        return f"num_samples={self.num_samples}"

    def bounds(
        self, seeds: Mapping[NodeKey, int], nodes: Mapping[NodeKey, int],
        edges: Mapping[EdgeKey, int], degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `NeighborSampler.bounds`."""
        found = {
            type: min(seeds.get(type, 0) + sum(self.num_samples[str(type)]), count)
            for type, count in nodes.items()
        }
        drawn = most(found, self.fanouts, nodes, edges, degrees=degrees)
        return Bounds(found, drawn.edges, found)

    def _sample(
        self, seed: Tensor | dict[str, Tensor], seed_time: Any = None, **kwargs: Any
    ) -> HeteroSamplerOutput:
        """Sample around `seed`, a dict, in PyG's form."""
        assert isinstance(seed, dict)
        node_types, edge_types = self._hetero_types
        relations, counts = self._relations(hetero=True)
        key = self.batch_key()
        random = np.random.Philox(key=key % (1 << 64))
        new = [as_int64(seed[name]) if name in seed else _EMPTY[0] for name in node_types]
        nodes, budgets = [_EMPTY[0]] * len(new), [_EMPTY] * len(new)
        edges: list[list[Edges]] = [[] for _ in relations]
        hops = list(zip(*self.num_samples.values(), strict=True))
        for hop in range(len(hops) + 1):
            groups = [SeedGroup(each, place) for place, each in enumerate(new)]
            with self._native.sampled(relations, counts, groups, SamplingOptions(key)) as sampled:
                found = _found(sampled, relations, list(map(len, nodes)), edges)
            nodes = [np.concatenate(pair) for pair in zip(nodes, new, strict=True)]
            if hop == len(hops):
                break
            for place, count in enumerate(hops[hop]):
                budgets[place] = _without(_merged(budgets[place], found[place]), nodes[place])
                new[place] = _chosen(budgets[place], count, random)
        row, col, edge = {}, {}, {}
        for type, relation, parts in zip(edge_types, relations, edges, strict=True):
            source, target, position = map(np.concatenate, zip(*parts, strict=True))
            at, inside = _places(nodes[relation.source], source)
            row[type], col[type], edge[type] = (
                torch.from_numpy(each[inside].astype(np.int64)) for each in (at, target, position)
            )
        node = {name: torch.from_numpy(each) for name, each in zip(node_types, nodes, strict=True)}
        return HeteroSamplerOutput(node=node, row=row, col=col, edge=edge, batch=None)


def _found(
    sampled: InScratch, relations: list[Relation], first: list[int], edges: list[list[Edges]]
) -> list[Shares]:
    """The nodes that one hop found, by node type: the expanded ones and their neighbours, with what
    each adds to its share. The edges are added to `edges`; `first` is the place in the whole sample
    of each type's first expanded node."""
    ids = [sampled.nodes(place)[0] for place in range(len(first))]
    shares = [np.zeros(len(each)) for each in ids]
    for number, relation in enumerate(relations):
        row, colptr, position, _ = sampled.edges(number)
        degree = np.diff(colptr)
        share = np.repeat(1 / np.maximum(degree, 1), degree)
        shares[relation.source] += np.bincount(row, share, len(ids[relation.source]))
        target = np.repeat(np.arange(len(degree)), degree) + first[relation.target]
        edges[number].append((ids[relation.source][row], target, position))
    return list(zip(ids, shares, strict=True))


def _checked(num_samples: Any, node_types: list[str]) -> dict[str, list[int]]:
    """`num_samples=` as lists of one length by node type, in the order of these."""
    given = num_samples
    if not isinstance(given, Mapping):
        given = dict.fromkeys(node_types, num_samples)
    try:
        found = {name: checked_fanout(given[name]) for name in node_types}
    except (KeyError, ConfigError):
        found = {}
    whole = all(count >= 0 for counts in found.values() for count in counts)
    if set(found) != set(given) or not whole or len(set(map(len, found.values()))) != 1:
        raise ConfigError(
            f"num_samples={num_samples!r}: give a list with a whole number of nodes, 0 or more, "
            "for each hop, or a dict with one such list of equal length for each of "
            f"{', '.join(node_types)}"
        )
    return found


def _merged(budget: Shares, found: Shares) -> Shares:
    """The budget with these shares added."""
    nodes, place = np.unique(np.concatenate([budget[0], found[0]]), return_inverse=True)
    shares = np.concatenate([budget[1], found[1]])
    return nodes, np.bincount(place, shares, len(nodes)).astype(np.float64, copy=False)


def _without(budget: Shares, nodes: Int64Array) -> Shares:
    """The budget without these nodes."""
    left = ~np.isin(budget[0], nodes)
    return budget[0][left], budget[1][left]


def _chosen(budget: Shares, count: int, random: np.random.Philox) -> Int64Array:
    """Nodes that are drawn from a budget without replacement, by the squares of their shares, int64
    [count], or all of them if it has fewer, in the order in which they are drawn."""
    ids, shares = budget
    uniform = ((random.random_raw(len(ids)) >> np.uint64(11)) + 1) * 2.0**-53  # in (0, 1]
    waits = -np.log(uniform) / shares**2  # exponential, so the shortest waits are such a draw
    shortest = np.argpartition(waits, count)[:count] if count < len(ids) else np.arange(len(ids))
    return ids[shortest[np.argsort(waits[shortest])]]


def _places(nodes: Int64Array, ids: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """The first place in `nodes` of each id, int64 [n], and whether it has one, bool [n]."""
    nodes = np.append(nodes, -1)  # is no id
    order = np.argsort(nodes, kind="stable")  # so the first of equal ones, on every machine
    at = order.take(np.searchsorted(nodes, ids, sorter=order), mode="clip")
    return at, nodes[at] == ids
