"""PyG's `SamplerOutput` and `HeteroSamplerOutput`, made of a sample in the C scratch memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gnndrive.common.records import EdgeType
from gnndrive.pyg.conversions import as_batch, coo
from gnndrive.sampling.samplers._native import InScratch


def sampler_output(
    sampled: InScratch, dtype: torch.dtype, backward: bool, induced: bool
) -> SamplerOutput:
    """The sample of a homogeneous graph.

    Args:
        sampled: the sample.
        dtype: the dtype of ids.
        backward: whether edges were followed from source to target.
        induced: whether the subgraph is induced, which has no hops.
    """
    node, tree, nodes_per_hop = sampled.nodes(0)
    row, col, edge, edges_per_hop = coo(sampled, 0, dtype)
    if backward:
        row, col = col, row
    return SamplerOutput(
        node=torch.from_numpy(node).to(dtype), row=row, col=col, edge=edge, batch=as_batch(tree),
        num_sampled_nodes=None if induced else list(nodes_per_hop),
        num_sampled_edges=None if induced else edges_per_hop,
    )  # fmt: skip


def hetero_sampler_output(
    sampled: InScratch, node_types: Sequence[str], edge_types: Sequence[EdgeType],
    dtype: torch.dtype, disjoint: bool, backward: bool, induced: bool,
) -> HeteroSamplerOutput:  # fmt: skip
    """The sample of a heterogeneous graph; `node_types` and `edge_types` are in the order of the
    sample, as the user names them. For the rest see `sampler_output`.

    Args:
        disjoint: whether each seed has a tree of its own.
    """
    node, batch, nodes_per_hop = {}, {}, {}
    for number, name in enumerate(node_types):
        found, tree, per_hop = sampled.nodes(number)
        node[name], nodes_per_hop[name] = torch.from_numpy(found).to(dtype), list(per_hop)
        batch[name] = as_batch(tree)
    row, col, edge, edges_per_hop = {}, {}, {}, {}
    for number, type in enumerate(edge_types):
        row[type], col[type], edge[type], edges_per_hop[type] = coo(sampled, number, dtype)
    if backward:
        row, col = col, row
    return HeteroSamplerOutput(
        node=node, row=row, col=col, edge=edge, batch=batch if disjoint else None,
        num_sampled_nodes=None if induced else nodes_per_hop,
        num_sampled_edges=None if induced else edges_per_hop,
    )  # fmt: skip
