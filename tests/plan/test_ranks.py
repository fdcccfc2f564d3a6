"""Plans for several ranks of one host, each with its own buffer, or with one that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.common import host_memory
from gnndrive.common.memory import format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.choice import least_memory, make_planner
from gnndrive.plan.plan import Plan, default_bytes, make_plan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.requirements import Requirements
from gnndrive.plan.second_buffer import second_buffer
from gnndrive.testing.fake_cuda import fake_cuda
from tests.loader.conftest import Make
from tests.plan.conftest import request_of
from tests.plan.test_plan import REQUIREMENTS, item, size_in

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


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_own_buffers_are_planned_as_one_rank_with_its_part_of_the_budget(ranks: int) -> None:
    for memory in range(700_000, 800_000, 9_973):
        one = make_plan(for_ranks(1), memory // ranks, None, RESIDENT)
        each = make_plan(for_ranks(ranks), memory, None, RESIDENT)
        assert nbytes(each) == nbytes(one)
        assert each.tables == one.tables
        assert each.total_bytes == one.total_bytes
        assert each.host_bytes == ranks * one.total_bytes <= memory
        assert each.between_epochs_bytes == one.between_epochs_bytes
    of_buffer = make_plan(for_ranks(ranks), None, ranks * 700 + 1, RESIDENT)
    assert of_buffer.tables == make_plan(for_ranks(1), None, 700, RESIDENT).tables


@pytest.mark.parametrize("arguments", [{}, {"topology": "direct"}, {"neighbour_cache": "3MB"}])
def test_a_loaders_own_buffers_are_planned_as_one_ranks(
    request_for: Any, arguments: dict[str, Any]
) -> None:
    for memory in (44_000_000, 60_000_000):
        request = request_for(memory, **arguments)
        one = make_planner(request)
        each = make_planner(replace(request, memory=3 * memory + 2, ranks=3))
        assert each.stages == one.stages
        assert nbytes(each.plan()) == nbytes(one.plan())


def test_lines_and_total_say_what_all_ranks_use() -> None:
    plan = make_plan(for_ranks(2), 400_000, None, RESIDENT)
    *lines, total = str(plan).splitlines()
    assert all("  each × 2  " in line for line in lines)
    of_one, of_host = format_size(plan.total_bytes), format_size(plan.host_bytes)
    assert total.split(maxsplit=1)[1] == f"{of_one}  × 2 = {of_host}  of memory=400 KB"


# ---- the ranks share a buffer and the adjacency


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_shared_plan_counts_once_what_the_host_service_has(ranks: int) -> None:
    memory = 400_000
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


def test_a_topology_that_reads_the_adjacency_is_each_ranks_own() -> None:
    plan = make_plan(for_ranks(3, shared=True), 10**9, None, DIRECT)
    assert item(plan, "topology").copies == 3
    assert item(plan, "index pointers").copies == 1


def test_pages_of_mapped_files_are_there_once() -> None:
    for shared in (False, True):
        plan = make_plan(for_ranks(4, shared, mapped_bytes=500), 10**9, None, RESIDENT)
        assert item(plan, "mapped files").host_bytes == 500


def test_lines_say_what_is_shared() -> None:
    plan = make_plan(for_ranks(2, shared=True), 400_000, None, RESIDENT)
    *lines, total = str(plan).splitlines()
    for line, text in zip(plan.lines, lines, strict=True):
        assert ("  shared  " if line.what in SHARED else "  each × 2  ") in text
    assert total.split(maxsplit=1)[1] == f"{format_size(plan.host_bytes)}  of memory=400 KB"


# ---- the choice


def own_part(request: PlanRequest, ranks: int) -> PlanRequest:
    """The request of a loader with a rank's part of the buffer."""
    return replace(request, buffer=None if request.buffer is None else request.buffer // ranks)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "arguments", [{}, {"topology": "direct"}, {"samplers": 4}, {"buffer": "12KB"}], ids=str
)
def test_the_least_memory_of_ranks_is_the_least(
    request_for: Any, arguments: dict[str, Any], shared: bool
) -> None:
    def made(memory: int, ranks: int) -> PlanRequest:
        return replace(request_for(memory, **arguments), ranks=ranks, shared=shared)

    for ranks in (2, 3):
        of_one = least_memory(made(1, 1) if shared else own_part(made(1, 1), ranks))
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


def test_the_same_request_gives_the_same_plan(request_for: Any) -> None:
    for shared in (False, True):
        request = replace(request_for(30_000_000), ranks=2, shared=shared)
        assert str(make_planner(request).plan()) == str(make_planner(request).plan())


# ---- the default


@pytest.mark.parametrize(
    ("world", "ranks", "share"),
    [("4", 1, 0.25), ("4", 4, 1), ("4", 2, 0.5), ("", 4, 1), ("", 1, 1)],
)
def test_the_default_is_divided_once(
    monkeypatch: pytest.MonkeyPatch, world: str, ranks: int, share: float
) -> None:
    """Also if each rank's loader knows only itself, because the user splits the seeds."""
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1_600_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", world)
    assert default_bytes(ranks) == 400_000 * share
    wide = replace(REQUIREMENTS.tables[0], rows=100_000)
    own = make_plan(for_ranks(ranks, tables=(wide,)), None, None)
    assert own.slots == int(400_000 * share) // ranks // 138
    shared = make_plan(for_ranks(ranks, True, tables=(wide,)), None, None)
    assert shared.slots == int(400_000 * share) // 138


def test_a_default_without_a_row_says_for_how_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1_000)
    with pytest.raises(ConfigError, match=r"left, 250 B for 2 ranks, holds no row of 100 bytes"):
        make_plan(for_ranks(2), None, None)
    with pytest.raises(ConfigError, match=r"buffer=150 B for 2 ranks holds no row"):
        make_plan(for_ranks(2), None, 150)


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


def test_what_is_free_between_epochs_is_a_ranks_own() -> None:
    own = make_plan(for_ranks(2), 400_000, None, RESIDENT)
    shared = make_plan(for_ranks(2, shared=True), 400_000, None, RESIDENT)
    rest = sum(item(own, name).nbytes for name in ("queued samples", "sampler scratch"))
    assert shared.between_epochs_bytes == rest
    freed = ("feature buffer", "slot tables", "mapping table", "leases", "look-ahead")
    assert own.between_epochs_bytes == rest + sum(item(own, name).nbytes for name in freed)


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
