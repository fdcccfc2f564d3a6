"""The items of a plan, the budgets that are refused, and the counters that `stats` returns."""

import re

import pytest

from gnndrive import ConfigError, Store
from gnndrive.common.memory import format_size, parse_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.items import MAPPING_BYTES, PlanItem
from gnndrive.plan.plan import Plan, make_plan
from gnndrive.plan.requirements import SLOT_TABLE_BYTES, Requirements, TableRequirements
from tests.loader.conftest import NODES, Make

ROW_BYTES = 33 * 4
ITEMS = [
    "feature buffer",
    "slot tables",
    "mapping table",
    "index pointers",
    "topology",
    "input nodes",
    "labels",
    "staging",
    "queued samples",
    "sampler scratch",
    "leases",
    "live batches",
    "look-ahead",
    "row classes",
]
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


def test_each_use_of_memory_has_its_item(make: Make, store: Store) -> None:
    plan = make(buffer=100 * ROW_BYTES, io_depth=8).plan()
    assert [line.what for line in plan.lines] == ITEMS
    assert plan.slots == 100
    assert plan.buffer_bytes == item(plan, "feature buffer").nbytes == 100 * ROW_BYTES
    assert item(plan, "slot tables").nbytes == 100 * SLOT_TABLE_BYTES
    assert item(plan, "mapping table").nbytes == MAPPING_BYTES * NODES
    assert item(plan, "index pointers").nbytes == store.index_pointers.nbytes
    assert item(plan, "staging").nbytes == 8 * 262_144
    assert plan.total_bytes == sum(line.nbytes for line in plan.lines)


def test_the_largest_batch_is_counted(make: Make) -> None:
    plan = make((4, 3), batch_size=2).plan()
    rows, edges = 2 + 8 + 24, 8 + 24
    assert plan.batch_rows_max == rows
    for what in ("queued samples", "sampler scratch", "live batches"):
        assert item(plan, what).nbytes > 0
    assert f"{rows:,} nodes and {edges:,} edges" in item(plan, "queued samples").why
    assert item(plan, "live batches").nbytes >= 2 * (rows * ROW_BYTES + edges * 16)


def test_no_batch_is_larger_than_the_plan_says(make: Make) -> None:
    loader = make((4, 3), batch_size=9)
    assert max(batch.num_nodes for batch in loader) <= loader.plan().batch_rows_max
    assert make([-1, -1]).plan().batch_rows_max == NODES
    assert make((4, 3), input_nodes=[1, 2], batch_size=99).plan().batch_rows_max == 2 + 8 + 24


def test_a_plan_prints_as_a_table(make: Make) -> None:
    text = str(make(memory="40MB", buffer=None).plan()).splitlines()
    assert [row.split("  ")[0] for row in text] == [*ITEMS, "total"]
    assert text[-1].endswith("of memory=40 MB")
    assert "400 rows, because the whole table fits" in text[0]


def test_planning_does_not_start_the_runtime(make: Make) -> None:
    loader = make()
    loader.plan()
    assert loader.stats() == {}


# ---- budgets


def test_the_buffer_gets_what_the_other_items_leave() -> None:
    least = make_plan(REQUIREMENTS, None, 100)
    rest = least.total_bytes - 100 - SLOT_TABLE_BYTES
    for slots in (1, 7, 999):
        memory = rest + slots * (100 + SLOT_TABLE_BYTES)
        assert make_plan(REQUIREMENTS, memory, None).slots == slots
        assert make_plan(REQUIREMENTS, memory + 100, None).slots == slots
        assert make_plan(REQUIREMENTS, memory, None).total_bytes == memory


def test_a_budget_is_never_exceeded() -> None:
    least = make_plan(REQUIREMENTS, None, 100).total_bytes  # one row
    for memory in range(least, least + 300_000, 7_919):
        assert make_plan(REQUIREMENTS, memory, None).total_bytes <= memory


def test_no_buffer_is_larger_than_the_table() -> None:
    assert make_plan(REQUIREMENTS, None, 10**9).slots == 1_000
    assert make_plan(REQUIREMENTS, 10**9, None).slots == 1_000
    assert make_plan(REQUIREMENTS, None, None).slots == 1_000


def test_a_budget_that_leaves_no_buffer_says_what_the_other_items_need() -> None:
    topology = TopologyChoice("resident", "resident: it fits", 12_000)
    with pytest.raises(ConfigError, match="memory=60 KB leaves no room") as caught:
        make_plan(REQUIREMENTS, 60_000, None, topology)
    needed = size_in(caught.value, r"everything else needs ([\d.]+ \w+)")
    assert make_plan(REQUIREMENTS, int(needed * 1.05), None, topology).slots >= 1
    for what in ITEMS[2:-1]:
        assert what in str(caught.value)


def test_a_budget_too_small_for_its_buffer_names_one_that_works() -> None:
    with pytest.raises(ConfigError, match="memory=100 KB is less") as caught:
        make_plan(REQUIREMENTS, 100_000, 90_000)
    needed = size_in(caught.value, r"can need, ([\d.]+ \w+)")
    assert make_plan(REQUIREMENTS, int(needed * 1.01), 90_000).slots == 900


@pytest.mark.parametrize("memory", [None, 10**9])
def test_a_buffer_smaller_than_a_row_is_refused(memory: int | None) -> None:
    with pytest.raises(ConfigError, match="buffer=99 B holds no row: one row is 100 bytes"):
        make_plan(REQUIREMENTS, memory, 99)


def test_too_little_memory_says_how_much_each_item_needs(make: Make) -> None:
    loader = make(memory="1MB", buffer=None)
    with pytest.raises(ConfigError, match=r"staging +4\.19 MB") as caught:
        loader.plan()
    with pytest.raises(ConfigError, match=r"staging +4\.19 MB"):
        iter(loader)
    needed = size_in(caught.value, r'give at least memory="([\d.]+\w+)"')
    assert len(list(make(memory=needed, buffer=None))) == len(loader)
    with pytest.raises(ConfigError, match="is too little"):
        make(memory=int(0.998 * needed), buffer=None).plan()


def test_a_buffer_too_small_names_one_that_works(make: Make) -> None:
    loader = make(buffer=30 * ROW_BYTES, seed=1)
    assert loader.plan().slots == 30
    with pytest.raises(ConfigError, match="holds 30 rows of 'nodes/x'") as caught:
        next(iter(loader))
    least = size_in(caught.value, r'at least buffer="(\w+)"')
    assert next(iter(make(buffer=least, seed=1))).num_nodes <= least // ROW_BYTES
    with pytest.raises(ConfigError, match=f"a batch needs {least // ROW_BYTES:,}"):
        next(iter(make(buffer=least - 1_000, seed=1)))
    always = size_in(caught.value, r"\((\w+) holds any batch\)")
    assert len(list(make(buffer=always, seed=1))) == len(loader)


def test_a_batch_too_large_fails_at_its_turn(make: Make) -> None:
    positions = [[1], [2], list(range(16)), [3]]
    batches = iter(make(batch_sampler=positions, batch_size=1, buffer=40 * ROW_BYTES))
    assert [next(batches).batch_size for _ in range(2)] == [1, 1]
    with pytest.raises(ConfigError, match="a batch needs"):
        next(batches)


def test_the_smallest_buffer_suffices_for_four_extractors(make: Make) -> None:
    sizes = [batch.num_nodes for batch in make(seed=8, shuffle=True)]
    tight = make(seed=8, shuffle=True, buffer=max(sizes) * ROW_BYTES, extractors=4)
    assert [batch.num_nodes for batch in tight] == sizes
    with pytest.raises(ConfigError, match=f"a batch needs {max(sizes):,}"):
        list(make(seed=8, shuffle=True, buffer=(max(sizes) - 1) * ROW_BYTES))


# ---- sizes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GB", 8 * 10**9),
        ("8GiB", 8 * 2**30),
        (" 1.5 mib ", 3 * 2**19),
        (".5KB", 500),
        ("17", 17),
        (17, 17),
        (1e6, 10**6),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes(text: str | float, count: int) -> None:
    assert parse_size(text, "memory") == count


@pytest.mark.parametrize("size", [1.5, 0.5, 1023.0])
def test_a_small_number_with_a_point_is_not_taken_for_bytes(size: float) -> None:
    for given in (size, str(size), f" {size} "):
        with pytest.raises(ConfigError, match=rf'number of bytes: write "{size:g}(\.0)?GB"'):
            parse_size(given, "memory")
    with pytest.raises(ConfigError, match="memory="):
        parse_size(float("nan"), "memory")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_280_000_000, "1.28 GB"), (1_000, "1 KB"), (5e15, "5e+03 TB")],
)
def test_sizes_as_text(count: float, text: str) -> None:
    assert format_size(count) == text


# ---- stats


def test_stats_add_up(make: Make, store: Store) -> None:
    loader = make(buffer="40KB", seed=2)
    batches = list(loader)
    stats = loader.stats()
    documented = re.findall(r"\w+", (type(loader).stats.__doc__ or "").partition("Keys:")[2])
    assert stats.keys() <= set(documented)
    rows = sum(batch.num_nodes for batch in batches)
    assert stats["batches"] == stats["samples"] == len(batches) == len(loader)
    assert stats["rows"] == rows
    assert stats["edges"] == sum(batch.num_edges for batch in batches)
    assert stats["rows_hit"] + stats["rows_waited"] + stats["rows_loaded"] == rows
    assert stats["bytes_wanted"] == rows * ROW_BYTES
    assert stats["bytes_read"] >= stats["rows_loaded"] * ROW_BYTES / 2
    assert 0 < stats["requests"] <= stats["rows_loaded"]
    slots = loader.plan().slots
    assert stats["buffer_slots"] == slots
    assert stats["rows_loaded"] - slots <= stats["evictions"] < stats["rows_loaded"]
    assert stats["buffer_bytes"] == slots * ROW_BYTES
    assert stats["retries"] == 0
    assert stats["sampling"] == stats["extracting"] == stats["training"] == 0
    assert min(stats[name] for name in ("sample_s", "extract_s", "gather_s", "wait_s")) > 0
    assert stats["elapsed_s"] >= stats["wait_s"]


def test_stats_add_up_over_epochs_and_iterators_and_after_closing(make: Make) -> None:
    loader = make()
    for _ in zip(loader, loader, strict=True):
        pass
    both = loader.stats()
    assert both["batches"] == 2 * len(loader)
    assert both["rows_hit"] + both["rows_waited"] + both["rows_loaded"] == both["rows"]
    loader.close()
    after = loader.stats()
    assert {name: after[name] for name in after if name != "elapsed_s"} == {
        name: both[name] for name in both if name != "elapsed_s"
    }


def test_stats_count_every_live_iterators_buffer(make: Make) -> None:
    loader = make()
    iterators = [iter(loader) for _ in range(3)]
    for _ in range(len(loader)):
        for iterator in iterators:
            next(iterator)
    stats = loader.stats()
    assert stats["batches"] == 3 * len(loader)
    assert stats["rows_hit"] + stats["rows_waited"] + stats["rows_loaded"] == stats["rows"]


def test_a_warm_buffer_stays_warm_from_epoch_to_epoch(make: Make) -> None:
    loader = make(buffer="1MB")
    for _ in range(3):
        list(loader)
    assert loader.stats()["rows_loaded"] == NODES
    assert loader.stats()["evictions"] == 0
