"""Stores to pack, small budgets, so that small tables have many parts, and no waiting for disks."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.io import small_files
from gnndrive.store.layout import rows
from gnndrive.store.layout.rows import Budget
from tests.given import moved
from tests.loader.hetero.graph import make_data
from tests.store.packed.packs import make_graph


@pytest.fixture(autouse=True)
def file_system_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose file system was synced; the sync is replaced."""
    paths: list[str] = []

    class Core:
        def gd_sync_file_system(self, fd: int) -> int:
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
            return 0

    monkeypatch.setattr(small_files, "lib", Core())
    return paths


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how much is packed at a time: bytes of a part, rows put in order at a time."""

    def set_budget(part_bytes: int, slice_rows: int = 1 << 30, dirty_bytes: int = 1 << 20) -> None:
        def budget(memory: int, row_bytes: int) -> Budget:
            fitting = max((part_bytes - 2 * 4096) // row_bytes, 1)
            return Budget(part_bytes, dirty_bytes, min(slice_rows, fitting))

        monkeypatch.setattr(rows, "SYNC_BYTES", 1)
        monkeypatch.setattr(rows, "budget_for", budget)

    return set_budget


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(make_graph(), tmp_path_factory.mktemp("pack") / "graph.gnn")


@pytest.fixture(scope="session")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(make_data(), tmp_path_factory.mktemp("typed") / "graph.gnn")


@pytest.fixture
def make(graph: Store, stack: ExitStack) -> Callable[..., Any]:
    """Makes loaders over the graph, or another as `data=`, and closes them after the test."""

    def one(kind: Any = NeighborLoader, **arguments: Any) -> Any:
        given = {"data": graph, "num_neighbors": [4, 3], "batch_size": 16, "seed": 5}
        given |= {"buffer": "4MB", "io_depth": 16, "shuffle": True}
        return stack.enter_context(kind(**moved(given | arguments)))

    return one
