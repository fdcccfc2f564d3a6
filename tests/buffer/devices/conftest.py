"""The devices and drivers that need no GPU."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnndrive.buffer.devices._staged import Driver
from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.devices.simulated_cuda import (
    SimulatedCuda,
    SimulatedDriver,
    SimulatedHostSlots,
)
from gnndrive.common.shared_memory import SharedMemory
from tests.buffer.devices.host_cupy import HostCupy
from tests.second import Copier

MAKE: dict[str, Callable[[], Device]] = {
    "host": Host,
    "shared": lambda: Host(map=lambda nbytes: SharedMemory.create(nbytes, "slots").map),
    "copier": lambda: Copier.make(DeviceContext()),
    **{f"simulated-cuda-{seed}": lambda seed=seed: SimulatedCuda(seed=seed) for seed in range(4)},
    **{f"host-slots-{seed}": lambda seed=seed: SimulatedHostSlots(seed) for seed in range(6)},
}


@pytest.fixture(params=MAKE)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device; the simulated one with several seeds, some of which have little staging."""
    made = MAKE[request.param]()
    yield made
    made.close()


@pytest.fixture(params=range(3))
def driver(request: pytest.FixtureRequest) -> Driver:
    """A driver, with several seeds."""
    return SimulatedDriver(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the kernels are compiled for the host."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def cupy(folder: Path) -> HostCupy:
    """CuPy whose kernels run on the host."""
    return HostCupy(folder)
