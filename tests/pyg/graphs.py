"""A graph in memory for the tests of PyG's interfaces."""

import torch
from torch_geometric.data import Data


def homogeneous(nodes: int = 60, edges: int = 400, seed: int = 0) -> Data:
    """A random graph whose attributes identify their node or edge."""
    random = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.arange(nodes * 3, dtype=torch.float32).view(nodes, 3),
        y=torch.arange(nodes) % 4,
        edge_index=torch.randint(nodes, (2, edges), generator=random),
        edge_attr=torch.arange(edges),
    )
