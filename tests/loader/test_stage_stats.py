"""`stage_stats()`, the parts of `wait_s`, and `on_stats=`, with every kind of strategy."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from torch_geometric.data import Data

from gnndrive import ClosedError, ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.loader import runtime as runtimes
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.run import run_epoch
from gnndrive.pipeline.stage_times import CAUSES, STAGES
from tests.loader.batches import assert_same
from tests.loader.conftest import NODES, Make

BATCHES = NODES // 16
PARTS = [f"wait_{cause}_s" for cause in CAUSES]
STRATEGIES: dict[str, dict[str, Any]] = {
    "gnndrive": {},
    "any order": {"in_order": False},
    "ginex": {"strategy": "ginex"},
    "ginex apart": {"strategy": "ginex", "superbatch": 4, "phases": "apart", "memory": "30MB",
                    "buffer": None},
    "lsm-gnn": {"strategy": "lsm-gnn"},
    "ali+pg": {"strategy": "ali+pg"},
    "direct": {"topology": "direct"},
    "simulated": {"engine": "simulated"},
    "a device": {"device": "simulated-cuda"},
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_delivered_batch_is_counted_in_each_stage(make: Make, name: str) -> None:
    loader = make(**STRATEGIES[name])
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


def test_the_batch_in_the_users_hands_is_counted_but_for_its_step(make: Make) -> None:
    loader = make()
    batches = iter(loader)
    next(batches)
    next(batches)
    counts = {stage: each["count"] for stage, each in loader.stage_stats().items()}
    assert counts == dict.fromkeys(STAGES, 2) | {"step": 1}


def test_dropped_iterators_leave_no_batch_in_a_stage(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_iterator_that_gives_way_leaves_no_batch_in_a_stage(make: Make) -> None:
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


def test_on_stats_gets_every_interval_and_the_end_of_the_epoch(make: Make) -> None:
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


def test_a_long_interval_ends_with_the_epoch(make: Make) -> None:
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


def test_an_async_loop_gets_them_too(make: Make) -> None:
    got: list[dict[str, float]] = []

    async def main() -> int:
        return len([batch async for batch in make(on_stats=got.append)])

    assert asyncio.run(main()) == BATCHES
    assert [each["batches"] for each in got] == [BATCHES]


class Broken(Exception):
    """What a broken `on_stats` raises."""


@pytest.mark.parametrize("after", [0, 3, BATCHES + 1])
def test_what_on_stats_raises_ends_the_epoch(make: Make, after: int) -> None:
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


def test_on_stats_changes_no_batch_and_may_ask_the_loader(make: Make) -> None:
    asked = []

    def on_stats(stats: dict[str, float]) -> None:
        asked.append((loader.stats()["batches"], loader.stage_stats()))

    loader = make(seed=4, shuffle=True, on_stats=on_stats, stats_interval=1e-9)
    for one, other in zip(loader, make(seed=4, shuffle=True), strict=True):
        assert_same(one, other)
    assert len(asked) > BATCHES


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_stats": 3}, "on_stats=3: give a function that takes a dict"),
        ({"on_stats": "print"}, "on_stats='print': give a function"),
        ({"stats_interval": 0}, "stats_interval=0: give a positive number of seconds"),
        ({"stats_interval": -1.5}, "stats_interval=-1.5: give a positive number"),
        ({"stats_interval": math.inf}, "stats_interval=inf: give a positive number"),
        ({"stats_interval": math.nan}, "stats_interval=nan: give a positive number"),
        ({"stats_interval": "10s"}, "stats_interval='10s': give a positive number"),
        ({"stats_interval": True}, "stats_interval=True: give a positive number"),
    ],
)
def test_other_arguments_are_refused(
    store: Store, kind: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(store, [2], **given)


@pytest.mark.parametrize("given", [{"on_stats": print}, {"stats_interval": 3.0}])
def test_data_in_memory_has_none(data: Data, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=.* is for a store"):
        NeighborLoader(data, [2], **given)
    assert NeighborLoader(data, [2]).stage_stats() == {}
