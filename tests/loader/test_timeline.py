"""`trace=`: the timeline of a loader, with every kind of strategy, and however it ends."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.loader import tracing
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.tracing import TraceCounters, named_apart, open_timeline
from gnndrive.pipeline.timeline import PID_BASE, Timeline
from gnndrive.pipeline.trace_file import _writing
from tests.loader.batches import assert_same
from tests.loader.conftest import NODES, Make
from tests.loader.diskgnn.conftest import ARGUMENTS as PACKED
from tests.loader.diskgnn.packs import make_pack
from tests.loader.test_stage_stats import BATCHES, STRATEGIES
from tests.loader.windows.stores import ARGUMENTS as WINDOWED
from tests.loader.windows.stores import make_graph, make_store
from tests.pipeline.traces import check, check_batches, read

COUNTERS = {
    "reads in flight", "MB/s read", "slots free", "slots on standby", "extracting queue",
    "training queue", "output queue",
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch.json.gz"


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_batch_of_each_epoch_is_in_it(make: Make, path: Path, name: str) -> None:
    loader = make(seed=3, shuffle=True, trace=path, **STRATEGIES[name])
    plain = make(seed=3, shuffle=True, **STRATEGIES[name])
    for _ in range(2):
        if name == "any order":
            assert len(list(loader)) == BATCHES
        else:
            for one, other in zip(loader, plain, strict=True):
                assert_same(one, other)
    loader.close()
    events = read(path)
    found = check_batches(events)
    wanted = [(epoch, batch, "") for epoch in (0, 1) for batch in range(BATCHES)]
    assert sorted(found) == wanted
    assert {event["name"] for event in events if event["ph"] == "C"} == COUNTERS
    copies = [event for event in events if event["name"] == "copy to the device"]
    assert bool(copies) == (name == "a device")


def test_a_replayed_pack_is_in_it(tmp_path: Path, path: Path) -> None:
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    make_pack(store, PACKED, epochs=1)
    with NeighborLoader(store, strategy="diskgnn", trace=path, **PACKED) as loader:
        count = len(list(loader))
        stats: Any = loader.stats()
    assert len(check_batches(read(path))) == count
    assert stats["wait_disk_s"] > 0


@pytest.mark.parametrize("in_order", [True, False])
def test_windows_are_in_it(tmp_path: Path, path: Path, in_order: bool) -> None:
    store = make_store(make_graph(), tmp_path)
    with NeighborLoader(store, trace=path, in_order=in_order, **WINDOWED) as loader:
        count = len(list(loader))
        stats: Any = loader.stats()
    found = check_batches(read(path))
    assert sorted(found) == [(0, batch, "") for batch in range(count)]
    assert stats["wait_disk_s"] > 0, "the first batch waits for its window"


def test_links_are_in_it(store: Store, path: Path) -> None:
    given = {"batch_size": 64, "buffer": "60KB", "neg_sampling": "binary"}
    with LinkNeighborLoader(store, [3, 2], trace=str(path), **given) as loader:
        count = len(list(loader))
    assert len(check_batches(read(path))) == count


# ---- endings


@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("end", ["close", "iterator", "dropped"])
def test_an_epoch_that_is_cut_short_leaves_a_whole_file(
    make: Make, path: Path, taken: int, end: str
) -> None:
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


def test_an_error_leaves_a_whole_file(make: Make, path: Path) -> None:
    def transform(batch: Data) -> Data:
        if 64 in batch.input_id:
            raise KeyError("broken")
        return batch

    loader = make(trace=path, transform=transform)
    with pytest.raises(KeyError, match="broken"):
        list(loader)
    assert next(iter(loader)).batch_size == 16
    loader.close()
    events = read(path)
    assert len([key for key in check_batches(events) if key[0] == 0]) == 4


def test_iterators_at_once_have_tracks_of_their_own(make: Make, path: Path) -> None:
    loader = make(trace=path, memory=None)
    for _ in zip(loader, loader, strict=True):
        pass
    list(loader)
    loader.close()
    found = check_batches(read(path))
    assert {(epoch, lane) for epoch, _, lane in found} == {(0, ""), (1, "2"), (2, "")}
    assert len(found) == 3 * BATCHES


def test_an_async_loop_is_in_it(make: Make, path: Path) -> None:
    async def main() -> int:
        async with make(trace=path) as loader:
            return len([batch async for batch in loader])

    assert asyncio.run(main()) == BATCHES
    assert len(check_batches(read(path))) == BATCHES


def test_indices_go_on_behind_a_warm_up(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    loader = make(device="simulated-cuda", buffer=None, batch_size=8, trace=path)
    count = len(list(loader))
    slots = loader.stats()["buffer_slots"]
    loader.close()
    assert slots == NODES, "the buffer has grown"
    assert sorted(check_batches(read(path))) == [(0, batch, "") for batch in range(count)]
    assert {each["count"] for each in loader.stage_stats().values()} == {count}


# ---- files


def test_a_loader_that_never_began_writes_nothing(make: Make, path: Path) -> None:
    make(trace=path).close()
    assert not path.exists()


def test_a_plain_file_is_json(make: Make, tmp_path: Path) -> None:
    loader = make(trace=tmp_path / "epoch.json")
    list(loader)
    loader.close()
    assert (tmp_path / "epoch.json").read_bytes()[:2] == b"[\n"
    assert len(check_batches(read(tmp_path / "epoch.json"))) == BATCHES


def test_a_folder_that_is_not_there_is_an_error_at_the_start(make: Make, tmp_path: Path) -> None:
    loader = make(trace=tmp_path / "none" / "epoch.json")
    with pytest.raises(ConfigError, match=r"trace='.*epoch.json' cannot be written.*give a file"):
        iter(loader)
    loader.trace = None
    assert next(iter(loader)).batch_size == 16


def test_two_loaders_cannot_write_one_file(make: Make, path: Path) -> None:
    one, other = make(trace=path), make(trace=path)
    first = iter(one)
    with pytest.raises(ConfigError, match="is being written by another loader: close that one"):
        iter(other)
    del first
    one.close()
    assert len(list(other)) == BATCHES


def test_a_loader_that_cannot_start_leaves_the_file_free(make: Make, path: Path) -> None:
    with pytest.raises(ConfigError, match="there are: simulated"):
        iter(make(trace=path, engine="steam"))
    with pytest.raises(ConfigError, match="buffer"):
        iter(make(trace=path, buffer=100))
    assert not _writing


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("trace", [3, "epoch", "epoch.gz", "epoch.pb", b"epoch.json", True, ""])
def test_other_names_are_refused(store: Store, kind: Any, trace: Any) -> None:
    with pytest.raises(ConfigError, match=r"trace=.*: give a file whose name ends in \.json"):
        kind(store, [2], trace=trace)


def test_data_in_memory_has_none(data: Data) -> None:
    with pytest.raises(ConfigError, match=r"trace='epoch.json' is for a store"):
        NeighborLoader(data, [2], trace="epoch.json")


def test_a_loader_with_a_timeline_can_be_pickled(make: Make, path: Path) -> None:
    loader = make(trace=path)
    first = next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    loader.close()
    with again:
        assert next(iter(again)).batch_size == first.batch_size


@pytest.mark.parametrize(
    ("trace", "named"),
    [("a/b.json", "a/b.x.json"), ("b.1.json.gz", "b.1.x.json.gz"), (".json", ".x.json")],
)
def test_a_word_goes_into_the_name(trace: str, named: str) -> None:
    assert named_apart(trace, "x") == Path(named)
    assert named_apart(None, "x") is None


def test_each_rank_has_a_file_and_a_process_of_its_own(path: Path) -> None:
    for rank in (0, 2):
        timeline = open_timeline(path, Ranks(rank, 3, "loader"))
        assert timeline is not None
        timeline.close()
        events = read(path.with_name(f"epoch.rank{rank}.json.gz"))
        assert {event["pid"] for event in events} == {PID_BASE + rank}
    assert not path.exists()
    assert open_timeline(None, Ranks()) is None


# ---- without a timeline


def test_nothing_is_recorded_without_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_counters_say_what_changed_and_stop_with_the_epoch(make: Make, path: Path) -> None:
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


def test_the_next_close_finishes_the_file_after_a_ctrl_c(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(trace=path)
    count = len(list(loader))
    assert loader._runtime is not None
    workers, interrupts = loader._runtime._workers, [KeyboardInterrupt]
    close = workers.close

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        close()

    monkeypatch.setattr(workers, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    loader.close()
    assert len(check_batches(read(path))) == count
    assert not _writing
