"""Counting degrees stays within the bytes a node that `memory=` counts for it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import gnndrive
from gnndrive.inference.degrees import NODE_BYTES, Normaliser


def test_the_memory_of_counting(tmp_path: Path):
    count = 1_000_000
    edges = torch.randint(count - 1000, count, (2, 5000))
    data = Data(x=torch.zeros(count, 1), edge_index=edges)
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    normaliser = Normaliser([GCNConv(1, 1)], store.all_edges(), None)
    assert store.index_pointers[-1] == 5000  # read at the first use, and counted apart
    for loops in (False, True):
        tracemalloc.start()
        try:
            root = normaliser._count(None, loops, 1.0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak <= NODE_BYTES * count
        counted = edges[:, edges[0] != edges[1]] if loops else edges
        degree = torch.bincount(counted[1], minlength=count).double() + loops
        assert torch.equal(root, torch.where(degree == 0, 0, degree**-0.5).float())
