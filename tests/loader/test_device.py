"""Batches on a device: in the type asked for, within the memory given, behind a warm-up."""

import asyncio
import threading
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.buffer.devices._staged import StagedMemory
from gnndrive.buffer.devices.cuda import Cuda
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedDriver
from gnndrive.buffer.items import SLOT_TABLE_BYTES
from gnndrive.common.errors import ConfigError
from gnndrive.loader.runtime import Runtime
from gnndrive.testing.fake_cuda import fake_cuda
from tests.loader.batches import assert_all_same, assert_same, check, stage
from tests.loader.conftest import NODES
from tests.soak import product

DEVICES = ["cpu", "simulated-cuda"]
ROW_BYTES = 33 * 4


# ---- element types


CONVERTED = [  # the type of the store's rows, the type that is asked for, scales of the rows
    (torch.float16, torch.float32, None),
    (torch.bfloat16, torch.float32, None),
    (torch.int8, torch.float32, None),
    (torch.float32, torch.float16, None),
    (torch.float64, None, None),
    (torch.int8, torch.float32, (50,)),
    (torch.int8, torch.float32, (50, 1)),
    (torch.int8, torch.float32, (50, 6)),
]


@product("types,device", CONVERTED, DEVICES)
def test_features_have_the_dtype_asked_for(tmp_path, make, types, device):
    """Integers are scaled where the store has scales."""
    (dtype, given, shape), draw = types, torch.Generator().manual_seed(1)
    x = (torch.randn(50, 6, generator=draw) * 20).to(dtype)
    data = Data(x=x, edge_index=torch.randint(0, 50, (2, 300), generator=draw), y=torch.arange(50))
    expected = x.to(given or dtype)
    if shape:
        data.x_scale = torch.rand(shape, generator=draw)
        expected = expected * data.x_scale.view(50, -1)
    name = given and str(given).removeprefix("torch.")
    store = gnndrive.from_data(data, tmp_path / "x.gnn")
    loader = make(data=store, device=device, feature_dtype=name if shape else given)
    for batch in (*loader, loader([3, 4])):
        assert batch.x.dtype == expected.dtype
        assert torch.equal(batch.x, expected[batch.n_id])
        assert torch.equal(batch.y, batch.n_id)
        assert not shape or torch.equal(batch.x_scale, data.x_scale[batch.n_id])


# ---- memory


def test_what_the_device_lacks_is_named(make, monkeypatch):
    device = {"device": "simulated-cuda"}
    for words, given in (
        ("device_memory=10 KB leaves no room", {"device_memory": "10KB", "buffer": None}),
        ("smaller buffer=", {"device_memory": "100KB", "buffer": "99KB"}),
        (r"memory=1 MB is too little .* at least memory=",
         {"memory": "1MB", "device_memory": "100MB", "buffer": None}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            make(**device | given).plan()
    second = make(**device, device_memory=make(**device).plan().device_bytes)
    with pytest.raises(ConfigError, match=r"second live iterator.*device_memory="):
        next(zip(second, second, strict=True))
    loader = make(**device, device_memory="1GB")
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 1000)
    with pytest.raises(ConfigError, match=r"no device memory for a feature buffer.* 1,000 there"):
        next(iter(loader))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no GPU; use 'cpu'"):
        make(device="cuda:1")


# ---- warm-ups, and second iterators: both need the memory that the device has left


@pytest.fixture
def warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up that ends as soon as can be."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)


@product("staging,shuffle", [0, 4, 2], [False, True])
def test_behind_a_warm_up_the_buffer_takes_the_rest(make, warm_up, monkeypatch, staging, shuffle):
    """In the middle of the first epoch, whose batches stay the same."""
    stage(monkeypatch, staging)
    given = {"shuffle": shuffle, "seed": 3, "batch_size": 8, "buffer": None}
    given["input_nodes"] = range(160)
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


def test_a_warm_up_keeps_to_memory(make, warm_up):
    """The slot tables of a buffer on the device are in host memory."""
    given = {"device": "simulated-cuda", "buffer": None, "batch_size": 8, "topology": "resident"}
    plan = make([2, 2], **given).plan()
    loader = make([2, 2], memory=plan.total_bytes + SLOT_TABLE_BYTES * 20, **given)
    assert len(list(loader)) == NODES // 8
    assert loader.plan().slots == plan.slots + 20
    assert loader.plan().total_bytes <= loader.memory


@pytest.mark.parametrize("spare", [0, ROW_BYTES * 20])
def test_a_host_level_is_pinned_once_behind_a_warm_up(make, warm_up, monkeypatch, spare):
    """Whether the buffer grows or not."""
    evicted = Mock(wraps=StagedMemory.evicted)
    monkeypatch.setattr(StagedMemory, "evicted", lambda *given: evicted(*given))
    monkeypatch.setattr(SimulatedCuda, "watch", lambda device: lambda: spare)
    given = {"device": "simulated-cuda", "buffer": None, "batch_size": 8, "memory": "50MB"}
    loader = make([2, 2], **given)
    slots = loader.plan().slots
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    evicted.assert_not_called()
    assert len(list(batches)) == NODES // 8 - 3
    assert loader.plan().slots == slots + spare // ROW_BYTES
    evicted.assert_called_once()
    assert loader.stats()["rows_taken_back"] > 0


def test_nothing_grows_while_another_iterator_lives(make, warm_up, monkeypatch):
    given = {"device": "simulated-cuda", "buffer": None, "batch_size": 8, "seed": 3}
    loader = make([2, 2], **given)
    slots = loader.plan().slots
    assert len(list(zip(loader, loader, strict=True))) == NODES // 8
    assert loader.plan().slots == slots
    assert len(list(loader)) == NODES // 8
    assert loader.plan().slots == NODES
    first = iter(loader)
    monkeypatch.setattr(SimulatedCuda, "free_bytes", lambda self, where: 1000)
    with pytest.raises(ConfigError, match="the device has 1 KB free"):
        iter(loader)
    assert len(list(first)) == NODES // 8


async def test_a_warm_up_cancelled_while_it_grows(make, warm_up, monkeypatch):
    """The next call waits for the same change, and each batch comes exactly once."""
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
    assert_all_same(expected, got)
    assert device.plan().slots == NODES


def test_a_warm_up_that_finds_less_memory_than_measured(make, warm_up, monkeypatch):
    """If a large buffer cannot be allocated, a smaller one is tried, and the epoch goes on."""
    device = make([2, 2], device="simulated-cuda", seed=3, batch_size=8, buffer=None)
    little, allocate, refused = device.plan().slots, SimulatedDriver.allocate, []

    def refuse(driver: SimulatedDriver, nbytes: int) -> torch.Tensor:
        if nbytes > little * ROW_BYTES:
            refused.append(nbytes)
            raise MemoryError("in pieces")
        return allocate(driver, nbytes)

    monkeypatch.setattr(SimulatedDriver, "allocate", refuse)
    monkeypatch.setattr(SimulatedCuda, "watch", lambda device: lambda: 30_000)
    for _ in range(2):
        assert len(list(device)) == NODES // 8
    assert refused[0] > refused[1] > 0.8 * refused[0]
    assert device.plan().slots == little


@pytest.mark.parametrize("arguments", [{"in_order": False}, {"device_memory": None}, {}])
def test_without_a_warm_up(make, arguments):
    """Batches in any order cannot be counted, and a user's device_memory= stays."""
    given: dict[str, Any] = {"device": "simulated-cuda", "buffer": None} | arguments
    if "device_memory" in given:
        live = make(device="simulated-cuda").plan().device_lines[1].nbytes
        given["device_memory"] = live + 380 * ROW_BYTES
        assert make(**given).plan().slots == 380, "the buffer gets what device_memory leaves"
    loader = make(**given)
    slots = loader.plan().slots
    assert len(list(loader)) == NODES // 16
    assert loader.stats()["buffer_slots"] == slots


# ---- fake GPUs


def test_a_gpu_without_a_number_is_the_one_that_was_current(make, data):
    """Also if another one is when the first iteration begins, and in the loader's threads."""
    with fake_cuda() as gpus:
        torch.cuda.set_device(1)
        loader = make(device="cuda", shuffle=True)
        torch.cuda.set_device(0)
        plan = loader.plan()
        for batch in loader:
            assert batch.x.device == batch.edge_index.device == torch.device("cuda", 1)
            check(batch.clone().apply(lambda tensor: tensor.cpu()), data)
            assert gpus.timeline.thread.mode == 0, "no thread of the user's is left relaxed"
        del batch
        lines = {line.what: line.nbytes for line in (*plan.lines, *plan.device_lines)}
        assert lines["scratch"] == Cuda.scratch_bytes(ROW_BYTES, NODES)
        assert 0 < gpus.host.pinned_bytes <= lines["pinned copies"]
        assert sum(gpus.host.registered.values()) <= lines["pinned staging"]
        loader.close()
        assert gpus.contexts == {1}
        assert {each.device for each in gpus.log} == {1}


@pytest.mark.parametrize("cupy", [False, True])
def test_slots_in_host_memory_take_what_the_plan_says(make, data, cupy):
    """They are pinned if the GPU reads them, as it does with CuPy."""
    with fake_cuda(devices=1, cupy=cupy) as gpus:
        loader = make(device="cuda", device_memory=0, shuffle=True, buffer="1MB")
        plan = loader.plan()
        lines = {line.what: line.nbytes for line in plan.lines}
        for batch in loader:
            check(batch.clone().apply(lambda tensor: tensor.cpu()), data)
        pinned = sum(gpus.host.registered.values())
        assert pinned == lines["feature buffer" if cupy else "pinned staging"]
        assert ("pinned staging" in lines) != cupy
        del batch
        loader.close()
