"""`stage_stats()`, `on_stats=` and the timeline of `trace=`, with every kind of strategy."""

import gc
import math
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborLoader
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.tracing import TraceCounters, named_apart, open_timeline
from gnndrive.pipeline.batch_times import CAUSES, STAGES
from gnndrive.pipeline.timeline import PID_BASE, Timeline, _writing
from tests.given import moved
from tests.loader.conftest import NODES
from tests.loader.diskgnn.conftest import ARGUMENTS as PACKED
from tests.loader.diskgnn.packs import make_pack
from tests.loader.windows.stores import ARGUMENTS as WINDOWED
from tests.loader.windows.stores import make_graph, make_store
from tests.pipeline.traces import check_batches, read
from tests.soak import product

BATCHES = NODES // 16
PARTS = [f"wait_{cause}_s" for cause in CAUSES]
STRATEGIES: dict[str, dict[str, Any]] = {
    "gnndrive": {},
    "groups": {"buffer": "60KB"},
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
    assert stats["samples"] == 2 * BATCHES
    assert min(stats[part] for part in PARTS) >= 0
    loader.close()
    events = read(path)
    wanted = [(epoch, batch, "") for epoch in (0, 1) for batch in range(BATCHES)]
    assert sorted(check_batches(events)) == wanted
    for counter in COUNTERS:
        values = [each["args"]["value"] for each in events if each["name"] == counter]
        assert values
        assert all(before != after for before, after in pairwise(values)), "what did not change"
    copies = [event for event in events if event["name"] == "copy to the device"]
    assert bool(copies) == (name == "a device")


def test_a_dropped_iterator_or_one_that_gives_way_leaves_no_batch_in_a_stage(make):
    loader = make()
    for _ in range(3):
        for _ in loader:
            break
    batches = iter(loader)
    next(batches)
    next(batches)
    counts = {stage: each["count"] for stage, each in loader.stage_stats().items()}
    assert counts == dict.fromkeys(STAGES, 5) | {"step": 1}, "a batch is in the user's hands"
    batches.give_way()
    runtime = loader._runtime
    assert runtime.loop_thread.call(runtime._idle())
    times = runtime.counters.times
    earlier = times.snapshot()
    assert not (times.snapshot().areas_ns - earlier.areas_ns).any()
    with pytest.raises(ClosedError):
        next(batches)


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
        assert each["batches_per_s"] == pytest.approx(each["batches"] / each["interval_s"])
        assert {"extracting_queue", "training_queue", "output_queue"} <= each.keys()
    assert any("read_s_p50" in each for each in got)
    loader, _ = make(on_stats=got.append, stats_interval=3_600), got.clear()
    for epoch in (1, 2):
        for _ in loader:
            assert len(got) == epoch - 1
        assert len(got) == epoch, "a long interval ends with the epoch"
        assert got[-1]["batches"] == BATCHES


@pytest.mark.parametrize("after", [0, 3, BATCHES + 1])
def test_what_on_stats_raises_ends_the_epoch(make, after):
    asked: list[Any] = []

    def on_stats(stats: dict[str, float]) -> None:
        asked.append((loader.stats()["batches"], loader.stage_stats()))
        if len(asked) > after:
            raise LookupError

    loader = make(on_stats=on_stats, stats_interval=1e-9)
    taken: list[Any] = []
    with pytest.raises(LookupError):
        taken.extend(loader)
    assert len(taken) == min(after, BATCHES)
    loader.on_stats = loader._intervals = None
    assert next(iter(loader)).batch_size == 16, "the loader can go on"


@pytest.mark.parametrize("kind", ["pack", "windows", "windows in any order"])
def test_packs_and_windows_are_in_a_timeline(tmp_path, path, kind):
    if kind == "pack":
        store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
        make_pack(store, PACKED, epochs=1)
        given = {"strategy": "diskgnn", **PACKED}
    else:
        store = make_store(make_graph(), tmp_path)
        given = {"in_order": kind == "windows", **WINDOWED}
    with NeighborLoader(store, trace=path, **moved(given)) as loader:
        count = len(list(loader))
        stats: Any = loader.stats()
    assert sorted(check_batches(read(path))) == [(0, batch, "") for batch in range(count)]
    assert stats["wait_disk_s"] > 0


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


def test_two_loaders_cannot_write_one_file(make, path):
    one, other, unused = make(trace=path), make(trace=path), make(trace=path)
    unused.close()
    assert not path.exists(), "a loader that never began writes nothing"
    first = iter(one)
    with pytest.raises(ConfigError, match="is being written by another loader: close that one"):
        iter(other)
    with pytest.raises(ConfigError, match="there are: simulated"):
        iter(make(trace=path.with_name("x.json"), engine="steam"))
    assert len(_writing) == 1, "a loader that cannot start leaves the file free"
    del first
    one.close()
    assert len(list(other)) == BATCHES


def test_each_rank_has_a_file_and_a_process_of_its_own(path):
    for rank in (0, 2):
        timeline = open_timeline(path, Ranks(rank, 3, "loader"))
        assert timeline is not None
        timeline.close()
        events = read(path.with_name(f"epoch.rank{rank}.json.gz"))
        assert {event["pid"] for event in events} == {PID_BASE + rank}
    assert not path.exists()
    for trace, named in (("a/b.json", "a/b.x.json"), ("b.1.json.gz", "b.1.x.json.gz")):
        assert named_apart(trace, "x") == Path(named)


def test_counters_stop_with_the_epoch(make, path):
    ticks: list[Callable[[], None]] = []
    loader, timeline = make(), Timeline(path)
    batches = iter(loader)
    next(batches)
    running = list(loader._runtime._epochs())
    counters = TraceCounters(
        timeline, loader._runtime.engine, lambda: running, lambda delay_s, tick: ticks.append(tick)
    )
    counters.start()
    counters.start()
    assert len(ticks) == 1, "it ticks once"
    running.clear()
    ticks.pop()()
    assert not ticks
    timeline.close()
