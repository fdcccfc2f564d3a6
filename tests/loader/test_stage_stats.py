"""`stage_stats()`, `on_stats=` and the timeline of `trace=`, with every kind of strategy."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborLoader
from gnndrive.loader import runtime as runtimes
from gnndrive.loader import tracing
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.tracing import TraceCounters, named_apart, open_timeline
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.run import run_epoch
from gnndrive.pipeline.stage_times import CAUSES, STAGES
from gnndrive.pipeline.timeline import PID_BASE, Timeline
from gnndrive.pipeline.trace_file import _writing
from tests.loader.batches import assert_same
from tests.loader.conftest import NODES
from tests.loader.diskgnn.conftest import ARGUMENTS as PACKED
from tests.loader.diskgnn.packs import make_pack
from tests.loader.windows.stores import ARGUMENTS as WINDOWED
from tests.loader.windows.stores import make_graph, make_store
from tests.pipeline.traces import check, check_batches, read
from tests.soak import product

BATCHES = NODES // 16
PARTS = [f"wait_{cause}_s" for cause in CAUSES]
STRATEGIES: dict[str, dict[str, Any]] = {
    "gnndrive": {},
    "any order": {"in_order": False},
    "ginex": {"strategy": "ginex"},
    "ginex apart": {"strategy": "ginex", "superbatch": 4, "phases": "apart", "memory": "30MB",
                    "buffer": None},
    "direct": {"topology": "direct", "engine": "simulated"},
    "a device": {"device": "simulated-cuda"},
}  # fmt: skip


COUNTERS = {
    "reads in flight", "MB/s read", "slots free", "slots on standby", "extracting queue",
    "training queue", "output queue",
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch.json.gz"


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_batch_is_counted_in_each_stage_and_in_the_timeline(make, path, name):
    given = {"seed": 3, "shuffle": True} | STRATEGIES[name]
    loader = make(trace=path, **given)
    assert loader.stage_stats() == {}
    for epoch in (1, 2):
        assert len(list(loader)) == BATCHES
        found = loader.stage_stats()
        assert tuple(found) == STAGES
        assert {each["count"] for each in found.values()} == {epoch * BATCHES}
    for each in found.values():
        assert 0 <= each["p50_s"] <= each["p90_s"] <= each["p99_s"]
    stats: Any = loader.stats()
    assert sum(stats[part] for part in PARTS) == pytest.approx(stats["wait_s"])
    assert stats["wait_s"] > 0
    assert min(stats[part] for part in PARTS) >= 0
    loader.close()
    events = read(path)
    wanted = [(epoch, batch, "") for epoch in (0, 1) for batch in range(BATCHES)]
    assert sorted(check_batches(events)) == wanted
    assert {event["name"] for event in events if event["ph"] == "C"} == COUNTERS
    copies = [event for event in events if event["name"] == "copy to the device"]
    assert bool(copies) == (name == "a device")


def test_the_batch_in_the_users_hands_is_counted_but_for_its_step(make):
    loader = make()
    batches = iter(loader)
    next(batches)
    next(batches)
    counts = {stage: each["count"] for stage, each in loader.stage_stats().items()}
    assert counts == dict.fromkeys(STAGES, 2) | {"step": 1}


def test_dropped_iterators_leave_no_batch_in_a_stage(make, monkeypatch):
    async def drawing_at_the_end(epoch: Epoch) -> None:
        try:
            await run_epoch(epoch)
        finally:  # the sample stage has drawn seeds since the drop
            epoch.times.begin(BATCHES)

    monkeypatch.setattr(runtimes, "run_epoch", drawing_at_the_end)
    loader = make()
    for _ in range(3):
        for _ in loader:
            break
    runtime = loader._runtime
    assert runtime is not None
    assert runtime.loop_thread.call(runtime._idle())
    assert runtime.counters.times.present == [0] * len(STAGES)


def test_an_iterator_that_gives_way_leaves_no_batch_in_a_stage(make):
    loader = make()
    batches = iter(loader)
    next(batches)
    batches.give_way()
    assert loader._runtime is not None
    assert loader._runtime.counters.times.present == [0] * len(STAGES)
    with pytest.raises(ClosedError):
        next(batches)
    assert loader._runtime.counters.times.present == [0] * len(STAGES)


# ---- on_stats


def test_on_stats_gets_every_interval_and_the_end_of_the_epoch(make):
    got: list[dict[str, float]] = []
    loader = make(on_stats=got.append, stats_interval=1e-9)
    seen = [len(got) for _ in loader]
    assert seen == list(range(1, BATCHES + 1)), "once before each batch"
    assert len(got) == BATCHES + 2, "before the end is known, and at the end"
    stats: Any = loader.stats()
    for name in ("batches", "bytes_read", "requests", "rows_loaded", "rows_hit"):
        assert sum(each[name] for each in got) == stats[name]
    assert sum(each["wait_s"] for each in got) == pytest.approx(stats["wait_s"])
    for each in got:
        assert all(type(value) is float and math.isfinite(value) for value in each.values())
        assert sum(each[part] for part in PARTS) == pytest.approx(each["wait_s"])
        assert each["interval_s"] > 0
        assert each["batches_per_s"] == pytest.approx(each["batches"] / each["interval_s"])
        assert {"extracting_queue", "training_queue", "output_queue"} <= each.keys()
    assert any("read_s_p50" in each for each in got)


def test_a_long_interval_ends_with_the_epoch(make):
    got: list[dict[str, float]] = []
    loader = make(on_stats=got.append, stats_interval=3_600)
    for epoch in (1, 2):
        for _ in loader:
            assert len(got) == epoch - 1
        assert len(got) == epoch
        assert got[-1]["batches"] == BATCHES
    batches = iter(loader)
    assert len(list(batches)) == BATCHES
    assert next(batches, None) is None
    assert len(got) == 3, "an epoch ends once"


class Broken(Exception):
    """What a broken `on_stats` raises."""


@pytest.mark.parametrize("after", [0, 3, BATCHES + 1])
def test_what_on_stats_raises_ends_the_epoch(make, after):
    calls = []

    def on_stats(stats: dict[str, float]) -> None:
        calls.append(stats)
        if len(calls) > after:
            raise Broken

    loader = make(on_stats=on_stats, stats_interval=1e-9)
    taken: list[Any] = []
    with pytest.raises(Broken):
        taken.extend(loader)
    assert len(taken) == min(after, BATCHES)
    loader.on_stats = loader._intervals = None
    assert next(iter(loader)).batch_size == 16, "the loader can go on"


def test_on_stats_and_a_timeline_change_no_batch_and_may_ask_the_loader(make, path):
    asked = []

    def on_stats(stats: dict[str, float]) -> None:
        asked.append((loader.stats()["batches"], loader.stage_stats()))

    loader = make(seed=4, shuffle=True, on_stats=on_stats, stats_interval=1e-9, trace=path)
    for one, other in zip(loader, make(seed=4, shuffle=True), strict=True):
        assert_same(one, other)
    assert len(asked) > BATCHES


# ---- timelines


def test_a_replayed_pack_is_in_it(tmp_path, path):
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    make_pack(store, PACKED, epochs=1)
    with NeighborLoader(store, strategy="diskgnn", trace=path, **PACKED) as loader:
        count = len(list(loader))
        stats: Any = loader.stats()
    assert len(check_batches(read(path))) == count
    assert stats["wait_disk_s"] > 0


@pytest.mark.parametrize("in_order", [True, False])
def test_windows_are_in_it(tmp_path, path, in_order):
    store = make_store(make_graph(), tmp_path)
    with NeighborLoader(store, trace=path, in_order=in_order, **WINDOWED) as loader:
        count = len(list(loader))
        stats: Any = loader.stats()
    found = check_batches(read(path))
    assert sorted(found) == [(0, batch, "") for batch in range(count)]
    assert stats["wait_disk_s"] > 0, "the first batch waits for its window"


# ---- endings


@product("taken,end", [0, 1, 5], ["close", "iterator", "dropped"])
def test_an_epoch_that_is_cut_short_leaves_a_whole_file(make, path, taken, end):
    loader = make(trace=path)
    batches = iter(loader)
    assert len(list(islice(batches, taken))) == taken
    if end == "iterator":
        batches.close()
    elif end == "dropped":
        del batches
        gc.collect()
    loader.close()
    found = check_batches(read(path))
    assert sorted(found) == [(0, batch, "") for batch in range(taken)]


def test_indices_go_on_behind_a_warm_up(make, path, monkeypatch):
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    loader = make(device="simulated-cuda", buffer=None, batch_size=8, trace=path)
    count = len(list(loader))
    slots = loader.stats()["buffer_slots"]
    loader.close()
    assert slots == NODES, "the buffer has grown"
    assert sorted(check_batches(read(path))) == [(0, batch, "") for batch in range(count)]
    assert {each["count"] for each in loader.stage_stats().values()} == {count}


# ---- files


def test_a_loader_that_never_began_writes_nothing(make, path):
    make(trace=path).close()
    assert not path.exists()


def test_two_loaders_cannot_write_one_file(make, path):
    one, other = make(trace=path), make(trace=path)
    first = iter(one)
    with pytest.raises(ConfigError, match="is being written by another loader: close that one"):
        iter(other)
    for given, word in (({"buffer": 100}, "buffer"), ({"engine": "steam"}, "there are: simulated")):
        with pytest.raises(ConfigError, match=word):
            iter(make(trace=path.with_name("x.json"), **given))
    assert len(_writing) == 1, "a loader that cannot start leaves the file free"
    del first
    one.close()
    assert len(list(other)) == BATCHES


@pytest.mark.parametrize(
    ("trace", "named"),
    [("a/b.json", "a/b.x.json"), ("b.1.json.gz", "b.1.x.json.gz"), (".json", ".x.json")],
)
def test_a_word_goes_into_the_name(trace, named):
    assert named_apart(trace, "x") == Path(named)
    assert named_apart(None, "x") is None


def test_each_rank_has_a_file_and_a_process_of_its_own(path):
    for rank in (0, 2):
        timeline = open_timeline(path, Ranks(rank, 3, "loader"))
        assert timeline is not None
        timeline.close()
        events = read(path.with_name(f"epoch.rank{rank}.json.gz"))
        assert {event["pid"] for event in events} == {PID_BASE + rank}
    assert not path.exists()
    assert open_timeline(None, Ranks()) is None


# ---- without a timeline


def test_nothing_is_recorded_without_one(make, monkeypatch):
    def none(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a timeline was opened without trace=")

    for name in ("add", "counter", "copied", "lane", "flush"):
        monkeypatch.setattr(Timeline, name, none)
    monkeypatch.setattr(TraceCounters, "start", none)
    monkeypatch.setattr(tracing, "Timeline", none)
    monkeypatch.setattr(tracing, "isinstance", lambda *_: False, raising=False)
    loader = make(device="simulated-cuda")
    assert len(list(loader)) == BATCHES
    runtime: Any = loader._runtime
    assert runtime.timeline is runtime._trace_counters is None


# ---- counters


def test_counters_say_what_changed_and_stop_with_the_epoch(make, path):
    ticks: list[Callable[[], None]] = []

    def call_later(delay_s: float, tick: Callable[[], None]) -> None:
        assert delay_s == 0.01
        ticks.append(tick)

    loader, timeline, running = make(), Timeline(path, write=False), list[Any]()
    batches = iter(loader)
    next(batches)
    runtime: Any = loader._runtime
    running += runtime._epochs()
    counters = TraceCounters(timeline, runtime.engine, lambda: running, call_later)
    counters.start()
    counters.start()
    assert len(ticks) == 1, "it ticks once"
    list(batches)
    ticks.pop()()
    assert len(ticks) == 1
    running.clear()
    ticks.pop()()
    assert not ticks
    timeline.close()
    loader.close()
    events = read(path)
    check(events)
    values = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in values} == COUNTERS
    for one, other in pairwise(values):
        assert one["ts"] <= other["ts"]
    by_name = {name: [e["args"]["value"] for e in values if e["name"] == name] for name in COUNTERS}
    for name, found in by_name.items():
        assert all(one != other for one, other in pairwise(found)), name
    slots = loader.stats()["buffer_slots"]
    assert by_name["slots free"][-1] + by_name["slots on standby"][-1] == slots
