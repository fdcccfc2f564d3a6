"""The plan of a loader that replays: within its budget, and it says where rows come from."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import gnndrive
from gnndrive import Store
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.plan.choice import make_planner
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES
from tests.loader.diskgnn.packs import check_rows, loader_of

ITEMS = ("feature buffer", "index", "input nodes", "labels", "staging", "live batches",
         "queued samples", "residents", "records", "leases")  # fmt: skip


def least_of(error: ConfigError, name: str) -> str:
    found = re.search(rf'give at least {name}="([^"]+)"', str(error))
    assert found is not None, error
    return found[1]


@pytest.mark.parametrize("name", ["memory", "buffer", "device_memory"])
def test_the_least_that_is_named_works(replay, graph, name):
    """And less does not."""
    if name == "device_memory":
        replay = partial(replay, device="simulated-cuda", memory="50MB")
    with pytest.raises(ConfigError) as caught:
        replay(**{name: "1KB"}).plan()
    least = parse_size(least_of(caught.value, name), name)
    with pytest.raises(ConfigError):
        replay(**{name: int(least * 0.98)}).plan()
    loader = replay(**{name: least})
    for batch in loader:
        check_rows(batch, graph)


@pytest.mark.parametrize("memory", ["4.8MB", "6MB"])
def test_the_total_is_within_memory(replay, graph, memory):
    loader = replay(memory=memory, io_depth=16)
    plan = loader.plan()
    assert plan.total_bytes <= parse_size(memory, "memory")
    assert [line.what for line in plan.lines] == list(ITEMS)
    assert sum(line.nbytes for line in plan.lines) == plan.total_bytes
    assert plan.lines[0].nbytes == sum(table.slots * table.row_bytes for table in plan.tables)
    for table in plan.tables:
        assert table.slots == table.residents + table.places * table.place_rows
        assert table.places in (1, 2)
    batches = list(loader)
    assert len(batches) == BATCHES
    for batch in batches:
        check_rows(batch, graph)


def test_index_pointers_are_not_counted_because_none_are_read(store, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("index pointers are read")

    monkeypatch.setattr(Store, "read_pointers", refuse)
    with loader_of(gnndrive.open(store.path), ARGUMENTS, memory="6MB") as loader:
        assert len(list(loader)) == BATCHES


def test_more_memory_holds_more(replay):
    """With room for all hot rows the fewest are read."""
    read: list[int] = []
    for buffer in ("46KB", "80KB", "1MB"):
        loader = replay(buffer=buffer, io_depth=16)
        for _ in range(2):
            assert len(list(loader)) == BATCHES
        plan, stats = loader.plan(), loader.stats()
        places = {table.places for table in plan.tables}
        read.append(int(stats["rows_loaded"]))
        assert len(places) == 1
    assert read[-1] == min(read) < 0.8 * read[0]


def test_levels_are_printed(replay):
    """And add up to what a batch uses."""
    for buffer in ("46KB", "1MB"):
        loader = replay(buffer=buffer)
        plan = loader.plan()
        text = str(plan)
        assert "a batch's rows: " in text
        assert ("hot rows for which there is no room" in text) is (buffer == "46KB")
        for level in (r"from memory", r"of its segment", r"chunk"):
            assert re.search(rf"[\d.]+ [KM]?B {level}", text), (level, text)
        assert re.search(r"a batch takes about [\d.e-]+ s", text)
        batches: list[Any] = list(loader)
        mean = sum(80 * b.num_nodes + 64 * b.num_edges for b in batches) / len(batches)
        said = sum(
            parse_size(number.replace(" ", ""), "said")
            for number in re.findall(r"([\d.]+ [KM]?B) (?:from|of|chunk)", plan.levels[0])
        )
        assert abs(said - mean) < 0.1 * mean


def test_on_a_device(replay):
    loader = replay(device="simulated-cuda", device_memory="600KB")
    plan = loader.plan()
    assert plan.device_bytes <= 600_000
    assert [line.what for line in plan.device_lines] == ["feature buffer", "live batches"]
    assert "from device" in str(plan)
    assert len(list(loader)) == BATCHES


def test_a_second_iterator_is_counted(replay):
    """It has a place and no hot rows; with memory= it must fit."""
    with pytest.raises(ConfigError) as caught:
        replay(memory="1KB", io_depth=16).plan()
    loader = replay(memory=least_of(caught.value, "memory"), io_depth=16)
    first = iter(loader)
    next(first)
    with pytest.raises(ConfigError, match="second live iterator"):
        iter(loader)
    assert len(list(first)) == BATCHES - 1


@pytest.mark.parametrize("name", ["memory", "buffer"])
def test_ranks_divide_the_budget_and_share_nothing(replay, name):
    nbytes = {"memory": 5_000_000, "buffer": 60_000}[name]
    request = replay(**{name: nbytes}, io_depth=16)._assembly().request()
    one = make_planner(request).plan()
    several = replace(request, ranks=3, shared=True)
    plan = make_planner(replace(several, **{name: 3 * nbytes})).plan()
    assert not plan.shared
    assert plan.tables == one.tables
    assert [line.nbytes for line in plan.lines] == [line.nbytes for line in one.lines]
    assert plan.host_bytes == 3 * one.host_bytes == 3 * plan.total_bytes
    with pytest.raises(ConfigError, match="is too little to replay") as caught:
        make_planner(replace(several, **{name: 30_000})).plan()
    named = parse_size(least_of(caught.value, name), name)
    assert make_planner(replace(several, **{name: named})).plan().tables[0].places == 1
    with pytest.raises(ConfigError):
        make_planner(replace(several, **{name: int(0.98 * named)})).plan()
