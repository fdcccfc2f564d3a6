"""Plans for several ranks of one host, each with its own buffer or with one that they share; and of
loaders that use a service which a user has started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.common import host_memory
from gnndrive.common.memory import format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.choice import least_memory, make_planner
from gnndrive.plan.items import SHARE
from gnndrive.plan.plan import Plan, default_bytes, make_plan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.requirements import Requirements, Served
from gnndrive.plan.second_buffer import second_buffer
from gnndrive.plan.topology_choice import for_rank, make_question
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.resident import Resident
from gnndrive.testing.fake_cuda import fake_cuda
from tests.loader.conftest import Make
from tests.plan.conftest import request_of
from tests.plan.test_plan import REQUIREMENTS, item, size_in
from tests.soak import product

RESIDENT = TopologyChoice("resident", "resident, as asked for", 12_000)
DIRECT = TopologyChoice("direct", "direct, as asked for", 12_000, has_ring=True)
SHARED = {
    "feature buffer", "slot tables", "mapping table", "index pointers", "topology", "labels",
    "staging", "leases", "look-ahead", "announced rows",
}  # fmt: skip


def for_ranks(ranks: int, shared: bool = False, **more: Any) -> Requirements:
    return replace(REQUIREMENTS, ranks=ranks, shared=shared, looks_ahead=True, **more)


def nbytes(plan: Plan) -> dict[str, int]:
    return {line.what: line.nbytes for line in plan.lines}


# ---- each rank has its own


def test_own_buffers_are_planned_as_one_rank_with_its_part_of_the_budget() -> None:
    ranks = 3
    for memory in (700_000, 749_865):
        one = make_plan(for_ranks(1), memory // ranks, None, RESIDENT)
        each = make_plan(for_ranks(ranks), memory, None, RESIDENT)
        assert (nbytes(each), each.tables) == (nbytes(one), one.tables)
        assert each.host_bytes == ranks * one.total_bytes <= memory
        assert each.between_epochs_bytes == one.between_epochs_bytes
    *lines, total = str(each).splitlines()
    assert all(f"  each × {ranks}  " in line for line in lines)
    of_one, of_host = format_size(each.total_bytes), format_size(each.host_bytes)
    assert f"{of_one}  × {ranks} = {of_host}  of memory=" in total
    of_buffer = make_plan(for_ranks(ranks), None, ranks * 700 + 1, RESIDENT)
    assert of_buffer.tables == make_plan(for_ranks(1), None, 700, RESIDENT).tables


# ---- the ranks share a buffer and the adjacency


def test_a_shared_plan_counts_once_what_the_host_service_has() -> None:
    ranks, memory = 3, 400_000
    one = make_plan(for_ranks(1), 10**9, None, RESIDENT)
    plan = make_plan(for_ranks(ranks, shared=True), memory, None, RESIDENT)
    assert {line.what for line in plan.lines if line.copies == 1} == SHARED
    assert {line.copies for line in plan.lines} == {1, ranks}
    assert item(plan, "leases").nbytes == ranks * item(one, "leases").nbytes
    same = nbytes(plan).keys() - {"feature buffer", "slot tables", "leases", "announced rows"}
    assert {what: nbytes(plan)[what] for what in same} == {what: nbytes(one)[what] for what in same}
    own = sum(line.nbytes for line in plan.lines if line.what not in SHARED)
    once = sum(line.nbytes for line in plan.lines if line.what in SHARED)
    assert plan.host_bytes == ranks * own + once <= memory
    assert ranks * plan.total_bytes - ranks < plan.host_bytes <= ranks * plan.total_bytes


def test_a_shared_buffer_gets_what_the_other_items_of_all_ranks_leave() -> None:
    requirements = for_ranks(2, shared=True)
    least = make_plan(requirements, None, 100, RESIDENT)
    for slots in (51, 60, 999):
        memory = least.host_bytes + (slots - 1) * (100 + 38)
        plan = make_plan(requirements, memory, None, RESIDENT)
        assert (plan.slots, plan.host_bytes) == (slots, memory)
    own = make_plan(for_ranks(2), memory, None, RESIDENT)
    assert own.slots < plan.slots
    with pytest.raises(ConfigError, match="for 2 ranks leaves no room for a feature buffer"):
        make_plan(for_ranks(2), least.host_bytes, None, RESIDENT)
    assert make_plan(requirements, None, 700, RESIDENT).slots == 7


def test_what_ranks_share_and_have_each() -> None:
    """A topology that reads the adjacency is each rank's own; pages of mapped files are once."""
    plan = make_plan(for_ranks(3, shared=True), 10**9, None, DIRECT)
    assert (item(plan, "topology").copies, item(plan, "index pointers").copies) == (3, 1)
    for shared in (False, True):
        plan = make_plan(for_ranks(4, shared, mapped_bytes=500), 10**9, None, RESIDENT)
        assert item(plan, "mapped files").host_bytes == 500
    for line, text in zip(plan.lines, str(plan).splitlines(), strict=False):
        once = line.what in SHARED | {"mapped files"}
        assert ("  shared  " if once else "  each × 4  ") in text


# ---- the choice


@product(
    "arguments,shared",
    [{}, {"topology": "direct"}, {"samplers": 4}, {"buffer": "12KB"}],
    [True, False],
)
def test_the_least_memory_of_ranks_is_the_least(request_for, arguments, shared):
    def made(memory: int, ranks: int) -> PlanRequest:
        return replace(request_for(memory, **arguments), ranks=ranks, shared=shared)

    ranks = 2 + shared
    one = made(1, 1)
    if one.buffer and not shared:
        one = replace(one, buffer=one.buffer // ranks)
    of_one = least_memory(one)
    least = least_memory(made(1, ranks))
    plan = make_planner(made(least, ranks)).plan()
    assert plan.host_bytes <= least
    assert plan.tables[0].slots >= min(plan.batch_rows_max, 12_000 // 132 // ranks)
    with pytest.raises(ConfigError, match="give at least memory=") as caught:
        make_planner(made(int(0.9995 * least), ranks))
    named = size_in(caught.value, r'at least memory="([\d.]+\w+)"')
    assert least <= named <= 1.002 * least
    assert make_planner(made(named, ranks)).plan().host_bytes <= named
    assert least < ranks * of_one if shared else abs(least - ranks * of_one) < 0.001 * least


# ---- the default


@pytest.mark.parametrize(
    ("world", "ranks", "share"), [("4", 1, 0.25), ("4", 4, 1), ("4", 2, 0.5), ("", 4, 1)]
)
def test_the_default_is_divided_once(monkeypatch, world, ranks, share):
    """Also if each rank's loader knows only itself, because the user splits the seeds."""
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1_600_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", world)
    assert default_bytes(ranks) == 400_000 * share
    wide = replace(REQUIREMENTS.tables[0], rows=100_000)
    own = make_plan(for_ranks(ranks, tables=(wide,)), None, None)
    assert own.slots == int(400_000 * share) // ranks // 138
    shared = make_plan(for_ranks(ranks, True, tables=(wide,)), None, None)
    assert shared.slots == int(400_000 * share) // 138
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1_000)
    for buffer, message in ((None, r"left, \d+ B( for|,).* holds no row"), (150, "holds no row")):
        if ranks > 1:
            with pytest.raises(ConfigError, match=message):
                make_plan(for_ranks(ranks), None, buffer)


# ---- further iterators, devices


@pytest.mark.parametrize("shared", [False, True])
def test_a_second_live_iterator_is_counted_for_all_ranks(shared: bool) -> None:
    requirements = for_ranks(3, shared)
    small = make_plan(requirements, None, 3 * 5_000, RESIDENT)
    buffers = 1 if shared else 3
    needed = small.epoch_bytes + buffers * 50 * (100 + 38)
    for memory, others in ((needed, 0), (2 * needed, 1)):
        plan = replace(small, memory=small.host_bytes + memory)
        assert [each.slots for each in second_buffer(plan, others, lambda: None)] == [50]
        short = replace(plan, memory=small.host_bytes + memory - 1)
        with pytest.raises(ConfigError, match="a second live iterator needs"):
            second_buffer(short, others, lambda: None)


def test_a_buffer_on_a_device_is_never_shared(make: Make) -> None:
    with fake_cuda():
        request = request_of(make([2, 2], device="cuda:1", buffer=None, memory="50MB"))
        several = replace(request, memory=150_000_000, ranks=3, shared=True)
        one, each = make_planner(request), make_planner(several)
        assert each.warm_up
        assert one.warm_up
        for plan, of_one in (
            (each.plan(), one.plan()),
            (each.plan_after_warm_up(500_000), one.plan_after_warm_up(500_000)),
        ):
            assert not plan.shared
            assert nbytes(plan) == nbytes(of_one)
            assert plan.device_lines == of_one.device_lines
            assert plan.host_bytes == 3 * of_one.host_bytes
            assert "on the device of each rank" in str(plan)


# ---- plans of loaders that use a service which a user has started

GRAPH = {"index pointers", "labels", "topology"}


def served(ranks: int = 1, left: int | None = None, **more: Any) -> Requirements:
    given = {"shared": True, "shared_graph": True, "looks_ahead": True, "ranked_rows": 1_000} | more
    return replace(REQUIREMENTS, ranks=ranks, served=Served(left), **given)


def marks(plan: Plan) -> dict[str, str]:
    return {line.what: plan._mark(line) for line in plan.lines}


def test_the_graph_is_the_services_and_the_share_is_for_the_loader() -> None:
    plan = make_plan(served(), 400_000, None, RESIDENT)
    alone = make_plan(replace(REQUIREMENTS, looks_ahead=True), 10**9, None, RESIDENT)
    assert {line.what for line in plan.lines if not line.copies} == GRAPH
    assert {what for what, mark in marks(plan).items() if mark == "once"} == GRAPH
    assert all(item(plan, what).nbytes == item(alone, what).nbytes for what in GRAPH)
    more = make_plan(served(shared_graph=False), 10**9, None, RESIDENT)
    assert all(item(more, what).copies for what in GRAPH)
    assert {what for what, mark in marks(plan).items() if mark == "service"} == set(SHARE)
    assert plan.share_bytes == sum(item(plan, what).host_bytes for what in SHARE)
    assert alone.share_bytes == 0
    own = sum(line.nbytes for line in plan.lines if line.what not in (*SHARE, *GRAPH))
    assert plan.between_epochs_bytes < own == plan.host_bytes - plan.share_bytes <= 400_000


def test_what_ranks_and_devices_have_in_the_service() -> None:
    found = marks(make_plan(served(3), 10**9, None, DIRECT))
    assert (found["feature buffer"], found["index pointers"]) == ("service", "once")
    assert found["queued samples"] == found["topology"] == "process × 3"
    plan = make_plan(served(shared=False, device_memory=10**6), None, None, RESIDENT)
    assert plan.share_bytes == 0
    assert "service" not in marks(plan).values()


def test_the_default_is_a_quarter_of_what_the_service_has_left(monkeypatch):
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
def test_there_is_as_much_room_for_the_graph_as_the_service_has(served_graph, room):
    requirements = replace(served(), served=served_graph)
    question = make_question(None, (), requirements, 3_000, None)
    assert for_rank(question, Resident, requirements).room(1.5) == room
    assert for_rank(question, Direct, requirements).room(1.5) == question.room(1.5)
    own = replace(requirements, shared_graph=False)
    assert for_rank(question, Resident, own).room(1.5) == question.room(1.5)
