"""Batches on a device: in the type asked for, within the memory given, behind a warm-up.

The device is the simulated one, where code that does not wait for an event that it should wait for
reads wrong bytes, or a fake GPU. tests/gpu has tests with a real one; that batches are the host's
is in test_same_batches.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.cuda import Cuda, TorchDriver
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedDriver
from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.loader.runtime import Runtime
from gnndrive.plan.requirements import SLOT_TABLE_BYTES
from gnndrive.testing.fake_cuda import FakeCuda, fake_cuda
from gnndrive.testing.faults import Faults
from tests import forked
from tests.loader.batches import assert_same, check, simulate, stage
from tests.loader.conftest import NODES
from tests.soak import product

DEVICES = ["cpu", "simulated-cuda"]
ROW_BYTES = 33 * 4


@pytest.mark.parametrize("waits", [True, False])
def test_the_compute_stream_waits_for_copies(monkeypatch, waits):
    """Without it, labels and edges are not copied yet."""
    if not waits:
        monkeypatch.setattr(SimulatedDriver, "compute_waits_for", lambda driver, event: None)
    device, labels = SimulatedCuda(), torch.arange(5)
    x = torch.ones(5)
    batch = device.deliver(Data(y=labels, x=x), [x])
    device.hand_over(batch)
    assert torch.equal(batch.y, labels) is waits
    assert torch.equal(batch.x, torch.ones(5))


def test_a_transform_sees_the_right_bytes(make, data):
    def transform(batch: Data) -> Data:
        check(batch, data)
        return batch

    assert len(list(make(device="simulated-cuda", transform=transform))) == NODES // 16


def test_eio_surfaces_and_the_next_epoch_works(make, store, monkeypatch):
    start = store.table("x").data_offset
    simulate(monkeypatch, faults=Faults(eio_offsets=((start, start + 512),)))
    loader = make(device="simulated-cuda", engine="simulated", input_nodes=torch.tensor([399, 0]),
                  batch_size=1, num_neighbors=[0])  # fmt: skip
    for _ in range(2):
        delivered = []
        with pytest.raises(ReadError):
            delivered.extend(batch.n_id.tolist() for batch in loader)


def test_breaking_off_leaves_nothing_under_way(make, data):
    loader = make(device="simulated-cuda")
    for _ in range(3):
        for batch in loader:
            check(batch, data)
            break
    device = loader._runtime.device
    loader.close()
    assert not device.driver.busy
    assert loader.stats()["batches"] >= 3


def test_staging_is_freed_after_the_side_stream_has_used_it():
    device = SimulatedCuda()
    memory = device.allocate(4, 16)
    landing = memory.landing(np.arange(4, dtype=np.int32))
    assert landing is not None
    portion, slots = landing.owner, memory._slots
    rows = portion.staging[:64].reshape(4, 16)
    rows[:], portion.moves[0], portion.moves[1] = 7, range(4), range(4)
    device.driver.scatter(slots, rows, portion.moves)
    memory.close()
    device.close()
    assert torch.all(slots == 7)


# ---- element types


def stored(folder: Path, dtype: torch.dtype, **more: torch.Tensor) -> tuple[Store, torch.Tensor]:
    """A store of 50 nodes whose x has that type, and x."""
    draw = torch.Generator().manual_seed(1)
    x = (torch.randn(50, 6, generator=draw) * 20).to(dtype)
    edges = torch.randint(0, 50, (2, 300), generator=draw)
    data = Data(x=x, edge_index=edges, y=torch.arange(50), mask=torch.ones(50).bool(), **more)
    return gnndrive.from_data(data, folder / "x.gnn"), x


CONVERTED = [
    (torch.float16, "float32"),
    (torch.bfloat16, torch.float32),
    (torch.int8, "float32"),
    (torch.float32, "float16"),
    (torch.float64, None),
]


@product("types,device", CONVERTED, DEVICES)
def test_features_have_the_dtype_asked_for(tmp_path, make, types, device):
    dtype, given = types
    store, x = stored(tmp_path, dtype)
    loader = make(data=store, device=device, feature_dtype=given)
    expected = x if given is None else x.to(torch.float16 if given == "float16" else torch.float32)
    for batch in (*loader, loader([3, 4])):
        assert batch.x.dtype == expected.dtype
        assert torch.equal(batch.x, expected[batch.n_id])
        assert torch.equal(batch.y, batch.n_id)
        assert batch.mask.dtype == torch.bool


@product("shape,device", [(50,), (50, 1), (50, 6)], DEVICES[::-1])
def test_integers_are_scaled(tmp_path, make, shape, device):
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    store, x = stored(tmp_path, torch.int8, x_scale=scale)
    loader = make(data=store, device=device, feature_dtype="float32")
    expected = x.float() * scale.view(50, -1)
    for batch in loader:
        assert torch.equal(batch.x, expected[batch.n_id])
        assert torch.equal(batch.x_scale, scale[batch.n_id])


def test_no_cuda_module_is_imported(store):
    """A loader on the host imports neither CuPy nor gnndrive's CUDA device."""
    script = f"""
        import sys
        import gnndrive
        next(iter(gnndrive.NeighborLoader(gnndrive.open({str(store.path)!r}), [4], buffer="40KB")))
        print([name for name in sys.modules if "cupy" in name or name.endswith("devices.cuda")])
    """
    ended = forked.run(script)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


# ---- memory


def test_the_plan_lists_the_devices_memory(make):
    host = make(seed=1).plan()
    plan = make(device="simulated-cuda").plan()
    on_device = {line.what: line.nbytes for line in plan.device_lines}
    assert on_device["feature buffer"] == plan.slots * ROW_BYTES == plan.buffer_bytes
    assert "feature buffer" not in {line.what for line in plan.lines}
    assert "pinned staging" in {line.what for line in plan.lines}
    assert "on the device" in str(plan)
    assert host.device_lines == ()
    assert "on the device" not in str(host)


def test_the_buffer_gets_what_device_memory_leaves(make):
    live = make(device="simulated-cuda").plan().device_lines[1].nbytes
    loader = make(device="simulated-cuda", buffer=None, device_memory=live + 380 * ROW_BYTES)
    assert loader.plan().slots == 380
    assert sum(batch.batch_size for batch in loader) == NODES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device_memory": "10KB", "buffer": None}, "device_memory=10 KB leaves no room"),
        ({"device_memory": "100KB", "buffer": "99KB"}, "smaller buffer="),
        (
            {"memory": "1MB", "device_memory": "100MB", "buffer": None},
            r"memory=1 MB is too little .* at least memory=",
        ),
    ],
)
def test_too_little_device_memory(make, arguments, message):
    with pytest.raises(ConfigError, match=message):
        make(**({"device": "simulated-cuda"} | arguments)).plan()


def test_no_memory_on_the_device(make, monkeypatch):
    loader = make(device="simulated-cuda", device_memory="1GB")
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 1000)
    with pytest.raises(ConfigError, match=r"no device memory for a feature buffer.* 1,000 there"):
        next(iter(loader))


def test_cuda_without_a_gpu_says_so(make, monkeypatch):
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


def test_nothing_grows_while_another_iterator_lives(make, warm_up):
    given = {"device": "simulated-cuda", "buffer": None, "batch_size": 8, "seed": 3}
    loader = make([2, 2], **given)
    slots = loader.plan().slots
    assert len(list(zip(loader, loader, strict=True))) == NODES // 8
    assert loader.plan().slots == slots
    assert len(list(loader)) == NODES // 8
    assert loader.plan().slots == NODES


def test_a_second_iterator_finds_the_device_full(make, monkeypatch):
    loader = make(device="simulated-cuda", buffer=None)
    first = iter(loader)
    monkeypatch.setattr(SimulatedCuda, "free_bytes", lambda self, where: 1000)
    with pytest.raises(ConfigError, match="the device has 1 KB free"):
        iter(loader)
    assert len(list(first)) == NODES // 16


def test_a_second_iterator_needs_device_memory_too(make):
    needed = make(device="simulated-cuda").plan().device_bytes
    loader = make(device="simulated-cuda", device_memory=needed)
    with pytest.raises(ConfigError, match=r"second live iterator.*device_memory="):
        next(zip(loader, loader, strict=True))


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
    for one, other in zip(expected, got, strict=True):
        assert_same(one, other)
    assert device.plan().slots == NODES


def test_a_warm_up_that_finds_less_memory_than_measured(make, warm_up, monkeypatch):
    """If a large buffer cannot be allocated, a smaller one is used, and the epoch goes on."""
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


def test_an_error_of_a_sampler_in_the_warm_up_comes_at_its_turn(make, warm_up):

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            yield from np.arange(40).reshape(5, 8).tolist()
            raise KeyError("no more")

    loader = make([2, 2], device="simulated-cuda", buffer=None, batch_size=1,
                  batch_sampler=Sampler())  # fmt: skip
    delivered = []
    with pytest.raises(KeyError, match="no more"):
        delivered.extend(batch.input_id.tolist() for batch in loader)
    assert [ids[0] for ids in delivered] == [0, 8, 16, 24, 32]


@pytest.mark.parametrize("arguments", [{"in_order": False}, {"device_memory": "1MB"}, {}])
def test_without_a_warm_up(make, arguments):
    """Batches in any order cannot be counted, and a user's device_memory= stays."""
    loader = make(**({"device": "simulated-cuda", "buffer": None} | arguments))
    slots = loader.plan().slots
    assert len(list(loader)) == NODES // 16
    assert loader.stats()["buffer_slots"] == slots


# ---- fake GPUs


@pytest.fixture
def gpus() -> Iterator[FakeCuda]:
    with fake_cuda() as made:
        yield made


def on_host(batch: Data) -> Data:
    """A copy of a batch in host memory."""
    return batch.clone().apply(lambda tensor: tensor.cpu())


def test_a_gpu_without_a_number_is_the_one_that_was_current(gpus, make, data):
    """Also if another one is when the first iteration begins, and in the loader's threads."""
    torch.cuda.set_device(1)
    loader = make(device="cuda", shuffle=True)
    torch.cuda.set_device(0)
    for batch in loader:
        assert batch.x.device == batch.edge_index.device == torch.device("cuda", 1)
        check(on_host(batch), data)
        assert gpus.timeline.thread.mode == 0, "no thread of the user's is left relaxed"
    del batch
    loader.close()
    assert gpus.contexts == {1}
    assert {each.device for each in gpus.log} == {1}


@pytest.mark.parametrize(
    "options", [MoveOptions(portions=8), MoveOptions(gather_stream=True)], ids=str
)
def test_switches_change_no_batch(gpus, make, data, monkeypatch, options):
    monkeypatch.setattr(Cuda, "options", options)
    monkeypatch.setattr(Cuda, "portion_bytes", 4096)
    loader = make(device="cuda:1")
    for batch in loader:
        check(on_host(batch), data)
    assert loader._runtime.device.portions == options.portions


def test_graphs_are_captured_beside_a_loader(gpus, make, data):
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


def test_the_plan_counts_pinned_copies_and_scratch(gpus, make):
    """Torch rounds each pinned copy up; without CuPy rows are put in order on the device."""
    loader = make(device="cuda:1", shuffle=True)
    plan = loader.plan()
    lines = {line.what: line.nbytes for line in (*plan.lines, *plan.device_lines)}
    assert lines["scratch"] == Cuda.scratch_bytes(33 * 4, NODES)
    assert sum(1 for _ in loader) == len(loader)
    assert 0 < gpus.host.pinned_bytes <= lines["pinned copies"]
    assert sum(gpus.host.registered.values()) <= lines["pinned staging"]


def test_a_second_iterator_finds_the_memory_of_the_last_one_free(make):
    with fake_cuda(memory_bytes=4 << 20) as gpus:
        loader = make(device="cuda:1", batch_size=64, buffer="50KB")
        for _ in range(3):
            for _ in zip(loader, loader, strict=True):
                pass
            del _
        loader.close()
        assert torch.cuda.memory_reserved(1) < gpus.memory.nbytes // 2


def test_growth_takes_nine_tenths_if_all_is_not_there(make, warm_up, monkeypatch):
    """After a warm-up, when the largest buffer cannot be allocated."""
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
