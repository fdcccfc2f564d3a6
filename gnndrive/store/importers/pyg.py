"""Import a PyTorch Geometric `Data`: what its loader slices per node or edge is stored."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnndrive.errors import ConfigError
from gnndrive.store.arrays import write_store
from gnndrive.store.convert import ArrayLike
from gnndrive.store.format import Progress
from gnndrive.store.importers.csc import csc_from_edges
from gnndrive.store.reader import Store

if TYPE_CHECKING:
    from torch_geometric.data import Data


def from_data(
    data: Data,
    path: str | os.PathLike[str],
    *,
    splits: dict[str, ArrayLike] | None = None,
    made_by: str = "gnndrive.from_data",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Store:
    """Write a PyG `Data` as a store.

    Every attribute that PyG counts as one per node or one per edge is written; edge ids are
    positions in `data.edge_index`. Masks `NAME_mask` [num_nodes] also become splits NAME.
    Attributes of the whole graph have no place in a store: they are left out, with a warning that
    names them.

    Args:
        data: a homogeneous graph with `edge_index`.
        path: where the store shall be.
        splits: node ids or bool masks by name; None: from the masks.
        made_by: how it was made, for people.
        overwrite: replace a store that is at `path`.
        progress: called as progress(what, bytes done, bytes in all).

    Returns:
        The store, open.

    Raises:
        NotImplementedError: `data` is a HeteroData.
        ConfigError: `data` has no edge_index, or an attribute that a store cannot hold.
        StoreError: an edge names a node that there is not, or the disk is full.
    """
    from torch_geometric.data import Data as DataClass
    from torch_geometric.data import HeteroData

    if isinstance(data, HeteroData):
        raise NotImplementedError(
            "from_data does not take a HeteroData yet: use data.to_homogeneous()"
        )
    if not isinstance(data, DataClass):
        raise ConfigError(f"from_data takes a torch_geometric Data, not a {type(data).__name__}")
    edge_index = data.edge_index
    if not isinstance(edge_index, torch.Tensor) or edge_index.dim() != 2 or len(edge_index) != 2:
        raise ConfigError(
            "data has no edge_index [2, num_edges]: convert adj_t with data.edge_index = "
            "torch.stack(data.adj_t.t().coo()[:2])"
        )
    num_nodes = data.num_nodes
    if num_nodes is None:
        raise ConfigError("data does not say how many nodes it has: set data.num_nodes")
    nodes, edges = _attributes(data)
    src, dst = edge_index.detach().cpu().numpy()
    indptr, indices, edge_id = csc_from_edges(src, dst, int(num_nodes))
    return write_store(
        path,
        indptr=indptr,
        indices=indices,
        edge_id=edge_id,
        nodes=nodes,
        edges=edges,
        splits=_mask_splits(nodes) if splits is None else splits,
        made_by=made_by,
        overwrite=overwrite,
        progress=progress,
    )


def _attributes(data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
    """The per-node and the per-edge attributes, a warning for the others."""
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    left_out = []
    for name, value in data.to_dict().items():
        if name in ("edge_index", "num_nodes"):
            continue
        if not isinstance(value, torch.Tensor | np.ndarray) or value.ndim == 0:
            left_out.append(name)
        elif data.is_node_attr(name):
            nodes[name] = value
        elif data.is_edge_attr(name):
            edges[name] = value
        else:
            left_out.append(name)
    if left_out:
        warnings.warn(
            f"a store holds attributes of nodes and edges; left out: {', '.join(sorted(left_out))}",
            stacklevel=3,
        )
    return nodes, edges


def _mask_splits(nodes: dict[str, Any]) -> dict[str, ArrayLike]:
    splits: dict[str, ArrayLike] = {}
    for name, value in nodes.items():
        if not name.endswith("_mask") or str(value.dtype).removeprefix("torch.") != "bool":
            continue
        if value.ndim == 1:
            splits[name.removesuffix("_mask")] = value
        else:
            warnings.warn(
                f"{name} holds {value.shape[-1]} splits and none is chosen: "
                f"pass splits={{'{name.removesuffix('_mask')}': data.{name}[:, 0], …}}",
                stacklevel=3,
            )
    return splits
