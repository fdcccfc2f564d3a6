"""How `split_slots` divides the feature buffer's memory among tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnndrive.plan.plan import Plan, TablePlan
from gnndrive.plan.requirements import SLOT_TABLE_BYTES, TableRequirements
from gnndrive.plan.second_buffer import second_buffer
from gnndrive.plan.slot_split import split_slots


def table(rows: int, row_bytes: int, batch: int) -> TableRequirements:
    return TableRequirements("x", rows, row_bytes, min(batch, rows))


TABLES = st.lists(
    st.builds(table, st.integers(1, 10_000), st.integers(1, 600), st.integers(0, 5_000)),
    min_size=1,
    max_size=6,
)


@given(TABLES, st.integers(-10, 3_000_000))
def test_slots_fit_into_the_memory(tables: list[TableRequirements], nbytes: int) -> None:
    costs = [each.row_bytes for each in tables]
    slots = split_slots(nbytes, tables, costs)
    assert sum(map(int.__mul__, slots, costs)) <= max(nbytes, 0)
    for each, count in zip(tables, slots, strict=True):
        assert 0 <= count <= each.rows
        assert each.batch_rows_max or not count


@given(TABLES, st.integers(0, 3_000_000))
def test_no_memory_is_left_that_a_table_could_use(
    tables: list[TableRequirements], nbytes: int
) -> None:
    slots = split_slots(nbytes, tables, [each.row_bytes for each in tables])
    used = sum(count * each.row_bytes for each, count in zip(tables, slots, strict=True))
    short = [
        each
        for each, count in zip(tables, slots, strict=True)
        if each.batch_rows_max and count < each.rows
    ]
    assert not short or nbytes - used < sum(each.row_bytes for each in short)


def test_a_single_table_gets_all_the_memory() -> None:
    assert split_slots(1000, [table(5000, 10, 200)], [10]) == [100]
    assert split_slots(1000, [table(50, 10, 20)], [10]) == [50]


def test_each_table_gets_as_many_largest_batches() -> None:
    tables = [table(10_000, 100, 1000), table(10_000, 10, 4000)]
    assert split_slots(140_000, tables, [100, 10]) == [1000, 4000]
    assert split_slots(70_000, tables, [100, 10]) == [500, 2000]


def test_a_small_table_holds_its_largest_batch() -> None:
    """With half of it, a batch could fail because 19 rows have no slot."""
    tables = [table(20_000, 256, 15_000), table(40, 32, 40)]
    slots = split_slots(1_000_000, tables, [256, 32])
    assert slots[1] == 40
    assert slots[0] == (1_000_000 - 40 * 32) // 256


def test_many_small_tables_leave_half() -> None:
    tables = [table(10_000, 100, 10_000), *[table(60, 100, 60)] * 40]
    slots = split_slots(100_000, tables, [100] * 41)
    assert sum(slots[1:]) * 100 < 60_000
    assert slots[0] > 300


def test_a_table_that_no_batch_needs_gets_nothing() -> None:
    assert split_slots(1000, [table(100, 10, 50), table(100, 10, 0)], [10, 10]) == [100, 0]


def test_a_further_iterators_buffer_holds_a_largest_batch() -> None:
    plan = Plan((), (TablePlan("a", 100, 90, 10, 30), TablePlan("b", 50, 5, 8, 0)), None)
    assert [one.slots for one in second_buffer(plan, 0, lambda: None)] == [30, 1]
    needed = 30 * 10 + 1 * 8 + 31 * SLOT_TABLE_BYTES
    exact = Plan((), plan.tables, needed)
    assert second_buffer(exact, 0, lambda: None)
    with pytest.raises(ValueError, match="a second live iterator needs"):
        second_buffer(exact, 1, lambda: None)
