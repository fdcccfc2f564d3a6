"""Windows whose rows are on a device, within its memory; epochs that end while a window is being
loaded; and several iterators.

The device is the simulated one: code that does not wait for an event that it should wait for reads
wrong bytes.
"""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.disk.sequential_reader import SequentialReader
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import NODES, PARTS, STATIC, check
from tests.soak import product

ROW_BYTES = 36


def test_half_of_the_free_memory_is_for_windows(make, monkeypatch):
    """There is no warm-up: a buffer for some batches holds no window."""
    monkeypatch.setattr(SimulatedCuda, "free_bytes", lambda self, where=None: free)
    free, sizes = 1 << 30, []
    everything = make(device="simulated-cuda", megabatch=None).plan()
    on_device = {line.what: line.nbytes for line in everything.device_lines}
    assert everything.slots == NODES + STATIC
    assert on_device["feature buffer"] == everything.slots * ROW_BYTES == everything.buffer_bytes
    assert "feature buffer" not in {line.what for line in everything.lines}
    assert {"pinned staging", "window graphs"} <= {line.what for line in everything.lines}
    for share in (0.4, 0.6, 0.8):
        free = 2 * int(share * everything.device_bytes)
        loader = make(device="simulated-cuda", megabatch=None)
        plan = loader.plan()
        assert plan.device_bytes <= free // 2
        sizes.append(loader._assembly().scheme.chosen.megabatch)
    assert len(list(loader)) == len(loader)
    assert loader.stats()["buffer_slots"] == plan.slots, "the buffer has not grown"
    assert not loader._runtime.warming_up
    assert 1 <= sizes[0] < sizes[1] < sizes[2] < PARTS
    free = 2000
    with pytest.raises(ConfigError, match="the part of the device's free memory that loading may"):
        make(device="simulated-cuda", megabatch=None).plan()


def test_a_model_that_takes_memory_after_the_plan(make, monkeypatch):
    """The first epoch takes smaller windows; once it has begun they stay as they are."""
    monkeypatch.setattr(SimulatedCuda, "free_bytes", lambda self, where=None: free)
    free = 1 << 20
    loader = make(device="simulated-cuda", megabatch=None)
    whole = len(loader)
    free = 2 * (loader.plan().live_device_bytes + 500 * ROW_BYTES)
    smaller = len(loader)
    assert smaller > whole, "a window more is a batch more"
    batches = iter(loader)
    free = 0
    assert len(list(batches)) == len(loader) == smaller
    assert len(list(loader)) == smaller


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
