"""A small store with rows of one sector."""

from pathlib import Path

import numpy as np
import pytest

from gnndrive.store import write_store
from gnndrive.store.reader import Store

NODES, DIM = 3_000, 128  # rows of 512 bytes


def make_store(path: Path, nodes: int = NODES) -> Store:
    """Make a store in which every node has four in-neighbours."""
    random = np.random.default_rng(3)
    return write_store(
        path,
        indptr=np.arange(nodes + 1) * 4,
        indices=random.integers(0, nodes, 4 * nodes),
        nodes={"x": random.standard_normal((nodes, DIM)).astype(np.float32)},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "small.gnn")
