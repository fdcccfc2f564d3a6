"""What `SubgraphSampler` does beside the samples that it makes."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader
from gnndrive.pyg import sampler, subgraph_sampler

NODES, EDGES, BATCH = 200, 1_000, 40


def test_what_large_bidirectional_samples_free_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two samples are of one size, so holes of freed copies would add up."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, EDGES), generator=draw)
    store = gnndrive.from_data(Data(x=torch.zeros(NODES, 1), edge_index=edges), tmp_path / "s.gnn")
    returned = list[None]()
    monkeypatch.setattr(subgraph_sampler, "return_free_memory", lambda: returned.append(None))

    def run(kind: str) -> list[int]:
        """The edges of each batch of an epoch."""
        returned.clear()
        with NeighborLoader(
            store, [3, 3], batch_size=BATCH, subgraph_type=kind, seed=0, shuffle=False
        ) as loader:
            return [batch.edge_index.size(1) for batch in loader]

    sizes = run("bidirectional")
    assert len(set(sizes)) > 1
    assert not returned  # these are small
    least = sampler.BIDIRECTIONAL_BYTES * max(sizes)
    monkeypatch.setattr(subgraph_sampler, "HOLES_BYTES_MIN", least)
    assert run("bidirectional") == sizes
    assert len(returned) == sizes.count(max(sizes))
    monkeypatch.setattr(subgraph_sampler, "HOLES_BYTES_MIN", 1)
    run("induced")
    assert not returned  # it makes no such copies
    run("bidirectional")
    assert len(returned) == len(sizes)
