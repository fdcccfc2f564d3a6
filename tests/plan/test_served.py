"""Plans of loaders that use a service which a user has started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnndrive.common.records import TopologyChoice
from gnndrive.plan.items import SHARE
from gnndrive.plan.plan import Plan, default_bytes, make_plan
from gnndrive.plan.requirements import Requirements, Served
from gnndrive.plan.topology_choice import for_rank, make_question
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.resident import Resident
from tests.plan.test_plan import REQUIREMENTS, item

RESIDENT = TopologyChoice("resident", "resident, as asked for", 12_000)
DIRECT = TopologyChoice("direct", "direct, as asked for", 12_000, has_ring=True)
GRAPH = {"index pointers", "labels", "topology"}


def served(ranks: int = 1, left: int | None = None, **more: Any) -> Requirements:
    given = {"shared": True, "shared_graph": True, "looks_ahead": True, "ranked_rows": 1_000} | more
    return replace(REQUIREMENTS, ranks=ranks, served=Served(left), **given)


def marks(plan: Plan) -> dict[str, str]:
    return {line.what: plan._mark(line) for line in plan.lines}


def test_the_graph_is_no_part_of_a_loaders_memory() -> None:
    plan = make_plan(served(), 400_000, None, RESIDENT)
    alone = make_plan(replace(REQUIREMENTS, looks_ahead=True), 10**9, None, RESIDENT)
    assert {line.what for line in plan.lines if not line.copies} == GRAPH
    assert all(item(plan, what).nbytes == item(alone, what).nbytes for what in GRAPH)
    assert plan.host_bytes <= 400_000
    more = make_plan(served(shared_graph=False), 10**9, None, RESIDENT)
    assert all(item(more, what).copies for what in GRAPH)


def test_the_share_is_what_the_service_has_for_the_loader() -> None:
    plan = make_plan(served(), 400_000, None, RESIDENT)
    once = set(SHARE) - {"announced rows"}
    assert {"feature buffer", "mapping table", "look-ahead", "row classes"} < once
    in_service = {what for what, mark in marks(plan).items() if mark == "service"}
    assert in_service == once | {"announced rows"} == set(SHARE)
    assert {what for what, mark in marks(plan).items() if mark == "once"} == GRAPH
    assert plan.share_bytes == sum(item(plan, what).host_bytes for what in SHARE)
    assert make_plan(REQUIREMENTS, 400_000, None, RESIDENT).share_bytes == 0
    own = sum(line.nbytes for line in plan.lines if line.what not in (*SHARE, *GRAPH))
    assert plan.between_epochs_bytes < own == plan.host_bytes - plan.share_bytes


def test_ranks_share_a_buffer_in_the_service() -> None:
    plan = make_plan(served(3), 10**9, None, DIRECT)
    assert marks(plan)["feature buffer"] == "service"
    assert marks(plan)["queued samples"] == marks(plan)["topology"] == "process × 3"
    assert marks(plan)["index pointers"] == "once"
    assert item(plan, "topology").copies == 3


def test_a_device_has_its_buffer_and_the_service_the_graph() -> None:
    plan = make_plan(served(shared=False, device_memory=10**6), None, None, RESIDENT)
    assert plan.share_bytes == 0
    assert {line.what for line in plan.lines if not line.copies} == GRAPH
    assert "service" not in marks(plan).values()


def test_the_default_is_a_quarter_of_what_the_service_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnndrive.plan.plan.left_memory", lambda ranks: 1_000_000)
    assert default_bytes(1, None) == default_bytes(1, Served(None)) == 250_000
    assert default_bytes(1, Served(10**7)) == 250_000
    assert default_bytes(1, Served(40_000)) == 10_000
    assert make_plan(served(left=40 * 138), None, None, RESIDENT).slots == 10


@pytest.mark.parametrize(
    ("served_graph", "room"),
    [
        (Served(None), 1 << 62),
        (Served(5_000), 2_000),
        (Served(5_000, frozenset({"direct"})), 2_000),
        (Served(0, frozenset({"resident"})), 1 << 62),
    ],
)
def test_there_is_as_much_room_for_the_graph_as_the_service_has(
    served_graph: Served, room: int
) -> None:
    requirements = replace(served(), served=served_graph)
    question = make_question(None, (), requirements, 3_000, None)
    assert for_rank(question, Resident, requirements).room(1.5) == room
    assert for_rank(question, Direct, requirements).room(1.5) == question.room(1.5)
    own = replace(requirements, shared_graph=False)
    assert for_rank(question, Resident, own).room(1.5) == question.room(1.5)
