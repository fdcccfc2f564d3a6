"""The victim buffer in the pipeline: copies out of slots and back, failures, keys.

On the simulated device a copy out of slots is begun long before its bytes are there, and the next
rows may be scattered into these slots meanwhile. test_rules.py takes the waits for copies out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices._staged import StagedVictims
from gnndrive.buffer.devices.simulated_cuda import SimulatedDriver
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ClosedError
from gnndrive.common.ffi import lib
from gnndrive.common.records import Int64Array, NextUses, TableFile
from gnndrive.disk.tiers import _victims
from gnndrive.disk.tiers._victims import Victims
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, simulate
from tests.pipeline.scenarios import (
    AHEAD,
    SLOW,
    cancelled_leases_come_back,
    failing_epoch_ends,
    run_one,
    victims,
    victims_back_at_once,
    victims_of_few_slots,
)
from tests.pipeline.tight import in_virtual_loop

Patch = pytest.MonkeyPatch
RULES = pytest.mark.parametrize("rule", ["victim", "victim-queues"])


@pytest.fixture(autouse=True)
def counted(monkeypatch: Patch) -> Counter[str]:
    """The counters of simulations, whose victim tables are verified at their end."""
    close, counts = Simulation.close, Counter[str]()

    async def verified(simulation: Simulation) -> None:
        tier = simulation.table.tier
        assert isinstance(tier, Victims)
        await simulation.buffer.drain()
        tier.verify()
        counts.update(simulation.table.stats())
        await close(simulation)

    monkeypatch.setattr(Simulation, "close", verified)
    return counts


@RULES
def test_rows_may_come_back_while_they_are_copied_out(rows, seeds, rule, counted, monkeypatch):
    """Each row that leaves is wanted, and is served without a read."""
    arriving = list[int]()
    copy_back = Victims._copy_back

    async def listened(tier: Victims, before: Any, *places: Any) -> None:
        arriving.append(len(before or ()))
        await copy_back(tier, before, *places)

    monkeypatch.setattr(Victims, "_copy_back", listened)
    for seed in seeds(6):
        victims_back_at_once(rows, seed, rule)
    assert any(arriving)
    assert counted["loads"] - counted["served"] == 48 * 6, "a row was read twice"


@pytest.mark.parametrize("what", ["as it is", "little room", "no memory", "slow copies"])
@RULES
def test_with_all_waits_all_ends_well(rows, seeds, rule, what, counted, monkeypatch):
    """A device that copies little at once, as without CuPy, drops rows; memory for every second
    copy is refused, and its places are free again; a thread copies back some turns later."""
    copy_out, begin, calls = SimulatedDriver.copy_out, _victims.begin_copy, iter(range(1 << 30))

    def refusing(driver: SimulatedDriver, *given: Any) -> Any:
        if next(calls) % 2:
            raise MemoryError("none is left")
        return copy_out(driver, *given)

    def later(*given: Any) -> asyncio.Future[None]:
        async def copied() -> None:
            for _ in range(12):
                await asyncio.sleep(0)
            begin(*given)

        return asyncio.ensure_future(copied())

    if what == "little room":
        monkeypatch.setattr(SimulatedDriver, "copy_out_bytes_max", 3 * rows.row_bytes)
    elif what == "no memory":
        monkeypatch.setattr(SimulatedDriver, "copy_out", refusing)
    elif what == "slow copies":
        monkeypatch.setattr(_victims, "begin_copy", later)
    for seed in seeds(3):
        victims_of_few_slots(rows, seed, rule)
    assert counted["served"] > 0


@RULES
def test_errors_and_cancellation(rows, seeds, rule):
    """EIO of rows that the disk cannot read, which are never kept; leases that are cancelled."""
    for seed in seeds(3):
        failing_epoch_ends(rows, seed, **victims(rule))
        cancelled_leases_come_back(rows, seed, **victims(rule))


@RULES
def test_an_epoch_that_is_broken_off_and_the_next(rows, seeds, rule, counted):
    """Batches that were announced never come, and the next epoch's indices begin at 0 again."""

    async def main(seed: int) -> None:
        scenario = Scenario(rows, slots=32, faults=SLOW, stages=AHEAD, **victims(rule))
        simulation = Simulation(scenario, seed)
        for number, limit in enumerate((seed % 7, 3, None)):
            await run_one(simulation, number, limit)
            simulation.check_idle()
        await simulation.close()

    for seed in seeds(3):
        run(main(seed))
    assert counted["served"] > 0


@in_virtual_loop
async def test_closing_waits_for_copies_out(rows):
    """Of rows that nothing fetches any more; the memory is freed after them (rule 13)."""
    simulation = Simulation(Scenario(rows, slots=16, **victims()), 1)
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


def test_on_the_host_nothing_is_kept(rows, counted):
    """Its slots are the memory that rows would be copied to."""
    for seed in range(4):
        chosen = victims() | {"device": "host"}
        simulate(Scenario(rows, slots=24, stages=AHEAD, **chosen), seed)
    assert counted["evictions"] > 0
    assert counted["served"] == 0


@pytest.mark.parametrize("late", [False, True], ids=["at once", "behind it"])
def test_a_copy_that_fails_breaks_the_batches_that_need_its_rows(rows, monkeypatch, late):
    """Whether it fails when it is begun or later: its places are never used, and slots come
    back."""

    async def gone() -> None:
        raise RuntimeError("the device is gone")

    def failing(memory: Any, slots: Any, places: Any) -> Any:
        if late:
            return gone
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(StagedVictims, "copy_out", failing)

    async def main() -> None:
        simulation = Simulation(Scenario(rows, slots=16, part_rows=100, **victims()), 1)
        buffer = simulation.buffer
        first, other = ({"x": part} for part in np.split(np.arange(32), 2))
        lease = await buffer.lease(first)
        await lease.ready()
        lease.release()
        buffer.announce(3, first)
        outcome = []
        for wanted in (other, first):
            try:
                lease = await buffer.lease(wanted)
                try:
                    await lease.ready()
                finally:
                    lease.release()
                outcome.append("served")
            except RuntimeError as error:
                outcome.append(str(error))
        # Without a copy the first lease is refused, and the rows of the second are read.
        assert outcome == (["served", "the device is gone"] if late else ["the device is gone"] * 2)
        buffer.withdraw(3, first)
        tier = simulation.table.tier
        assert isinstance(tier, Victims)
        await buffer.drain()
        await tier.aclose()
        assert not tier._copies_out
        assert not tier._copies_back

    run(main())


@in_virtual_loop
async def test_a_copy_that_is_cancelled_from_outside_counts_as_failed(rows):
    simulation = Simulation(Scenario(rows, slots=16, part_rows=100, **victims()), 1)
    buffer, tier = simulation.buffer, simulation.table.tier
    assert isinstance(tier, Victims)
    first, other = ({"x": part} for part in np.split(np.arange(32), 2))
    lease = await buffer.lease(first)
    await lease.ready()
    lease.release()
    buffer.announce(3, first)
    lease = await buffer.lease(other)
    for task in tier._copies_out:
        task.cancel()
    await lease.ready()
    lease.release()
    lease = await buffer.lease(first)
    with pytest.raises(ClosedError, match="a copy was cancelled"):
        await lease.ready()
    await buffer.drain()
    await tier.aclose()


# ---- keys follow the feature buffer's: announced batches and codes

PART = 8


def part(number: int) -> Int64Array:
    """Eight rows that no other part has."""
    return np.arange(PART * number, PART * (number + 1))


class Bench:
    """A buffer of `slots` slots above a victim buffer; made inside the loop that it runs in."""

    def __init__(
        self, rows: TableFile, slots: int, victims: int, rule: str = "victim",
        foreseen: bool = False,
    ) -> None:  # fmt: skip
        scenario = Scenario(
            rows, slots=slots, policy=Belady(), device="simulated-cuda", tiers=(rule, "disk"),
            victims=victims,
        )  # fmt: skip
        self.simulation = Simulation(scenario, 0)
        if foreseen:
            made = self.simulation.table
            self.simulation.table = SlotTable(
                made.rows, slots, made.row_bytes, made.memory, made.tier, Belady(), foreseen=True
            )
            self.simulation.buffer = FeatureBuffer({"x": self.simulation.table})
        self.buffer = self.simulation.buffer
        assert isinstance(self.simulation.table.tier, Victims)
        self.tier = self.simulation.table.tier

    async def visit(self, rows: Int64Array, index: int | None = None) -> int:
        """Lease, check and release; returns how many rows were read from the disk."""
        table, tier = self.simulation.table, self.tier
        before = table.stats()["loads"] - tier.rows_served
        lease = await self.buffer.granted(self.buffer.join([(index, {"x": rows})])[0])
        await lease.ready()
        lease.release()
        return int(table.stats()["loads"] - tier.rows_served - before)

    @property
    def kept(self) -> list[int]:
        """The parts of which the victim buffer has rows."""
        rows = range(self.simulation.table.rows)
        return sorted({r // PART for r in rows if lib.gd_buffer_slot_of(self.tier.table, r) >= 0})


async def leave(bench: Bench, numbers: Sequence[int], by: int) -> None:
    """Have parts enter the buffer, and another part drive them out."""
    for number in numbers:
        await bench.visit(part(number))
    for each in range(len(numbers)):
        await bench.visit(part(by + each))


@pytest.mark.parametrize(("rule", "left"), [("victim", [1, 2]), ("victim-queues", [0, 1])])
@in_virtual_loop
async def test_rows_of_a_batch_that_will_not_come_are_given_up_first(rows, rule, left):
    """In one order; queues keep them until the batch has passed."""
    bench = Bench(rows, slots=PART, victims=2 * PART, rule=rule)
    for number, index in ((0, 5), (1, 6), (2, 7)):
        bench.buffer.announce(index, {"x": part(number)})
    await leave(bench, (0,), by=10)
    await leave(bench, (1,), by=11)
    assert bench.kept == [0, 1]
    bench.buffer.withdraw(5, {"x": part(0)})
    await leave(bench, (2,), by=12)
    assert bench.kept == left
    assert await bench.visit(part(left[1])) == 0
    for number, index in ((1, 6), (2, 7)):
        bench.buffer.withdraw(index, {"x": part(number)})
    await bench.simulation.close()


@in_virtual_loop
async def test_a_batch_that_is_announced_late_raises_the_keys_of_its_rows(rows):
    """It comes before the batch that was known to need them."""
    bench = Bench(rows, slots=PART, victims=2 * PART)
    for number, index in ((0, 9), (1, 8), (2, 7)):
        bench.buffer.announce(index, {"x": part(number)})
    await leave(bench, (0,), by=10)
    await leave(bench, (1,), by=11)
    bench.buffer.announce(6, {"x": part(0)})
    await leave(bench, (2,), by=12)
    assert bench.kept == [0, 2], "row 0 would have been needed last"
    for index, number in ((6, 0), (7, 2), (8, 1), (9, 0)):
        bench.buffer.withdraw(index, {"x": part(number)})
    await bench.simulation.close()


def uses(code: int) -> NextUses:
    """All rows of a part are needed next by the batch with this code."""
    near = np.zeros(lib.GD_NEAR, np.int64)
    near[0] = PART
    return NextUses(np.full(PART, code, np.uint16), near)


@RULES
@in_virtual_loop
async def test_codes_tell_next_uses_far_beyond_the_window(rows, rule):
    """Twenty parts in turn through slots for one: each is read once, because the victim buffer has
    room for all. In the next epoch the next uses are unknown until it is sampled."""
    bench = Bench(rows, slots=PART, victims=20 * PART, rule=rule, foreseen=True)
    buffer, count = bench.buffer, 50
    nothing = np.full(rows.row_count, lib.GD_NO_CODE, np.uint16)
    for epoch in range(2):
        buffer.foresee(0, 0, None)
        buffer.foresee(0, count, {"x": nothing})
        reads = 0
        for index in range(count):
            code = index + 20 if index + 20 < count else lib.GD_NO_CODE
            wanted = {"x": part(index % 20)}
            buffer.announce(index, wanted, {"x": uses(code)})
            reads += await bench.visit(wanted["x"], index)
        assert reads == 20 * PART, epoch
        assert bench.kept == []
    await bench.simulation.close()


@in_virtual_loop
async def test_rows_whose_next_use_is_forgotten_are_given_up_first(rows):
    bench = Bench(rows, slots=PART, victims=2 * PART, foreseen=True)
    buffer = bench.buffer
    nothing = np.full(rows.row_count, lib.GD_NO_CODE, np.uint16)

    async def visit(index: int, number: int, code: int) -> int:
        wanted = {"x": part(number)}
        buffer.announce(index, wanted, {"x": uses(code)})
        return await bench.visit(wanted["x"], index)

    buffer.foresee(0, 0, None)
    buffer.foresee(0, 100, {"x": nothing})
    for index, (number, code) in enumerate([(0, 50), (1, 40), (2, lib.GD_NO_CODE)]):
        await visit(index, number, code)
    assert bench.kept == [0, 1]
    buffer.foresee(0, 0, None)  # another epoch
    buffer.foresee(0, 100, {"x": nothing})
    await visit(0, 3, 90)
    await visit(1, 1, lib.GD_NO_CODE)  # part 3 takes the place of one of the two
    assert 3 in bench.kept
    await visit(2, 4, 80)
    await visit(3, 5, lib.GD_NO_CODE)
    assert bench.kept == [3, 4]
    await bench.simulation.close()
