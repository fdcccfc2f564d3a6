"""A graph whose rows are most of its bytes, and a loader that is short of memory for them."""

from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import ConfigError, Store
from tests.loader.batches import skewed_store
from tests.loader.conftest import Make

SAME = {"gnndrive", "ginex", "rolling", "ali+pg", "lsm-gnn"}
"""Strategies whose batches are those of gnndrive."""
DRAWN: dict[str, Any] = {
    "input_nodes": torch.arange(640), "batch_size": 16, "shuffle": True, "seed": 5,
}  # fmt: skip
SHORT: dict[str, Any] = {"buffer": None, "io_depth": 1, **DRAWN}
BATCHES = 40


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A graph whose rows are most of its bytes, so that memory may be short of them alone."""
    folder = tmp_path_factory.mktemp("choice") / "wide.gnn"
    return skewed_store(folder, nodes=3_000, edges=12_000, columns=256, seed=1)


@pytest.fixture
def short(make: Make, wide: Store) -> dict[str, Any]:
    """Arguments of a loader with a little more memory than it needs."""
    given = {"data": wide, **SHORT}
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        make(memory=1, **given).plan()
    least = str(caught.value).split('memory="')[1].split('"')[0]
    return given | {"memory": int(1.15 * gnndrive.common.memory.parse_size(least, "memory"))}
