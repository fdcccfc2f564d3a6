"""Which stream waits for which on a GPU, shown with a kernel that only takes time."""

import asyncio
import mmap
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.cuda import TorchDriver
from gnndrive.common.errors import ConfigError
from tests.buffer.devices import test_drivers
from tests.buffer.devices.moving import ROW_BYTES as EVERY_SIZE
from tests.buffer.devices.moving import shuffled, some_rows
from tests.buffer.devices.test_drivers import pinned_moves, slots_with, staged

pytestmark = pytest.mark.gpu

SLOTS, ROW_BYTES = 1000, 512
BUSY_CYCLES = 500_000_000  # of the GPU's clock: some tenths of a second
EVERY = np.arange(SLOTS, dtype=np.int32)


def keep_busy(stream: torch.cuda.Stream) -> None:
    """Delay what is begun on `stream` from now on by some tenths of a second."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)


class Filled:
    """Slots with known rows. Everything that is allocated at first use is allocated, because an
    allocation while a stream is busy may wait for that stream."""

    def __init__(self, driver: TorchDriver) -> None:
        self.driver = driver
        self.rows, self.fresh = (some_rows(SLOTS, ROW_BYTES, seed) for seed in range(2))
        self.into = slots_with(driver, self.rows)
        self.moves = pinned_moves(driver, EVERY, EVERY)
        self._staging = staged(driver, self.rows), staged(driver, self.fresh)
        for _ in range(2):
            self.refill(0)
            driver.synchronize()
            self.gather()
            driver.copy([torch.from_numpy(self.rows)])
            driver.synchronize()

    def refill(self, which: int = 1) -> Any:
        """Scatter the rows, or the fresh ones; an event."""
        return self.driver.scatter(self.into, self._staging[which], self.moves)

    def gather(self) -> tuple[torch.Tensor, Any]:
        """All rows, and an event."""
        return self.driver.gather(self.into, EVERY)


@pytest.fixture
def filled(driver: TorchDriver) -> Filled:
    return Filled(driver)


def test_waiting_leaves_the_event_loop_free(filled: Filled) -> None:
    async def main() -> None:
        keep_busy(filled.driver._compute)
        out, event = filled.gather()
        waiting = asyncio.ensure_future(filled.driver.wait(event))
        turns = 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 100
        assert event[1].query()
        assert np.array_equal(out.cpu().numpy(), filled.rows)

    asyncio.run(main())


@pytest.mark.parametrize("busy", ["compute", "side"])
def test_scatters_and_training_do_not_wait_for_each_other(filled: Filled, busy: str) -> None:
    async def main() -> None:
        keep_busy(getattr(filled.driver, f"_{busy}"))
        begin = [lambda: filled.gather()[1], filled.refill]
        first, second = begin if busy == "compute" else begin[::-1]
        slow = first()
        await filled.driver.wait(second())
        assert not slow[1].query(), "the stream should be busy still"
        await filled.driver.wait(slow)

    asyncio.run(main())


def test_the_compute_stream_waits_for_copies(filled: Filled) -> None:
    driver, source = filled.driver, torch.from_numpy(filled.rows)
    keep_busy(driver._copies)
    (copied,) = driver.copy([source])
    with driver.computing():
        more = copied + 1
    driver.hand_over([more])
    assert np.array_equal(more.cpu().numpy(), filled.rows + 1)


def test_hand_over_makes_another_stream_wait(filled: Filled) -> None:
    driver, other = filled.driver, torch.cuda.Stream()
    keep_busy(driver._compute)
    out, event = filled.gather()
    with torch.cuda.stream(other):
        driver.hand_over([out])
        more = out + 1
    other.synchronize()
    assert event[1].query()
    assert np.array_equal(more.cpu().numpy(), filled.rows + 1)


def test_memory_is_not_used_again_before_another_stream_is_done(filled: Filled) -> None:
    driver, other = filled.driver, torch.cuda.Stream()
    out, _ = filled.gather()
    address = out.data_ptr()
    with torch.cuda.stream(other):
        driver.hand_over([out])
        keep_busy(other)
        more = out + 1
    del out
    with driver.computing():
        spoilt = [torch.zeros(SLOTS, ROW_BYTES, dtype=torch.uint8, device="cuda") for _ in range(4)]
    assert address not in [tensor.data_ptr() for tensor in spoilt]
    other.synchronize()
    assert np.array_equal(more.cpu().numpy(), filled.rows + 1)


def test_a_buffer_is_not_written_by_kernels_queued_before_it(driver: TorchDriver) -> None:
    """Memory that the compute stream gave back may be written until its kernels have run."""
    size = 64 << 20
    rows = some_rows(size // 4096, 4096)
    staging, slots = staged(driver, rows), np.arange(len(rows), dtype=np.int32)
    moves = pinned_moves(driver, slots, slots)
    torch.cuda.empty_cache()
    with driver.computing():
        earlier = torch.empty(size, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(BUSY_CYCLES)
        earlier.fill_(0)
        del earlier
    into = driver.allocate(size).view(len(rows), 4096)
    driver.scatter(into, staging, moves)
    driver.synchronize()
    assert np.array_equal(into.cpu().numpy(), rows)


def test_slots_beyond_four_gigabytes(driver: TorchDriver) -> None:
    slots, row_bytes = 1 << 21, 3072
    if torch.cuda.mem_get_info()[0] < 2 * slots * row_bytes:
        pytest.skip("the GPU has less than 12 GB free")
    into = driver.allocate(slots * row_bytes).view(slots, row_bytes)
    rows, where = some_rows(64, row_bytes), (slots - 1 - 3 * shuffled(64)).astype(np.int32)
    moves = pinned_moves(driver, np.arange(64, dtype=np.int32), where)
    driver.scatter(into, staged(driver, rows), moves)
    driver.synchronize()
    out, _ = driver.gather(into, where)
    driver.synchronize()
    assert np.array_equal(out.cpu().numpy(), rows)


def test_a_second_gpu_is_used_from_any_thread() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    driver = TorchDriver(torch.device("cuda", 1))
    rows = some_rows(SLOTS, ROW_BYTES)
    into = slots_with(driver, rows)

    async def main() -> torch.Tensor:
        out, event = await asyncio.to_thread(driver.gather, into, EVERY)
        await driver.wait(event)
        return out

    out = asyncio.run(main())
    assert out.device == torch.device("cuda", 1)
    assert np.array_equal(out.cpu().numpy(), rows)
    driver.close()


# ---- the switches of the device: each way moves the same rows with any of them

SWITCHES = [
    MoveOptions(), MoveOptions(blocks=1), MoveOptions(blocks=128), MoveOptions(gather_stream=True),
]  # fmt: skip


@pytest.mark.parametrize("options", SWITCHES, ids=str)
async def test_any_switch_moves_the_same_rows(way: str, options: MoveOptions) -> None:
    driver = TorchDriver(torch.device("cuda"), way, options)
    assert driver.way == way
    for row_bytes in EVERY_SIZE:
        await test_drivers.test_a_scatter_moves_its_rows_and_nothing_else(driver, row_bytes)
    driver.close()


def test_memory_that_cannot_be_pinned_leaves_no_error_behind(
    driver: TorchDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = mmap.mmap(-1, 4096)
    monkeypatch.setattr("gnndrive.common.array_pool.private_map", lambda nbytes: block)
    for _ in range(3):  # what is let go may be registered again
        driver.unpin(driver.pinned(4096))
    kept = driver.pinned(4096)
    with pytest.raises(MemoryError, match="cudaHostRegister of 4,096 bytes: "):
        driver.pinned(4096)  # it is registered already
    assert torch.ones(3, device="cuda").sum().item() == 3
    assert len(kept) == 4096


def test_a_kernel_that_cannot_be_made_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy", reason="its kernel needs CuPy and a GPU")
    monkeypatch.setattr(cupy, "RawKernel", Mock(side_effect=RuntimeError("no compiler")))
    with pytest.warns(UserWarning, match="no compiler"):
        driver = TorchDriver(torch.device("cuda"))
    assert driver.way == "staged"
    driver.close()
    with pytest.raises(ConfigError, match="no compiler"):
        TorchDriver(torch.device("cuda"), "zero-copy")
