"""Batches of a trace in a slot table without memory: what holds slots cannot leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnndrive.common.records import Int64Array
from gnndrive.plan.replay import Run, replay

HOT, COLD, LATER = np.arange(10), np.arange(10, 20), np.arange(20, 30)
NONE = HOT[:0]


class Rows:
    """A trace of given batches."""

    rows = 30

    def __init__(self, *batches: Int64Array) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Int64Array:
        return self._batches[index]

    def size(self, first: int, last: int) -> int:
        return sum(map(len, self._batches[first:last]))


def loads(run: Run, trace: Rows, hot: Int64Array) -> list[int]:
    """What each sweep loads if `hot` rows are kept before others."""
    store: Any = None
    classes = np.zeros(trace.rows, np.uint8)
    classes[hot] = 255
    return replay(run, trace, store, classes).loads


@pytest.mark.parametrize(("in_flight", "found"), [(1, 0), (2, 10)])
def test_rows_of_a_batch_in_flight_do_not_leave(in_flight: int, found: int):
    run = Run("static", 1, 20, in_flight=in_flight)
    trace = Rows(HOT, COLD, LATER, HOT)  # if COLD is held, LATER takes the slots of HOT
    assert loads(run, trace, HOT) == [10, 10, 10, found]


@pytest.mark.parametrize(("in_flight", "found"), [(2, 0), (3, 5), (4, 10)])
def test_a_sweep_counts_its_own_batches_among_those_in_flight(in_flight: int, found: int):
    run = Run("static", 1, 20, sweep=2, in_flight=in_flight)
    trace = Rows(HOT, NONE, COLD[:5], COLD[5:], LATER[:5], LATER[5:], HOT)
    assert loads(run, trace, HOT) == [10, 10, 10, found]


@pytest.mark.parametrize(
    ("pieces", "part_rows", "found"), [(1, 2, 0), (2, 2, 5), (1, 100, 0), (2, 100, 0)]
)
def test_what_is_released_first_leaves_if_slots_are_short(
    pieces: int, part_rows: int, found: int
) -> None:
    """LATER finds 5 free slots, and 5 more once a piece of COLD is released. If this is all of
    COLD, as when LATER is admitted whole, the rows that are not hot leave; else those of the first
    piece do."""
    run = Run("static", 1, 15, pieces=pieces, part_rows=part_rows)
    hot = COLD[::2].copy()
    assert loads(run, Rows(COLD, LATER, hot), hot) == [10, 10, found]
