"""The fake GPUs fail where a real one would, or might."""

import itertools
import mmap
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices._kernels import MoveKernel
from gnndrive.testing.fake_cuda import FakeCuda, fake_cuda


@pytest.fixture
def gpus() -> Iterator[FakeCuda]:
    with fake_cuda() as made:
        yield made


def found(problem: str) -> pytest.RaisesExc:
    return pytest.raises(AssertionError, match=problem)


def test_a_module_that_is_imported_meanwhile_is_not_imported_again() -> None:
    sys.modules.pop("wave", None)
    with fake_cuda():
        import wave
    assert sys.modules["wave"] is wave
    assert sys.modules.get("cupy", wave) is not None


def test_devices_do_not_mix(gpus: FakeCuda) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:1"):
        np.asarray(torch.ones(3).to("cuda:1"))
    one, other = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cuda:1"):
        one + other
    with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
        one + torch.ones(3)
    assert (one + torch.tensor(1.0) + 1).tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1).to("cuda:2")


@pytest.mark.parametrize("side", ["from", "into"])
@pytest.mark.parametrize("row", [1, 2])
def test_a_kernel_uses_what_is_allocated_or_registered(side: str, row: int) -> None:
    outside = nullcontext() if row == 1 else pytest.raises(RuntimeError, match="illegal memory")
    with fake_cuda(cupy=True) as gpus, outside:
        import cupy

        memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)  # three rows, of which two are registered
        begin = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        gpus.host.register(begin, 2 * mmap.PAGESIZE)
        there = torch.empty(2 * mmap.PAGESIZE, dtype=torch.uint8, device="cuda")
        rows = torch.tensor([0, row], dtype=torch.int32, device="cuda")
        numbers = rows.data_ptr()
        into_row, from_row = (numbers, 0) if side == "into" else (0, numbers)
        given = there.data_ptr(), into_row, begin, from_row, 2, mmap.PAGESIZE // 16
        MoveKernel(cupy, torch.device("cuda", 0)).compile(16)((1,), (32,), given)


@pytest.mark.parametrize("how", ["nothing", "event", "stream", "host", "query"])
def test_two_streams_on_the_same_bytes_need_an_order(how: str) -> None:
    with fake_cuda() as gpus:
        first, other = torch.cuda.current_stream(), torch.cuda.Stream()
        tensor = torch.zeros(8, device="cuda")
        event = first.record_event()
        orders: dict[str, Callable[[], object]] = {
            "event": lambda: other.wait_event(event),
            "stream": lambda: other.wait_stream(first),
            "host": first.synchronize,
            "query": lambda: any(event.query() for _ in itertools.count()),
        }
        orders.get(how, lambda: None)()
        with (
            torch.cuda.stream(other),
            found("neither waits") if how == "nothing" else nullcontext(),
        ):
            tensor.add_(1)
        first.wait_stream(other)
        assert len(gpus.problems) == (how == "nothing")
        gpus.problems.clear()


def test_rows_of_one_tensor_may_be_used_at_once() -> None:
    with fake_cuda() as gpus:
        slots, other = torch.zeros(6, 4, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        rows, low = torch.ones(3, 4).to("cuda"), torch.arange(3).to("cuda")
        high = (torch.arange(3) + 2).to("cuda")
        slots.index_copy_(0, low, rows)
        with torch.cuda.stream(other):
            assert slots.index_select(0, (torch.arange(3) + 3).to("cuda")).sum() == 0
            other.wait_event(torch.cuda.default_stream().record_event())
            slots.index_select(0, high)
        with found("neither waits"):
            slots.index_copy_(0, high, rows)
        gpus.problems.clear()


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_of_another_stream_needs_record_stream(recorded: bool) -> None:
    with fake_cuda() as gpus:
        other = torch.cuda.Stream()
        tensor = torch.ones(1000, device="cuda")
        other.wait_stream(torch.cuda.current_stream())
        address = tensor.data_ptr()
        with torch.cuda.stream(other):
            torch.cuda._sleep(1_000_000)
            tensor.sum()
        if recorded:
            tensor.record_stream(other)
        del tensor
        again = torch.ones(1000, device="cuda")
        assert (again.data_ptr() != address) == recorded
        other.synchronize()
        del again
        assert bool(gpus.problems) != recorded
        gpus.problems.clear()


def test_problems_are_raised_at_the_end() -> None:
    with found("a b c"), fake_cuda() as gpus:
        gpus.problems.append("a b c")
    with fake_cuda():  # and the next fake is not affected
        pass


def test_memory_unmapped_while_it_is_registered_is_found() -> None:
    with found("unmapped before"), fake_cuda():
        cudart, block = torch.cuda.cudart(), mmap.mmap(-1, 64 << 20)
        address = np.frombuffer(block, np.uint8).ctypes.data
        cudart.cudaHostRegister(address, len(block), 3)
        block.close()
        cudart.cudaHostUnregister(address)


@pytest.mark.parametrize("mode", ["global", "relaxed"])
def test_a_capture_forbids_other_threads_unsafe_calls(gpus: FakeCuda, mode: str) -> None:
    event = torch.cuda.current_stream().record_event()
    previous = pytest.raises(RuntimeError, match="previous error during capture")
    with (
        ThreadPoolExecutor(1) as thread,
        previous if mode == "global" else nullcontext(),
        torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode),
    ):
        error = thread.submit(event.query).exception()
    assert ("not permitted when stream is capturing" in str(error)) == (mode == "global")


def test_a_capture_waits_for_nothing_outside(gpus: FakeCuda) -> None:
    with (
        pytest.raises(RuntimeError, match="previous error"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())


def test_sync_debug_mode(gpus: FakeCuda) -> None:
    tensor = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        tensor.sum().item()
    torch.cuda.set_sync_debug_mode("default")
