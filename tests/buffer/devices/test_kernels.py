"""The kernel that moves rows: run by the host, it moves what numpy moves."""

import io
import itertools
import re
import warnings
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pytest
import torch

from gnndrive.buffer.devices import _kernels
from gnndrive.buffer.devices._kernels import (
    LOADS,
    NAME,
    UNITS,
    MoveKernel,
    code,
    find_cupy,
    unit_of,
)
from gnndrive.buffer.devices._movers import _lacks_memory
from gnndrive.common.errors import ConfigError
from tests.buffer.devices.host_cupy import HostCupy, TorchStream
from tests.buffer.devices.moving import ROW_BYTES, shuffled, some_rows
from tests.soak import product

GPU = torch.device("cuda", 1)
STREAM: Any = TorchStream(5)
GUARD = 3  # rows before and behind those that may be written


def on_gpu(tensor: torch.Tensor) -> Any:
    """A tensor that says it is in the GPU's memory."""
    return SimpleNamespace(data_ptr=tensor.data_ptr, shape=tensor.shape, is_cuda=True)


def check_move(cupy: HostCupy, blocks: int, row_bytes: int, count: int, by: str) -> None:
    """Move `count` rows by lists of rows or in order, and compare with numpy."""
    draw = np.random.default_rng([count, row_bytes])
    source, into = some_rows(count + 5, row_bytes), some_rows(count + 2 * GUARD, row_bytes, 1)
    source_row = draw.integers(0, len(source), count).astype(np.int32)  # some of them repeated
    into_row = shuffled(count)
    listed = "source" in by, "into" in by
    expected = into.copy()
    inside = expected[GUARD : GUARD + count]
    inside[into_row if listed[1] else slice(None)] = source[
        source_row if listed[0] else slice(count)
    ]
    rows = [
        torch.from_numpy(row) if wanted else None
        for wanted, row in zip(listed, (source_row, into_row), strict=True)
    ]
    target = torch.from_numpy(into)[GUARD : GUARD + count]
    MoveKernel(cupy, GPU, blocks).move(
        STREAM, target, rows[1], torch.from_numpy(source), rows[0], count
    )
    assert np.array_equal(into, expected), (row_bytes, count, by)


@product("row_bytes,blocks,backwards", [*ROW_BYTES, 33, 520], [0, 1, 2], [False, True])
def test_rows_are_moved_and_nothing_else(cupy, row_bytes, blocks, backwards):
    cupy.backwards = backwards
    for count, by in itertools.product((0, 1, 7, 8, 9, 65, 131), ("", "source", "source into")):
        check_move(cupy, blocks, row_bytes, count, by)


def test_all_units_are_used(cupy):
    assert {unit_of(width) for width in ROW_BYTES} == set(UNITS)
    assert unit_of(512, 4096, 4104) == 8
    assert unit_of(512, 4097) == 1


def test_a_base_that_is_less_aligned_takes_a_narrower_unit(cupy):
    memory = torch.zeros(4 * 64 + 16, dtype=torch.uint8)
    shift = (-memory.data_ptr()) % 16 + 4
    source = memory[shift : shift + 4 * 64].view(4, 64)
    source[:] = torch.arange(256, dtype=torch.uint8).view(4, 64)
    into = torch.zeros(4, 64, dtype=torch.uint8)
    MoveKernel(cupy, GPU).move(STREAM, into, None, source, None, 4)
    assert torch.equal(into, source)
    assert cupy.launches[0].args[-1] == 16, "64 bytes in units of 4"


def test_only_launches_that_touch_rows_of_host_memory_are_capped(cupy):
    source, into = torch.from_numpy(some_rows(400, 16)), torch.zeros(400, 16, dtype=torch.uint8)
    for most, on_host, on_device in ((0, 13, 13), (2, 2, 13), (200, 13, 13)):
        kernel = MoveKernel(cupy, GPU, most)
        cases = (
            (into, source, on_host),
            (into, on_gpu(source), on_host),
            (on_gpu(into), source, on_host),
            (on_gpu(into), on_gpu(source), on_device),
        )
        for there, given, blocks in cases:
            into.zero_()
            kernel.move(STREAM, there, None, given, None, 400)
            assert torch.equal(into, source)
            assert cupy.launches[-1].blocks == blocks, most


# ---- streams


@pytest.mark.parametrize("version", [13, 14])
def test_a_stream_is_wrapped_once_and_without_a_warning(folder, version):
    cupy = HostCupy(folder, version)
    source, into = torch.from_numpy(some_rows(4, 16)), torch.zeros(4, 16, dtype=torch.uint8)
    kernel = MoveKernel(cupy, GPU)
    streams: list[Any] = [STREAM, TorchStream(7), TorchStream(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for one in streams:
                kernel.move(one, into, None, source, None, 4)
    assert [launch.stream for launch in cupy.launches] == [5, 7, 5] * 3
    assert cupy.made == 2


# ---- where the GPU finds host memory


def test_host_memory_is_found_at_its_own_address_or_at_the_gpus(cupy):
    source, into = torch.from_numpy(some_rows(4, 16)), torch.zeros(4, 16, dtype=torch.uint8)
    elsewhere = source.clone()
    cupy.translate = {
        source.data_ptr(): elsewhere.data_ptr(), into.data_ptr(): into.data_ptr(),
    }.__getitem__  # fmt: skip
    for same, expected in ((1, source), (0, elsewhere)):
        cupy.attributes[91] = same
        elsewhere.add_(1)
        MoveKernel(cupy, GPU).move(STREAM, into, None, source, None, 4)
        assert torch.equal(into, expected)


def test_an_unknown_way_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"zero-copy, copy\+kernel, staged"):
        find_cupy("fast")
    assert find_cupy("staged") is None


def compiled(unit: int, architecture: str) -> tuple[bytes, str]:
    """What NVRTC makes of the kernel: a cubin for sm_90, PTX for compute_90; and messages."""
    log, method = io.StringIO(), "cubin" if architecture.startswith("sm_") else "ptx"
    program = cupy.cuda.compiler._NVRTCProgram(code(unit), "move_rows.cu", method=method)
    return program.compile((f"-arch={architecture}", "-std=c++17"), log)[0], log.getvalue()


@product("unit,gpu", list(UNITS), ["sm_80", "sm_90", "sm_100"])
def test_the_kernel_compiles_without_a_gpu(unit, gpu):
    cubin, log = compiled(unit, gpu)
    assert cubin.startswith(b"\x7fELF")
    assert NAME.encode() in cubin
    assert not log


def test_all_loads_come_before_the_first_store():
    """What each thread reads ahead is in registers, not in memory of its own, and reads take
    the read-only path (.nc)."""
    ptx = compiled(16, "compute_80")[0].decode()
    assert ".local" not in ptx
    moves = re.findall(r"\b(ld|st)\.global(\.nc)?\.v4", ptx)
    assert all(nc for what, nc in moves if what == "ld")
    order = "".join(what[0] for what, _ in moves)
    assert "l" * LOADS + "s" * LOADS in order


def test_cuda_is_asked_by_names_that_cupy_has(tmp_path):
    runtime, fake = cupy.cuda.runtime, HostCupy(tmp_path)
    for name, value in vars(fake.cuda.runtime).items():
        real = getattr(runtime, name)
        assert callable(real) if callable(value) else real == value, name
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)
    assert not _lacks_memory(cupy, RuntimeError("no compiler"))
    for name in ("devicePointer", "type"):
        assert hasattr(runtime.PointerAttributes, name)


def test_a_stream_of_torch_becomes_one_of_cupys(monkeypatch):
    monkeypatch.setattr(_kernels, "_host_pointers_are_valid", lambda *given: True)
    kernel = MoveKernel(cupy, torch.device("cuda", 0))
    stream: Any = TorchStream(0x5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = kernel._external(stream)
        assert kernel._external(stream) is made
    assert isinstance(made, cupy.cuda.Stream)
    assert made.ptr == stream.cuda_stream
