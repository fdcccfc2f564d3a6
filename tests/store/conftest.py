"""A tiny store with every kind of array, and functions that damage it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.store import Store, write_store

NODES, EDGES = 40, 160


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were fsynced, in order. fsync is replaced, because hundreds of tests would
    wait for the disk."""
    paths: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: paths.append(os.readlink(f"/proc/self/fd/{fd}")))
    return paths


def make_store(path: Path) -> Store:
    """A store of 40 nodes and 160 edges."""
    rng = np.random.default_rng(7)
    indptr = np.concatenate([[0], np.sort(rng.integers(0, EDGES + 1, NODES - 1)), [EDGES]])
    return write_store(
        path,
        indptr=indptr,
        indices=rng.integers(0, NODES, EDGES),
        edge_id=rng.permutation(EDGES),
        nodes={
            "x": torch.from_numpy(rng.standard_normal((NODES, 3))).bfloat16(),
            "y": rng.integers(0, 5, NODES),
        },
        edges={"edge_attr": rng.standard_normal((EDGES, 2)).astype(np.float32)},
        splits={"train": np.arange(10), "val": np.arange(NODES) >= 30},
        classes=["a", "b", "c", "d", "é"],
        made_by="a test",
    )


@pytest.fixture(scope="session")
def make() -> Callable[[Path], Store]:
    """A function that makes the tiny store at a path."""
    return make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "tiny.gnn")


@pytest.fixture
def edit_json(store: Store) -> Callable[[Callable[[dict[str, Any]], object]], None]:
    """A function that changes store.json in place."""

    def edit(change: Callable[[dict[str, Any]], object]) -> None:
        file = store.path / "store.json"
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document))

    return edit
