"""A graph some of whose nodes have most of the out-edges, as a store."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store


def skewed_store(path: Path, nodes: int, edges: int, columns: int, seed: int) -> Store:
    """A store of random edges and float32 rows; a tenth of the nodes have nearly half of the
    out-edges."""
    draw = torch.Generator().manual_seed(seed)
    source = (nodes * torch.rand(edges, generator=draw) ** 3).long()
    edge_index = torch.stack([source, torch.randint(nodes, (edges,), generator=draw)])
    x = torch.randn(nodes, columns, generator=draw)
    return gnndrive.from_data(Data(x=x, edge_index=edge_index), path)
