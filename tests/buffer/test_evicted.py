"""An admission reports what it evicts, and the tier is offered what is wanted again."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.ffi import lib
from gnndrive.common.records import FAILURE, Evicted, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, write_told_rows
from tests.soak import product

NONE = lib.GD_NO_CODE
ROWS, SLOTS = 12, 4


def table_of(policy: Policy, foreseen: bool = False, takes: bool = True) -> SlotTable:
    """A table without memory for slots, whose rows are committed by hand."""
    nothing: Any = None
    tier: Any = SimpleNamespace(takes_offers=takes, ranked=(), rows_served=0)
    return SlotTable(ROWS, SLOTS, 8, nothing, tier, policy, foreseen=foreseen)


def ids(*rows: int) -> Int64Array:
    return np.array(rows, np.int64)


def admit(table: SlotTable, rows: Int64Array, codes: Sequence[int] | None = None) -> SlotHold:
    """Admit rows, which are still loading."""
    given = None if codes is None else np.array(codes, np.uint16)
    code, _, hold = table.admit(rows, given)
    assert code == 0
    return hold


def serve(
    table: SlotTable, rows: Int64Array, codes: Sequence[int] | None = None
) -> list[tuple[int, int, int]]:
    """Admit, commit and release rows; (row, slot, next use) of what was evicted and is wanted."""
    hold = admit(table, rows, codes)
    table.commit(Stretch(hold.loads[1]))
    hold.release(0, len(rows))
    table.verify()
    return listed(hold.evicted)


def listed(evicted: Evicted | None) -> list[tuple[int, int, int]]:
    if evicted is None:
        return []
    rows, slots = evicted.rows["row"].tolist(), evicted.rows["slot"].tolist()
    assert evicted.rows["key"].tolist() == sorted(evicted.rows["key"].tolist())
    return list(zip(rows, slots, evicted.next_use.tolist(), strict=True))


def test_rows_of_announced_batches_are_reported_with_their_next_use():
    """Row 3, which no batch needs, leaves unreported; the row that is needed last comes first."""
    table = table_of(Belady())
    assert serve(table, ids(0, 1, 2, 3)) == []
    for index, rows in ((5, ids(0)), (6, ids(1, 2)), (7, ids(0, 2))):
        table.announce(index, rows)
    assert serve(table, ids(8)) == []  # in the slot of row 3
    table.announce(4, ids(8))
    assert serve(table, ids(9, 10)) == [(1, 1, 6), (2, 2, 6)]
    table.announce(3, ids(9, 10))
    assert serve(table, ids(4, 5, 6)) == [(0, 0, 5), (8, 3, 4), (9, 1, 3)]


def test_codes_tell_the_next_use_beyond_the_window():
    table = table_of(Belady(), foreseen=True)
    table.foresee(0, 0, None)
    table.foresee(0, 300, np.full(ROWS, NONE, np.uint16))
    assert serve(table, ids(0, 1, 2, 3), [299, 40, NONE, 17]) == []
    table.withdraw(0, ids())
    assert serve(table, ids(4, 5, 6), [9, 9, 9]) == [(0, 0, 299), (1, 1, 40)]
    assert table._ranking.now == 0
    hold = admit(table, ids(7), [NONE])
    assert (listed(hold.evicted), hold.evicted.now) == ([(3, 3, 17)], 0)


def test_a_batch_that_was_withdrawn_does_not_want_its_rows():
    table = table_of(Belady())
    serve(table, ids(0, 1, 2, 3))
    table.announce(1, ids(0, 1))
    table.withdraw(1, ids(0, 1))
    table.rekey(ids(0, 1))
    assert serve(table, ids(4, 5, 6, 7)) == []


def test_a_slot_that_loads_or_has_failed_is_never_reported():
    """Even if its row is wanted and no lease holds it."""
    table = table_of(Belady())
    table.announce(1, ids(0, 1, 2, 3))
    first = admit(table, ids(0, 1, 2, 3))
    first.release(0, 4)
    failures = np.zeros(1, FAILURE)
    failures["slot"] = first.loads[1][1]
    table.commit(Stretch(first.loads[1][:1], failures))
    assert table.available == 2
    assert listed(admit(table, ids(8, 9)).evicted) == [(0, 0, 1)]
    assert table.admit(ids(10), None)[0] != 0


@pytest.mark.parametrize("policy", [LRU(), Belady()])
def test_nothing_is_reported_to_a_tier_that_takes_no_offers(policy):
    """Nor by a policy that knows no next use."""
    table = table_of(policy, takes=isinstance(policy, LRU))
    serve(table, ids(0, 1, 2, 3))
    table.announce(1, ids(0, 1, 2, 3))
    assert serve(table, ids(4, 5, 6, 7)) == []


class Listening(Tier):
    """Takes offers, and passes fetches on."""

    name = "listening"
    takes_offers = True

    def __init__(self, below: Tier) -> None:
        self.path, self.below, self.heard = below.path, below, list[Any]()

    @classmethod
    def make(cls, context: TierContext) -> Listening:
        return cls(context.below)

    def offer(self, evicted: Evicted) -> None:
        self.heard.append(("offer", evicted.rows["row"].tolist()))

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        self.heard.append(("fetch", rows.tolist()))
        return self.below.fetch(rows, places, landing)


@product("device,part_rows", ["host", "simulated-cuda"], [2, 100])
def test_rows_are_offered_before_others_are_fetched_into_their_slots(tmp_path, device, part_rows):
    """Whole or in parts; once, even if a batch has no further row to fetch."""
    file = write_told_rows(tmp_path / "x", 40, 64)

    async def main():
        scenario = Scenario(file, slots=4, policy=Belady(), device=device, part_rows=part_rows)
        simulation = Simulation(scenario, seed=0)
        buffer, table = simulation.buffer, simulation.table
        table.tier = tier = Listening(table.tier)

        async def visit(rows):
            lease = await buffer.lease({"x": rows})
            await lease.ready()
            lease.release()

        await visit(ids(0, 1, 2, 3))
        buffer.announce(9, {"x": ids(0, 1, 2, 3)})
        del tier.heard[:]
        await visit(ids(4, 5, 6))
        offered: list[int] = []
        for kind, rows in tier.heard:
            offered += rows if kind == "offer" else []
            fetched = sum(len(each) for what, each in tier.heard if what == "fetch")
            assert kind == "offer" or len(offered) >= len(rows)
        assert tier.heard[0][0] == "offer"
        assert (offered, fetched) == ([0, 1, 2], 3)
        del tier.heard[:]
        await visit(ids(4, 5, 6))
        assert all(kind == "fetch" and not rows for kind, rows in tier.heard)
        buffer.withdraw(9, {"x": ids(0, 1, 2, 3)})
        await simulation.close()

    run(main())
