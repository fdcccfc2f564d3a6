"""An epoch that begins with a small feature buffer on the device and goes on with a large one.

Also second iterators on a device, because both need the memory that the device has left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedDriver
from gnndrive.common.errors import ConfigError
from gnndrive.loader.runtime import Runtime
from gnndrive.plan.requirements import SLOT_TABLE_BYTES
from tests.loader.batches import assert_same
from tests.loader.conftest import NODES, Make
from tests.loader.test_device import DEVICES, ROW_BYTES


@pytest.mark.usefixtures("some_staging")
@pytest.mark.parametrize("shuffle", [False, True])
def test_after_a_warm_up_the_buffer_takes_what_is_left(
    make: Make, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    """In the middle of the first epoch, whose batches stay the same."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    given = {"shuffle": shuffle, "seed": 3, "batch_size": 8, "buffer": None}
    host, device = (make([2, 2], device=name, **given) for name in DEVICES)
    little = device.plan().slots
    assert little < NODES
    for epoch in range(2):
        for number, (one, other) in enumerate(zip(host, device, strict=True)):
            assert_same(one, other)
            assert device.stats()["buffer_slots"] == (little if epoch + number // 3 == 0 else NODES)
    assert device.plan().slots == NODES
    assert device._runtime.settings.policy is None
    assert device._runtime.settings.stages.sweep == 1


def test_a_warm_up_keeps_to_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot tables of a buffer on the device are in host memory."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    given = {"device": "simulated-cuda", "buffer": None, "batch_size": 8, "topology": "resident"}
    plan = make([2, 2], **given).plan()
    loader = make([2, 2], memory=plan.total_bytes + SLOT_TABLE_BYTES * 20, **given)
    assert len(list(loader)) == NODES // 8
    assert loader.plan().slots == plan.slots + 20
    assert loader.plan().total_bytes <= loader.memory


def test_nothing_grows_while_another_iterator_lives(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    given = {"device": "simulated-cuda", "buffer": None, "batch_size": 8, "seed": 3}
    loader = make([2, 2], **given)
    slots = loader.plan().slots
    assert len(list(zip(loader, loader, strict=True))) == NODES // 8
    assert loader.plan().slots == slots
    assert len(list(loader)) == NODES // 8
    assert loader.plan().slots == NODES


def test_a_second_iterator_of_a_table_that_fits(make: Make) -> None:
    loader = make(device="simulated-cuda", buffer=None)
    assert len(list(zip(loader, loader, strict=True))) == NODES // 16


def test_a_second_iterator_finds_the_device_full(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(device="simulated-cuda", buffer=None)
    first = iter(loader)
    monkeypatch.setattr(SimulatedCuda, "free_bytes", lambda self, where: 1000)
    with pytest.raises(ConfigError, match="the device has 1 KB free"):
        iter(loader)
    assert len(list(first)) == NODES // 16


def test_too_little_memory_for_staging_says_so(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"memory=1 MB is too little .* at least memory="):
        make(device="simulated-cuda", memory="1MB", device_memory="100MB", buffer=None).plan()


def test_a_second_iterator_needs_device_memory_too(make: Make) -> None:
    needed = make(device="simulated-cuda").plan().device_bytes
    loader = make(device="simulated-cuda", device_memory=needed)
    with pytest.raises(ConfigError, match=r"second live iterator.*device_memory="):
        next(zip(loader, loader, strict=True))


async def test_a_warm_up_awaited(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    given = {"seed": 3, "batch_size": 8, "buffer": None}
    expected = iter(make([2, 2], **given))
    device = make([2, 2], device="simulated-cuda", **given)
    async for batch in device:
        assert_same(next(expected), batch)
    assert device.stats()["buffer_slots"] == NODES


async def test_a_warm_up_cancelled_while_it_grows(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call waits for the same change, and each batch comes exactly once."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    grow, begun, go_on = Runtime.grow, threading.Event(), threading.Event()

    def slowly(runtime: Runtime) -> None:
        begun.set()
        go_on.wait()
        grow(runtime)

    monkeypatch.setattr(Runtime, "grow", slowly)
    given = {"seed": 3, "batch_size": 8, "buffer": None}
    expected = make([2, 2], **given)
    device = make([2, 2], device="simulated-cuda", **given)
    batches = aiter(device)
    got = [await anext(batches) for _ in range(3)]
    for _ in range(2):
        asking = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(begun.wait)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
    go_on.set()
    got += [batch async for batch in batches]
    for one, other in zip(expected, got, strict=True):
        assert_same(one, other)
    assert device.plan().slots == NODES


def test_a_warm_up_that_finds_less_memory_than_measured(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a large buffer cannot be allocated, a smaller one is used, and the epoch goes on."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    device = make([2, 2], device="simulated-cuda", seed=3, batch_size=8, buffer=None)
    little, allocate, refused = device.plan().slots, SimulatedDriver.allocate, []

    def refuse(driver: SimulatedDriver, nbytes: int) -> torch.Tensor:
        if nbytes > little * ROW_BYTES:
            refused.append(nbytes)
            raise MemoryError("in pieces")
        return allocate(driver, nbytes)

    monkeypatch.setattr(SimulatedDriver, "allocate", refuse)
    for _ in range(2):
        assert len(list(device)) == NODES // 8
    assert refused
    assert device.plan().slots == little


def test_an_error_of_a_sampler_in_the_warm_up_comes_at_its_turn(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)

    def positions() -> Iterator[list[int]]:
        for number in range(5):
            yield [8 * number + one for one in range(8)]
        raise KeyError("no more")

    class Sampler(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            return positions()

        def __len__(self) -> int:
            return 5

    loader = make([2, 2], device="simulated-cuda", buffer=None, batch_size=1,
                  batch_sampler=Sampler())  # fmt: skip
    delivered = []
    with pytest.raises(KeyError, match="no more"):
        delivered.extend(batch.input_id.tolist() for batch in loader)
    assert [ids[0] for ids in delivered] == [0, 8, 16, 24, 32]


@pytest.mark.parametrize("arguments", [{"in_order": False}, {"device_memory": "1MB"}, {}])
def test_without_a_warm_up(make: Make, arguments: dict[str, object]) -> None:
    """Batches in any order cannot be counted, and a user's device_memory= stays."""
    loader = make(**({"device": "simulated-cuda", "buffer": None} | arguments))
    slots = loader.plan().slots
    assert len(list(loader)) == NODES // 16
    assert loader.stats()["buffer_slots"] == slots
