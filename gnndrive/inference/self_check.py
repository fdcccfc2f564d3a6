"""Whether a layer's rows depend on more than its targets' in-edges and the rows at their ends.

Inference gives a layer nothing else, so a layer that counts degrees in `edge_index`, or takes a
mean over all rows, would compute something else in each batch, and no error would say so. So a
batch of each layer is computed twice, the second time with further nodes and with edges into nodes
that are no targets, which must not change the rows of the targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, ends_of
from gnndrive.inference.subgraphs import OneHop
from gnndrive.inference.targets import BATCH_ENTRIES

FURTHER = 4096  # at most so many nodes are added, and so many edges of each kind below
TOLERANCE = 1e-3
HALF_TOLERANCE = 2e-2  # for rows of 16 bits
REFUSALS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)
"""What layers raise that do not take further nodes or edges."""

ByType = dict[Any, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Given:
    """What a layer is called with, by type; of `x` the targets' rows come first."""

    batch: OneHop
    x: ByType
    edge_index: ByType
    values: dict[str, ByType]

    def copy(self) -> Given:
        """The same with tensors of its own."""
        values = {name: _cloned(of_type) for name, of_type in self.values.items()}
        return Given(self.batch, _cloned(self.x), _cloned(self.edge_index), values)


def _cloned(tensors: ByType) -> ByType:
    return {type: tensor.clone() for type, tensor in tensors.items()}


def is_telling(batch: OneHop, type: NodeKey, nodes: int) -> bool:
    """Whether a batch is not the whole graph, with `nodes` nodes of this type, so that a layer may
    compute something else in it, and is small enough to be computed again with more."""
    if batch.batch.entries > BATCH_ENTRIES:
        return False
    count = batch.batch.last - batch.batch.first
    return count < nodes or any(
        bool(edge_index.size(1)) and ends_of(key)[0] != type
        for key, edge_index in batch.edge_index.items()
    )


def widened(given: Given, type: NodeKey) -> Given:
    """Add what must not change the targets' rows. The result shares no memory with `given`.

    That are copies of one node of each type, in-edges of those of the targets' type from the
    sources of the batch, and for each in-edge from a node which is no target its reverse.
    """
    count = given.batch.batch.last - given.batch.batch.first
    rows = len(given.x[type])
    x, nodes = dict(given.x), dict(given.batch.nodes)
    for each in nodes:
        if each in x and len(x[each]):
            x[each], nodes[each] = _with_copies(x[each], nodes[each])
    edge_index, values = dict(given.edge_index), {k: dict(v) for k, v in given.values.items()}
    for key in given.batch.edge_index:
        further = len(x[type]) - rows
        edges, chosen = _more_edges(edge_index[key], key, type, count, rows, further)
        edge_index[key] = torch.cat([edge_index[key], edges], dim=1)
        for of_type in values.values():
            of_type[key] = torch.cat([of_type[key], of_type[key][chosen]])
    return Given(replace(given.batch, nodes=nodes), x, edge_index, values)


def _with_copies(rows: torch.Tensor, ids: Int64Array) -> tuple[torch.Tensor, Int64Array]:
    """Rows and their ids, and copies of the one with the largest values among the first."""
    first = rows[:FURTHER]
    far = int(first.float().abs().view(len(first), -1).sum(1).argmax()) if rows.numel() else 0
    copies = rows[far : far + 1].expand(len(first), *rows.shape[1:])
    return torch.cat([rows, copies]), np.concatenate([ids, np.repeat(ids[far], len(first))])


def _more_edges(
    edges: torch.Tensor, key: EdgeKey, type: NodeKey, count: int, rows: int, further: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges into nodes that are no targets, by ascending target; and which of `edges`, the in-edges
    of the targets, they are made of. The targets' type has `rows` nodes, and `further` ones are
    added."""
    chosen = torch.arange(min(edges.size(1), FURTHER), device=edges.device)
    more = torch.stack([edges[0, chosen], rows + chosen % further])
    if ends_of(key)[0] == type:
        back = (edges[0] >= count).nonzero().view(-1)[:FURTHER]
        more = torch.cat([edges[:, back].flip(0), more], dim=1)
        chosen = torch.cat([back, chosen])
    order = more[1].argsort(stable=True)
    return more[:, order], chosen[order]


def uses_more(layer: int) -> str:
    """The error for a layer whose rows differ in a widened batch."""
    return (
        f"layer {layer + 1} computes other rows for its targets where edges into other nodes, or "
        "further nodes, are added: it uses more than its targets' in-edges and the rows at their "
        "ends, such as degrees of other nodes or a mean over all rows, and inference gives a layer "
        "nothing else: compute such values of the whole graph before, keep them as an attribute of "
        "edges and give its name as edge_weight=, or use GCNConv if that is what the layer does"
    )


def is_close(rows: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether rows are equal but for rounding."""
    if rows.shape != others.shape:
        return False
    if not rows.is_floating_point():
        return float((rows != others).double().mean()) <= TOLERANCE  # as classes, by rounding
    limit = TOLERANCE if rows.element_size() > 2 else HALF_TOLERANCE
    rows, others = rows.to(torch.float64), others.to(torch.float64)
    finite = rows[rows.isfinite()]
    scale = float(finite.abs().mean()) if len(finite) else 0.0
    return torch.allclose(rows, others, rtol=limit, atol=limit * scale, equal_nan=True)
