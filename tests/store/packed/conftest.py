"""Small budgets, so that small tables have many parts, and no waiting for the disk."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from gnndrive.store.packed import durable, row_checks, rows
from gnndrive.store.packed.rows import Budget


@pytest.fixture(autouse=True)
def file_system_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose file system was synced; the sync is replaced."""
    paths: list[str] = []

    class Core:
        def gd_sync_file_system(self, fd: int) -> int:
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
            return 0

    monkeypatch.setattr(durable, "lib", Core())
    return paths


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how much is packed at a time: bytes of a part, rows put in order at a time."""

    def set_budget(part_bytes: int, slice_rows: int = 1 << 30, dirty_bytes: int = 1 << 20) -> None:
        def budget(memory: int, row_bytes: int) -> Budget:
            fitting = max((part_bytes - 2 * 4096) // row_bytes, 1)
            return Budget(part_bytes, dirty_bytes, min(slice_rows, fitting))

        monkeypatch.setattr(rows, "SYNC_BYTES", 1)
        for module in (rows, row_checks):
            monkeypatch.setattr(module, "budget_for", budget)

    return set_budget
