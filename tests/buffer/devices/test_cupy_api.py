"""The parts of CuPy that the CUDA device uses are there in the installed version; needs no GPU."""

from __future__ import annotations

import warnings
from typing import Any

import cupy
import pytest
import torch

from gnndrive.buffer.devices import _kernels
from gnndrive.buffer.devices._kernels import NAME, UNITS, MoveKernel, code
from gnndrive.buffer.devices._movers import _lacks_memory
from tests.buffer.devices.host_cupy import HostCupy, TorchStream


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


@pytest.mark.parametrize("unit", UNITS)
def test_a_kernel_is_made_from_its_source(unit):
    kernel = cupy.RawKernel(code(unit), NAME)
    assert (kernel.name, kernel.backend) == (NAME, "nvrtc")
    assert callable(kernel.compile)


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
