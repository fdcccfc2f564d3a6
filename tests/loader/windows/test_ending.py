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
from tests.loader.windows.stores import check, windows_of
from tests.soak import product


class Loading:
    """Windows that are loaded for ever.

    Attributes:
        begun: set while one is.
        slow: whether they are.
        quick: how many stretches of lists are read first as ever: a window of one partition has
            those of the static nodes and its own.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.slow, self.quick = threading.Event(), True, 0
        loading = self

        class Slow(SequentialReader):
            def stretches(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
                loading.quick -= 1
                while loading.slow and loading.quick < 0:
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


def test_closing_while_the_second_window_is_loaded(make: Make, loading: Loading) -> None:
    """All batches of the first one are delivered before."""
    loading.quick = 2
    loader = make(megabatch=1)
    first = windows_of(loader)[0]
    iterator = iter(loader)
    delivered = [next(iterator) for _ in range(first.count)]
    loading.begun.wait()
    loader.close()
    with pytest.raises(ClosedError):
        next(iterator)
    loading.slow = False
    for one, other in zip(delivered, make(megabatch=1), strict=False):
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


# ---- several iterators


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


def test_a_second_iterator_needs_memory(make: Make) -> None:
    needed = make(memory="200MB").plan().total_bytes
    loader = make(memory=needed)
    iterator = iter(loader)
    with pytest.raises(ConfigError, match="a second live iterator needs"):
        iter(loader)
    assert len(list(iterator)) == len(loader)
    both = make(memory=2 * needed)
    assert len(list(zip(both, both, strict=True))) == len(both)
