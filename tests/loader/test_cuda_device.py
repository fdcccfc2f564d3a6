"""A loader on fake GPUs: whose GPU it is, its memory, and graphs that the user captures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.cuda import Cuda, TorchDriver
from gnndrive.testing.fake_cuda import FakeCuda, fake_cuda
from tests.loader.batches import check
from tests.loader.conftest import NODES, Make


@pytest.fixture
def gpus() -> Iterator[FakeCuda]:
    with fake_cuda() as made:
        yield made


def on_host(batch: Data) -> Data:
    """A copy of a batch in host memory."""
    return batch.clone().apply(lambda tensor: tensor.cpu())


def test_a_gpu_without_a_number_is_the_one_that_was_current(
    gpus: FakeCuda, make: Make, data: Data
) -> None:
    """Also if another one is when the first iteration begins, and in the loader's threads."""
    torch.cuda.set_device(1)
    loader = make(device="cuda", shuffle=True)
    torch.cuda.set_device(0)
    for batch in loader:
        assert batch.x.device == batch.edge_index.device == torch.device("cuda", 1)
        check(on_host(batch), data)
    del batch
    loader.close()
    assert gpus.contexts == {1}
    assert {each.device for each in gpus.log} == {1}


@pytest.mark.parametrize(
    "options", [MoveOptions(portions=8), MoveOptions(gather_stream=True)], ids=str
)
def test_switches_change_no_batch(
    gpus: FakeCuda, make: Make, data: Data, monkeypatch: pytest.MonkeyPatch, options: MoveOptions
) -> None:
    monkeypatch.setattr(Cuda, "options", options)
    monkeypatch.setattr(Cuda, "portion_bytes", 4096)
    loader = make(device="cuda:1")
    for batch in loader:
        check(on_host(batch), data)
    assert loader._runtime.device.portions == options.portions


def test_graphs_are_captured_beside_a_loader(gpus: FakeCuda, make: Make, data: Data) -> None:
    loader = make(device="cuda:1", shuffle=True)
    torch.cuda.set_device(1)
    iterator, static = iter(loader), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    for taken in range(1, 4):
        batch, graph = next(iterator), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # the next batches are loaded meanwhile
            static.add_(1)
            for _ in range(10_000):  # if the capture broke the epoch, no more batches come
                if loader.stats()["batches"] > taken:
                    break
        graph.replay()
        torch.cuda.synchronize()
        check(on_host(batch), data)
    for batch in iterator:
        check(on_host(batch), data)
    del batch
    torch.cuda.set_device(0)


def test_no_thread_of_the_users_is_left_relaxed(gpus: FakeCuda, make: Make) -> None:
    for _ in make(device="cuda:1"):
        assert gpus.timeline.thread.mode == 0
    assert gpus.timeline.thread.mode == 0


def test_the_plan_counts_pinned_copies_and_scratch(gpus: FakeCuda, make: Make) -> None:
    """Torch rounds each pinned copy up; without CuPy rows are put in order on the device."""
    loader = make(device="cuda:1", shuffle=True)
    plan = loader.plan()
    lines = {line.what: line.nbytes for line in (*plan.lines, *plan.device_lines)}
    assert lines["scratch"] == Cuda.scratch_bytes(33 * 4, NODES)
    assert sum(1 for _ in loader) == len(loader)
    assert 0 < gpus.host.pinned_bytes <= lines["pinned copies"]
    assert sum(gpus.host.registered.values()) <= lines["pinned staging"]


def test_a_second_iterator_finds_the_memory_of_the_last_one_free(make: Make) -> None:
    with fake_cuda(memory_bytes=4 << 20) as gpus:
        loader = make(device="cuda:1", batch_size=64, buffer="50KB")
        for _ in range(3):
            for _ in zip(loader, loader, strict=True):
                pass
            del _
        loader.close()
        assert torch.cuda.memory_reserved(1) < gpus.memory.nbytes // 2


def test_growth_takes_nine_tenths_if_all_is_not_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a warm-up, when the largest buffer cannot be allocated."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    asked: list[int] = []
    allocate = TorchDriver.allocate

    def refuse(driver: TorchDriver, nbytes: int) -> Any:
        asked.append(nbytes)
        if len(asked) in (2, 3):
            raise MemoryError("fragmented")
        return allocate(driver, nbytes)

    monkeypatch.setattr(Cuda, "_spare_bytes", lambda device: 30_000)
    with fake_cuda():
        monkeypatch.setattr(TorchDriver, "allocate", refuse)
        loader = make([2, 2], device="cuda:1", buffer=None, batch_size=8, seed=3)
        little = loader.plan().slots
        assert sum(1 for _ in loader) == len(loader)
        assert len(asked) == 4
        first, second, third = asked[1:]
        assert little * 33 * 4 < third < second < first
        assert third > 0.6 * first
        loader.close()
