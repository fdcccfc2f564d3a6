"""A lease releases its slots: at once, or in steps if the next sweep is admitted in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import Int32Array
from gnndrive.pipeline.batch import Extracted
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.simulation import InlineWorkers, Scenario, Simulation
from tests.pipeline.conftest import DEVICES
from tests.pipeline.tight import (
    SLOTS,
    closing,
    ids,
    in_virtual_loop,
    loads,
    short_of_memory,
    simulation_of,
    use,
)  # fmt: skip


def record_releases(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], int]]:
    """A list that gets, for each release, its slots and the rows fetched before it."""
    released: list[tuple[list[int], int]] = []
    release = SlotTable.release

    def recording(table: SlotTable, slots: Int32Array) -> None:
        released.append((slots.tolist(), loads(simulation)))
        release(table, slots)

    monkeypatch.setattr(SlotTable, "release", recording)
    return released


@in_virtual_loop
async def test_a_lease_releases_in_steps_if_a_part_waits_for_slots(rows, monkeypatch):
    """The disk may be idle until then: the next part is read before all slots are released."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 16)})
        (ticket,) = buffer.join([(None, {"x": ids(20, 30)})])
        await first.ready()
        released = record_releases(simulation, monkeypatch)
        first.release()
        assert [(len(slots), read) for slots, read in released] == [
            (4, 16), (4, 20), (4, 24), (4, 26),
        ]  # fmt: skip
        lease = await buffer.granted(ticket)
        await use(simulation, lease, ids(20, 30))
        assert [(len(slots), read) for slots, read in released[4:]] == [(10, 26)]  # no ticket waits


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("late", [False, True])
@in_virtual_loop
async def test_gathered_slots_are_released_meanwhile(rows, device, monkeypatch, late):
    """On the host only; a GPU gathers in one copy. No slot is released twice if the lease ends
    before the loop runs the callback."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 16)})
        (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
        await first.ready()
        alias = first.alias("x").tolist()
        released = record_releases(simulation, monkeypatch)
        first.gather("x", torch.uint8, (rows.row_bytes,))
        if not late:
            await asyncio.sleep(0)
        pieces = [(alias[14:], 16), (alias[12:14], 18), (alias[8:12], 20)]
        assert released == (pieces if device == "host" and not late else [])
        left = 8 if released else 16
        released.clear()
        await first.gathered()
        first.release()
        await asyncio.sleep(0)
        assert sorted(slot for slots, _ in released for slot in slots) == sorted(alias[:left])
        await use(simulation, await buffer.granted(ticket), ids(20, 36))


@in_virtual_loop
async def test_an_error_while_a_piece_is_released_breaks_the_buffer(rows, monkeypatch):
    """No caller awaits that release."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        lease = await buffer.lease({"x": ids(0, 16)})
        await lease.ready()
        broken: list[BaseException] = []
        with monkeypatch.context() as patched:
            short_of_memory(patched, buffer, "advance", range(9))
            patched.setattr(buffer, "fail", broken.append)
            lease.gather("x", torch.uint8, (rows.row_bytes,))
            await asyncio.sleep(0)
        assert [type(error) for error in broken] == [MemoryError] * 3
        await lease.gathered()
        lease.release()


@in_virtual_loop
async def test_pieces_are_not_released_in_a_retired_buffer(rows, monkeypatch):
    async with simulation_of(rows) as simulation:
        lease = await simulation.buffer.lease({"x": ids(0, 16)})
        await lease.ready()
        lease.gather("x", torch.uint8, (rows.row_bytes,))
        simulation.buffer.retired = True
        await asyncio.sleep(0)
        assert simulation.table.available == SLOTS - 16
        simulation.buffer.retired = False
        await lease.gathered()
        lease.release()


@pytest.mark.parametrize("step", [0, 1, 3])
@in_virtual_loop
async def test_a_release_step_that_fails_releases_all_slots(rows, monkeypatch, step):
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 16)})
        (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
        await first.ready()
        with monkeypatch.context() as patched:
            short_of_memory(patched, buffer, "advance", range(step, step + 1))
            with pytest.raises(MemoryError):
                first.release()
        await use(simulation, await buffer.granted(ticket), ids(20, 36))


class Holding(InlineWorkers):
    """Holds gathers that have run until `go_on` is set."""

    calls = 0

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        made = await super().run(function, *arguments)
        if function.__name__ == "_gather_and_put":
            self.calls += 1
            await self.go_on.wait()
        return made


@pytest.mark.parametrize("ended", [False, True])
@in_virtual_loop
async def test_slots_are_released_and_the_batch_is_put_before_the_gather_returns(rows, ended):
    scenario = Scenario(rows, slots=SLOTS, batches=1, extra_max=0)
    async with closing(Simulation(scenario, seed=0)) as simulation:
        epoch, workers = simulation.epoch(), Holding()
        epoch.workers, workers.go_on = workers, asyncio.Event()
        running = asyncio.ensure_future(run_epoch(epoch))
        for _ in range(200):
            await asyncio.sleep(0)
        assert workers.calls == 1
        assert simulation.table.available == SLOTS
        assert not running.done()
        assert len(await simulation.consume(epoch, 1)) == 1
        assert simulation.counters.batches == 1
        if ended:
            running.cancel()
        workers.go_on.set()
        await running
        with pytest.raises(ClosedError) if ended else nullcontext():
            assert await simulation.consume(epoch) == []


@in_virtual_loop
async def test_a_batch_of_an_abandoned_epoch_is_not_counted(rows):
    async with closing(Simulation(Scenario(rows, batches=1), seed=0)) as simulation:
        epoch, make = simulation.epoch(), simulation.make

        def left(item: Extracted, gathered: Callable[[], object]) -> Any:
            epoch.output.abandon()
            return make(item, gathered)

        simulation.make = left  # type: ignore[method-assign]
        await run_epoch(epoch)
        assert (simulation.counters.batches, simulation.counters.bytes_wanted) == (0, 0)
