"""Devices that each break the contract in one place: the conformance test finds it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from gnndrive.buffer.devices.base import already_done
from gnndrive.buffer.devices.simulated_cuda import SimulatedHostSlots
from gnndrive.common import plugins
from tests.buffer.devices import test_conformance as conformance
from tests.buffer.devices.conftest import MAKE
from tests.second import Copier

NEEDS_A_GPU = {"cuda"}  # tests/gpu


def change(device: Any, name: str, changed: Callable[[Any], Any]) -> None:
    """Change an attribute of the memory that a device allocates."""
    allocate = device.allocate

    def allocate_changed(slots: int, row_bytes: int) -> Any:
        memory = allocate(slots, row_bytes)
        setattr(memory, name, changed(getattr(memory, name)))
        return memory

    device.allocate = allocate_changed


def unfenced(device):
    """Says that a gather was over when it returned."""
    change(device, "gather", lambda gather: lambda *given: (gather(*given)[0], already_done))


def early(device):
    """Commits rows that are still on their way."""
    device.driver.wait = AsyncMock()


def careless(device):
    """Hands batches over whose rows are still on their way."""
    device.hand_over = Mock()


def generous(device):
    """Gives out staging that is in use."""
    change(device, "_free", lambda free: free * 2)


@pytest.mark.parametrize(
    ("breach", "name", "check"),
    [
        (unfenced, "simulated-cuda-3", conformance.test_slots_may_be_used_again_behind_the_fence),
        (early, "simulated-cuda-3", partial(conformance.test_every_byte_arrives, row_bytes=16)),
        (careless, "simulated-cuda-0", conformance.test_rows_are_there_when_they_are_handed_over),
        (generous, "copier", conformance.test_staging_runs_out_and_comes_back),
    ],
)
def test_a_broken_device_is_found(breach, name, check):
    device = MAKE[name]()
    breach(device)
    with pytest.raises(AssertionError, match="None" if breach is generous else "array_equal"):
        asyncio.run(check(device))
    device.close()


def test_every_device_is_tested():
    named = {make().name for make in MAKE.values()}
    others = {Copier.name, SimulatedHostSlots.name}
    assert named == {*plugins.names("devices"), *others} - NEEDS_A_GPU
