"""Predict the bytes of a pack from its first recorded batches.

The samples' bytes are extrapolated. Of the rows, the hottest are stored once and all others in each
batch that uses them; which are the hottest is not known yet, so each of the first batches is held
against the hottest rows of the others. Rows that none of the others uses count as cold unless
scores (in-degrees, say) call them hot, so the prediction is rather too high; a segment's shared
file makes the pack smaller still. It takes three bytes for each row of the largest table, which the
slots of hot rows take later.

When not to use it: after all batches are recorded; then the bytes are known exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.store.packed.sections import RECORD_ALIGN
from gnndrive.store.packed.volumes import VOLUME_BYTES

SAMPLES = 5  # batches that a prediction is made from
SLOT_BYTES = 4  # of a node or edge: its hot slot or its place in the shared file
_ID_BYTES = 8  # of a hot row


@dataclass(frozen=True, slots=True)
class TableRows:
    """What is known of one table.

    Attributes:
        ids: the rows that each of the first batches uses, integers [n]; may repeat.
        rows: the number of rows of the table.
        row_bytes: bytes of one row.
        hot_rows: how many rows memory holds.
        scores: for each row a number that grows with its expected use, such as its degree, [rows];
            None: unknown.
    """

    ids: Sequence[npt.NDArray[Any]]
    rows: int
    row_bytes: int
    hot_rows: int = 0
    scores: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected bytes of a pack.

    Attributes:
        samples: of the recorded samples, with the places that are written later.
        hot: of the hottest rows.
        cold: of all other rows, in the batches that use them.
    """

    samples: int
    hot: int
    cold: int

    @property
    def total(self) -> int:
        """Bytes of the whole folder."""
        return self.samples + self.hot + self.cold


def predict(records: Sequence[int], tables: Mapping[str, TableRows], batches: int) -> Prediction:
    """Predict the bytes of a pack.

    Args:
        records: bytes of each of the first records, at least one.
        tables: what is known of each table; all have rows of as many batches as `records`.
        batches: the number of batches that are recorded in all epochs.
    """
    drawn, hot, cold = len(records), 0, 0
    slots = sum(SLOT_BYTES * len(ids) for each in tables.values() for ids in each.ids)
    samples = -(-(sum(records) + slots + drawn * RECORD_ALIGN) * batches // drawn)
    samples += (samples // VOLUME_BYTES + 1) * 4 * RECORD_ALIGN
    for each in tables.values():
        hot += min(each.hot_rows, each.rows) * (each.row_bytes + _ID_BYTES)
        cold += -(-_cold_rows(each) * each.row_bytes * batches // drawn)
    return Prediction(samples, hot, cold)


def _cold_rows(table: TableRows) -> int:
    """How many rows the first batches read that are not among the hottest of the other batches."""
    if table.hot_rows >= table.rows:
        return 0
    distinct = [_distinct(ids, table.rows) for ids in table.ids]
    if table.hot_rows <= 0:
        return sum(map(len, distinct))
    counts = np.zeros(table.rows, np.uint8)
    for ids in distinct:
        counts[ids] += 1
    total = 0
    for ids in distinct:
        counts[ids] -= 1
        total += len(ids) - int(np.count_nonzero(_hottest(table, counts)[ids]))
        counts[ids] += 1
    return total


def _distinct(ids: npt.NDArray[Any], rows: int) -> npt.NDArray[np.int64]:
    """The distinct numbers of `ids`, ascending; some ten times as fast as numpy's `unique`."""
    used = np.zeros(rows, np.bool_)
    used[ids] = True
    return np.flatnonzero(used)


def _hottest(table: TableRows, counts: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which rows are the hottest by these counts, then by the scores, then by their number."""
    left = table.hot_rows
    found = np.zeros(table.rows, np.bool_)
    for level in range(len(table.ids), -1, -1):
        if level == 0 and table.scores is None:
            break  # nothing is known of them
        at_level = np.flatnonzero(counts == level)
        if len(at_level) > left:
            if table.scores is not None:
                order = np.argsort(-table.scores[at_level].astype(np.float64), kind="stable")
                at_level = at_level[order]
            at_level = at_level[:left]
        found[at_level] = True
        left -= len(at_level)
        if not left:
            break
    return found
