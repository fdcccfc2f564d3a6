"""Every byte: whatever the size and type of a row, a batch holds what direct indexing gives.

Rows are random bytes, so floats are NaNs and infinities too, and are compared as bytes. The buffer
holds a small part of the table, so slots are reused all the time; each row comes at least once.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.testing.faults import NOISE
from tests.loader.batches import simulate
from tests.soak import product

DIMS = [1, 3, 32, 100, 127, 128, 129, 768, 4714]
DTYPES = [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]
ENGINES = ["uring", "threads", "simulated"]
NODES, IN_NEIGHBOURS = 240, 4
BATCH_SIZE = 6  # with 3 neighbours of each seed a batch has at most 24 rows
ROWS_IN_BUFFER = 30


@pytest.fixture(scope="module")
def graph() -> tuple[np.ndarray, np.ndarray]:
    """Index pointers and indices: each node has four in-neighbours."""
    indices = np.random.default_rng(0).integers(0, NODES, NODES * IN_NEIGHBOURS)
    return np.arange(NODES + 1) * IN_NEIGHBOURS, indices.astype(np.int64)


def table(
    path: Path, graph: tuple[np.ndarray, np.ndarray], dim: int, dtype: torch.dtype
) -> tuple[Store, torch.Tensor]:
    """A store of rows of random bytes, and the rows."""
    draw = torch.Generator().manual_seed(dim)
    row_bytes = dim * dtype.itemsize
    x = torch.randint(0, 256, (NODES, row_bytes), dtype=torch.uint8, generator=draw).view(dtype)
    gnndrive.write_store(path, indptr=graph[0], indices=graph[1], nodes={"x": x})
    return gnndrive.open(path), x


@product("dim,dtype,engine", DIMS, DTYPES, ENGINES, ids=str)
def test_every_row_equals_direct_indexing(graph, dim, dtype, engine, tmp_path, monkeypatch):
    store, x = table(tmp_path / "rows.gnn", graph, dim, dtype)
    simulate(monkeypatch, seed=x.size(1), faults=NOISE)
    row_bytes = x.size(1) * x.element_size()
    with NeighborLoader(
        store,
        [3],
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=1,
        engine=engine,
        extractors=4,
        io_depth=16,
        buffer=ROWS_IN_BUFFER * row_bytes,
    ) as loader:
        batches = 0
        for batch in loader:
            batches += 1
            assert batch.x.dtype == x.dtype
            assert batch.x.shape == (len(batch.n_id), x.size(1))
            assert torch.equal(batch.x.view(torch.uint8), x[batch.n_id].view(torch.uint8))
        stats = loader.stats()
    assert batches == NODES // BATCH_SIZE
    assert stats["engine"] == engine
    assert stats["evictions"] > NODES - ROWS_IN_BUFFER, "the buffer was to be far too small"
