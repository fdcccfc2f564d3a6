"""The CUDA device on fake GPUs: which stream, which GPU, what memory; and a user's captures."""

import asyncio
import gc
import mmap
import threading
from collections.abc import Callable, Iterator
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices import _movers, choose
from gnndrive.buffer.devices._host_slots import HostSlotMemory
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices._staged import StagedVictims
from gnndrive.buffer.devices.cuda import (
    COPY_OUT_BYTES,
    MARGIN,
    CaptureMode,
    Cuda,
    CudaHostSlots,
    PinnedMemory,
    TorchDriver,
)
from gnndrive.common.errors import ConfigError
from gnndrive.testing.fake_cuda import FakeCuda, fake_cuda
from tests.buffer.devices.moving import some_rows
from tests.buffer.devices.test_drivers import pinned_moves, slots_with, staged
from tests.soak import product

SLOTS, ROW_BYTES = 64, 512
EVERY = np.arange(SLOTS, dtype=np.int32)
GB = 1 << 30


@pytest.fixture(params=[False, True], ids=["staged", "zero-copy"])
def gpus(request: pytest.FixtureRequest) -> Iterator[FakeCuda]:
    """Two fake GPUs, without and with CuPy."""
    with fake_cuda(cupy=request.param) as made:
        yield made


@pytest.fixture
def driver(gpus: FakeCuda) -> Iterator[TorchDriver]:
    made = TorchDriver(torch.device("cuda", 1))
    yield made
    made.close()


def in_thread(function: Callable[[], object]) -> None:
    """Call a function in another thread, and raise what it raised."""
    asyncio.run(asyncio.to_thread(function))


def fill(driver: TorchDriver) -> tuple[torch.Tensor, np.ndarray]:
    """Slots with rows in them, and the rows."""
    rows = some_rows(SLOTS, ROW_BYTES)
    return slots_with(driver, rows), rows


# ---- streams


def test_a_gather_does_not_copy_behind_training(driver):
    """What is queued on the copies stream, such as the next labels, is not delayed either."""
    into, _ = fill(driver)
    with driver.computing():
        torch.cuda._sleep(1 << 30)
    _, gathered = driver.gather(into, EVERY)
    driver._copies.synchronize()
    assert not gathered[1].query()
    driver.synchronize()


def test_a_gather_of_its_own_stream_does_not_wait_for_training(gpus):
    driver = TorchDriver(torch.device("cuda", 1), None, MoveOptions(gather_stream=True))
    into, rows = fill(driver)
    with driver.computing():
        torch.cuda._sleep(1 << 30)
    out, gathered = driver.gather(into, EVERY)
    asyncio.run(driver.wait(gathered))
    busy = driver._compute.record_event()
    assert not busy.query()
    other = torch.cuda.Stream(1)
    with torch.cuda.stream(other):
        driver.hand_over([out])
        assert np.array_equal(out.cpu().numpy(), rows)
    assert busy.query()
    del out
    driver.close()


def test_a_batch_out_of_slots_on_the_host_does_not_wait_for_training(gpus):
    """It comes over the bus, which takes as long as a step may."""
    device = CudaHostSlots(torch.device("cuda", 1))
    memory, rows = device.allocate(SLOTS, ROW_BYTES), some_rows(SLOTS, ROW_BYTES)
    memory._slots[:] = rows
    with device.driver.computing():
        torch.cuda._sleep(1 << 30)
    busy = device.driver._compute.record_event()
    out, fence = memory.gather(EVERY, torch.uint8, (ROW_BYTES,))
    asyncio.run(fence())
    assert not busy.query()
    device.driver.synchronize()
    assert np.array_equal(out.cpu().numpy(), rows)
    memory.close()
    device.close()


# ---- several GPUs


def test_rows_are_put_behind_the_side_streams_use_of_their_memory(gpus):
    device = Cuda(torch.device("cuda", 1))
    slots, rows = fill(device.driver)
    device.pull(slots, EVERY, device.rows(SLOTS, ROW_BYTES), EVERY)  # of a batch that is given up
    into = device.rows(SLOTS, ROW_BYTES)  # the same memory
    device.put(torch.from_numpy(rows), into, EVERY)
    assert np.array_equal(into.cpu().numpy(), rows)
    device.close()


def test_every_call_names_its_gpu(gpus, driver):
    """The user's GPU is 1, that of a new thread is 0."""

    def work() -> None:
        assert torch.cuda.current_device() == 0
        into, rows = fill(driver)
        out, event = driver.gather(into, EVERY)
        (copied,) = driver.copy([torch.arange(5)])
        with driver.computing():
            more = copied + 1
        asyncio.run(driver.wait(event))
        driver.hand_over([out, more])
        driver.synchronize()
        driver.give_back()
        assert {each.current for each in gpus.log} == {1}
        assert np.array_equal(out.cpu().numpy(), rows)

    torch.cuda.set_device(1)
    in_thread(work)
    driver.close()
    assert gpus.contexts == {1}
    assert {each.device for each in gpus.log} == {1}


def test_a_gpu_without_a_number_is_the_users(gpus):
    torch.cuda.set_device(1)
    chosen = choose("cuda")
    assert chosen == ("cuda", torch.device("cuda", 1))
    in_thread(lambda: Cuda.check(chosen[1]))
    assert choose("cuda:0")[1] == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="there are 2 GPUs; use 'cuda:0' to 'cuda:1'"):
        choose("cuda:2")


# ---- captures


def test_a_loader_works_and_closes_while_the_user_captures(gpus, driver):
    """A graph in the default mode, on a stream of its own, which must be valid at the end."""
    with driver.computing():
        torch.cuda._sleep(1 << 30)
        before = driver._record(driver._gathers)

    def work() -> None:
        asyncio.run(driver.wait(before))
        into, rows = fill(driver)  # allocates, registers, queries and waits
        out, event = driver.gather(into, EVERY)
        driver.copy([torch.arange(5)])
        asyncio.run(driver.wait(event))
        Cuda.free_bytes(driver.device)
        driver.unpin(staged(driver, rows))
        assert gpus.timeline.thread.mode == 0
        del out, into
        driver.close()

    with torch.cuda.device(1), torch.cuda.graph(torch.cuda.CUDAGraph()):
        in_thread(work)
        assert gpus.timeline.thread.mode == 0


def test_a_batch_within_a_capture_is_refused_and_the_capture_goes_on(driver):
    into, _ = fill(driver)
    out, event = driver.gather(into, EVERY)
    asyncio.run(driver.wait(event))
    refused = pytest.raises(ConfigError, match="take it before the capture")
    with torch.cuda.device(1), torch.cuda.graph(torch.cuda.CUDAGraph()), refused:
        driver.hand_over([out])
    del out


def test_without_the_drivers_library_nothing_is_exchanged(monkeypatch):
    monkeypatch.setattr("gnndrive.buffer.devices.cuda._DRIVER", "libno-such-driver.so")
    with CaptureMode().relaxed():
        pass


# ---- memory


@pytest.mark.parametrize("reset", [False, True])
def test_what_torch_has_cached_will_be_used_again(reset):
    with fake_cuda(memory_bytes=GB) as gpus:
        device = Cuda(torch.device("cuda", 1))
        spare = device.watch()
        kept = torch.empty(GB // 8, dtype=torch.uint8, device="cuda:1")
        step = torch.empty(GB // 4, dtype=torch.uint8, device="cuda:1")
        del step
        if reset:  # by the user
            torch.cuda.reset_peak_memory_stats(1)
        expected = GB - GB // 8 - GB // 4 - int(MARGIN * GB)
        assert expected - 4096 <= spare() <= expected
        free = Cuda.free_bytes(device.driver.device)
        assert GB - GB // 8 - GB // 4 - 4096 <= free <= GB - GB // 8 - GB // 4
        torch.cuda.empty_cache()  # by the user: the next step takes it again
        if not reset:
            assert expected - 4096 <= spare() <= expected
        del kept
        device.close()
        assert gpus.contexts == {1}


def test_an_allocation_is_tried_again_without_cached_memory(gpus, driver):
    gpus.memory.trims_itself = False
    torch.empty(3 * GB // 4, dtype=torch.uint8, device="cuda:1")
    assert driver.allocate(GB // 2).numel() == GB // 2
    with pytest.raises(MemoryError, match=r"2.15 GB asked for, [\d.]+ [GM]B of 1.07 GB are free"):
        driver.allocate(2 * GB)


def test_a_closed_buffer_leaves_no_cached_memory(gpus):
    """But a device without a buffer leaves the user's cache alone."""
    for device in (Cuda(torch.device("cuda", 1)), Cuda(torch.device("cuda", 1))):
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info(1)[0]
        memory = device.allocate(1000, 512)
        assert torch.cuda.mem_get_info(1)[0] <= before - 512_000
        memory.close()
        assert torch.cuda.mem_get_info(1)[0] >= before
        torch.empty(1 << 20, dtype=torch.uint8, device="cuda:1")
        device.driver._allocated = False
        device.close()
        assert torch.cuda.memory_reserved(1) >= 1 << 20


@product("row_bytes,slots,portions", [512, 513, 3, 4100], [10, 9_000, 7, 2_000], [1, 4, 8])
def test_the_plan_counts_the_pinned_memory_that_is_registered(
    gpus, monkeypatch, row_bytes, slots, portions
):
    monkeypatch.setattr(Cuda, "options", MoveOptions(portions=portions))
    monkeypatch.setattr(Cuda, "portion_bytes", 1 << 18)
    device = Cuda(torch.device("cuda", 1))
    memory = device.allocate(slots, row_bytes)
    assert memory.landing_rows_max == min(slots, (1 << 18) // row_bytes)
    registered, page = sum(gpus.host.registered.values()), 4096
    counted = Cuda.pinned_bytes(row_bytes, slots)
    assert counted - 2 * page < registered <= counted
    memory.close()
    assert not gpus.host.registered
    device.close()


WITHOUT_CUPY = pytest.mark.parametrize("gpus", [False], indirect=True)


@WITHOUT_CUPY
def test_scratch_is_what_a_copy_out_takes(gpus, driver):
    count = COPY_OUT_BYTES // ROW_BYTES
    slots = driver.allocate(count * ROW_BYTES).view(count, ROW_BYTES)
    into, every = driver.pinned(slots.numel()).reshape(slots.shape), np.arange(count)
    moves = np.stack([every, every]).astype(np.int32)
    torch.cuda.reset_peak_memory_stats(1)
    before, pinned = torch.cuda.memory_allocated(1), gpus.host.pinned_bytes
    asyncio.run(driver.wait(driver.copy_out(slots, into, moves)))
    taken = torch.cuda.max_memory_allocated(1) - before
    assert 0 <= taken - Cuda.copy_out_scratch_bytes() <= moves.nbytes
    pinned = gpus.host.pinned_bytes - pinned - moves.nbytes
    assert COPY_OUT_BYTES <= pinned <= Cuda.copy_out_bytes()


@WITHOUT_CUPY
@pytest.mark.parametrize("which", [0, 1])
def test_refused_pinned_memory_of_a_copy_out_is_a_memory_error(gpus, driver, monkeypatch, which):
    """Torch raises a plain RuntimeError, and no row's copy has begun."""
    slots, _ = fill(driver)
    into = staged(driver, some_rows(SLOTS, ROW_BYTES))
    refusing = [DEFAULT] * which + [RuntimeError("CUDA error: out of memory")]
    monkeypatch.setattr(gpus, "pin", Mock(wraps=gpus.pin, side_effect=refusing))
    gpus.log.clear()
    with pytest.raises(MemoryError, match="no memory to copy rows out of slots"):
        driver.copy_out(slots, into, np.stack([EVERY, EVERY]))
    assert not [each for each in gpus.log if each.kind == "launch" or each.what == "DtoH"]


@WITHOUT_CUPY
@pytest.mark.parametrize("error", [MemoryError("none is left"), KeyError("x")])
async def test_an_error_of_the_hosts_work_reaches_who_waits(driver, monkeypatch, error):
    """And the thread goes on."""
    slots, rows = await asyncio.to_thread(fill, driver)
    into, moves = staged(driver, np.zeros_like(rows)), np.stack([EVERY, EVERY])
    with monkeypatch.context() as patch:
        patch.setattr(_movers, "_spread", Mock(side_effect=error))
        broken = driver.copy_out(slots, into, moves)
    with pytest.raises(type(error)):
        await asyncio.wait_for(driver.wait(broken), 5)
    await asyncio.wait_for(driver.wait(driver.copy_out(slots, into, moves)), 5)
    assert np.array_equal(into, rows)


def test_scratch_is_what_a_scatter_takes(gpus, monkeypatch):
    monkeypatch.setattr(Cuda, "portion_bytes", 1 << 18)
    device = Cuda(torch.device("cuda", 1))
    memory = device.allocate(1000, 512)
    count, driver = memory.landing_rows_max, device.driver
    assert count == 512
    into, every = memory._slots, np.arange(count, dtype=np.int32)
    staging, moves = staged(driver, some_rows(count, 512)), pinned_moves(driver, every[::-1], every)
    torch.cuda.reset_peak_memory_stats(1)
    before = torch.cuda.memory_allocated(1)
    for _ in range(3):
        driver.scatter(into, staging, moves)
    taken = torch.cuda.max_memory_allocated(1) - before
    assert Cuda.scratch_bytes(512, 1000) * 0.9 <= taken <= Cuda.scratch_bytes(512, 1000)
    del into
    memory.close()
    device.close()


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch, gpus: FakeCuda) -> list[str]:
    """In which order pinned memory is unregistered and unmapped."""
    events, unregister = list[str](), gpus.host.unregister

    class Block(mmap.mmap):
        def close(self) -> None:
            super().close()
            events.append("unmapped")

        def __del__(self) -> None:
            events.extend([] if self.closed else ["unmapped"])

    def unregistered(address: int) -> int:
        events.append("unregistered")
        return unregister(address)

    monkeypatch.setattr("gnndrive.common.array_pool.private_map", lambda nbytes: Block(-1, nbytes))
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
    monkeypatch.setattr("gnndrive.common.forks._process", -1)
    del pinned
    gc.collect()
    assert len(gpus.host.registered) == 1


def test_memory_is_pinned_piece_after_piece(gpus, order, monkeypatch):
    """Who uses the first piece waits for no other; pages keep what was written to them."""
    pinned, go_on = pinned_memory(), threading.Event()
    register = gpus.host.register

    def registered(address, nbytes):
        if gpus.host.registered:
            go_on.wait()
        return register(address, nbytes)

    monkeypatch.setattr(gpus.host, "register", registered)
    memory, wait = pinned.take_later(3 * 4096 - 1, 4096)
    memory[:] = 7
    wait(4096)
    assert list(gpus.host.registered.values()) == [4096]
    go_on.set()
    wait(len(memory))
    assert sum(gpus.host.registered.values()) == len(memory)
    assert (memory == 7).all()
    pinned.give(memory)
    assert not gpus.host.registered
    del memory, wait
    gc.collect()
    assert order == ["unregistered"] * 3 + ["unmapped"]


def test_gigabytes_that_cannot_be_pinned_are_an_error_with_a_remedy(gpus, driver):
    if not driver.reads_pinned:
        return  # it pins none
    slots, _ = fill(driver)
    gpus.host.registered_bytes_max = 100
    victims = StagedVictims(driver, slots, SLOTS)
    for use in (victims.wait, lambda: victims.copy_out(EVERY, EVERY)):
        with pytest.raises(ConfigError, match=r"GPU for 64 rows .*of memory.*: ask for less"):
            use()
    victims.close()
    memory = HostSlotMemory(driver, SLOTS, ROW_BYTES, 1, SLOTS)
    with pytest.raises(ConfigError, match=r"buffer of 64 rows .*of memory.*: ask for less"):
        memory.gather(EVERY, torch.uint8, (ROW_BYTES,))
    memory.close()


def test_memory_is_freed_while_a_torch_that_captures_keeps_its_cache(driver, monkeypatch):
    """A second iterator's buffer may be closed beside a user's capture."""
    driver.allocate(4096)
    refused = Mock(side_effect=RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED"))
    monkeypatch.setattr(torch.cuda, "empty_cache", refused)
    driver.give_back()
    assert refused.called
