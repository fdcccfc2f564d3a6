"""The tests of tests/gpu on fake GPUs; what only a real one can show is left out."""

from collections.abc import Iterator

import pytest
import torch

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.testing.fake_cuda import FakeCuda, fake_cuda
from tests.cli.conftest import gnndrive, planted
from tests.gpu.conftest import device, driver
from tests.loader.conftest import data, make, store

__all__ = ["data", "device", "driver", "gnndrive", "make", "planted", "store"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, gpus: FakeCuda) -> str:
    """How rows are moved; the fake CuPy knows gnndrive's kernels."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def gpus() -> Iterator[FakeCuda]:
    """Two fake GPUs; the user's is the second."""
    with fake_cuda(devices=2, memory_bytes=1 << 30, cupy=True) as made:
        torch.cuda.set_device(1)
        yield made
        torch.cuda.set_device(0)


@pytest.fixture(autouse=True)
def one_context(gpus: FakeCuda) -> Iterator[None]:
    """Nothing touches a GPU that the test does not name."""
    yield
    assert gpus.contexts <= {1}


@pytest.fixture
def having_gpus() -> str:
    """Such a program has two fake GPUs, too."""
    return """
from gnndrive.testing.fake_cuda import fake_cuda
gpus = fake_cuda(devices=2, cupy=True)
gpus.__enter__()
"""
