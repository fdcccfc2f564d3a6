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

from gnndrive.common.records import EdgeKey, NodeKey, ends_of
from gnndrive.inference.subgraphs import OneHop

FURTHER = 4096  # at most so many nodes are added, and so many edges of each kind below
TOLERANCE = 1e-3
HALF_TOLERANCE = 2e-2  # for rows of 16 bits

ByType = dict[Any, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Given:
    """What a layer is called with, by type.

    Attributes:
        batch: the subgraph.
        x: rows of each node type, those of the targets first.
        edge_index: [2, edges] of each edge type.
        values: further arguments by name, each with a row for each edge of each edge type.
    """

    batch: OneHop
    x: ByType
    edge_index: ByType
    values: dict[str, ByType]


def reaches_out(batch: OneHop, type: NodeKey) -> bool:
    """Whether a batch has an in-edge from a node that is no target.

    Args:
        batch: the subgraph.
        type: the targets' type.
    """
    count = batch.batch.last - batch.batch.first
    return any(
        bool(edge_index.size(1)) and (ends_of(key)[0] != type or int(edge_index[0].max()) >= count)
        for key, edge_index in batch.edge_index.items()
    )


def widened(given: Given, type: NodeKey) -> Given:
    """Add what must not change the targets' rows.

    That are copies of one node of the targets' type, in-edges of them from the sources of the
    batch, and for each in-edge from a node of that type which is no target its reverse.

    Args:
        given: what a layer was called with.
        type: the targets' type.
    """
    count = given.batch.batch.last - given.batch.batch.first
    rows = given.x[type]
    further = min(len(rows), FURTHER)
    far = int(rows.float().abs().view(len(rows), -1).sum(1).argmax()) if rows.numel() else 0
    x = given.x | {type: torch.cat([rows, rows[far : far + 1].expand(further, *rows.shape[1:])])}
    ids = given.batch.nodes[type]
    nodes = given.batch.nodes | {type: np.concatenate([ids, np.repeat(ids[far], further)])}
    edge_index, values = dict(given.edge_index), {k: dict(v) for k, v in given.values.items()}
    for key in given.batch.edge_index:
        edges, chosen = _more_edges(edge_index[key], key, type, count, len(rows), further)
        edge_index[key] = torch.cat([edge_index[key], edges], dim=1)
        for of_type in values.values():
            of_type[key] = torch.cat([of_type[key], of_type[key][chosen]])
    return Given(replace(given.batch, nodes=nodes), x, edge_index, values)


def _more_edges(
    edges: torch.Tensor, key: EdgeKey, type: NodeKey, count: int, rows: int, further: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges into nodes that are no targets, by ascending target; and which edges they are made of.

    Args:
        edges: the in-edges of the targets, [2, edges].
        key: their type.
        type: the targets' type.
        count: the number of targets.
        rows: the number of nodes of the targets' type, before any are added.
        further: how many nodes of that type are added.
    """
    chosen = torch.arange(min(edges.size(1), FURTHER), device=edges.device)
    more = torch.stack([edges[0, chosen], rows + chosen % further])
    if ends_of(key)[0] == type:
        back = (edges[0] >= count).nonzero().view(-1)[:FURTHER]
        more = torch.cat([edges[:, back].flip(0), more], dim=1)
        chosen = torch.cat([back, chosen])
    order = more[1].argsort(stable=True)
    return more[:, order], chosen[order]


def uses_more(layer: int) -> str:
    """The error for a layer whose rows differ in a widened batch.

    Args:
        layer: the layer's number, from 0.
    """
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
