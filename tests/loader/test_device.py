"""Batches on a device: the same as on the host, in the type asked for, within the memory given.

The device is the simulated one: code that does not wait for an event that it should wait for reads
wrong bytes. tests/gpu has tests with a real GPU.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedDriver
from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import assert_same, check, simulate
from tests.loader.conftest import NODES, Make

DEVICES = ["cpu", "simulated-cuda"]
ROW_BYTES = 33 * 4


@pytest.mark.usefixtures("some_staging")
@pytest.mark.parametrize("engine", ["uring", "threads", "simulated"])
def test_batches_are_the_same_as_on_the_host(
    make: Make, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    simulate(monkeypatch, seed=4, faults=NOISE)
    given = {"shuffle": True, "seed": 3, "engine": engine, "buffer": "50KB"}
    host, device = (make(device=name, **given) for name in DEVICES)
    for _ in range(2):
        for one, other in zip(host, device, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("waits", [True, False])
def test_the_compute_stream_waits_for_copies(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """Without it, labels and edges are not copied yet."""
    if not waits:
        monkeypatch.setattr(SimulatedDriver, "compute_waits_for", lambda driver, event: None)
    device, labels = SimulatedCuda(), torch.arange(5)
    x = torch.ones(5)
    batch = device.deliver(Data(y=labels, x=x), [x])
    device.hand_over(batch)
    assert torch.equal(batch.y, labels) is waits
    assert torch.equal(batch.x, torch.ones(5))


def test_a_transform_sees_the_right_bytes(make: Make, data: Data) -> None:
    def transform(batch: Data) -> Data:
        check(batch, data)
        return batch

    assert len(list(make(device="simulated-cuda", transform=transform))) == NODES // 16


def test_eio_surfaces_and_the_next_epoch_works(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = store.table("x").data_offset
    simulate(monkeypatch, faults=Faults(eio_offsets=((start, start + 512),)))
    loader = make(device="simulated-cuda", engine="simulated", input_nodes=torch.tensor([399, 0]),
                  batch_size=1, num_neighbors=[0])  # fmt: skip
    for _ in range(2):
        delivered = []
        with pytest.raises(ReadError):
            delivered.extend(batch.n_id.tolist() for batch in loader)


def test_breaking_off_leaves_nothing_under_way(make: Make, data: Data) -> None:
    loader = make(device="simulated-cuda")
    for _ in range(3):
        for batch in loader:
            check(batch, data)
            break
    device = loader._runtime.device
    loader.close()
    assert not device.driver.busy
    assert loader.stats()["batches"] >= 3


def test_memory_is_freed_after_copies_that_have_begun() -> None:
    device = SimulatedCuda()
    memory = device.allocate(8, 16)
    device.driver.copy([torch.arange(4)])
    assert device.driver.pinned_bytes > 0
    memory.close()
    assert device.driver.pinned_bytes == 0
    device.close()
    assert not device.driver.busy


def test_staging_is_freed_after_the_side_stream_has_used_it() -> None:
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (torch.float16, "float32"),
        (torch.bfloat16, torch.float32),
        (torch.int8, "float32"),
        (torch.float32, "float16"),
        (torch.float64, None),
    ],
)
def test_features_have_the_dtype_asked_for(
    tmp_path: Path, make: Make, dtype: torch.dtype, given: str | torch.dtype | None, device: str
) -> None:
    store, x = stored(tmp_path, dtype)
    loader = make(data=store, device=device, feature_dtype=given)
    expected = x if given is None else x.to(torch.float16 if given == "float16" else torch.float32)
    for batch in (*loader, loader([3, 4])):
        assert batch.x.dtype == expected.dtype
        assert torch.equal(batch.x, expected[batch.n_id])
        assert torch.equal(batch.y, batch.n_id)
        assert batch.mask.dtype == torch.bool


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 6)])
def test_integers_are_scaled(
    tmp_path: Path, make: Make, shape: tuple[int, ...], device: str
) -> None:
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    store, x = stored(tmp_path, torch.int8, x_scale=scale)
    loader = make(data=store, device=device, feature_dtype="float32")
    expected = x.float() * scale.view(50, -1)
    for batch in loader:
        assert torch.equal(batch.x, expected[batch.n_id])
        assert torch.equal(batch.x_scale, scale[batch.n_id])


@pytest.mark.parametrize("dtype", ["int8", torch.int64, "no such", 3])
def test_a_dtype_that_is_not_floating_is_refused(make: Make, dtype: object) -> None:
    with pytest.raises(ConfigError, match="feature_dtype"):
        make(feature_dtype=dtype)


# ---- memory


def test_the_plan_lists_the_devices_memory(make: Make) -> None:
    host = make(seed=1).plan()
    plan = make(device="simulated-cuda").plan()
    on_device = {line.what: line.nbytes for line in plan.device_lines}
    assert on_device["feature buffer"] == plan.slots * ROW_BYTES == plan.buffer_bytes
    assert "feature buffer" not in {line.what for line in plan.lines}
    assert "pinned staging" in {line.what for line in plan.lines}
    assert "on the device" in str(plan)
    assert host.device_lines == ()
    assert "on the device" not in str(host)


def test_the_buffer_gets_what_device_memory_leaves(make: Make) -> None:
    live = make(device="simulated-cuda").plan().device_lines[1].nbytes
    loader = make(device="simulated-cuda", buffer=None, device_memory=live + 380 * ROW_BYTES)
    assert loader.plan().slots == 380
    assert sum(batch.batch_size for batch in loader) == NODES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device_memory": "10KB", "buffer": None}, "device_memory=10 KB leaves no room"),
        ({"device_memory": "100KB", "buffer": "99KB"}, "smaller buffer="),
        ({"device_memory": "x"}, "device_memory"),
        ({"device_memory": "1GB", "device": "cpu"}, "memory= or buffer= for the host"),
    ],
)
def test_too_little_device_memory(make: Make, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**({"device": "simulated-cuda"} | arguments)).plan()


def test_no_memory_on_the_device(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(device="simulated-cuda", device_memory="1GB")
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 1000)
    with pytest.raises(ConfigError, match=r"no device memory for a feature buffer.* 1,000 there"):
        next(iter(loader))


def test_cuda_without_a_gpu_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no GPU; use 'cpu'"):
        make(device="cuda:1")


def test_no_cuda_module_is_imported(store: Store) -> None:
    """A loader on the host imports neither CuPy nor gnndrive's CUDA device."""
    script = f"""
import sys
import gnndrive
loader = gnndrive.NeighborLoader(gnndrive.open({str(store.path)!r}), [4], buffer="40KB")
next(iter(loader))
print([name for name in sys.modules if "cupy" in name or name == "gnndrive.buffer.devices.cuda"])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout == "[]\n", ended.stderr


def test_a_loader_is_a_context(store: Store) -> None:
    with NeighborLoader(store, [4], device="simulated-cuda", buffer="40KB") as loader:
        assert next(iter(loader)).batch_size == 1
