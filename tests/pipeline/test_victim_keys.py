"""The keys of a victim buffer's rows follow the feature buffer's: announced batches and codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.ffi import lib
from gnndrive.common.records import Int64Array, NextUses, TableFile
from gnndrive.disk.tiers._victims import Victims
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation

PART = 8


@pytest.fixture(autouse=True)
def device() -> None:
    """Overrides the folder's fixture: only the simulated device has memory of its own."""


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
def test_rows_of_a_batch_that_will_not_come_are_given_up_first(
    rows: TableFile, rule: str, left: list[int]
) -> None:
    """In one order; queues keep them until the batch has passed."""

    async def main() -> None:
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

    run(main())


def test_a_batch_that_is_announced_late_raises_the_keys_of_its_rows(rows: TableFile) -> None:
    """It comes before the batch that was known to need them."""

    async def main() -> None:
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

    run(main())


def uses(code: int) -> NextUses:
    """All rows of a part are needed next by the batch with this code."""
    near = np.zeros(lib.GD_NEAR, np.int64)
    near[0] = PART
    return NextUses(np.full(PART, code, np.uint16), near)


@pytest.mark.parametrize("rule", ["victim", "victim-queues"])
def test_codes_tell_next_uses_far_beyond_the_window(rows: TableFile, rule: str) -> None:
    """Twenty parts in turn through slots for one: each is read once, because the victim buffer has
    room for all. In the next epoch the next uses are unknown until it is sampled."""

    async def main() -> None:
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

    run(main())


def test_rows_whose_next_use_is_forgotten_are_given_up_first(rows: TableFile) -> None:
    async def main() -> None:
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

    run(main())
