"""How fast this machine computes: the same batches admitted to a slot table everywhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gnndrive import Store
from gnndrive.plan import pace
from gnndrive.plan.pace import BATCHES, ROW_S, ROWS, SLOTS, Batches, measure_pace
from gnndrive.plan.replay import Run, replay


def test_the_batches_are_the_same_everywhere() -> None:
    batches, again = Batches(), Batches()
    assert len(batches) == BATCHES
    for index in range(BATCHES):
        ids = batches[index]
        assert np.array_equal(ids, again[index])
        assert np.all(np.diff(ids) > 0)
        assert 0 <= ids[0] <= ids[-1] < ROWS
    sizes = [len(batches[index]) for index in range(BATCHES)]
    assert batches.size(2, 5) == sum(sizes[2:5])


def test_rows_are_found_loaded_and_given_up(store: Store) -> None:
    batches = Batches()
    counts = replay(Run("lru", 1, SLOTS), batches, store, None)
    sums = counts.after(0)
    assert sums["wanted"] == batches.size(0, BATCHES)
    assert SLOTS < sums["loads"] < sums["wanted"] / 2


@pytest.mark.parametrize(
    ("seconds", "least"), [((3.0, 2.0, 5.0), 2.0), ((1.0, 9.0, 4.0), 1.0)], ids=str
)
def test_the_pace_is_that_of_the_fastest_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], least: float
) -> None:
    readings = [0.0]
    for each in seconds:
        readings += [readings[-1] + each, readings[-1] + each + 0.5]
    clock = iter(readings)
    monkeypatch.setattr(pace, "thread_time", lambda: next(clock))
    runs = [after - before for before, after in list(pairwise(readings))[::2]]
    assert runs == pytest.approx(seconds)
    expected = least / (ROW_S * Batches().size(0, BATCHES))
    assert measure_pace(store) == pytest.approx(expected)
