"""Seconds of a batch from the parts that it keeps busy, and how long sampling is said to take."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnndrive.plan.drawn as drawn_batches
from gnndrive.common.records import Sample, Seeds, TopologyChoice
from gnndrive.plan import packed, strategy_costs
from gnndrive.plan.computing import (
    ADMIT_ROW_S,
    BESIDE,
    HAND_OVER_S,
    LAND_BYTE_S,
    PLAN_ROW_S,
    RANK_ROW_S,
    admit_seconds,
    copy_seconds,
    processors,
)
from gnndrive.plan.drawn import DrawnBatches, draw_batches
from gnndrive.plan.packed import PackedPlanner
from gnndrive.plan.plan import Plan, TablePlan
from gnndrive.plan.prediction import NOT_OVERLAPPED, Disk, Loading, loaded_rows, step_seconds
from gnndrive.plan.simulation import Simulated
from gnndrive.plan.strategy_costs import StrategyCost, batch_seconds, part_seconds
from gnndrive.sampling.samplers.base import Bounds


def test_the_seconds_of_a_batch_and_what_they_are_due_to():
    for parts, least, beside, due_to in (
        ({"disk": 4.0, "gather": 1.0, "sampling": 1.0}, 4, 2, "disk"),
        # A sweep is read after it is admitted, a window filtered after it is read, and a batch
        # gathered after the one before is handed over.
        ({"disk": 2.0, "gather": 3.0, "admission": 2.5}, 4.5, 3, "admission"),
        ({"disk": 2.0, "gather": 3.0, "filter": 2.5}, 4.5, 3, "filter"),
        ({"disk": 1.0, "gather": 4.0, "hand-over": 1.5}, 5.5, 1, "gather"),
        ({"disk": 1.0, "gather": 1.0, "sampling": 5.0}, 5, 2, "sampling"),
        # Records are written by a disk that is busy, idle, or has time for nothing else.
        ({"disk": 4.0, "gather": 1.0, "records": 2.0}, 6, 1, "disk"),
        ({"disk": 1.0, "gather": 4.0, "records": 0.5}, 4, 1, "gather"),
        ({"disk": 1.0, "gather": 4.0, "records": 8.0}, 9, 4, "records"),
        ({"disk": 1.0, "gather": 4.0, "processors": 9.0}, 9, 0, "processors"),
        ({"disk": 1.0, "gather": 4.0, "processors": 4.2}, 4, 1, "gather"),
        ({"disk": 2.0}, 2, 0, "disk"),
    ):
        seconds = pytest.approx(least + NOT_OVERLAPPED * beside)
        assert batch_seconds(parts) == (seconds, due_to)
        cost = StrategyCost("gnndrive", parts)
        assert (cost.batch_s, cost.bound_by) == (seconds, due_to)
    assert StrategyCost("gnndrive", refused="no").bound_by == ""


def test_parts_of_a_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tables, one has a slot for each row; a sweep has two batches."""
    monkeypatch.setattr(strategy_costs, "processors", lambda: 2)
    monkeypatch.setattr(strategy_costs, "_record_seconds", lambda request: 0.25)
    drawn = DrawnBatches((), {"a": (100,), "b": (50,)}, 0.0, sample_s=0.01)
    disk = Disk(request_s=1e-3, byte_s=0.0, gap_bytes=0)
    loading = Loading(drawn, [], disk, 4, (6, 4), None, looks_ahead=True, pace=2.0)
    tables = TablePlan("a", 10**9, 500, 64, 100), TablePlan("b", 50, 50, 8, 50)
    plan = Plan((), tables, None, TopologyChoice("resident", "resident", 0))
    loads = {"a": Simulated(0.4, 60.0, 2.0), "b": Simulated(1.0, 0.0, 2.0)}
    request: Any = None
    found = part_seconds(request, plan, loading, loads)
    admit_s = 2 * (150 * ADMIT_ROW_S + 100 * RANK_ROW_S + 60 * PLAN_ROW_S)
    gather_s = 2 * BESIDE * copy_seconds(150, 100 * 64 + 50 * 8)
    sample_s = BESIDE * 0.01
    land_s = 2 * LAND_BYTE_S * 60 * 64
    computing = sample_s + admit_s + gather_s + land_s + 2 * HAND_OVER_S
    assert found == {
        "disk": pytest.approx(121 * 1e-3 / 2, rel=1e-3),
        "sampling": pytest.approx(sample_s / 2),
        "admission": pytest.approx(admit_s),
        "gather": pytest.approx(gather_s),
        "hand-over": pytest.approx(2 * HAND_OVER_S),
        "processors": pytest.approx(computing / 2),
        "records": 0.25,
    }


def test_parts_of_a_replayed_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 100 rows of 64 bytes, of which 40 are read, and its record."""
    monkeypatch.setattr(packed, "processors", lambda: 2)
    asked = list[tuple[float, ...]]()

    def read_seconds(*given: float) -> float:
        asked.append(given)
        return 0.5

    planner: Any = SimpleNamespace(
        sizes=SimpleNamespace(record_bytes=300),
        _rows=lambda: 100.0,
        _bytes=lambda hot: (40 * 64.0, 10 * 64.0, 20 * 64.0, 10 * 64.0) if hot else (100 * 64.0,),
        _read_seconds=read_seconds,
    )
    plan: Any = SimpleNamespace(tables=[SimpleNamespace(name="a", residents=1, kept=2)])
    seconds, hits = PackedPlanner.batch_seconds(planner, plan, 2.0)
    read_bytes = 40 * 64 + 300
    assert asked == [(read_bytes, 10 * 64, 10 * 64, 100 * 64)]
    computing = copy_seconds(100, 6_400) + HAND_OVER_S + LAND_BYTE_S * read_bytes
    assert seconds == {
        "disk": 0.5,
        "gather": pytest.approx(2 * copy_seconds(100, 6_400)),
        "hand-over": pytest.approx(2 * HAND_OVER_S),
        "processors": pytest.approx(2 * computing / 2),
    }
    assert hits == pytest.approx(0.6)


def test_several_ranks_use_the_processors_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert (processors(), processors(1), processors(2)) == (2, 2, 8)


def test_a_step_admits_the_rows_that_are_missing() -> None:
    """A buffer of half of a batch's rows; without it, none is missing or ranked."""
    drawn = DrawnBatches((), {"a": (500, 1_000, 1_500)}, 0.0, 0.0)
    loading = Loading(drawn, [], Disk(), 1, (2, 2), 1, looks_ahead=False)
    for slots, admitted in ((500, (500, 500)), (10_000, (0,))):
        table = TablePlan("a", 10_000, slots, 64, 500)
        plan = Plan((), (table,), None, TopologyChoice("resident", "", 0))
        missing = loaded_rows(plan, loading)["a"]
        assert (missing > 400) == (slots == 500)
        expected = admit_seconds(500, missing, *admitted[1:])
        assert step_seconds(plan, loading).admit_s == pytest.approx(expected)


def test_sampling_is_timed_where_the_adjacency_was_read_before(monkeypatch):
    """Time passes while a batch is sampled: a second the first time, then a tenth."""
    now, sampled = [0.0], list[int]()

    def sample(seeds: Seeds, *_: Any) -> Sample:
        now[0] += 0.1 if seeds.index in sampled else 1.0
        sampled.append(seeds.index)
        node, empty = np.arange(3), np.zeros(2, np.int32)
        return Sample(node, empty, np.array([0, 2], np.int32), empty, (1, 2), (2,))

    def drawn_from(seeds: list[Seeds]) -> Any:
        sampler: Any = SimpleNamespace(sample=sample)
        bounds = Bounds({None: 9}, {None: 9}, {None: 9})
        rows_of: Any = lambda sample: {"nodes/x": sample.node}  # noqa: E731
        return draw_batches(seeds, sampler, [], rows_of, {"nodes/x": 9}, bounds)

    monkeypatch.setattr(drawn_batches, "thread_time", lambda: now[0])
    found = drawn_from([Seeds(index, np.arange(1), np.arange(1)) for index in range(3)])
    assert found.sample_s == pytest.approx(0.1)
    assert len(found.sizes) == 3
    assert sampled == [0, 1, 2, 0]
    assert drawn_from([]) is None
