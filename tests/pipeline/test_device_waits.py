"""Each wait for an event, with and without it.

A copy is begun long before its bytes are there. The pipeline waits in four places; with all of them
every seed ends well (the other tests run on the simulated device too); without any one of them at
least one seed ends with a wrong row. tests/loader/test_device.py tests that the compute stream
waits for the side stream, and test_victims.py has the waits for copies out of slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gnndrive.buffer.devices._staged import StagedMemory
from gnndrive.buffer.lease import Lease
from gnndrive.common.records import Landing, Stretch, TableFile
from gnndrive.pipeline import run as epoch_run
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Delivered, Scenario, Simulation, simulate
from tests.pipeline.scenarios import SLOW

Patch = pytest.MonkeyPatch
Run = Callable[[TableFile, int], None]
SEEDS = 100


def many_batches(rows: TableFile, seed: int) -> None:
    """Through few slots, so that they are used again soon, to a slow consumer."""
    slots = (0, 32)[seed % 2]
    scenario = Scenario(rows, slots=slots, faults=SLOW, batches=16, consumer_turns_max=30)
    simulate(replace(scenario, device="simulated-cuda"), seed)


def broken_off(rows: TableFile, seed: int) -> None:
    """A batch that was taken from an epoch and is checked in the next one."""

    async def main() -> None:
        scenario = Scenario(rows, faults=SLOW, batches=6, device="simulated-cuda")
        simulation = Simulation(scenario, seed)
        first = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(first))
        taken: Delivered = await first.output.aget()
        running.cancel()
        await asyncio.wait([running])
        second = simulation.epoch(1)
        running = asyncio.ensure_future(run_epoch(second))
        simulation.check(await second.output.aget())
        simulation.check(taken)
        await simulation.consume(second)
        await running
        await simulation.close()

    run(main())


@pytest.fixture(autouse=True)
def device() -> None:
    """Overrides the folder's fixture: the scenarios name the simulated device."""


async def no_wait(event: Any) -> None:
    """Goes on before the event has fired."""


def drop_commit_behind_the_scatter(patch: Patch) -> None:
    """A row is valid, and its staging free, as soon as its scatter was begun."""
    commit = StagedMemory.commit

    async def hasty(memory: StagedMemory, landing: Landing, stretch: Stretch) -> Stretch:
        driver: Any = memory._driver
        driver.wait = no_wait
        try:
            return await commit(memory, landing, stretch)
        finally:
            del driver.wait

    patch.setattr(StagedMemory, "commit", hasty)


def drop_staging_behind_the_scatter(patch: Patch) -> None:
    """Rows are valid when they should be, but their staging is free as soon as they landed."""
    take, commit = StagedMemory.landing, StagedMemory.commit

    def kept(memory: StagedMemory, slots: Any) -> Landing | None:
        landing = take(memory, slots)
        return None if landing is None else replace(landing, leave=lambda: None)

    async def early(memory: StagedMemory, landing: Landing, stretch: Stretch) -> Stretch:
        driver: Any = memory._driver
        wait, portion = type(driver).wait, landing.owner

        async def leaving(event: Any) -> None:
            if portion.moved == len(portion.slots):
                memory._free.append(portion)
            del driver.wait
            await wait(driver, event)

        driver.wait = leaving
        return await commit(memory, landing, stretch)

    patch.setattr(StagedMemory, "landing", kept)
    patch.setattr(StagedMemory, "commit", early)


def drop_release_behind_the_gather(patch: Patch) -> None:
    """A lease is released as soon as its gather was begun."""

    async def at_once(lease: Lease) -> None:
        return

    patch.setattr(Lease, "gathered", at_once)


def drop_cleanup_behind_the_gather(patch: Patch) -> None:
    """The same when an epoch ends early."""
    release_and_drain = epoch_run._release_and_drain

    async def at_once(epoch: Epoch) -> None:
        with patch.context() as meanwhile:
            drop_release_behind_the_gather(meanwhile)
            await release_and_drain(epoch)

    patch.setattr(epoch_run, "_release_and_drain", at_once)


@pytest.mark.parametrize(
    ("drop", "scenario"),
    [
        (drop_commit_behind_the_scatter, many_batches),
        (drop_staging_behind_the_scatter, many_batches),
        (drop_release_behind_the_gather, many_batches),
        (drop_cleanup_behind_the_gather, broken_off),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_without_the_wait_there_are_wrong_rows(
    drop: Callable[[Patch], None], scenario: Run, rows: TableFile, monkeypatch: Patch
) -> None:
    drop(monkeypatch)
    message = ""
    for seed in range(SEEDS):
        try:
            scenario(rows, seed)
        except AssertionError as error:
            message = str(error)
            break
    assert "wrong rows for nodes" in message, f"it can be dropped: {drop.__doc__}"


def test_a_device_that_fails_behind_a_gather_ends_the_epoch(
    rows: TableFile, monkeypatch: Patch
) -> None:
    """The consumer gets the error, every slot comes back, and the buffer refuses batches."""
    gathered, count = Lease.gathered, iter(range(1000))

    async def failing(lease: Lease) -> None:
        if next(count) > 2:
            raise RuntimeError("the device is gone")
        await gathered(lease)

    monkeypatch.setattr(Lease, "gathered", failing)

    async def main() -> None:
        simulation = Simulation(Scenario(rows, faults=SLOW, device="simulated-cuda"), 0)
        epoch = simulation.epoch()
        running = asyncio.ensure_future(run_epoch(epoch))
        with pytest.raises(RuntimeError, match="the device is gone"):
            await simulation.consume(epoch)
        await running
        with pytest.raises(RuntimeError, match="the device is gone"):
            simulation.buffer.raise_if_broken()
        await simulation.close()

    run(main())


@pytest.mark.parametrize("scenario", [many_batches, broken_off])
def test_with_all_waits_all_ends_well(scenario: Run, rows: TableFile) -> None:
    for seed in range(SEEDS):
        scenario(rows, seed)
