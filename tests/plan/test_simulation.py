"""How many rows a batch loads, by simulation, beside counts by hand and a real loader."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from gnndrive import Store
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array
from gnndrive.plan.sampled_trace import SampledTrace, kept_rows
from gnndrive.plan.simulation import (
    ALL_AHEAD,
    BufferUse,
    Simulated,
    curve_slots,
    miss_ratio,
    simulate,
)
from gnndrive.store.row_classes import row_classes
from tests.loader.conftest import Make

ROWS, BATCHES, WANTED = 20_000, 64, 400


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


def run(trace: SampledTrace, policy: str, slots: int, window: int = 1, sweep: int = 1) -> Simulated:
    store: Any = None
    return simulate(trace, BufferUse(policy, window, sweep, slots), store, "nodes/x", None)


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


def test_more_knowledge_of_later_batches_loads_less(batches: list[Int64Array]):
    trace = trace_of(batches, ROWS)
    found = [run(trace, "belady", 1_500, window).hit_share for window in (2, 8, ALL_AHEAD)]
    assert found == sorted(found)
    assert found[0] + 0.02 < found[-1]
    assert run(trace, "lru", 1_500).hit_share < found[0]


@pytest.mark.parametrize("policy", ["lru", "belady"])
@pytest.mark.parametrize("slots", [1_000, 3_000])
def test_a_sample_of_the_rows_has_the_hits_of_all(
    batches: list[Int64Array], policy: str, slots: int
):
    whole, part = trace_of(batches, ROWS), trace_of(batches, ROWS, bits=2)
    assert part.rows < whole.rows / 3
    expected, found = (run(each, policy, slots, window=8) for each in (whole, part))
    assert found.hit_share == pytest.approx(expected.hit_share, abs=0.03)
    assert found.loads == pytest.approx(expected.loads, rel=0.06)


def test_a_buffer_of_all_rows_loads_none(batches: list[Int64Array]):
    assert run(trace_of(batches, ROWS), "lru", ROWS) == Simulated(1.0, 0.0, 1.0)


def test_a_trace_that_does_not_fill_the_buffer_says_so(batches: list[Int64Array]):
    assert not run(trace_of(batches[:12], ROWS), "lru", 10_000).known


def test_rows_that_no_batch_needs_may_lie_on_disk():
    batches = [np.arange(at % 4, 1_000, 4) for at in range(32)]
    found = run(trace_of(batches, ROWS), "lru", 2_000)  # of 20,000 rows 1,000 are ever needed
    assert found.known
    assert found.hit_share == 1.0
    nothing = [np.empty(0, np.int64)] * 32
    assert run(trace_of(nothing, ROWS), "lru", 2_000).known


def test_a_batch_without_room_is_refused(batches: list[Int64Array]):
    with pytest.raises(ConfigError, match="more rows than the 100 slots"):
        run(trace_of(batches, ROWS), "lru", 100)


def test_the_curve_rises_to_all_rows_and_has_the_buffer_itself(batches: list[Int64Array]):
    trace, slots = trace_of(batches, ROWS), curve_slots(2_000, ROWS)
    assert slots[-1] == ROWS
    assert 2_000 in slots
    store: Any = None
    use = BufferUse("lru", 1, 1, 2_000)
    curve = miss_ratio(trace, use, 8, store, "nodes/x", None, slots)
    hits = [each.hit_share for each in curve]
    assert hits == sorted(hits)
    assert hits[-1] == 1.0
    assert len(curve) > 3  # at the smallest, batches do not fit; at others the trace is too short
    for each in curve[:-1]:
        assert each.hit_share == run(trace, "lru", each.slots).hit_share
        assert each.nbytes == 8 * each.slots
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
    use, classes = BufferUse("static", 1, 1, 150), row_classes(store, None, "degree")
    found = simulate(trace, use, store, "nodes/x", classes)
    assert found.known
    loads = float(stats["rows_loaded"]) / float(stats["batches"])
    assert found.loads == pytest.approx(loads, rel=0.1)
