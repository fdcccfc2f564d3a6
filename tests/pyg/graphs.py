"""Graphs in memory for the tests of PyG's interfaces."""

import torch
from torch_geometric.data import Data, HeteroData


def homogeneous(nodes: int = 60, edges: int = 400, seed: int = 0) -> Data:
    """A random graph whose attributes identify their node or edge."""
    random = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.arange(nodes * 3, dtype=torch.float32).view(nodes, 3),
        y=torch.arange(nodes) % 4,
        edge_index=torch.randint(nodes, (2, edges), generator=random),
        edge_attr=torch.arange(edges),
    )


COUNTS = {"paper": 40, "author": 25, "venue": 5}
EDGES = [
    ("paper", "cites", "paper", 150), ("author", "writes", "paper", 90),
    ("paper", "rev_writes", "author", 90), ("venue", "prints", "paper", 40),
]  # fmt: skip


def heterogeneous(seed: int = 0) -> HeteroData:
    """A random graph of three node types with features of different widths."""
    random, data = torch.Generator().manual_seed(seed), HeteroData()
    for width, (name, count) in enumerate(COUNTS.items(), 2):
        data[name].x = torch.rand(count, width, generator=random)
        data[name].id = torch.arange(count)
    data["paper"].y = torch.arange(COUNTS["paper"]) % 3
    for source, relation, target, edges in EDGES:
        store = data[source, relation, target]
        store.edge_index = torch.stack(
            [
                torch.randint(COUNTS[source], (edges,), generator=random),
                torch.randint(COUNTS[target], (edges,), generator=random),
            ]
        )
        store.edge_attr = torch.arange(edges)
    return data
