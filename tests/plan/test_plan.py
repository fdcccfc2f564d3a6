"""The items of a plan, the budgets that are refused, and how slots are divided."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive import ConfigError, Store
from gnndrive.buffer.items import MAPPING_BYTES, SLOT_TABLE_BYTES
from gnndrive.common import host_memory
from gnndrive.common.items import Item, TableShape
from gnndrive.common.memory import format_size, parse_size, size_or_none
from gnndrive.common.owners import Owners
from gnndrive.common.records import TopologyChoice
from gnndrive.exchange.items import Exchange
from gnndrive.plan.choice import make_planner
from gnndrive.plan.host_level import NONE, PLACE_BYTES, HostLevel
from gnndrive.plan.plan import (
    UNKNOWN,
    Budget,
    Plan,
    Planner,
    Served,
    Slots,
    TablePlan,
    default_bytes,
)
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.slots import ALL_FIT, second_buffer, split_slots
from gnndrive.plan.topology_choice import Topologies, for_rank
from gnndrive.pyg.items import AttributeMemory
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.resident import Resident
from gnndrive.testing.fake_cuda import fake_cuda
from tests.loader.conftest import NODES, Make
from tests.plan.conftest import least_memory, planner_for, request_of
from tests.soak import product

ROW_BYTES = 33 * 4
ITEMS = [
    "feature buffer", "slot tables", "topology", "mapping table", "look-ahead", "row classes",
    "leases", "index pointers", "input nodes", "labels", "staging", "queued samples",
    "sampler scratch", "live batches",
]  # fmt: skip
NUMBERS: dict[str, Any] = {
    "tables": (TableShape("nodes/x", 1_000, 100, 50),), "nodes": 50, "edges": 60,
    "attribute_bytes": 8 * 50 + 4 * 60, "seed_bytes": 800, "staging_bytes": 65_536,
    "index_pointer_bytes": 8_008,
}  # fmt: skip


def numbers(**more: Any) -> Planner:
    return planner_for(**NUMBERS | more)


PLANNER = numbers()


def make_plan(
    planner: Planner, memory: int | None, buffer: int | None,
    topology: TopologyChoice = UNKNOWN,
) -> Plan:  # fmt: skip
    budget = replace(planner.budget, memory=memory, buffer=buffer)
    return replace(planner, budget=budget, topology=topology).plan()


def item(plan: Plan, what: str) -> Item:
    (found,) = [each for each in plan.lines if each.what == what]
    return found


def size_in(error: BaseException, pattern: str) -> int:
    match = re.search(pattern, str(error))
    assert match, str(error)
    return parse_size(match[1], "size")


def test_each_use_of_memory_has_its_item_and_no_batch_is_larger(make: Make, store: Store) -> None:
    loader = make(buffer=100 * ROW_BYTES, io_depth=8, batch_size=2)
    plan, rows, edges = loader.plan(), 2 + 8 + 24, 8 + 24
    assert [line.what for line in plan.lines] == ITEMS
    assert (plan.slots, plan.batch_rows_max) == (100, rows)
    found = {what: item(plan, what).nbytes for what in ITEMS}
    assert found.items() >= {
        "feature buffer": plan.buffer_bytes, "slot tables": 100 * SLOT_TABLE_BYTES,
        "mapping table": MAPPING_BYTES * NODES, "index pointers": store.index_pointers.nbytes,
        "staging": 8 * 262_144,
    }.items()  # fmt: skip
    assert plan.buffer_bytes == 100 * ROW_BYTES
    assert plan.total_bytes == sum(found.values())
    assert f"{rows:,} nodes and {edges:,} edges" in item(plan, "queued samples").why
    assert found["live batches"] >= 2 * (rows * ROW_BYTES + edges * 16)
    assert min(found["queued samples"], found["sampler scratch"]) > 0
    assert max(batch.num_nodes for batch in loader) <= rows
    assert make([-1, -1]).plan().batch_rows_max == NODES
    assert make((4, 3), input_nodes=[1, 2], batch_size=99).plan().batch_rows_max == rows
    text = make(memory="40MB", buffer=None).plan().details().splitlines()
    assert [row.split("  ")[0] for row in text] == [*ITEMS, "total", ALL_FIT]
    assert text[-2].endswith("of memory=40 MB")
    assert "400 of 400 rows, because the whole table fits" in text[0]


def test_the_buffer_gets_what_the_other_items_leave() -> None:
    least = make_plan(PLANNER, None, 100)
    rest = least.total_bytes - 100 - SLOT_TABLE_BYTES
    for slots in (1, 7, 999):
        memory = rest + slots * (100 + SLOT_TABLE_BYTES)
        assert make_plan(PLANNER, memory, None).slots == slots
        assert make_plan(PLANNER, memory + 100, None).slots == slots
        assert make_plan(PLANNER, memory, None).total_bytes == memory
    for sizes in ((None, 10**9), (10**9, None), (None, None)):  # no larger than the table
        assert make_plan(PLANNER, *sizes).slots == 1_000


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    topology = TopologyChoice("resident", "resident: it fits", 12_000)
    with pytest.raises(ConfigError, match="memory=60 KB leaves no room") as caught:
        make_plan(PLANNER, 60_000, None, topology)
    needed = size_in(caught.value, r"everything else needs ([\d.]+ \w+)")
    assert make_plan(PLANNER, int(needed * 1.05), None, topology).slots >= 1
    assert all(what in str(caught.value) for what in set(ITEMS[2:]) - {"look-ahead", "row classes"})
    with pytest.raises(ConfigError, match="memory=100 KB is less") as caught:
        make_plan(PLANNER, 100_000, 90_000)
    needed = size_in(caught.value, r"can need, ([\d.]+ \w+)")
    assert make_plan(PLANNER, int(needed * 1.01), 90_000).slots == 900
    for memory in (None, 10**9):
        with pytest.raises(ConfigError, match="buffer=99 B holds no row: one row is 100 bytes"):
            make_plan(PLANNER, memory, 99)


def test_a_buffer_too_small_fails_at_its_batch_and_names_one_that_works(make: Make) -> None:
    """The least works with four extractors too."""
    sizes = [batch.num_nodes for batch in make(seed=8, shuffle=True)]
    tight = make(seed=8, shuffle=True, buffer=max(sizes) * ROW_BYTES, extractors=4)
    assert [batch.num_nodes for batch in tight] == sizes
    found = []
    with pytest.raises(ConfigError, match=f"a batch needs {max(sizes):,}") as caught:  # noqa: PT012
        for batch in make(seed=8, shuffle=True, buffer=(max(sizes) - 1) * ROW_BYTES):
            found.append(batch.num_nodes)
    assert found == sizes[: sizes.index(max(sizes))]
    least = size_in(caught.value, r'at least buffer="([\w.]+)"')
    always = size_in(caught.value, r"\(([\w.]+) holds any batch\)")
    for buffer in (least, always):
        assert len(list(make(seed=8, shuffle=True, buffer=buffer))) == len(sizes)


def test_sizes() -> None:
    for text, count in (
        ("8GB", 8 * 10**9), ("8GiB", 8 * 2**30), (" 1.5 mib ", 3 * 2**19), (".5KB", 500),
        ("17", 17), (17, 17), (1e6, 10**6), ("2TB", 2 * 10**12),
    ):  # fmt: skip
        assert parse_size(text, "memory") == count
    for wrong in (1.5, "1023.0", " 1.5 "):
        size = float(wrong)
        with pytest.raises(ConfigError, match=rf'number of bytes: write "{size:g}(\.0)?GB"'):
            parse_size(wrong, "memory")
    with pytest.raises(ConfigError, match="memory="):
        parse_size(float("nan"), "memory")
    for none in (0, 0.0, "0", "0GB", " 0.0 mib "):
        assert size_or_none(none, "gap") == 0
    for wrong in ("0 rows", "", "."):
        with pytest.raises(ConfigError, match="gap="):
            size_or_none(wrong, "gap")
    counts = (0, 999, 1_000, 1_280_000_000, 5e15)
    assert [*map(format_size, counts)] == ["0 B", "999 B", "1 KB", "1.28 GB", "5e+03 TB"]
    compared = [format_size(*both) for both in ((4_012_345, 4_013_499), (10**6, 10**6), (1, 2**63))]
    assert compared == ["4.012 MB", "1 MB", "1 B"]


def test_stats_add_up(make: Make) -> None:
    loader = make(buffer="40KB", seed=2)
    batches = [batch for both in zip(loader, loader, strict=True) for batch in both]
    stats = loader.stats()
    documented = re.findall(r"\w+", (type(loader).stats.__doc__ or "").partition("Keys:")[2])
    assert stats.keys() <= set(documented)
    rows, slots = sum(batch.num_nodes for batch in batches), loader.plan().slots
    assert stats["batches"] == stats["samples"] == len(batches) == 2 * len(loader)
    assert stats["rows"] == rows
    assert stats["edges"] == sum(batch.num_edges for batch in batches)
    assert stats["rows_hit"] + stats["rows_waited"] + stats["rows_loaded"] == rows
    assert stats["bytes_wanted"] == rows * ROW_BYTES
    assert stats["bytes_read"] >= stats["rows_loaded"] * ROW_BYTES / 2
    assert 0 < stats["requests"] <= stats["rows_loaded"]
    assert (stats["buffer_slots"], stats["buffer_bytes"]) == (slots, slots * ROW_BYTES)
    assert stats["evictions"] < stats["rows_loaded"]
    assert stats["retries"] == stats["sampling"] == stats["extracting"] == stats["training"] == 0
    assert min(stats[name] for name in ("sample_s", "extract_s", "gather_s", "wait_s")) > 0
    assert stats["elapsed_s"] >= stats["wait_s"]
    loader.close()
    assert loader.stats() | {"elapsed_s": 0} == stats | {"elapsed_s": 0}
    loader = make(buffer="1MB", gap=0)  # no row is read before a batch needs it
    for _ in range(3):  # a buffer stays warm from epoch to epoch
        list(loader)
    assert (loader.stats()["rows_loaded"], loader.stats()["evictions"]) == (NODES, 0)


# ---- how `split_slots` divides the feature buffer's memory among tables


def table(rows: int, row_bytes: int, batch: int) -> TableShape:
    return TableShape("x", rows, row_bytes, min(batch, rows))


TABLES = st.lists(
    st.builds(table, st.integers(1, 10_000), st.integers(1, 600), st.integers(0, 5_000)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=50)
@given(TABLES, st.integers(-10, 3_000_000))
def test_slots_fit_into_the_memory_and_leave_none_that_a_table_could_use(tables, nbytes) -> None:
    costs = [each.row_bytes for each in tables]
    slots = split_slots(nbytes, tables, costs)
    used = sum(map(int.__mul__, slots, costs))
    assert used <= max(nbytes, 0)
    short = 0
    for each, count in zip(tables, slots, strict=True):
        assert 0 <= count <= each.rows
        assert each.batch_rows_max or not count
        short += each.row_bytes * (each.batch_rows_max > 0 and count < each.rows)
    assert not short or nbytes - used < short


def test_slots_of_tables_by_hand() -> None:
    for nbytes, sizes, slots in (
        (1000, [(5000, 10, 200)], [100]),
        (1000, [(50, 10, 20)], [50]),
        # as many largest batches of each
        (140_000, [(10_000, 100, 1000), (10_000, 10, 4000)], [1000, 4000]),
        (70_000, [(10_000, 100, 1000), (10_000, 10, 4000)], [500, 2000]),
        # with half of a largest batch, one could fail because 19 rows have no slot
        (1_000_000, [(20_000, 256, 15_000), (40, 32, 40)], [(1_000_000 - 40 * 32) // 256, 40]),
        (1000, [(100, 10, 50), (100, 10, 0)], [100, 0]),
    ):
        tables, costs = [table(*each) for each in sizes], [each[1] for each in sizes]
        assert split_slots(nbytes, tables, costs) == slots
    tables = [table(10_000, 100, 10_000), *[table(60, 100, 60)] * 40]
    slots = split_slots(100_000, tables, [100] * 41)  # many small tables leave half
    assert sum(slots[1:]) * 100 < 60_000
    assert slots[0] > 300


# ---- the host level in a plan: its size, its table, and why there is none

AUTO: dict[str, Any] = {
    "device_memory": 30_000, "device_given": True, "looks_ahead": True, "level": HostLevel(None)
}  # fmt: skip
MEMORY = 1 << 20


def with_level(memory: int | None = MEMORY, **changed: Any) -> Any:
    plan = make_plan(numbers(**AUTO | changed), memory, None)
    return [table.evicted for table in plan.tables], plan


def test_a_host_level_has_what_memory_leaves_or_the_size_that_is_given() -> None:
    """For rows; with several ranks for all of them."""
    wide = (replace(NUMBERS["tables"][0], rows=100_000),)
    (count,), plan = with_level(tables=wide)
    assert item(plan, "host level").nbytes == count * 100
    assert 0 <= MEMORY - plan.host_bytes < 100 + PLACE_BYTES
    assert item(plan, "host level table").nbytes > MAPPING_BYTES * 100_000 + PLACE_BYTES * count
    assert f"{count:,} rows" in plan.details()
    assert with_level(1 << 30)[0] == with_level(None)[0] == [1000]
    none, without = with_level(level=None)
    given: Any = {"level": HostLevel(20_000, copy_out_bytes=5000)}
    count, plan = with_level(**given)
    assert (none, count) == ([0], [200])
    assert item(plan, "host level").nbytes == 25_000
    more = {line.what: line.nbytes for line in plan.lines if line.what.startswith("host level")}
    assert plan.host_bytes == without.host_bytes + sum(more.values())
    assert not any(line.what in more for line in without.lines)
    assert with_level(8 * MEMORY, ranks=4, **given)[0] == [50]
    small = TableShape("nodes/b/x", 40, 100, 10)
    shared = with_level(tables=(*NUMBERS["tables"], small), level=HostLevel(30_000))[0]
    assert shared == [260, 40], "as they share slots"
    counts, plan = with_level(tables=(*wide, small), device_memory=100_000)
    assert counts == [44, 0], "rows of the other never leave the device"
    assert 0 <= MEMORY - plan.host_bytes < 100 + PLACE_BYTES
    with pytest.raises(ConfigError, match="memory="):
        with_level(level=HostLevel(2 * MEMORY), tables=wide)


def test_a_line_says_why_there_is_no_host_level() -> None:
    room = with_level(level=None)[1].host_bytes + 100
    for why, memory, changed in (
        ("slots", None, {"device_memory": None}),
        ("slots", None, {"device_memory": None, "level": HostLevel(20_000)}),
        ("whole", None, {"device_memory": 1 << 20}),
        ("room", room, {}),
    ):
        count, plan = with_level(memory, **changed)
        assert count == [0]
        (line,) = [each for each in plan.lines if each.what.startswith("host level")]
        assert (line.what, line.nbytes, line.why) == ("host level", 0, NONE[why])
    _, plan = with_level(None, device_given=False)
    assert [table.evicted for table in second_buffer(plan, 0, lambda: 1 << 30)] == [0]
    assert plan.between_epochs_bytes >= item(plan, "host level").nbytes


def test_a_limit_that_nobody_gave_is_not_named_as_an_argument() -> None:
    _, plan = with_level(None)
    free = "the part of the device's free memory that loading may use, 10 KB,"
    for by_user, said in ((True, "device_memory=10 KB"), (False, free)):
        with pytest.raises(ConfigError, match=f"^{said} is less than this loader can need"):
            Slots().check(plan, Budget(None, None, 10_000, by_user))


RESIDENT = TopologyChoice("resident", "resident, as asked for", 12_000)
DIRECT = TopologyChoice("direct", "direct, as asked for", 12_000, has_ring=True)
SHARED = {
    "feature buffer", "slot tables", "mapping table", "index pointers", "topology", "labels",
    "staging", "leases", "look-ahead", "announced rows",
}  # fmt: skip


def for_ranks(ranks: int, shared: bool = False, **more: Any) -> Planner:
    return numbers(ranks=ranks, shared=shared, looks_ahead=True, **more)


def nbytes(plan: Plan) -> dict[str, int]:
    return {line.what: line.nbytes for line in plan.lines}


def test_own_buffers_are_planned_as_one_rank_with_its_part_of_the_budget() -> None:
    ranks = 3
    for memory in (700_000, 749_865):
        one = make_plan(for_ranks(1), memory // ranks, None, RESIDENT)
        each = make_plan(for_ranks(ranks), memory, None, RESIDENT)
        assert (nbytes(each), each.tables) == (nbytes(one), one.tables)
        assert each.host_bytes == ranks * one.total_bytes <= memory
        assert each.between_epochs_bytes == one.between_epochs_bytes
    of_buffer = make_plan(for_ranks(ranks), None, ranks * 700 + 1, RESIDENT)
    assert of_buffer.tables == make_plan(for_ranks(1), None, 700, RESIDENT).tables


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
    planner = for_ranks(2, shared=True)
    least = make_plan(planner, None, 100, RESIDENT)
    for slots in (51, 60, 999):
        memory = least.host_bytes + (slots - 1) * (100 + 38)
        plan = make_plan(planner, memory, None, RESIDENT)
        assert (plan.slots, plan.host_bytes) == (slots, memory)
    own = make_plan(for_ranks(2), memory, None, RESIDENT)
    assert own.slots < plan.slots
    with pytest.raises(ConfigError, match="for 2 ranks leaves no room for a feature buffer"):
        make_plan(for_ranks(2), least.host_bytes, None, RESIDENT)
    assert make_plan(planner, None, 700, RESIDENT).slots == 7


def test_what_ranks_share_and_have_each() -> None:
    """A topology that reads the adjacency is each rank's own; pages of mapped files are once."""
    plan = make_plan(for_ranks(3, shared=True), 10**9, None, DIRECT)
    assert (item(plan, "topology").copies, item(plan, "index pointers").copies) == (3, 1)
    for shared in (False, True):
        planner = for_ranks(4, shared)
        planner = replace(planner, parts=(*planner.parts, AttributeMemory(mapped_bytes=500)))
        plan = make_plan(planner, 10**9, None, RESIDENT)
        assert item(plan, "mapped files").host_bytes == 500


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


def test_the_remedy_is_about_what_takes_most(request_for):
    staged, plain = request_for(1, io_depth=128), request_for(1, batch_size=200)
    assert least_memory(plain) < least_memory(staged) // 2
    with pytest.raises(ConfigError, match=r'"staging": give memory="8.54MB" with .*io_depth=32'):
        make_planner(staged)
    with pytest.raises(ConfigError, match='is the item "live batches": give batch_size=1, or'):
        make_planner(replace(plain, memory=least_memory(plain) // 2))
    (x,) = plain.tables
    own = Exchange({x.name: Owners(x.rows, 2, 0)}, 0, range(2), {}, kept_bytes=8_000)
    kept = replace(plain, exchange=own)
    memory = least_memory(replace(kept, exchange=replace(own, kept_bytes=4_000)))
    with pytest.raises(ConfigError, match=r"give tuning=Tuning\(remote_cache='4KB'\), or"):
        make_planner(replace(kept, memory=memory))


@pytest.mark.parametrize(
    ("world", "ranks", "share"), [("4", 1, 0.25), ("4", 4, 1), ("4", 2, 0.5), ("", 4, 1)]
)
def test_the_default_is_divided_once(monkeypatch, world, ranks, share):
    """Also if each rank's loader knows only itself, because the user splits the seeds."""
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1_600_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", world)
    assert default_bytes(ranks) == 400_000 * share
    wide = replace(NUMBERS["tables"][0], rows=100_000)
    own = make_plan(for_ranks(ranks, tables=(wide,)), None, None)
    assert own.slots == int(400_000 * share) // ranks // 138
    shared = make_plan(for_ranks(ranks, True, tables=(wide,)), None, None)
    assert shared.slots == int(400_000 * share) // 138
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1_000)
    if ranks > 1:
        with pytest.raises(ConfigError, match=r"left, \d+ B( for|,).* holds no row"):
            make_plan(for_ranks(ranks), None, None)


@pytest.mark.parametrize("shared", [False, True])
def test_a_second_live_iterator_is_counted_for_all_ranks(shared: bool) -> None:
    planner = for_ranks(3, shared)
    small = make_plan(planner, None, 3 * 5_000, RESIDENT)
    buffers = 1 if shared else 3
    needed = small.epoch_bytes + buffers * 50 * (100 + 38)
    for memory, others in ((needed, 0), (2 * needed, 1)):
        plan = replace(small, memory=small.host_bytes + memory)
        assert [each.slots for each in second_buffer(plan, others, lambda: None)] == [50]
        short = replace(plan, memory=small.host_bytes + memory - 1)
        with pytest.raises(ConfigError, match="a second live iterator needs"):
            second_buffer(short, others, lambda: None)
    few = Plan((), (TablePlan("a", 100, 20, 10, 30), TablePlan("b", 50, 5, 8, 0)), None)
    assert [each.slots for each in second_buffer(few, 0, lambda: None)] == [20, 1]


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
SHARE = SHARED - GRAPH | {"row classes"}


def served(ranks: int = 1, left: int | None = None, **more: Any) -> Planner:
    given = {"shared": True, "shared_graph": True, "looks_ahead": True, "ranked_rows": 1_000}
    return numbers(**given | {"ranks": ranks, "served": Served(left)} | more)


def marks(plan: Plan) -> dict[str, str]:
    return {line.what: plan._mark(line) for line in plan.lines}


def test_the_graph_is_the_services_and_the_share_is_for_the_loader() -> None:
    plan = make_plan(served(), 400_000, None, RESIDENT)
    alone = make_plan(numbers(looks_ahead=True), 10**9, None, RESIDENT)
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


def test_there_is_as_much_room_for_the_graph_as_the_service_has():
    for left, has, expected in (
        (None, (), 1 << 62), (5_000, (), 2_000), (5_000, ("direct",), 2_000),
        (0, ("resident",), 1 << 62),
    ):  # fmt: skip
        given = {"served": Served(left, frozenset(has))}
        planner, own = served(**given), served(shared_graph=False, **given)
        planner = replace(planner, budget=replace(planner.budget, memory=3_000))
        question = Topologies((), ()).question(planner)
        assert for_rank(question, Resident, planner).room(1.5) == expected
        for kind, needed in ((Direct, planner), (Resident, own)):
            assert for_rank(question, kind, needed).room(1.5) == question.room(1.5)
