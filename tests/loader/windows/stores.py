"""Small partitioned stores, and what is true of a batch that was sampled inside a window."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.sampling.schedules.base import Window
from gnndrive.store.partitioned.partition import partition
from tests.loader.batches import bits

NODES, EDGES, PARTS = 900, 7_000, 12
WINDOWS = 4  # of three partitions
STATIC = 9  # nodes, if a loader does not say how many
MEMORY = 128 << 20
ARGUMENTS: dict[str, Any] = {
    "num_neighbors": [4, 3], "batch_size": 64, "shuffle": True, "seed": 5, "megabatch": 3,
    "strategy": "hierbatching", "io_depth": 16,
}  # fmt: skip
MARIUS: dict[str, Any] = {"strategy": "marius", "megabatch": 4}


def make_graph() -> Data:
    """A graph with duplicate edges, self loops, a few hubs, and nodes without neighbours."""
    draw = torch.Generator().manual_seed(3)
    sources = (NODES * torch.rand(EDGES, generator=draw) ** 3).long()
    targets = torch.randint(0, NODES - NODES // 10, (EDGES,), generator=draw)
    order = torch.randperm(NODES, generator=draw)
    return Data(
        x=torch.randn(NODES, 9, generator=draw),
        y=torch.randint(0, 7, (NODES,), generator=draw),
        place=torch.randint(0, 99, (NODES, 2), generator=draw, dtype=torch.int16),
        edge_index=torch.stack([order[sources], order[targets]]),
        edge_attr=torch.randn(EDGES, 3, generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.4,
    )


def make_store(data: Data, folder: Path, parts: int = PARTS) -> Store:
    """The graph as a store that was partitioned at random."""
    store = gnndrive.from_data(data, folder / "graph.gnn")
    partition(store, parts, "random", MEMORY)
    return store


def windows_of(loader: NeighborLoader, epoch: int = 0) -> list[Window]:
    """The windows of an epoch of a loader with a seed."""
    assert loader.seed is not None
    return list(loader._assembly().schedule(loader.seed).windows(epoch))


def with_windows(
    batches: Iterable[Data], loader: NeighborLoader, epoch: int = 0
) -> Iterator[tuple[Data, torch.Tensor]]:
    """Each batch of a whole epoch in its order, with what is inside its window; bool [N]."""
    for_each: list[torch.Tensor] = []
    for window in windows_of(loader, epoch):
        for_each += window.count * [inside(loader, window)]
    return zip(batches, for_each, strict=True)


def inside(loader: NeighborLoader, window: Window) -> torch.Tensor:
    """Whether each node is in the window: in its partitions, or static; bool [N]."""
    scheme = loader._assembly().scheme
    partitioned, static = scheme.source, scheme.chosen.static
    found = np.isin(partitioned.part_of(np.arange(partitioned.num_nodes)), window.partitions)
    found[np.asarray(partitioned.order)[partitioned.home[:static]]] = True
    return torch.from_numpy(found)


def check(batch: Data, data: Data, window: torch.Tensor | None = None) -> None:
    """Raise AssertionError unless a batch is a sampled piece of the graph, in the store's ids, and
    all its nodes are in the window."""
    for name in ("x", "y", "place", "train_mask"):
        assert batch[name].dtype == data[name].dtype, name
        assert torch.equal(bits(batch[name]), bits(data[name][batch.n_id])), name
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert len(batch.n_id.unique()) == batch.num_nodes == sum(batch.num_sampled_nodes)
    assert sum(batch.num_sampled_edges) == batch.num_edges
    if "batch_size" in batch:
        assert batch.batch_size == batch.num_sampled_nodes[0] == len(batch.input_id)
    assert window is None or window[batch.n_id].all()


def inputs_of(batches: Iterable[Data]) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in batches]
