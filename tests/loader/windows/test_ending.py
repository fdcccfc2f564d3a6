"""Epochs that end while a window is being loaded, and several iterators of one loader."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch_geometric.data import Data

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.disk.sequential_reader import SequentialReader
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import check
from tests.soak import product


class Loading:
    """Windows that are loaded for ever.

    Attributes:
        begun: set while one is.
        slow: whether they are.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.slow = threading.Event(), True
        loading = self

        class Slow(SequentialReader):
            def stretches(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
                while loading.slow:
                    loading.begun.set()
                    yield first, np.empty(0, np.int32)
                yield from super().stretches(first, last)

        monkeypatch.setattr("gnndrive.sampling.load_window.SequentialReader", Slow)


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    return Loading(monkeypatch)


@pytest.mark.parametrize("waits", [False, True])
def test_closing_a_loader(make: Make, loading: Loading, waits: bool) -> None:
    """Also while another thread waits for the batch."""
    loader, caught = make(), list[BaseException]()
    iterator = iter(loader)

    def consume() -> None:
        with pytest.raises(ClosedError) as error:
            next(iterator)
        caught.append(error.value)

    thread = threading.Thread(target=consume)
    if waits:
        thread.start()
    loading.begun.wait()
    loader.close()
    if not waits:
        thread.start()
    thread.join()
    assert len(caught) == 1


@pytest.mark.parametrize("drop", [False, True])
def test_an_iterator_that_is_closed_or_dropped(make: Make, loading: Loading, drop: bool) -> None:
    """The next epoch begins, and has its windows."""
    loader = make()
    iterator = iter(loader)
    loading.begun.wait()
    if not drop:
        iterator.close()
    del iterator
    loading.slow = False
    loader.set_epoch(0)
    for one, other in zip(loader, make(), strict=True):
        assert_same(one, other)


def test_cancelling_an_awaited_batch(make: Make, loading: Loading) -> None:
    """The window goes on loading; the next call gets the same batch."""

    async def main() -> list[Data]:
        batches = aiter(make())
        asking = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(loading.begun.wait)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        loading.slow = False
        return [batch async for batch in batches]

    for one, other in zip(asyncio.run(main()), make(), strict=True):
        assert_same(one, other)


@product("megabatch,device", [1, 12], ["cpu", "simulated-cuda"])
def test_a_second_live_iterator_has_fewer_slots(make, graph, megabatch, device):
    """For one window, so its batches load some rows themselves. What was planned is enough."""
    alone, loader = make(megabatch=megabatch), make(megabatch=megabatch, device=device)
    for batches in zip(loader, loader, list(alone), list(alone), strict=True):
        assert_same(batches[0], batches[2])
        assert_same(batches[1], batches[3])
    for one, other in zip(loader, alone, strict=True):
        assert_same(one, other)
        check(one, graph)


@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
def test_a_second_iterator_needs_memory(make: Make, device: str) -> None:
    plan = make(device=device).plan()
    name, needed = "memory", plan.total_bytes
    if device != "cpu":
        name, needed = "device_memory", plan.device_bytes
    loader = make(device=device, **{name: needed})
    iterator = iter(loader)
    with pytest.raises(ConfigError, match=rf"second live iterator.*{name}="):
        next(iter(loader))
    assert len(list(iterator)) == len(loader)
    both = make(device=device, **{name: 2 * needed})
    assert len(list(zip(both, both, strict=True))) == len(both)
