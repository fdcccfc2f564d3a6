"""The victim buffer in a plan: its size, its table, and why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.plan.items import MAPPING_BYTES, NO_VICTIMS, VICTIM_PLACE_BYTES, PlanItem
from gnndrive.plan.plan import Plan, make_plan
from gnndrive.plan.requirements import TableRequirements
from gnndrive.plan.second_buffer import second_buffer
from tests.plan.test_plan import REQUIREMENTS, item

NONE = REQUIREMENTS
AUTO = replace(NONE, device_memory=30_000, device_given=True, looks_ahead=True, victim_bytes=None)
MEMORY = 1 << 20


def victims(plan: Plan) -> list[int]:
    return [table.victims for table in plan.tables]


def planned(plan: Plan) -> list[PlanItem]:
    return [each for each in plan.lines if each.what.startswith("victim")]


def test_without_the_tier_there_is_no_line() -> None:
    plan = make_plan(replace(AUTO, victim_bytes=0), MEMORY, None)
    assert not planned(plan)
    assert victims(plan) == [0]


def test_it_has_what_memory_leaves() -> None:
    table = replace(AUTO.tables[0], rows=100_000)
    plan = make_plan(replace(AUTO, tables=(table,)), MEMORY, None)
    (count,) = victims(plan)
    assert item(plan, "victim buffer").nbytes == count * 100
    assert 0 <= MEMORY - plan.host_bytes < 100 + VICTIM_PLACE_BYTES
    assert item(plan, "victim table").nbytes > MAPPING_BYTES * 100_000 + VICTIM_PLACE_BYTES * count
    assert f"{count:,} rows" in str(plan)


def test_it_has_no_more_places_than_there_are_rows() -> None:
    assert victims(make_plan(AUTO, 1 << 30, None)) == [1000]
    assert victims(make_plan(AUTO, None, None)) == [1000]


def test_its_size_may_be_given() -> None:
    """For rows; with several ranks for all of them."""
    given = replace(AUTO, victim_bytes=20_000, copy_out_bytes=5000)
    without = make_plan(replace(AUTO, victim_bytes=0), MEMORY, None)
    plan = make_plan(given, MEMORY, None)
    assert victims(plan) == [200]
    assert item(plan, "victim buffer").nbytes == 25_000
    assert plan.host_bytes == without.host_bytes + sum(each.nbytes for each in planned(plan))
    assert victims(make_plan(replace(given, ranks=4), 8 * MEMORY, None)) == [50]
    with pytest.raises(ConfigError, match="memory="):
        make_plan(replace(given, victim_bytes=2 * MEMORY, tables=(
            replace(AUTO.tables[0], rows=100_000),)), MEMORY, None)  # fmt: skip


def test_several_tables_share_it_as_they_share_slots() -> None:
    small = TableRequirements("nodes/b/x", 40, 100, 10)
    plan = make_plan(replace(AUTO, tables=(*AUTO.tables, small), victim_bytes=30_000), MEMORY, None)
    assert victims(plan)[1] == 40
    assert sum(victims(plan)) == 300


@pytest.mark.parametrize(
    ("why", "changed"),
    [
        ("slots", {"device_memory": None}),
        ("policy", {"looks_ahead": False}),
        ("whole", {"device_memory": 1 << 20}),
    ],
)
def test_a_line_says_why_there_is_none(why: str, changed: dict[str, Any]) -> None:
    plan = make_plan(replace(AUTO, **changed), None, None)
    assert victims(plan) == [0]
    assert planned(plan) == [PlanItem("victim buffer", 0, NO_VICTIMS[why])]
    if why != "whole":  # what was given is given
        plan = make_plan(replace(AUTO, victim_bytes=20_000, **changed), None, None)
        assert planned(plan) == [PlanItem("victim buffer", 0, NO_VICTIMS[why])]


def test_too_little_memory_leaves_none() -> None:
    least = make_plan(replace(AUTO, victim_bytes=0), MEMORY, None).host_bytes
    plan = make_plan(AUTO, least + 100, None)
    assert planned(plan) == [PlanItem("victim buffer", 0, NO_VICTIMS["room"])]


def test_a_second_iterator_has_none() -> None:
    plan = make_plan(replace(AUTO, device_given=False), None, None)
    assert [table.victims for table in second_buffer(plan, 0, lambda: 1 << 30)] == [0]
    assert plan.between_epochs_bytes >= item(plan, "victim buffer").nbytes
