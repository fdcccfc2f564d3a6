"""The victim buffer in the pipeline: with all waits every seed ends well, without any one not.

On the simulated device a copy out of slots is begun long before its bytes are there, and the next
rows may be scattered into these slots meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices.simulated_cuda import COMPUTE, SimulatedDriver
from gnndrive.common.records import Int32Array, TableFile
from gnndrive.disk.tiers import _victims
from gnndrive.disk.tiers._victims import Victims
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, simulate
from tests.pipeline.scenarios import SLOW, cancelled_leases_come_back, failing_epoch_ends
from tests.pipeline.victims import AHEAD, SEEDS, back_at_once, count_stats, given, small_buffer

Patch = pytest.MonkeyPatch
RULES = ("victim", "victim-queues")


@pytest.fixture(autouse=True)
def device() -> None:
    """Overrides the folder's fixture: the scenarios name the device."""


@pytest.fixture(autouse=True)
def counted(monkeypatch: Patch) -> Counter[str]:
    """The counters of all simulations of a test."""
    return count_stats(monkeypatch)


@pytest.mark.parametrize("rule", RULES)
def test_rows_may_come_back_while_they_are_copied_out(
    rows: TableFile, rule: str, counted: Counter[str], monkeypatch: Patch
) -> None:
    """Each row that leaves is wanted, and is served without a read."""
    arriving = list[int]()
    copy_back = Victims._copy_back

    async def listened(tier: Victims, before: Any, *places: Any) -> None:
        arriving.append(len(before or ()))
        await copy_back(tier, before, *places)

    monkeypatch.setattr(Victims, "_copy_back", listened)
    for seed in range(SEEDS):
        back_at_once(rows, seed, rule)
    assert sum(map(bool, arriving)) >= SEEDS
    assert counted["loads"] - counted["served"] == 48 * SEEDS, "a row was read twice"


@pytest.mark.parametrize("rule", RULES)
def test_with_all_waits_all_ends_well(rows: TableFile, rule: str, counted: Counter[str]) -> None:
    for seed in range(SEEDS):
        small_buffer(rows, seed, rule)
    assert counted["served"] > 2 * SEEDS


def test_a_device_that_copies_little_at_once(
    rows: TableFile, monkeypatch: Patch, counted: Counter[str]
) -> None:
    """As without CuPy: rows for which there is no room on the way are dropped."""
    monkeypatch.setattr(SimulatedDriver, "copy_out_bytes_max", 3 * rows.row_bytes)
    for seed in range(SEEDS):
        small_buffer(rows, seed)
    assert counted["served"] > SEEDS


@pytest.mark.parametrize("rule", RULES)
def test_errors_surface_in_turn(rows: TableFile, rule: str) -> None:
    """EIO of rows that the disk cannot read; a failed row is never kept."""
    for seed in range(SEEDS):
        failing_epoch_ends(rows, seed, **given(rule))


@pytest.mark.parametrize("rule", RULES)
def test_cancelled_leases_come_back(rows: TableFile, rule: str) -> None:
    for seed in range(SEEDS):
        cancelled_leases_come_back(rows, seed, **given(rule))


@pytest.mark.parametrize("rule", RULES)
def test_an_epoch_that_is_broken_off_and_the_next(
    rows: TableFile, rule: str, counted: Counter[str]
) -> None:
    """Batches that were announced never come, and the next epoch's indices begin at 0 again."""

    async def main(seed: int) -> None:
        scenario = Scenario(rows, slots=32, faults=SLOW, stages=AHEAD, **given(rule))
        simulation = Simulation(scenario, seed)
        for number, limit in enumerate((seed % 7, 3, None)):
            epoch = simulation.epoch(number)
            running = asyncio.ensure_future(run_epoch(epoch))
            await simulation.consume(epoch, limit)
            if limit is not None:
                running.cancel()
            await asyncio.wait([running])
            simulation.check_idle()
        await simulation.close()

    for seed in range(SEEDS):
        run(main(seed))
    assert counted["served"] > SEEDS


def test_closing_waits_for_copies_out(rows: TableFile) -> None:
    """Of rows that nothing fetches any more; the memory is freed after them (rule 13)."""

    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=16, **given()), 1)
        buffer, driver = simulation.buffer, simulation.device.driver
        first, other = np.arange(16), np.arange(16, 32)
        for wanted in (first, other):
            lease = await buffer.lease({"x": wanted})
            await lease.ready()
            lease.release()
            buffer.announce(len(wanted), {"x": first}) if wanted is first else None
        tier = simulation.table.tier
        assert isinstance(tier, Victims)
        memory = tier._memory
        assert memory is not None
        kept = memory.rows
        pinned = driver.pinned_bytes
        buffer.withdraw(16, {"x": first})
        await buffer.drain()
        await tier.aclose()
        assert not tier._copies_out
        assert driver.pinned_bytes < pinned
        assert (kept == 0xEE).all(), "its memory was freed"
        await tier.aclose()
        await simulation.close()

    run(main())


def test_on_the_host_nothing_is_kept(rows: TableFile, counted: Counter[str]) -> None:
    """Its slots are the memory that rows would be copied to."""
    for seed in range(4):
        chosen = given() | {"device": "host"}
        simulate(Scenario(rows, slots=24, stages=AHEAD, **chosen), seed)
    assert counted["evictions"] > 0
    assert counted["served"] == 0


# ---- without a wait


def drop_copy_out_before_the_scatter(patch: Patch) -> None:
    """Rows are copied out on another stream than the one that scatters others over them."""
    begin = SimulatedDriver._begin

    def copy_out(driver: SimulatedDriver, slots: Any, into: Any, moves: Int32Array) -> Any:
        with patch.context() as meanwhile:
            elsewhere = lambda self, stream, work: begin(self, COMPUTE, work)  # noqa: E731
            meanwhile.setattr(SimulatedDriver, "_begin", elsewhere)
            return COPY_OUT(driver, slots, into, moves)

    patch.setattr(SimulatedDriver, "copy_out", copy_out)


COPY_OUT = SimulatedDriver.copy_out


def drop_copy_back_behind_the_copy_out(patch: Patch) -> None:
    """A fetch copies a row back although its copy-out has not ended."""
    lib, pointer = _victims.lib, _victims.pointer

    async def at_once(tier: Victims, before: Any, kept: Any, *places: Any) -> None:
        await tier._begin_copy_back(kept, *places)
        if before:
            await asyncio.wait(before)  # the table needs it
        assert lib.gd_victims_drop(tier._handle, pointer(kept), len(kept)) == 0

    patch.setattr(Victims, "_copy_back", at_once)


def drop_valid_behind_the_copy_out(patch: Patch) -> None:
    """A place counts as arrived as soon as its copy-out was begun."""
    copy_out = Victims._copy_out

    async def hasty(tier: Victims, ended: Any, places: Int32Array) -> None:
        async def already() -> None:
            return

        await copy_out(tier, already, places)

    patch.setattr(Victims, "_copy_out", hasty)


def slow_copies_back(patch: Patch) -> None:
    """A thread that copies back some turns of the loop later."""
    begin = _victims.begin_copy

    def later(*given: Any) -> asyncio.Future[None]:
        async def copied() -> None:
            for _ in range(12):
                await asyncio.sleep(0)
            begin(*given)

        return asyncio.ensure_future(copied())

    patch.setattr(_victims, "begin_copy", later)


def drop_places_behind_the_copy_back(patch: Patch) -> None:
    """A place may be taken as soon as its row was found, while the row is being copied back."""
    slow_copies_back(patch)
    begin = Victims._begin_copy_back

    def given_up(tier: Victims, kept: Any, *places: Any) -> Any:
        begun = begin(tier, kept, *places)
        lib, pointer = _victims.lib, _victims.pointer
        assert lib.gd_victims_drop(tier._handle, pointer(kept), len(kept)) == 0
        return begun

    async def copied(tier: Victims, before: Any, kept: Any, *places: Any) -> None:
        if before:
            await asyncio.wait(before)
        await tier._begin_copy_back(kept, *places)

    patch.setattr(Victims, "_begin_copy_back", given_up)
    patch.setattr(Victims, "_copy_back", copied)


def test_slow_copies_back_change_nothing(rows: TableFile, monkeypatch: Patch) -> None:
    slow_copies_back(monkeypatch)
    for seed in range(SEEDS):
        small_buffer(rows, seed)


@pytest.mark.parametrize(
    ("drop", "scenario"),
    [
        (drop_copy_out_before_the_scatter, small_buffer),
        (drop_copy_back_behind_the_copy_out, back_at_once),
        (drop_valid_behind_the_copy_out, back_at_once),
        (drop_places_behind_the_copy_back, small_buffer),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_without_the_wait_there_are_wrong_rows(
    drop: Callable[[Patch], None], scenario: Callable[[TableFile, int], None], rows: TableFile,
    monkeypatch: Patch,
) -> None:  # fmt: skip
    drop(monkeypatch)
    message = ""
    for seed in range(100):
        try:
            scenario(rows, seed)
        except AssertionError as error:
            message = str(error)
            break
    assert "wrong rows for nodes" in message, f"it can be dropped: {drop.__doc__}"
