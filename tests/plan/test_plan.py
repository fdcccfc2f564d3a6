"""The items of a plan, the budgets that are refused, and the counters of `stats`; how slots are
divided among tables, and the victim buffer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive import ConfigError, Store
from gnndrive.common.memory import format_size, parse_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.items import MAPPING_BYTES, NO_VICTIMS, VICTIM_PLACE_BYTES, PlanItem
from gnndrive.plan.plan import Plan, TablePlan, make_plan
from gnndrive.plan.requirements import SLOT_TABLE_BYTES, Requirements, TableRequirements
from gnndrive.plan.second_buffer import second_buffer
from gnndrive.plan.slot_split import split_slots
from tests.loader.conftest import NODES, Make

ROW_BYTES = 33 * 4
ITEMS = [
    "feature buffer", "slot tables", "mapping table", "index pointers", "topology", "input nodes",
    "labels", "staging", "queued samples", "sampler scratch", "leases", "live batches",
    "look-ahead", "row classes",
]  # fmt: skip
REQUIREMENTS = Requirements(
    tables=(TableRequirements("nodes/x", 1_000, 100, 50),),
    batch_nodes_max=50,
    batch_edges_max=60,
    attribute_bytes=8 * 50 + 4 * 60,
    position_bytes=8,
    batches_queued=10,
    batches_extracted=4,
    samplers=4,
    seed_bytes=800,
    staging_bytes=65_536,
    index_pointer_bytes=8_008,
)


def item(plan: Plan, what: str) -> PlanItem:
    (found,) = [each for each in plan.lines if each.what == what]
    return found


def size_in(error: BaseException, pattern: str) -> int:
    match = re.search(pattern, str(error))
    assert match, str(error)
    return parse_size(match[1], "size")


# ---- the plan


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
    text = str(make(memory="40MB", buffer=None).plan()).splitlines()
    assert [row.split("  ")[0] for row in text] == [*ITEMS, "total"]
    assert text[-1].endswith("of memory=40 MB")
    assert "400 rows, because the whole table fits" in text[0]


# ---- budgets


def test_the_buffer_gets_what_the_other_items_leave() -> None:
    least = make_plan(REQUIREMENTS, None, 100)
    rest = least.total_bytes - 100 - SLOT_TABLE_BYTES
    for slots in (1, 7, 999):
        memory = rest + slots * (100 + SLOT_TABLE_BYTES)
        assert make_plan(REQUIREMENTS, memory, None).slots == slots
        assert make_plan(REQUIREMENTS, memory + 100, None).slots == slots
        assert make_plan(REQUIREMENTS, memory, None).total_bytes == memory
    for sizes in ((None, 10**9), (10**9, None), (None, None)):  # no larger than the table
        assert make_plan(REQUIREMENTS, *sizes).slots == 1_000


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    topology = TopologyChoice("resident", "resident: it fits", 12_000)
    with pytest.raises(ConfigError, match="memory=60 KB leaves no room") as caught:
        make_plan(REQUIREMENTS, 60_000, None, topology)
    needed = size_in(caught.value, r"everything else needs ([\d.]+ \w+)")
    assert make_plan(REQUIREMENTS, int(needed * 1.05), None, topology).slots >= 1
    assert all(what in str(caught.value) for what in ITEMS[2:-1])
    with pytest.raises(ConfigError, match="memory=100 KB is less") as caught:
        make_plan(REQUIREMENTS, 100_000, 90_000)
    needed = size_in(caught.value, r"can need, ([\d.]+ \w+)")
    assert make_plan(REQUIREMENTS, int(needed * 1.01), 90_000).slots == 900
    for memory in (None, 10**9):
        with pytest.raises(ConfigError, match="buffer=99 B holds no row: one row is 100 bytes"):
            make_plan(REQUIREMENTS, memory, 99)


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
    least = size_in(caught.value, r'at least buffer="(\w+)"')
    always = size_in(caught.value, r"\((\w+) holds any batch\)")
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
    counts = (0, 999, 1_000, 1_280_000_000, 5e15)
    assert [*map(format_size, counts)] == ["0 B", "999 B", "1 KB", "1.28 GB", "5e+03 TB"]


# ---- stats


def test_stats_add_up(make: Make) -> None:
    """Over iterators and epochs, and after closing."""
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
    loader = make(buffer="1MB")
    for _ in range(3):  # a buffer stays warm from epoch to epoch
        list(loader)
    assert (loader.stats()["rows_loaded"], loader.stats()["evictions"]) == (NODES, 0)


# ---- how `split_slots` divides the feature buffer's memory among tables


def table(rows: int, row_bytes: int, batch: int) -> TableRequirements:
    return TableRequirements("x", rows, row_bytes, min(batch, rows))


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


def test_a_further_iterators_buffer_holds_a_largest_batch() -> None:
    plan = Plan((), (TablePlan("a", 100, 90, 10, 30), TablePlan("b", 50, 5, 8, 0)), None)
    assert [one.slots for one in second_buffer(plan, 0, lambda: None)] == [30, 1]
    needed = 30 * 10 + 1 * 8 + 31 * SLOT_TABLE_BYTES
    exact = Plan((), plan.tables, needed)
    assert second_buffer(exact, 0, lambda: None)
    with pytest.raises(ValueError, match="a second live iterator needs"):
        second_buffer(exact, 1, lambda: None)


# ---- the victim buffer in a plan: its size, its table, and why there is none

AUTO = replace(
    REQUIREMENTS, device_memory=30_000, device_given=True, looks_ahead=True, victim_bytes=None
)
MEMORY = 1 << 20


def victims(memory: int | None = MEMORY, base: Requirements = AUTO, **changed: Any) -> Any:
    """How many rows each table's victim buffer has, and the plan."""
    plan = make_plan(replace(base, **changed), memory, None)
    return [table.victims for table in plan.tables], plan


def test_a_victim_buffer_has_what_memory_leaves_or_the_size_that_is_given() -> None:
    """For rows; with several ranks for all of them."""
    wide = (replace(AUTO.tables[0], rows=100_000),)
    (count,), plan = victims(tables=wide)
    assert item(plan, "victim buffer").nbytes == count * 100
    assert 0 <= MEMORY - plan.host_bytes < 100 + VICTIM_PLACE_BYTES
    assert item(plan, "victim table").nbytes > MAPPING_BYTES * 100_000 + VICTIM_PLACE_BYTES * count
    assert f"{count:,} rows" in str(plan)
    assert victims(1 << 30)[0] == victims(None)[0] == [1000]
    none, without = victims(victim_bytes=0)
    given: Any = {"victim_bytes": 20_000, "copy_out_bytes": 5000}
    count, plan = victims(**given)
    assert (none, count) == ([0], [200])
    assert item(plan, "victim buffer").nbytes == 25_000
    more = {line.what: line.nbytes for line in plan.lines if line.what.startswith("victim")}
    assert plan.host_bytes == without.host_bytes + sum(more.values())
    assert not any(line.what in more for line in without.lines)
    assert victims(8 * MEMORY, ranks=4, **given)[0] == [50]
    small = TableRequirements("nodes/b/x", 40, 100, 10)
    shared = victims(tables=(*AUTO.tables, small), victim_bytes=30_000)[0]
    assert shared == [260, 40], "as they share slots"
    with pytest.raises(ConfigError, match="memory="):
        victims(victim_bytes=2 * MEMORY, tables=wide)


def test_a_line_says_why_there_is_no_victim_buffer() -> None:
    room = victims(victim_bytes=0)[1].host_bytes + 100
    for why, memory, changed in (
        ("slots", None, {"device_memory": None}),
        ("policy", None, {"looks_ahead": False}),
        ("policy", None, {"looks_ahead": False, "victim_bytes": 20_000}),
        ("whole", None, {"device_memory": 1 << 20}),
        ("room", room, {}),
    ):
        count, plan = victims(memory, **changed)
        assert count == [0]
        (line,) = [each for each in plan.lines if each.what.startswith("victim")]
        assert line == PlanItem("victim buffer", 0, NO_VICTIMS[why])
    _, plan = victims(None, device_given=False)
    assert [table.victims for table in second_buffer(plan, 0, lambda: 1 << 30)] == [0]
    assert plan.between_epochs_bytes >= item(plan, "victim buffer").nbytes
