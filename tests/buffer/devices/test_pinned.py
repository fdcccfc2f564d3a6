"""Pinned memory on fake GPUs: it is unmapped after it was unregistered, whatever happens."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from gnndrive.buffer.devices import _pinned
from gnndrive.buffer.devices._pinned import PinnedMemory
from gnndrive.buffer.devices.cuda import TorchDriver
from gnndrive.testing.fake_cuda import FakeCuda
from tests.buffer.devices.test_cuda import gpus

__all__ = ["gpus"]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch, gpus: FakeCuda) -> list[str]:
    """In which order pinned memory is unregistered and unmapped."""
    events: list[str] = []
    unregister = gpus.host.unregister

    class Block(mmap.mmap):
        def close(self) -> None:
            super().close()
            events.append("unmapped")

        def __del__(self) -> None:
            if not self.closed:
                events.append("unmapped")

    def mapped(nbytes: int) -> mmap.mmap:
        return Block(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def unregistered(address: int) -> int:
        events.append("unregistered")
        return unregister(address)

    monkeypatch.setattr(_pinned, "private_map", mapped)
    monkeypatch.setattr(gpus.host, "unregister", unregistered)
    return events


def pinned_memory() -> PinnedMemory:
    """What a driver has."""
    driver = TorchDriver(torch.device("cuda", 1), "staged")
    driver.close()
    return PinnedMemory(driver.device, driver._side, driver._capture)


@pytest.mark.parametrize("how", ["give", "close", "collected"])
def test_memory_is_unregistered_before_it_is_unmapped(order, how):
    pinned = pinned_memory()
    memory = pinned.take(4096)
    if how == "give":
        pinned.give(memory)
    elif how == "close":
        del memory
        pinned.close()
    else:
        del memory, pinned
        gc.collect()
    memory = None
    assert order == ["unregistered", "unmapped"]


def test_memory_that_cannot_be_registered_is_unmapped(gpus, order):
    pinned = pinned_memory()
    gpus.host.registered_bytes_max = 100
    with pytest.raises(MemoryError, match="Register of 4,096 bytes: out of memory") as caught:
        pinned.take(4096)
    assert order == ["unmapped"]
    assert caught.value.__traceback__ is not None  # it does not keep the memory
    assert torch.ones(1, device="cuda:1").item() == 1  # nor does CUDA's error stay


def test_a_failed_unregistration_leaves_no_error_behind(gpus):
    pinned = pinned_memory()
    memory = pinned.take(4096)
    gpus.host.registered.clear()
    pinned.give(memory)
    assert torch.ones(1, device="cuda:1").item() == 1


def test_a_forked_child_leaves_the_memory_alone(gpus, monkeypatch):
    pinned = pinned_memory()
    pinned.take(4096)
    monkeypatch.setattr("os.getpid", lambda: -1)
    del pinned
    gc.collect()
    assert len(gpus.host.registered) == 1
