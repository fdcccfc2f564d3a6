"""Every byte of a replayed batch, whatever the size and type of a row, engine and device.

Rows are random bytes. The buffer holds one batch and few of the hot rows, so most hot rows are read
from disk, again for each batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import Store
from gnndrive.testing.faults import NOISE
from tests.loader.batches import simulate
from tests.loader.diskgnn.packs import bits, least_buffer, loader_of, make_pack

ROWS = (
    (torch.uint8, 1), (torch.int8, 4), (torch.uint8, 1023), (torch.uint8, 5000),
    (torch.float16, 50), (torch.bfloat16, 2), (torch.bfloat16, 256), (torch.float32, 25),
    (torch.float32, 100), (torch.float32, 1024), (torch.float64, 50), (torch.int64, 512),
)  # fmt: skip
NODES, IN_NEIGHBOURS = 240, 4
ARGUMENTS: dict[str, Any] = {"num_neighbors": [3], "batch_size": 12, "shuffle": True}
ENGINES = ("uring", "threads", "simulated")


@pytest.fixture(
    scope="module", params=ROWS, ids=lambda row: f"{str(row[0]).removeprefix('torch.')}-{row[1]}"
)
def packed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, torch.Tensor]:
    """A store of rows of random bytes with a pack, and the rows."""
    dtype, dim = request.param
    draw = torch.Generator().manual_seed(dim)
    row_bytes = dim * dtype.itemsize
    x = torch.randint(0, 256, (NODES, row_bytes), dtype=torch.uint8, generator=draw).view(dtype)
    indices = np.random.default_rng(0).integers(0, NODES, NODES * IN_NEIGHBOURS) ** 2 // NODES
    path: Path = tmp_path_factory.mktemp("rows") / "rows.gnn"
    indptr = np.arange(NODES + 1) * IN_NEIGHBOURS
    gnndrive.write_store(path, indptr=indptr, indices=indices.astype(np.int64), nodes={"x": x})
    store = gnndrive.open(path)
    make_pack(store, ARGUMENTS, buffer=150 * row_bytes)
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


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_equal_the_tables(
    packed: tuple[Store, torch.Tensor], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, x = packed
    simulate(monkeypatch, seed=x.size(1), faults=NOISE)
    stats = check(store, x, engine=engine)
    assert stats["engine"] == engine
    assert stats["rows_loaded"] > NODES, "the buffer was to be far too small"


def test_hot_rows_are_read_once(packed: tuple[Store, torch.Tensor]) -> None:
    """With room for all rows, only those of batches' chunks and segments are read again."""
    store, x = packed
    stats = check(store, x, buffer="100MB")
    assert float(stats["rows_hit"]) > NODES
    with loader_of(store, ARGUMENTS, buffer="100MB") as loader:
        (table,) = loader.plan().tables
    assert table.residents > 0
    assert float(stats["rows_hit"]) + float(stats["rows_loaded"]) == stats["rows"]


@pytest.mark.usefixtures("some_staging")
@pytest.mark.parametrize("places", [1, 2])
def test_rows_on_a_device(packed: tuple[Store, torch.Tensor], places: int) -> None:
    store, x = packed
    buffer = least_buffer(store, ARGUMENTS, places)
    check(store, x, device="simulated-cuda", buffer=buffer + 20 * x.element_size() * x.size(1))


@pytest.mark.parametrize("sector", [512, 4096])
def test_sectors(
    packed: tuple[Store, torch.Tensor], sector: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnndrive.disk.layouts._rows_file._sector_bytes", lambda fd: sector)
    check(*packed)
