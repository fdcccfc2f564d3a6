"""What bench/policies.py compares with: the fewest loads, and a cache whose rows never leave.

Both are computed with numpy alone, without a slot table, without codes and without the C core, so
that they tell a mistake in these. One batch is admitted at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from _policies_trace import Trace

from gnndrive.common.records import Int64Array

Array = npt.NDArray[Any]


def belady(trace: Trace, slots: int, in_flight: int) -> Iterator[Int64Array]:
    """Yield the rows that each batch loads if the row that is needed last always leaves first.

    No choice of what leaves loads fewer rows, as long as the rows of `in_flight` batches cannot
    leave: those of the batch that is admitted and of the ones just before it. If these do not fit,
    the rows before it may leave too, so that the loads are a lower bound.
    """
    following, resident = _following(trace), np.zeros(trace.rows, np.bool_)
    next_use = np.full(trace.rows, len(trace), following[0].dtype)  # of resident rows
    count = 0
    for index in range(len(trace)):
        ids = trace.compact(index)
        missing = np.unique(ids[~resident[ids]])
        surplus = count + len(missing) - slots
        if surplus > 0:
            movable = resident.copy()
            movable[ids] = False
            kept = movable.copy()
            for before in range(max(index - in_flight + 1, 0), index):
                kept[trace.compact(before)] = False
            rows = np.flatnonzero(kept)
            if len(rows) < surplus:
                rows = np.flatnonzero(movable)
            place = len(rows) - surplus
            leaving = rows[np.argpartition(next_use[rows], place)[place:]]
            resident[leaving] = False
            count -= len(leaving)
        resident[missing] = True
        count += len(missing)
        next_use[ids] = following[index]
        yield missing.astype(np.int64)


def _following(trace: Trace) -> list[Array]:
    """Of each batch the index of the batch that needs each row next; the number of batches: none
    does."""
    none = len(trace)
    nearest = np.full(trace.rows, none, np.min_scalar_type(none))
    found: list[Array] = []
    for index in reversed(range(none)):
        ids = trace.compact(index)
        found.append(nearest[ids])
        nearest[ids] = index
    return found[::-1]


def pinned(trace: Trace, scores: Array, slots: int) -> Iterator[Int64Array]:
    """Yield the rows that each batch loads if the `slots` rows of the highest scores are in memory
    from the start and no other row stays. (The rows of batches in flight lie beside them.)"""
    resident = np.zeros(trace.rows, np.bool_)
    resident[np.argsort(-scores, kind="stable")[:slots]] = True
    for index in range(len(trace)):
        ids = trace.compact(index)
        yield np.unique(ids[~resident[ids]]).astype(np.int64)
