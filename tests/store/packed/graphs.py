"""A small homogeneous graph with times and weights."""

import torch
from torch_geometric.data import Data

NODES, EDGES = 300, 2_500


def make_graph() -> Data:
    """300 nodes, 2,500 edges with duplicates, self loops and nodes without in-neighbours."""
    draw = torch.Generator().manual_seed(3)
    edges = torch.randint(0, NODES, (2, EDGES), generator=draw)
    edges[1] %= 280
    return Data(
        x=torch.randn(NODES, 20, generator=draw),
        y=torch.randint(0, 7, (NODES,), generator=draw),
        edge_index=edges,
        edge_attr=torch.randn(EDGES, 16, generator=draw),
        time=torch.randint(0, 50, (NODES,), generator=draw),
        edge_time=torch.randint(0, 50, (EDGES,), generator=draw),
        weight=torch.rand(EDGES, generator=draw) + 0.1,
    )
