"""Tests on a real GPU. If torch sees none, each is skipped and says why."""

import os
from collections.abc import Iterator

# Torch makes more streams than CUDA has queues by default, and those of one queue wait for each
# other. CUDA reads this when torch first uses a GPU.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import pytest
import torch

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.cuda import Cuda, CudaHostSlots, TorchDriver
from tests.cli.conftest import gnndrive, planted
from tests.loader.conftest import data, make, store

__all__ = ["data", "gnndrive", "make", "planted", "store"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip before any fixture is made."""
    if not torch.cuda.is_available():
        pytest.skip(f"needs a CUDA GPU: torch {torch.__version__} sees none")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How rows are moved; without CuPy there is only one way."""
    name: str = request.param
    if name != "staged":
        pytest.importorskip("cupy", reason=f"the way {name} needs CuPy")
    return name


@pytest.fixture
def having_gpus() -> str:
    """What a program in a process of its own begins with, so that it has this test's GPUs."""
    return ""


@pytest.fixture
def driver(way: str) -> Iterator[TorchDriver]:
    made = TorchDriver(torch.device("cuda"), way)
    assert made.way == way
    yield made
    made.synchronize()
    made.close()


@pytest.fixture(params=[Cuda, CudaHostSlots])
def device(request: pytest.FixtureRequest, way: str) -> Iterator[Cuda]:
    """The current GPU, with little staging, so that it is used many times over; its slots are in
    its own memory or in the host's."""
    made: Cuda = request.param(way=way, options=MoveOptions(portions=3))
    made.portion_bytes = 1 << 14
    yield made
    made.close()
