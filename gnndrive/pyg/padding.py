"""`Padding`: pads batches to a few sizes, so that their shapes repeat.

A CUDA graph, and a model compiled for static shapes, serves batches of one shape only. jraph and
T.Pad pad graphs with nodes of zeros. Here padding nodes are copies of the batch's last node, with
its id and all that it has, so that `batch.x` is `data.x[batch.n_id]` still, and a feature buffer
gathers them like any other row. Padding edges join padding nodes alone, so no message reaches
another node.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.padding import Part, padded
from gnndrive.common.records import EdgeKey, Int64Array, Sample, Subgraph, ends_of
from gnndrive.sampling.samplers.base import Bounds

POWER_OF_TWO = "power-of-two"


@dataclass(frozen=True, slots=True)
class Padding:
    """Sizes 1, …, each about `growth` times the one before."""

    growth: float

    def nodes(self, count: int) -> int:
        """How many nodes of a type a batch of `count` has: at least one more, which edges can
        join; 0 stays 0."""
        return self._size(count + 1) if count else 0

    def edges(self, count: int) -> int:
        """The same for edges, which may be no more."""
        return self._size(count) if count else 0

    def _size(self, count: int) -> int:
        size = 1
        while size < count:
            size = max(size + 1, math.ceil(size * self.growth))
        return size

    def bounds(self, size: Bounds) -> Bounds:
        """The most that a padded batch can hold if the sample holds at most `size`."""
        return replace(
            size,
            edges={type: self.edges(count) for type, count in size.edges.items()},
            entries={type: self.nodes(count) for type, count in size.entries.items()},
        )

    def sample(self, sample: Sample | Subgraph, empty: Allocate = np.empty) -> Sample | Subgraph:
        """The sample with padding, which counts to its last hop; `empty` allocates the arrays."""
        if isinstance(sample, Subgraph):
            return self._subgraph(sample, empty)
        count, edges = len(sample.node), len(sample.row)
        nodes, of_edges = (count, self.nodes(count)), (edges, self.edges(edges))
        at = _spread(*nodes, of_edges)
        row, colptr = empty(of_edges[1], np.int32), empty(nodes[1] + 1, np.int32)
        row[:edges], row[edges:] = sample.row, at
        expanded = len(sample.colptr)
        colptr[:expanded], colptr[expanded : count + 1] = sample.colptr, edges
        colptr[count + 1 :] = edges + np.searchsorted(at, np.arange(count, nodes[1]), "right")
        return replace(
            sample, node=padded(sample.node, [nodes], empty), row=row, colptr=colptr,
            edge=padded(sample.edge, [of_edges], empty),
            num_sampled_nodes=tuple(_in_last_hop(sample.num_sampled_nodes, nodes)),
            num_sampled_edges=tuple(_in_last_hop(sample.num_sampled_edges, of_edges)),
        )  # fmt: skip

    def _subgraph(self, sample: Subgraph, empty: Allocate) -> Subgraph:
        out, typed = copy.copy(sample.output), None not in sample.node
        nodes = {type: (len(node), self.nodes(len(node))) for type, node in sample.node.items()}
        node = {type: padded(each, [nodes[type]], empty) for type, each in sample.node.items()}
        row, col = (_by_type(each, typed) for each in (out.row, out.col))
        edge, ends, edges = dict(sample.edge), dict(sample.ends or {}), dict[EdgeKey, Part]()
        for type, number in edge.items():
            drawn = ends.get(type)
            count = len(row.get(type, ())) if drawn is None else drawn.shape[1]
            if not count:
                continue
            edges[type] = of_edges = count, self.edges(count)
            at = [_spread(*nodes[each], of_edges) for each in ends_of(type)]
            if number is not None:
                edge[type] = padded(number, [of_edges], empty)
            if drawn is None:
                row[type], col[type] = map(_joined, (row[type], col[type]), at)
            else:
                ends[type] = whole = empty((2, of_edges[1]), np.int64)
                whole[:, :count], whole[:, count:] = drawn, at
        out.row, out.col = (each if typed else each[None] for each in (row, col))
        out.num_sampled_nodes = _counted(out.num_sampled_nodes, nodes)
        out.num_sampled_edges = _counted(out.num_sampled_edges, edges)
        if out.batch is not None:
            trees = _by_type(out.batch, typed)
            trees = {type: _repeated(each, *nodes[type]) for type, each in trees.items()}
            out.batch = trees if typed else trees[None]
        return replace(
            sample, node=node, edge=edge, output=out, ends=sample.ends and ends,
            num_edges=sample.num_edges + sum(size - count for count, size in edges.values()),
        )  # fmt: skip


def _by_type(value: Any, typed: bool) -> dict[Any, Any]:
    return dict(value) if typed else {None: value}


def _spread(nodes: int, size: int, edges: Part) -> Int64Array:
    """Which of the padding nodes, from `nodes` to `size`, each padding edge has at an end: about
    as many edges each, because a GPU adds up messages to one node one after the other."""
    more = edges[1] - edges[0]
    return nodes + np.arange(more) * (size - nodes) // max(more, 1)


def _joined(ends: torch.Tensor, more: Int64Array) -> torch.Tensor:
    return torch.cat([ends, torch.from_numpy(more).to(ends)])


def _repeated(trees: torch.Tensor, count: int, size: int) -> torch.Tensor:
    return torch.cat([trees, trees[-1:].expand(size - count)])


def _counted(hops: Any, parts: Mapping[Any, Part]) -> Any:
    """PyG's numbers of nodes or edges in each hop, by type if there are types, with padding; None
    stays None."""
    if isinstance(hops, Mapping):
        return {type: _in_last_hop(each, parts.get(type)) for type, each in hops.items()}
    return _in_last_hop(hops, parts.get(None))


def _in_last_hop(hops: Any, part: Part | None) -> Any:
    if not hops or part is None:
        return hops
    return [*hops[:-1], hops[-1] + part[1] - part[0]]


def padding_of(pad: Any) -> Padding | None:
    """Check `pad=` of a loader; None: batches are not padded."""
    if pad is None:
        return None
    growth = 2.0 if pad == POWER_OF_TWO else pad
    number = isinstance(growth, Real) and not isinstance(growth, bool)
    if not number or not 1 < float(growth) < math.inf:
        raise ConfigError(
            f"pad={pad!r}: give 'power-of-two', a number above 1 by which sizes grow, such as 1.1, "
            "or None"
        )
    return Padding(float(growth))
