"""Traces of drawn batches: a sample of the rows that they need, and what is kept of it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from gnndrive.plan import sampled_trace
from gnndrive.plan.sampled_trace import SampledTrace, kept_rows
from tests.loader.conftest import Make
from tests.plan.conftest import request_of

ROWS = 400


def drawn(make: Make, **arguments: object) -> SampledTrace:
    loader = make(shuffle=True, seed=3, **arguments)
    drawing = loader._assembly().drawing(for_plan=False)
    assert drawing is not None
    return drawing.traces(request_of(loader))["nodes/x"]


@pytest.fixture
def trace(make: Make) -> SampledTrace:
    return drawn(make)


def test_a_row_is_kept_in_each_batch_or_in_none(make: Make, monkeypatch: pytest.MonkeyPatch):
    whole = drawn(make, batch_size=20)
    assert whole.bits == 0
    monkeypatch.setattr(sampled_trace, "IDS_MAX", whole.size(0, len(whole)) // 3)
    assert drawn(make, batch_size=20).bits == 0  # it was kept beside the store
    monkeypatch.setattr("gnndrive.loader.drawing.load_trace", lambda store, key: None)
    sampled = drawn(make, batch_size=20)
    assert sampled.bits == 2
    assert np.array_equal(sampled.wanted, whole.wanted)
    kept = kept_rows(np.arange(ROWS), 2)
    assert 0.15 < kept.mean() < 0.35
    for index in range(len(whole)):
        expected = whole.kept[whole[index]]
        assert np.array_equal(sampled.kept[sampled[index]], expected[kept[expected]])


def test_batches_are_drawn_until_they_have_asked_for_each_row_several_times(trace: SampledTrace):
    assert trace.table_rows == ROWS
    assert len(trace) == sampled_trace.LONG  # more than `PASSES` passes
    assert trace.wanted.sum() > sampled_trace.PASSES * ROWS


def test_the_batches_of_later_epochs_follow(make: Make):
    few = drawn(make, input_nodes=np.arange(48).tolist())  # three batches an epoch
    assert len(few) == sampled_trace.LONG
    assert len({few[index].tobytes() for index in range(len(few))}) == len(few)


@pytest.mark.parametrize(
    ("rows", "edges", "batches"),
    [(100, 50, 128), (100, 1 << 17, 64), (100, 1 << 20, 40), (1_000, 1 << 20, 32), (1, 1, 1024),
     (100, 1 << 22, 16), (100, 1 << 30, 1)],
    ids=["small", "LONG_EDGES", "PASSES", "BATCHES_MIN", "BATCHES_MAX", "EDGES_MAX", "huge"],
)  # fmt: skip
def test_large_batches_are_fewer(rows: int, edges: int, batches: int):
    assert sampled_trace._how_many({"nodes/x": rows}, {"nodes/x": 1_000}, edges) == batches


def test_no_batch_gives_no_trace(make: Make):
    loader = make(input_nodes=[])
    drawing = loader._assembly().drawing(for_plan=False)
    assert drawing is not None
    assert drawing.traces(request_of(loader)) == {}


def test_it_says_when_the_batches_have_filled_a_buffer():
    ids = np.array([0, 1, 1, 2, 0, 3, 4])
    trace = SampledTrace(9, 0, np.arange(5), ids, np.array([0, 2, 4, 7]), np.array([2, 2, 3]))
    assert [trace.filled(slots) for slots in (1, 2, 3, 4, 5, 6)] == [1, 1, 2, 3, 3, None]


def test_what_was_kept_is_the_trace(trace: SampledTrace):
    again = SampledTrace.from_array(trace.to_array(), ROWS)
    assert again is not None
    for name in ("table_rows", "bits", "kept", "ids", "ends", "wanted"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))
    assert SampledTrace.from_array(trace.to_array(), ROWS + 1) is None


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 133, 134, 261, -1])
@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_a_damaged_array_is_no_trace(trace: SampledTrace, at: int, value: int):
    numbers = trace.to_array()
    numbers[at] = value
    if at == 5 and value > 0:
        value = ROWS + 1
    assert SampledTrace.from_array(numbers, ROWS) is None


def as_array(batches: list[list[int]], kept: list[int]) -> np.ndarray:
    ends = np.cumsum([0, *map(len, batches)])
    parts = [
        [sampled_trace._VERSION, ROWS, 0, len(kept), len(batches)],
        [*map(len, batches)],
        ends,
        kept,
        [*chain.from_iterable(batches)],
    ]
    return np.concatenate([np.array(each, np.int64) for each in parts])


def test_numbers_that_wrap_or_repeat_are_no_trace():
    assert SampledTrace.from_array(as_array([[0, 2], [], [1]], [3, 4, 9]), ROWS) is not None
    for batches, kept in (
        ([[0]], [0, (1 << 63) - 1, -(1 << 63), -1, 5]),
        ([[1, 1]], [3, 4]),
        ([[1, 0]], [3, 4]),
        ([[]] * (sampled_trace.BATCHES_MAX + 1), []),
    ):
        assert SampledTrace.from_array(as_array(batches, kept), ROWS) is None


def test_batches_that_grow_are_limited_all_the_same(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gnndrive.loader.drawing.load_trace", lambda store, key: None)
    monkeypatch.setattr(sampled_trace, "IDS_MAX", 300)
    assert 0 < drawn(make).size(0, 32) <= 300
    monkeypatch.setattr(sampled_trace, "EDGES_MAX", 300)
    assert len(drawn(make)) < 10


def test_it_says_when_batches_bring_no_new_rows():
    ids, ends = np.tile(np.arange(3), 8), np.arange(0, 25, 3)
    wanted = np.full(8, 3)
    assert SampledTrace(9, 0, np.arange(3), ids, ends, wanted).settled
    ids[-1], kept = 3, np.arange(4)
    assert not SampledTrace(9, 0, kept, ids, ends, wanted).settled


def test_a_short_array_is_no_trace(trace: SampledTrace):
    numbers = trace.to_array()
    for count in (0, 4, 5, 40, len(numbers) - 1):
        assert SampledTrace.from_array(numbers[:count], ROWS) is None
