"""Graphs, and what their splits hold as sets of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from gnndrive import Store

Pairs = set[tuple[int, int]]
NODES, EDGES = 120, 1000


def pairs(edge_index: Any) -> Pairs:
    return set(map(tuple, np.asarray(edge_index).T.tolist()))


def of(view: Any) -> np.ndarray:
    """Edges of a store or of an edge type, by their numbers."""
    edges = view.edges() if isinstance(view, Store) else view
    found = np.empty((2, edges.num_edges), np.int64)
    number = np.arange(edges.num_edges) if edges.edge_id is None else np.asarray(edges.edge_id)
    found[0, number] = edges.indices
    found[1, number] = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return found


def distinct(nodes: int, edges: int, seed: int = 0) -> torch.Tensor:
    """Distinct edges in random order."""
    chosen = np.random.default_rng(seed).permutation(nodes * nodes)[:edges]
    return torch.from_numpy(np.stack([chosen // nodes, chosen % nodes]))


def graph(edge_index: torch.Tensor) -> Data:
    count = edge_index.shape[1]
    return Data(
        x=torch.arange(2 * NODES).view(-1, 2).float(),
        y=torch.arange(NODES) % 3,
        train_mask=torch.arange(NODES) < 50,
        edge_index=edge_index,
        weight=torch.arange(count).double(),
        code=(edge_index[0] * NODES + edge_index[1]).int().view(-1, 1).repeat(1, 2),
        half=torch.arange(count).bfloat16(),
    )


def halves(view: Any) -> tuple[Pairs, Pairs]:
    """Labelled edges, and pairs without an edge."""
    return pairs(view.edge_label_index[:, view.edge_label > 0]), pairs(
        view.edge_label_index[:, view.edge_label == 0]
    )


def check_against_pyg(parts: Any, expected: Any, undirected: bool) -> None:
    for mine, theirs in zip(parts, expected, strict=True):
        assert mine.edge_label_index.shape == theirs.edge_label_index.shape
        assert mine.edge_label_index.dtype == torch.int64
        assert mine.edge_label.dtype == theirs.edge_label.dtype
        assert torch.equal(mine.edge_label.long().bincount(), theirs.edge_label.long().bincount())
        if not undirected:  # PyG doubles loops
            assert mine.num_edges == theirs.num_edges


def halves_count(part: Any) -> int:
    return int((part.edge_label > 0).sum())
