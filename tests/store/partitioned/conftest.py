"""A store, small budgets and buffers, so that it has many parts, and no waiting for the disk."""

from collections.abc import Callable

import pytest

from gnndrive.store.layout import row_writer, rows
from gnndrive.store.layout.rows import Budget
from gnndrive.store.partitioned import lists, renumbering
from tests.store.packed.conftest import file_system_syncs  # noqa: F401
from tests.store.partitioned.made import make_store


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "graph.gnn")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how much is written at a time: bytes of a part and of a window, nodes of a step."""

    def set_budget(part_bytes: int = 2 * 4096 + 400, step: int = 7) -> None:
        def budget(memory: int, row_bytes: int) -> Budget:
            most = max(part_bytes, row_bytes + 2 * 4096)
            return Budget(most, 1 << 20, max((most - 2 * 4096) // row_bytes, 1))

        for module in (rows, lists):
            monkeypatch.setattr(module, "budget_for", budget)
        for module in (rows, lists):
            monkeypatch.setattr(module, "SYNC_BYTES", 1)
        for module in (renumbering, lists):
            monkeypatch.setattr(module, "PART_BYTES", part_bytes)
        for module in (renumbering, lists):
            monkeypatch.setattr(module, "_STEP", step)
        monkeypatch.setattr(lists, "window_bytes", lambda *_: 100)
        monkeypatch.setattr(row_writer, "BUFFER_BYTES", 3 * 4096)

    return set_budget
