"""Devices that each break the contract in one place: the conformance test finds it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gnndrive.buffer.devices._staged import StagedMemory
from gnndrive.buffer.devices.base import DeviceContext, already_done
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda
from gnndrive.common import plugins
from gnndrive.common.records import Landing, Stretch
from tests.buffer.devices import test_conformance as conformance
from tests.buffer.devices.conftest import MAKE
from tests.second import Copier
from tests.second.device import CopiedMemory

NEEDS_A_GPU = {"cuda"}  # tests/gpu


class Unfenced(SimulatedCuda):
    """Says that a gather was over when it returned."""

    def allocate(self, slots: int, row_bytes: int) -> StagedMemory:
        memory = super().allocate(slots, row_bytes)
        gather = memory.gather
        memory.gather = lambda *given: (gather(*given)[0], already_done)
        return memory


class Early(SimulatedCuda):
    """Commits rows that are still on their way."""

    def allocate(self, slots: int, row_bytes: int) -> StagedMemory:
        async def wait(event: object) -> None:
            pass

        self.driver.wait = wait  # type: ignore[assignment, method-assign]
        return super().allocate(slots, row_bytes)


class Careless(SimulatedCuda):
    """Hands batches over whose rows are still on their way."""

    def hand_over(self, batch: Any) -> None:
        pass


class Changed(Copier):
    """A copier whose memory is changed where it is allocated."""

    def allocate(self, slots: int, row_bytes: int) -> CopiedMemory:
        memory = super().allocate(slots, row_bytes)
        self.change(memory)
        return memory

    def change(self, memory: CopiedMemory) -> None:
        raise NotImplementedError


class Misnaming(Changed):
    """Names places where rows failed instead of slots."""

    def change(self, memory: CopiedMemory) -> None:
        whole = memory.commit

        async def commit(landing: Landing, stretch: Stretch) -> Stretch:
            return replace(await whole(landing, stretch), failures=stretch.failures)

        memory.commit = commit  # type: ignore[method-assign]


class Fragile(Changed):
    """Clears the rows of a gather when the wait for its fence is cancelled."""

    def change(self, memory: CopiedMemory) -> None:
        whole = memory.gather

        def gather(*given: Any) -> Any:
            rows, fence = whole(*given)

            async def giving_up() -> None:
                try:
                    await asyncio.sleep(0)
                    await fence()
                except asyncio.CancelledError:
                    self._copies.wait()
                    rows.zero_()
                    raise

            return rows, giving_up

        memory.gather = gather  # type: ignore[method-assign]


class Generous(Changed):
    """Gives out staging that is in use."""

    def change(self, memory: CopiedMemory) -> None:
        memory._free.extend(memory._free)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Unfenced, conformance.test_slots_may_be_used_again_behind_the_fence),
        (Early, partial(conformance.test_every_byte_arrives, row_bytes=16)),
        (Careless, conformance.test_rows_are_there_when_they_are_handed_over),
        (Misnaming, conformance.test_failures_name_slots),
        (Fragile, conformance.test_a_fence_may_be_cancelled_and_awaited_again),
        (Generous, conformance.test_staging_runs_out_and_comes_back),
    ],
)
def test_a_broken_device_is_found(kind, check):
    device = kind.make(DeviceContext()) if issubclass(kind, Copier) else kind(seed=3)
    with pytest.raises(AssertionError, match="None" if kind is Generous else "array_equal"):
        asyncio.run(check(device))
    device.close()


def test_every_device_is_tested():
    named = {make().name for make in MAKE.values()}
    assert named == {*plugins.names("devices"), Copier.name} - NEEDS_A_GPU
