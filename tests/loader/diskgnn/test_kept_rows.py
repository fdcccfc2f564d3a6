"""Rows that host memory keeps, because the device has no room for them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from gnndrive.buffer.devices.simulated_cuda import SimulatedDriver
from gnndrive.disk.tiers import host_rows
from gnndrive.disk.tiers.host_rows import HostRows
from tests.loader.diskgnn.conftest import BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows

LITTLE = "600KB"  # of the device: not all hot rows fit


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Weak references to the memory of kept rows."""
    made: list[weakref.ref[Any]] = []
    real = host_rows.private_map

    def private_map(nbytes: int) -> Any:
        block = real(nbytes)
        made.append(weakref.ref(block))
        return block

    monkeypatch.setattr(host_rows, "private_map", private_map)
    return made


def alive(maps: list[weakref.ref[Any]]) -> int:
    return sum(each() is not None for each in maps)


def test_they_are_right_and_freed_with_the_loader(replay, graph, maps, monkeypatch):
    copied: list[int] = []
    real = HostRows._copy

    def copy(tier: HostRows, memory: Any, kept: Any, *rest: Any) -> None:
        copied.append(len(kept))
        real(tier, memory, kept, *rest)

    monkeypatch.setattr(HostRows, "_copy", copy)
    loader = replay(device="simulated-cuda", device_memory=LITTLE)
    assert sum(each.kept for each in loader.plan().tables) > 0
    gc.collect()
    gc.disable()
    try:
        for _ in range(2 * EPOCHS):
            for batch in loader:
                check_rows(batch, graph)
        assert sum(copied) > 0
        assert alive(maps) == len(maps) > 0
        loader.close()
        assert alive(maps) == 0
    finally:
        gc.enable()


def test_a_buffer_that_grows_keeps_them_once(replay, maps, monkeypatch):
    """The smaller one's are freed before those of the larger one are made."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 380_000)
    loader = replay(device="simulated-cuda", memory="10MB")
    before = loader.plan()
    kept = sum(each.kept > 0 for each in before.tables)
    assert kept
    gc.collect()
    gc.disable()
    try:
        assert len(list(loader)) == BATCHES
        grown = loader.plan()
        assert grown.slots > before.slots
        assert len(maps) == kept + sum(each.kept > 0 for each in grown.tables)
        assert alive(maps) == len(maps) - kept
    finally:
        gc.enable()
