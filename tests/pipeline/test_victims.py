"""The victim buffer in the pipeline: copies out of slots and back, failures, keys.

On the simulated device a copy out of slots is begun long before its bytes are there, and the next
rows may be scattered into these slots meanwhile. test_rules.py takes the waits for copies out.
"""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.devices._staged import StagedVictims
from gnndrive.buffer.devices.simulated_cuda import SimulatedDriver
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.errors import ClosedError
from gnndrive.common.ffi import lib
from gnndrive.common.records import Int64Array, NextUses, TableFile
from gnndrive.disk.tiers._victims import Victims
from gnndrive.testing.simulation import Scenario, Simulation, simulate
from tests.pipeline.dropped import slow_copies_back
from tests.pipeline.scenarios import (
    AHEAD,
    SLOW,
    cancelled_leases_come_back,
    failing_epoch_ends,
    lease_once,
    run_one,
    victims,
    victims_back_at_once,
    victims_of_few_slots,
)  # fmt: skip
from tests.pipeline.tight import in_virtual_loop, loads, short_of_memory

RULES = pytest.mark.parametrize("rule", ["victim", "victim-queues"])


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The counters of simulations, whose victim tables are verified at their end."""
    close, counts = Simulation.close, Counter[str]()

    async def verified(simulation: Simulation) -> None:
        await simulation.buffer.drain()
        tier_of(simulation).verify()
        counts.update(simulation.table.stats())
        await close(simulation)

    monkeypatch.setattr(Simulation, "close", verified)
    return counts


@RULES
def test_rows_may_come_back_while_they_are_copied_out(rows, seeds, rule, counted):
    """Each row that leaves is wanted, and is served without a read."""
    for seed in seeds(6):
        victims_back_at_once(rows, seed, rule)
    assert counted["loads"] - counted["served"] == 48 * 6, "a row was read twice"


@pytest.mark.parametrize("what", ["as it is", "little room", "no memory", "slow copies"])
@RULES
def test_with_all_waits_all_ends_well(rows, seeds, rule, what, counted, monkeypatch):
    """A device that copies little at once, as without CuPy, drops rows; memory for every second
    copy is refused, and its places are free again; a thread copies back some turns later."""
    if what == "little room":
        monkeypatch.setattr(SimulatedDriver, "copy_out_bytes_max", 3 * rows.row_bytes)
    elif what == "no memory":
        short_of_memory(monkeypatch, SimulatedDriver, "copy_out", range(1, 10**6, 2))
    elif what == "slow copies":
        slow_copies_back(monkeypatch)
    for seed in seeds(3):
        victims_of_few_slots(rows, seed, rule)
    assert counted["served"] > 0


@RULES
def test_errors_and_cancellation(rows, seeds, rule):
    """EIO of rows that the disk cannot read, which are never kept; leases that are cancelled."""
    for seed in seeds(4):
        more = victims(rule) | {"policy": (Belady(), LRU())[seed % 2]}
        failing_epoch_ends(rows, seed, **more)
        cancelled_leases_come_back(rows, seed, **more)


@RULES
@in_virtual_loop
async def test_an_epoch_that_is_broken_off_and_the_next(rows, seeds, rule, counted):
    """Batches that were announced never come, and the next epoch's indices begin at 0 again."""
    for seed in seeds(3):
        scenario = Scenario(rows, slots=32, faults=SLOW, stages=AHEAD, **victims(rule))
        simulation = Simulation(scenario, seed)
        for number, limit in enumerate((seed % 7, 3, None)):
            await run_one(simulation, number, limit)
            simulation.check_idle()
        await simulation.close()
    assert counted["served"] > 0


HALVES = {"x": np.arange(16)}, {"x": np.arange(16, 32)}


def tier_of(simulation: Simulation) -> Victims:
    assert isinstance(simulation.table.tier, Victims)
    return simulation.table.tier


@in_virtual_loop
async def test_closing_waits_for_copies_out(rows):
    """Of rows that nothing fetches any more; the memory is freed after them (rule 13)."""
    simulation = Simulation(Scenario(rows, slots=16, **victims()), 2)
    buffer, driver, tier = simulation.buffer, simulation.device.driver, tier_of(simulation)
    first, other = HALVES
    await lease_once(simulation, first)
    buffer.announce(16, first)
    await lease_once(simulation, other)
    kept: Any = tier._memory
    kept, pinned = kept.rows, driver.pinned_bytes
    buffer.withdraw(16, first)
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
@in_virtual_loop
async def test_a_copy_that_fails_breaks_the_batches_that_need_its_rows(rows, monkeypatch, late):
    """Whether it fails when it is begun or later: its places are never used, and slots come
    back."""

    async def gone() -> None:
        raise RuntimeError("the device is gone")

    def failing(memory: Any, slots: Any, places: Any) -> Any:
        if late:
            return gone
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(StagedVictims, "copy_out", failing)
    simulation = Simulation(Scenario(rows, slots=16, part_rows=100, **victims()), 1)
    buffer, tier = simulation.buffer, tier_of(simulation)
    first, other = HALVES
    await lease_once(simulation, first)
    buffer.announce(3, first)
    # Without a copy the first lease is refused, and the rows of the second are read.
    for wanted, refused in ((other, not late), (first, True)):
        with pytest.raises(RuntimeError, match="is gone") if refused else nullcontext():
            await lease_once(simulation, wanted)
    buffer.withdraw(3, first)
    await buffer.drain()
    await tier.aclose()
    assert not tier._copies_out
    assert not tier._copies_back


@in_virtual_loop
async def test_a_copy_that_is_cancelled_from_outside_counts_as_failed(rows):
    simulation = Simulation(Scenario(rows, slots=16, part_rows=100, **victims()), 1)
    buffer, tier = simulation.buffer, tier_of(simulation)
    first, other = HALVES
    await lease_once(simulation, first)
    buffer.announce(3, first)
    lease = await buffer.lease(other)
    for task in tier._copies_out:
        task.cancel()
    await lease.ready()
    lease.release()
    with pytest.raises(ClosedError, match="a copy was cancelled"):
        await lease_once(simulation, first)
    await buffer.drain()
    await tier.aclose()


# ---- keys follow the feature buffer's: announced batches and codes

PART = 8


def part(number: int) -> Int64Array:
    """Eight rows that no other part has."""
    return np.arange(PART * number, PART * (number + 1))


class Bench:
    """A buffer with slots for one part above a victim buffer of some parts; made inside the loop
    that it runs in."""

    def __init__(self, rows: TableFile, parts: int, rule: str, foreseen: bool) -> None:
        scenario = Scenario(rows, slots=PART, **victims(rule, parts * PART))
        self.simulation, self.tier = (made := Simulation(scenario, 0)), tier_of(made)
        table = made.table = SlotTable(
            rows.row_count, PART, rows.row_bytes, made.table.memory, self.tier, Belady(),
            foreseen=foreseen,
        )  # fmt: skip
        self.buffer = made.buffer = FeatureBuffer({"x": table})
        if foreseen:
            self.begin_epoch()

    def begin_epoch(self) -> None:
        nothing = np.full(self.simulation.table.rows, lib.GD_NO_CODE, np.uint16)
        self.buffer.foresee(0, 0, None)
        self.buffer.foresee(0, 100, {"x": nothing})

    async def visit(self, rows: Int64Array, index: int | None = None) -> int:
        """Lease, check and release; returns how many rows were read from the disk."""
        before = loads(self.simulation) - self.tier.rows_served
        await lease_once(self.simulation, {"x": rows}, index)
        return loads(self.simulation) - self.tier.rows_served - before

    async def next_batch(self, index: int, number: int, code: int) -> int:
        """Visit with a batch whose rows are needed next by the batch with this code."""
        near = np.zeros(lib.GD_NEAR, np.int64)
        near[0] = PART
        uses = NextUses(np.full(PART, code, np.uint16), near)
        self.buffer.announce(index, {"x": part(number)}, {"x": uses})
        return await self.visit(part(number), index)

    @property
    def kept(self) -> list[int]:
        """The parts of which the victim buffer has rows."""
        rows = range(self.simulation.table.rows)
        return sorted({r // PART for r in rows if lib.gd_buffer_slot_of(self.tier.table, r) >= 0})


@pytest.mark.parametrize(
    ("rule", "late", "left"),
    [("victim", False, [1, 2]), ("victim-queues", False, [0, 1]), ("victim", True, [0, 2])],
)
@in_virtual_loop
async def test_rows_that_no_batch_or_the_last_one_needs_are_given_up_first(rows, rule, late, left):
    """In one order; queues keep them until the batch has passed. The batch of part 0 is withdrawn,
    or one that needs it sooner than the others is announced `late`."""
    bench = Bench(rows, 2, rule, foreseen=False)
    batches = {50: 0, 60: 1, 40 if late else 70: 2}
    for index, number in batches.items():
        bench.buffer.announce(index, {"x": part(number)})
    for number in (0, 10, 1, 11):
        await bench.visit(part(number))
    assert bench.kept == [0, 1]
    if late:
        bench.buffer.announce(30, {"x": part(0)})
        batches[30] = 0
    else:
        bench.buffer.withdraw(50, {"x": part(batches.pop(50))})
    for number in (2, 12):
        await bench.visit(part(number))
    assert bench.kept == left
    assert await bench.visit(part(left[1])) == 0
    for index in sorted(batches):
        bench.buffer.withdraw(index, {"x": part(batches[index])})
    await bench.simulation.close()


@RULES
@in_virtual_loop
async def test_codes_tell_next_uses_far_beyond_the_window(rows, rule):
    """Twenty parts in turn through slots for one: each is read once, because the victim buffer has
    room for all. In the next epoch the next uses are unknown until it is sampled: in one order rows
    stay nevertheless."""
    bench, count, stay = Bench(rows, 20, rule, foreseen=True), 50, rule == "victim"
    for epoch in range(2):
        reads = 0
        for index in range(count):
            code = index + 20 if index + 20 < count else lib.GD_NO_CODE
            reads += await bench.next_batch(index, index % 20, code)
        assert reads == (0 if stay and epoch else 20 * PART), epoch
        assert len(bench.kept) == 19 * stay
        bench.begin_epoch()
    await bench.simulation.close()
