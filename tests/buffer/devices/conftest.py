"""The devices and drivers that need no GPU."""

from collections.abc import Callable, Iterator

import pytest

from gnndrive.buffer.devices._staged import Driver
from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedDriver
from tests.second import Copier

MAKE: dict[str, Callable[[], Device]] = {
    "host": Host,
    "copier": lambda: Copier.make(DeviceContext()),
    **{f"simulated-cuda-{seed}": lambda seed=seed: SimulatedCuda(seed=seed) for seed in range(4)},
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
