"""Simulated batches of a trace, drawn traces, and how fast this machine computes batches."""

import math
from collections import OrderedDict
from itertools import chain
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store
from gnndrive.common.errors import BatchTooLarge, ConfigError
from gnndrive.common.records import Int64Array, Sample, Subgraph
from gnndrive.plan import replay as replaying
from gnndrive.plan import sampled_trace
from gnndrive.plan.costs import Disk, Loading, Loads
from gnndrive.plan.drawn import (
    DEVIATIONS,
    GROWTH,
    MARGIN,
    MARGIN_OF_FEW,
    DrawnBatches,
    check_size,
    doubled,
    size_of,
)
from gnndrive.plan.plan import Plan, StageCounts, TablePlan
from gnndrive.plan.replay import ALL_AHEAD, NOTHING, PACE_BATCHES, Run, replay, simulate
from gnndrive.plan.sampled_trace import SampledTrace, kept_rows
from gnndrive.plan.strategy_costs import Known, curve_slots, predict_curve
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.store.row_classes import row_classes
from gnndrive.strategies import STRATEGIES
from tests.loader.conftest import Make
from tests.plan.conftest import request_of
from tests.soak import product

ROWS, BATCHES, WANTED = 20_000, 64, 400
LOADING = Loading(
    DrawnBatches((), {"nodes/x": (WANTED,)}, 0.0, 0.0),
    [],
    Disk(),
    StageCounts(1, 1, 1),
    1,
    looks_ahead=False,
)


def trace_of(batches: list[Int64Array], rows: int, bits: int = 0) -> SampledTrace:
    taken = [batch[kept_rows(batch, bits)] for batch in batches]
    kept, ids = np.unique(np.concatenate(taken), return_inverse=True)
    ends = np.cumsum([0, *map(len, taken)])
    return SampledTrace(
        rows, bits, kept, ids.astype(np.int64), ends, np.array([*map(len, batches)])
    )


@pytest.fixture(scope="module")
def batches() -> list[Int64Array]:
    """Batches that need some rows far more often than others."""
    draw = np.random.default_rng(4)
    return [np.unique((ROWS * draw.random(WANTED) ** 4).astype(np.int64)) for _ in range(BATCHES)]


def run(trace: SampledTrace, policy: str, slots: int, window: int = 1, sweep: int = 1) -> Loads:
    store: Any = None
    return simulate(trace, Run(policy, window, slots, sweep), store, None)


def lru_loads(batches: list[Int64Array], slots: int, first: int) -> float:
    """Loads a batch behind the batches before `first`; two batches hold their rows."""
    there, loads = OrderedDict[int, None](), []
    for index, batch in enumerate(batches):
        missing = [row for row in batch.tolist() if row not in there]
        held = {*batch.tolist(), *(batches[index - 1].tolist() if index else [])}
        for row in batch.tolist():
            there.pop(row, None)
        leaving = [row for row in there if row not in held]
        while len(there) + len(batch) > slots:
            there.pop(leaving.pop(0))
        there.update(dict.fromkeys(batch.tolist()))
        loads.append(len(missing))
    return float(np.mean(loads[first:]))


def test_lru_loads_what_a_dict_loads(batches: list[Int64Array]):
    trace, slots = trace_of(batches, ROWS), 2_000
    filled = trace.filled(slots)
    assert filled is not None
    found = run(trace, "lru", slots)
    assert found.known
    # The slot table stamps rows as batches are released, the dict as they are admitted.
    assert found.loads == pytest.approx(lru_loads(batches, slots, filled + 1), rel=0.03)
    trace = trace_of(batches, ROWS)
    found = [run(trace, "belady", 1_500, window).hit_share for window in (2, 8, ALL_AHEAD)]
    assert found == sorted(found)
    assert found[0] + 0.02 < found[-1]
    assert run(trace, "lru", 1_500).hit_share < found[0]


@product("policy,slots", ["lru", "belady"], [1_000, 3_000])
def test_a_sample_of_the_rows_has_the_hits_of_all(batches, policy, slots):
    whole, part = trace_of(batches, ROWS), trace_of(batches, ROWS, bits=2)
    assert part.rows < whole.rows / 3
    expected, found = (run(each, policy, slots, window=8) for each in (whole, part))
    assert found.hit_share == pytest.approx(expected.hit_share, abs=0.03)
    assert found.loads == pytest.approx(expected.loads, rel=0.06)


def test_buffers_of_all_rows_and_too_few(batches):
    trace = trace_of(batches, ROWS)
    assert run(trace, "lru", ROWS) == Loads(1.0, 0.0, 1.0)
    assert not run(trace_of(batches[:12], ROWS), "lru", 10_000).known  # it is not filled
    with pytest.raises(ConfigError, match="more rows than the 100 slots"):
        run(trace, "lru", 100)
    few = [np.arange(at % 4, 1_000, 4) for at in range(32)]
    found = run(trace_of(few, ROWS), "lru", 2_000)  # of 20,000 rows 1,000 are ever needed
    assert (found.known, found.hit_share) == (True, 1.0)
    nothing = [np.empty(0, np.int64)] * 32
    assert run(trace_of(nothing, ROWS), "lru", 2_000).known


def test_the_curve_rises_to_all_rows_and_has_the_buffer_itself(batches, monkeypatch):
    trace, slots = trace_of(batches, ROWS), curve_slots(2_000, ROWS)
    assert slots[-1] == ROWS
    assert 2_000 in slots
    table = TablePlan("nodes/x", ROWS, 2_000, 8, WANTED)
    request: Any = SimpleNamespace(policy="lru", tables=(), ahead=None, store=None)
    planner: Any = SimpleNamespace(plan=lambda: Plan((), (table,), None))
    known: Any = Known({"nodes/x": trace}, {}, LOADING.drawn, 1.0, None, request.store)
    monkeypatch.setattr(Known, "loading", lambda *given: LOADING)
    found = predict_curve(request, planner, known)
    assert found is not None
    assert (found.table, found.buffer_bytes) == ("nodes/x", 8 * 2_000)
    curve = found.points
    hits = [each.hit_share for each in curve]
    assert hits == sorted(hits)
    assert hits[-1] == 1.0
    assert [each.seconds for each in curve] == sorted([each.seconds for each in curve])[::-1]
    assert len(curve) > 3  # at the smallest, batches do not fit; at others the trace is too short
    for each in curve[:-1]:
        assert each.nbytes // 8 in slots
        assert each.hit_share == run(trace, "lru", each.nbytes // 8).hit_share
    assert curve_slots(0, ROWS) == curve_slots(10, 0) == []


def test_the_simulated_loads_are_those_of_a_loader(make: Make, store: Store):
    given: dict[str, Any] = {
        "batch_size": 4, "shuffle": True, "seed": 2, "policy": "static", "sweep": 1,
        "samplers": 1, "extracting_queue": 1, "training_queue": 1, "num_neighbors": [3, 2],
    }  # fmt: skip
    row_bytes = store.table("x").row_bytes
    loader = make(buffer=150 * row_bytes, **given)
    for _ in range(2):
        for _ in loader:
            pass
    stats = loader.stats()
    drawing = loader._assembly().drawing(for_plan=False)
    assert drawing is not None
    trace = drawing.traces(loader._assembly().request())["nodes/x"]
    found = simulate(trace, Run("static", 1, 150), store, row_classes(store, None, "degree"))
    assert found.known
    loads = float(stats["rows_loaded"]) / float(stats["batches"])
    assert found.loads == pytest.approx(loads, rel=0.1)


# ---- batches of a trace in a slot table without memory: what holds slots cannot leave

HOT, COLD, LATER = np.arange(10), np.arange(10, 20), np.arange(20, 30)
NONE = HOT[:0]


class Rows(list[Int64Array]):
    rows = 30


def loads(run: Run, batches: list[Int64Array], hot: Int64Array) -> list[int]:
    """What each sweep loads if `hot` rows are kept before others."""
    store: Any = None
    classes = np.zeros(Rows.rows, np.uint8)
    classes[hot] = 255
    return replay(run, Rows(batches), store, classes).loads


def test_rows_of_a_batch_in_flight_do_not_leave():
    """If COLD is held, LATER takes the slots of HOT. A sweep counts its own batches among them."""
    for in_flight, found in ((1, 0), (2, 10)):
        run = Run("static", 1, 20, in_flight=in_flight)
        assert loads(run, [HOT, COLD, LATER, HOT], HOT) == [10, 10, 10, found]
    trace = [HOT, NONE, COLD[:5], COLD[5:], LATER[:5], LATER[5:], HOT]
    for in_flight, found in ((2, 0), (3, 5), (4, 10)):
        run = Run("static", 1, 20, sweep=2, in_flight=in_flight)
        assert loads(run, trace, HOT) == [10, 10, 10, found]


@pytest.mark.parametrize(
    ("pieces", "part_rows", "found"), [(1, 2, 0), (2, 2, 5), (1, 100, 0), (2, 100, 0)]
)
def test_what_is_released_first_leaves_if_slots_are_short(pieces, part_rows, found):
    """LATER finds 5 free slots, and 5 more once a piece of COLD is released. If this is all of
    COLD, as when LATER is admitted whole, the rows that are not hot leave; else those of the first
    piece do."""
    run = Run("static", 1, 15, pieces=pieces, part_rows=part_rows)
    hot = COLD[::2].copy()
    assert loads(run, [COLD, LATER, hot], hot) == [10, 10, found]


# ---- traces of drawn batches: a sample of the rows that they need, and what is kept of it

TABLE = 400


def drawn(make: Make, table: str = "nodes/x", **arguments: object) -> SampledTrace:
    loader = make(shuffle=True, seed=3, **arguments)
    drawing = loader._assembly().drawing(for_plan=False)
    assert drawing is not None
    return drawing.traces(request_of(loader))[table]


def test_a_batch_needs_a_row_once(make: Make, data: Data, tmp_path: Path):
    """An edge that is drawn several times is one row."""
    wide = data.clone()
    wide.edge_attr = torch.zeros(data.num_edges, 16)
    store = gnndrive.from_data(wide, tmp_path / "wide.gnn")
    for table in ("nodes/x", store.edges().name_of("edge_attr")):
        trace = drawn(make, table, data=store, replace=True, num_neighbors=[9, 9])
        for index in range(len(trace)):
            rows = trace[index]
            assert len(np.unique(rows)) == len(rows) == trace.wanted[index]


def test_a_row_is_kept_in_each_batch_or_in_none(make: Make, monkeypatch: pytest.MonkeyPatch):
    whole = drawn(make, batch_size=20)
    assert whole.bits == 0
    monkeypatch.setattr(sampled_trace, "IDS_MAX", whole.size(0, len(whole)) // 3)
    assert drawn(make, batch_size=20).bits == 0  # it was kept beside the store
    monkeypatch.setattr("gnndrive.loader.drawing.load_trace", lambda store, key: None)
    sampled = drawn(make, batch_size=20)
    assert sampled.bits == 2
    assert np.array_equal(sampled.wanted, whole.wanted)
    kept = kept_rows(np.arange(TABLE), 2)
    assert 0.15 < kept.mean() < 0.35
    for index in range(len(whole)):
        expected = whole.kept[whole[index]]
        assert np.array_equal(sampled.kept[sampled[index]], expected[kept[expected]])


def test_large_batches_are_fewer_also_if_they_grow(make: Make, monkeypatch: pytest.MonkeyPatch):
    for rows, edges, batches in (
        (100, 50, 128), (100, 1 << 17, 64), (100, 1 << 20, 40), (1_000, 1 << 20, 32),
        (1, 1, 1024), (100, 1 << 22, 16), (100, 1 << 30, 1),
    ):  # fmt: skip
        found = sampled_trace._how_many({"nodes/x": rows}, {"nodes/x": 1_000}, edges)
        assert found == batches, (rows, edges)
    monkeypatch.setattr("gnndrive.loader.drawing.load_trace", lambda store, key: None)
    monkeypatch.setattr("gnndrive.loader.drawing.save_trace", lambda *given: None)
    monkeypatch.setattr(sampled_trace, "IDS_MAX", 300)
    assert 0 < drawn(make).size(0, 32) <= 300
    monkeypatch.setattr(sampled_trace, "EDGES_MAX", 300)
    assert len(drawn(make)) < 10


def test_batches_are_drawn_until_they_have_filled_a_buffer_and_bring_no_new_rows(make):
    ids = np.array([0, 1, 1, 2, 0, 3, 4])
    trace = SampledTrace(9, 0, np.arange(5), ids, np.array([0, 2, 4, 7]), np.array([2, 2, 3]))
    assert [trace.filled(slots) for slots in (1, 2, 3, 4, 5, 6)] == [1, 1, 2, 3, 3, None]
    ids, ends = np.tile(np.arange(3), 8), np.arange(0, 25, 3)
    wanted = np.full(8, 3)
    assert SampledTrace(9, 0, np.arange(3), ids, ends, wanted).settled
    ids[-1], kept = 3, np.arange(4)
    assert not SampledTrace(9, 0, kept, ids, ends, wanted).settled
    trace = drawn(make)
    assert trace.table_rows == TABLE
    assert len(trace) == sampled_trace.LONG  # more than `PASSES` passes
    assert trace.wanted.sum() > sampled_trace.ROUNDS * TABLE
    few = drawn(make, input_nodes=np.arange(48).tolist())  # three batches an epoch
    assert len(few) == sampled_trace.LONG
    assert len({few[index].tobytes() for index in range(len(few))}) == len(few)
    loader = make(input_nodes=[])
    assert loader._assembly().drawing(for_plan=False).traces(request_of(loader)) == {}


def test_what_was_kept_is_the_trace_and_damage_is_none(make):
    trace = drawn(make)
    numbers = trace.to_array()
    again = SampledTrace.from_array(numbers, TABLE)
    for name in ("table_rows", "bits", "kept", "ids", "ends", "wanted"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))
    assert SampledTrace.from_array(numbers, TABLE + 1) is None
    for count in (0, 4, 5, 40, len(numbers) - 1):
        assert SampledTrace.from_array(numbers[:count], TABLE) is None
    for at in (0, 1, 2, 3, 4, 5, 133, 134, 261, -1):
        for value in (-1, 1 << 40):
            damaged = numbers.copy()
            damaged[at] = value
            assert SampledTrace.from_array(damaged, TABLE) is None, (at, value)

    def as_array(batches: list[list[int]], kept: list[int]) -> np.ndarray:
        header = [sampled_trace._VERSION, TABLE, 0, len(kept), len(batches)]
        sizes = [*map(len, batches)]
        parts = header, sizes, np.cumsum([0, *sizes]), kept, [*chain.from_iterable(batches)]
        return np.concatenate([np.array(each, np.int64) for each in parts])

    assert SampledTrace.from_array(as_array([[0, 2], [], [1]], [3, 4, 9]), TABLE) is not None
    for batches, kept in (
        ([[0]], [0, (1 << 63) - 1, -(1 << 63), -1, 5]), ([[1, 1]], [3, 4]), ([[1, 0]], [3, 4]),
        ([[]] * (sampled_trace.BATCHES_MAX + 1), []),
    ):  # fmt: skip
        assert SampledTrace.from_array(as_array(batches, kept), TABLE) is None


# ---- how fast this machine computes: the same batches admitted to a slot table everywhere

POLICY = STRATEGIES["gnndrive"].policy


def test_the_pace_is_that_of_the_fastest_run_and_found_once(monkeypatch) -> None:
    """Its batches are the same everywhere; rows are found, loaded and given up."""
    batches, again = replaying.pace_trace(), replaying.pace_trace()
    for index in range(PACE_BATCHES):
        ids = batches[index]
        assert np.array_equal(ids, again[index])
        assert np.all(np.diff(ids) > 0)
        assert 0 <= ids[0] <= ids[-1] < replaying.PACE_ROWS
    sums = replay(Run(POLICY, 1, replaying.PACE_SLOTS), batches, NOTHING, None).between(
        0, PACE_BATCHES
    )
    assert sums["wanted"] == batches.size(0, PACE_BATCHES)
    assert replaying.PACE_SLOTS < sums["loads"] < sums["wanted"] / 2
    assert replaying.PACE_RUNS == 3
    clock = iter((7.0, 10.0, 10.5, 12.5, 13.0, 18.0))
    monkeypatch.setattr(replaying, "thread_time", lambda: next(clock))
    replaying.measure_pace.cache_clear()
    expected = 2.0 / (replaying.PACE_ROW_S * batches.size(0, PACE_BATCHES))
    assert replaying.measure_pace(POLICY) == pytest.approx(expected)
    assert replaying.measure_pace(POLICY) == pytest.approx(expected)  # no more readings
    replaying.measure_pace.cache_clear()


# ---- what a plan counts for the largest batch, from a few that were drawn

DRAWN_ROWS = 10_000
MOST = Bounds({None: 10_000}, {None: 50_000}, {None: 10_000})


def bounds(nodes: int, edges: int, expanded: int | None = None) -> Bounds:
    return Bounds({None: nodes}, {None: edges}, {None: nodes}, expanded)


def drawn_sizes(*nodes: int, **more: Any) -> DrawnBatches:
    sizes = tuple(bounds(count, 2 * count, count // 2) for count in nodes)
    return DrawnBatches(sizes, {"nodes/x": tuple(np.cumsum(nodes).tolist())}, 10.0, 0.1, **more)


def sample(nodes: int, edges: int, expanded: int) -> Sample:
    row, colptr = np.zeros(edges, np.int32), np.zeros(expanded + 1, np.int32)
    return Sample(np.arange(nodes), row, colptr, row, (1, nodes - 1), (edges,))


def test_the_planned_size_is_the_largest_drawn_and_a_margin() -> None:
    planned = drawn_sizes(1_000, 1_010, 990, 1_020).planned(MOST)
    more = MARGIN * 1_020 + DEVIATIONS * stdev([1_000, 1_010, 990, 1_020])
    assert planned.nodes[None] == planned.entries[None] == int(1_020 + more) + 1
    assert planned.edges[None] > 2 * 1_020
    assert planned.expanded is not None
    assert 510 < planned.expanded < planned.nodes[None]
    assert drawn_sizes(1_000, 1_000).planned(MOST).nodes[None] == 1_000 * (1 + MARGIN_OF_FEW)
    assert drawn_sizes(9_990, 9_000, 9_500, 9_700).planned(MOST).nodes == {None: 10_000}
    sizes = tuple(
        Bounds({"a": 10_000, "b": 0}, {("a", "to", "b"): 5}, {"a": 10_000, "b": 0})
        for _ in range(8)
    )
    most = Bounds({"a": 10**6, "b": 30}, {("a", "to", "b"): 7}, {"a": 10**6, "b": 30})
    planned = DrawnBatches(sizes, {}, 1.0, 0.1).planned(most)
    assert planned.nodes == {"a": 10_100, "b": 30}
    assert planned.edges == {("a", "to", "b"): 6}
    known = drawn_sizes(1_000, 1_000, 1_000, 1_000).with_larger(bounds(2_000, 3_000, 700))
    assert known.planned(MOST).nodes == {None: round(2_000 * (1 + GROWTH))}
    known = known.with_larger(bounds(1_900, 8_000, 600))
    assert known.larger == bounds(2_000, 8_000, 700)
    beyond = known.with_larger(bounds(12_000, 100, 5))  # seeds given twice
    assert beyond.planned(MOST).nodes == {None: 12_000}
    assert doubled(bounds(0, 600)) == bounds(1_024, 1_200)
    assert doubled(MOST).nodes[None] == 2 * MOST.nodes[None]


def test_what_json_held_is_the_same() -> None:
    known = drawn_sizes(1_000, 1_010).with_larger(bounds(2_000, 3_000, 700))
    stored = known.to_json("settings")
    assert DrawnBatches.from_json(stored, MOST, {"nodes/x": DRAWN_ROWS}) == known
    for name, bad in (
        ("version", 0), ("sizes", []), ("sizes", [[[1], [2], [-3], 4]]), ("expanded", "x"),
        ("sizes", [[[1, 2], [2], [3], 4]]), ("larger", 3), ("together", {}),
        ("together", {"nodes/x": [1.5]}), ("together", {"nodes/x": []}),
        ("together", {"nodes/x": [5]}), ("together", {"nodes/x": [6, 5]}),
        ("together", {"nodes/x": [5, DRAWN_ROWS + 1]}), ("sample_s", math.nan), ("sample_s", -1),
        ("expanded", math.inf), ("sizes", [[[True], [2], [3], 4]]),
    ):  # fmt: skip
        assert DrawnBatches.from_json(stored | {name: bad}, MOST, {"nodes/x": DRAWN_ROWS}) is None
    assert DrawnBatches.from_json(None, MOST, {}) is None
    assert DrawnBatches.from_json([], MOST, {}) is None


def test_a_sample_within_the_limits_passes_and_a_larger_one_does_not() -> None:
    """Disjoint trees are counted by entries and by distinct nodes."""
    limits = bounds(20, 30, 10)
    check_size(sample(20, 30, 10), limits)
    for nodes, edges, expanded in ((21, 30, 10), (20, 31, 10), (20, 30, 11)):
        with pytest.raises(BatchTooLarge) as caught:
            check_size(sample(nodes, edges, expanded), limits)
        assert caught.value.size == bounds(nodes, edges, expanded)
    node = np.array([1, 2, 2, 3])
    output = SimpleNamespace(
        row=torch.zeros(5, dtype=torch.int64), batch=torch.tensor([0, 0, 1, 1])
    )
    subgraph = Subgraph({None: node}, {None: np.zeros(5, np.int64)}, 5, output)
    size = size_of(subgraph, MOST)
    assert (size.nodes, size.entries, size.edges) == ({None: 3}, {None: 4}, {None: 5})
    check_size(subgraph, Bounds({None: 3}, {None: 5}, {None: 4}))
    for limits in (((2,), (4,), (5,)), ((3,), (3,), (5,)), ((3,), (4,), (4,))):
        nodes, entries, edges = ({None: each[0]} for each in limits)
        with pytest.raises(BatchTooLarge):
            check_size(subgraph, Bounds(nodes, edges, entries))
