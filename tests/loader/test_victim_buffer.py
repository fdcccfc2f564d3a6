"""A composed strategy with a victim buffer: the same batches, some rows of them without a read."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from torch_geometric.data import Data

from gnndrive import ConfigError, Store
from gnndrive.loader import buffer_pool
from gnndrive.strategies import strategy
from gnndrive.testing.faults import NOISE
from tests.loader.batches import assert_same, check, simulate
from tests.loader.conftest import NODES, Make

RULES = ["victim", "victim-queues"]
ROW_BYTES = 33 * 4
SMALL: dict[str, Any] = {"shuffle": True, "seed": 3, "buffer": "30KB", "sweep": 1}


def keeping(rule: str = "victim") -> Any:
    """GNNDrive's strategy with a victim buffer."""
    return replace(strategy("gnndrive"), name=rule, tiers=(rule, "disk"))


@pytest.mark.usefixtures("some_staging")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("engine", ["uring", "simulated"])
def test_batches_are_the_same_as_without_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, rule: str, engine: str
) -> None:
    simulate(monkeypatch, seed=4, faults=NOISE)
    host = make(engine=engine, **SMALL)
    device = make(engine=engine, device="simulated-cuda", strategy=keeping(rule), **SMALL)
    for _ in range(2):
        for one, other in zip(host, device, strict=True):
            assert_same(one, other)
    stats = device.stats()
    assert float(stats["rows_from_victims"]) > 0
    device.close()
    assert not device._runtime.device.driver.busy
    assert device._runtime.device.driver.pinned_bytes == 0


def test_rows_that_it_has_are_not_read(make: Make, data: Data) -> None:
    """It has room for all, so no row that was known to be needed again is read twice."""
    given = SMALL | {"device": "simulated-cuda", "engine": "threads"}
    read = []
    for more in ({}, {"strategy": keeping()}):
        loader = make(**given, **more)
        for batch in loader:
            check(batch, data)
        stats = loader.stats()
        read.append(float(stats["rows_loaded"]) - float(stats["rows_from_victims"]))
        loader.close()
    assert read[1] < read[0]


def test_the_plan_lists_it(make: Make) -> None:
    loader = make(device="simulated-cuda", strategy=keeping(), victim_buffer="20KB", **SMALL)
    (table,) = loader.plan().tables
    assert table.victims == 20_000 // ROW_BYTES
    assert "victim buffer" in str(loader.plan())
    assert sum(1 for _ in loader) == NODES // 16
    tier = loader._runtime._buffers._kept.tables["nodes/x"].tier
    assert tier._memory.rows.shape == (table.victims, ROW_BYTES)


@pytest.mark.parametrize("refused", ["its table", "the next table's memory"])
def test_what_was_made_is_freed_if_a_later_part_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """The rows' pinned memory and the tier's thread as well."""

    def refuse(*given: Any) -> None:
        raise ConfigError("no memory is left")

    loader = make(device="simulated-cuda", strategy=keeping(), **SMALL)
    assert sum(1 for _ in loader) == NODES // 16
    runtime = loader._runtime
    pool, driver = runtime._buffers, runtime.device.driver
    before, threads = driver.pinned_bytes, threading.active_count()
    (plan,) = pool.settings.plan.tables
    assert plan.victims

    async def main() -> None:
        if refused == "its table":
            monkeypatch.setattr(buffer_pool, "SlotTable", refuse)
        else:
            plans = [plan, replace(plan, name="none")]
            make_table = pool._make_table
            monkeypatch.setattr(
                pool, "_make_table", lambda one: refuse() if one is plans[1] else make_table(one)
            )
        with pytest.raises(ConfigError, match="no memory is left"):
            pool._make([plan] if refused == "its table" else plans)
        await pool.closed()
        assert driver.pinned_bytes == before
        assert threading.active_count() == threads

    runtime.loop_thread.call(main())


def test_on_the_host_there_is_none(make: Make, data: Data) -> None:
    loader = make(strategy=keeping(), **SMALL)
    assert "slots are in host memory themselves" in str(loader.plan())
    for batch in loader:
        check(batch, data)
    assert loader.stats()["rows_from_victims"] == 0


def test_memory_counts_it(make: Make, data: Data) -> None:
    given = SMALL | {"device": "simulated-cuda", "strategy": keeping()}
    plan = make(memory="20MB", **given).plan()
    assert plan.host_bytes <= 20_000_000
    assert plan.tables[0].victims == NODES


def test_a_second_iterator_works_without_one(make: Make, data: Data) -> None:
    loader = make(device="simulated-cuda", strategy=keeping(), **SMALL)
    for one, other in zip(loader, loader, strict=True):
        check(one, data)
        check(other, data)


def test_it_may_be_off(make: Make, data: Data) -> None:
    loader = make(device="simulated-cuda", strategy=keeping(), victim_buffer=0, **SMALL)
    assert "victim" not in str(loader.plan())
    for batch in loader:
        check(batch, data)
    assert loader.stats()["rows_from_victims"] == 0


@pytest.mark.parametrize("value", ["1GB", 0])
def test_a_strategy_without_the_tier_refuses_its_size(make: Make, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"victim_buffer=.*'gnndrive' does not: leave it out"):
        make(victim_buffer=value)


def test_a_wrong_size_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="victim_buffer='much' is no size"):
        make(strategy=keeping(), victim_buffer="much")


def test_data_in_memory_has_no_use_for_it(data: Data) -> None:
    from gnndrive import NeighborLoader

    with pytest.raises(ConfigError, match="victim_buffer='1GB' is for a store"):
        NeighborLoader(data, [2], victim_buffer="1GB")


def test_a_tier_alone_needs_one_below_it(make: Make, store: Store) -> None:
    alone = replace(strategy("gnndrive"), tiers=("victim",))
    loader = make(strategy=alone, **SMALL)
    with pytest.raises(ConfigError, match="the tier 'victim' needs one below it"):
        next(iter(loader))
