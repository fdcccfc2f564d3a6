"""Asynchronous iteration on the real engines, cancelled at random awaits."""

import pytest
from torch_geometric.data import Data

from gnndrive import Store
from tests.loader.cancelling import run


@pytest.mark.parametrize("topology", ["mmap", "direct"])
@pytest.mark.parametrize("engine", ["uring", "threads"])
async def test_no_batch_is_lost(store: Store, data: Data, engine: str, topology: str) -> None:
    assert await run(store, data, 1, 40, engine=engine, topology=topology) > 0
