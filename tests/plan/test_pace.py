"""How fast this machine computes: the same batches admitted to a slot table everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from gnndrive.plan import pace
from gnndrive.plan.pace import (
    BATCHES,
    NO_STORE,
    ROW_S,
    ROWS,
    RUNS,
    SLOTS,
    PaceTrace,
    measure_pace,
)
from gnndrive.plan.replay import Run, replay
from gnndrive.strategies import STRATEGIES

POLICY = STRATEGIES["gnndrive"].policy


def test_the_batches_are_the_same_everywhere() -> None:
    batches, again = PaceTrace(), PaceTrace()
    assert len(batches) == BATCHES
    for index in range(BATCHES):
        ids = batches[index]
        assert np.array_equal(ids, again[index])
        assert np.all(np.diff(ids) > 0)
        assert 0 <= ids[0] <= ids[-1] < ROWS
    sizes = [len(batches[index]) for index in range(BATCHES)]
    assert batches.size(2, 5) == sum(sizes[2:5])


def test_rows_are_found_loaded_and_given_up() -> None:
    batches = PaceTrace()
    counts = replay(Run(POLICY, 1, SLOTS), batches, NO_STORE, None)
    sums = counts.after(0)
    assert sums["wanted"] == batches.size(0, BATCHES)
    assert SLOTS < sums["loads"] < sums["wanted"] / 2


@pytest.mark.parametrize("seconds", [(3.0, 2.0, 5.0), (1.0, 9.0, 4.0)], ids=str)
def test_the_pace_is_that_of_the_fastest_run_and_found_once(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...]
) -> None:
    assert len(seconds) == RUNS
    readings = list[float]()
    for each in seconds:
        began = readings[-1] + 0.5 if readings else 7.0
        readings += [began, began + each]
    clock = iter(readings)
    monkeypatch.setattr(pace, "thread_time", lambda: next(clock))
    measure_pace.cache_clear()
    expected = min(seconds) / (ROW_S * PaceTrace().size(0, BATCHES))
    assert measure_pace(POLICY) == pytest.approx(expected)
    assert measure_pace(POLICY) == pytest.approx(expected)  # the clock has no more readings
    measure_pace.cache_clear()
