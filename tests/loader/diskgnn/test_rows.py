"""Every byte of a replayed batch, whatever the size and type of a row, engine and device.

Rows are random bytes. The buffer holds one batch and few of the hot rows, so most hot rows are read
from disk, again for each batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import Store
from gnndrive.testing.faults import NOISE
from tests.loader.batches import simulate
from tests.loader.diskgnn.packs import bits, least_buffer, loader_of, make_pack
from tests.soak import product

ROWS = (
    (torch.uint8, 1), (torch.uint8, 1023), (torch.uint8, 5000), (torch.bfloat16, 256),
    (torch.float32, 25), (torch.float64, 50),
)  # fmt: skip
NODES, IN_NEIGHBOURS = 96, 4
ARGUMENTS: dict[str, Any] = {"num_neighbors": [3], "batch_size": 12, "shuffle": True}
HOWS: tuple[dict[str, Any], ...] = (
    {"engine": "uring"}, {"engine": "threads"}, {"engine": "simulated"},
    {"device": "simulated-cuda", "places": 1}, {"device": "simulated-cuda", "places": 2},
    {"sector": 4096},
)  # fmt: skip


def make(path: Any, dtype: torch.dtype, dim: int) -> tuple[Store, torch.Tensor]:
    """A store of rows of random bytes with a pack, and the rows."""
    draw = torch.Generator().manual_seed(dim)
    row_bytes = dim * dtype.itemsize
    x = torch.randint(0, 256, (NODES, row_bytes), dtype=torch.uint8, generator=draw).view(dtype)
    indices = np.random.default_rng(0).integers(0, NODES, NODES * IN_NEIGHBOURS) ** 2 // NODES
    indptr = np.arange(NODES + 1) * IN_NEIGHBOURS
    store = gnndrive.write_store(path, indptr=indptr, indices=indices, nodes={"x": x})
    make_pack(store, ARGUMENTS, buffer=60 * row_bytes)
    return store, x


def check(store: Store, x: torch.Tensor, **more: Any) -> dict[str, Any]:
    """Hold two epochs of a loader against the rows; returns its stats."""
    with loader_of(store, ARGUMENTS, **more) as loader:
        for _ in range(2):
            seen = 0
            for batch in loader:
                seen += batch.batch_size
                assert batch.x.dtype == x.dtype
                assert torch.equal(bits(batch.x), bits(x[batch.n_id]))
            assert seen == NODES
        return loader.stats()


@pytest.mark.usefixtures("some_staging")
@product("row,how", ROWS, HOWS)
def test_rows_equal_the_tables(tmp_path, monkeypatch, row, how):
    store, x = make(tmp_path / "rows.gnn", *row)
    how = dict(how)
    simulate(monkeypatch, seed=x.size(1), faults=NOISE)
    sector = how.pop("sector", 512)
    monkeypatch.setattr("gnndrive.disk.layouts._rows_file._sector_bytes", lambda fd: sector)
    if "places" in how:
        row_bytes = x.element_size() * x.size(1)
        how["buffer"] = least_buffer(store, ARGUMENTS, how.pop("places")) + 20 * row_bytes
    stats = check(store, x, **how)
    assert stats["engine"] == how.get("engine", stats["engine"])
    assert stats["rows_loaded"] > NODES, "the buffer was to be far too small"


def test_hot_rows_are_read_once(tmp_path):
    """With room for all rows, only those of batches' chunks and segments are read again."""
    store, x = make(tmp_path / "rows.gnn", torch.float32, 100)
    stats = check(store, x, buffer="100MB")
    assert float(stats["rows_hit"]) > NODES
    with loader_of(store, ARGUMENTS, buffer="100MB") as loader:
        (table,) = loader.plan().tables
    assert table.residents > 0
    assert float(stats["rows_hit"]) + float(stats["rows_loaded"]) == stats["rows"]
