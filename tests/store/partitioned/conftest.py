"""Small budgets and buffers, so that small stores have many parts, and no waiting for the disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnndrive.store.packed import durable, row_checks, row_writer, rows
from gnndrive.store.packed.rows import Budget
from gnndrive.store.partitioned import list_writer, renumbering, static_lists


class Core:
    """Syncs nothing."""

    def gd_sync_file_system(self, fd: int) -> int:
        return 0


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "lib", Core())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how much is written at a time: bytes of a part and of a window, nodes of a step."""

    def set_budget(part_bytes: int = 2 * 4096 + 400, step: int = 7) -> None:
        def budget(memory: int, row_bytes: int) -> Budget:
            most = max(part_bytes, row_bytes + 2 * 4096)
            return Budget(most, 1 << 20, max((most - 2 * 4096) // row_bytes, 1))

        for module in (rows, row_checks, list_writer):
            monkeypatch.setattr(module, "budget_for", budget)
        for module in (rows, list_writer):
            monkeypatch.setattr(module, "SYNC_BYTES", 1)
        for module in (renumbering, static_lists, list_writer):
            monkeypatch.setattr(module, "PART_BYTES", part_bytes)
        for module in (renumbering, static_lists):
            monkeypatch.setattr(module, "_STEP", step)
        monkeypatch.setattr(list_writer, "window_bytes", lambda *_: 100)
        monkeypatch.setattr(row_writer, "BUFFER_BYTES", 3 * 4096)

    return set_budget
