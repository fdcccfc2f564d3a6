"""A store of several stretches, and folders that stand for disks."""

from pathlib import Path

import numpy as np
import pytest

from gnndrive.store import Store, write_store

NODES = 1000


def make_store(path: Path, dtype: str = "float32", columns: int = 7) -> Store:
    """A store of random rows."""
    draw = np.random.default_rng(columns)
    x = (255 * draw.random((NODES, columns))).astype(dtype)
    return write_store(
        path, indptr=np.arange(NODES + 1), indices=draw.integers(0, NODES, NODES),
        nodes={"x": x, "y": draw.integers(0, 5, NODES)}, splits={"train": np.arange(NODES)},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of this size make stretches of 32."""
    monkeypatch.setattr("gnndrive.store.striped.format.STRETCH_BYTES_MIN", 32 * 28)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "s.gnn")


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"disk{number}" for number in range(3)]
    for folder in found:
        folder.mkdir()
    return found
