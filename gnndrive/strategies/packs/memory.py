"""How many rows of each table training will hold in memory, for a pack.

The memory that training leaves for rows is for hot rows and for places, which hold the other rows
of a few batches (`plan.py`). Each hot row makes the places smaller, so both are
chosen together. When not to use it: for the plan of a loader, which knows the pack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.plan.request import PlanRequest
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.packed.predict import SLOT_BYTES
from gnndrive.store.packed.record import Recorded
from gnndrive.store.packed.recording import RecordedSizes, recorded_sizes
from gnndrive.strategies.packs.plan import packed_room

SPARE = 0.01  # of the memory: a row that turns out to have no room costs a read of its own
LARGEST = 1.02  # the largest batch reads so much more than the mean one


@dataclass(slots=True)
class _Use:
    """What is known of one table: its histogram of uses, and what its rows take.

    Attributes:
        having: how many rows have 0, 1, 2, … uses.
        row_bytes: bytes of a row.
        saved: the share of a place's largest batch that one use is, times the places.
        hot: rows that are chosen so far.
    """

    having: npt.NDArray[np.int64]
    row_bytes: int
    saved: float
    hot: int = 0


def hot_slots(request: PlanRequest, recorded: Recorded, device_memory: int = 0) -> dict[str, int]:
    """Choose how many rows of each table are hot; the rows with the most uses a byte come first.

    Args:
        request: of a loader that draws the batches, in the memory that training will have. No
            plan is made of it, because drawing may need more memory than replaying.
        recorded: the batches, and how many of them use each row.
        device_memory: bytes of a GPU that training may use; 0: it trains on the host.

    Returns:
        The number of rows of each table.
    """
    sizes = _placed_sizes(recorded, request.tables)
    room, places = packed_room(request, sizes, device_memory)
    left, uses = room * (1 - SPARE), dict[str, _Use]()
    for table in request.tables:
        entries, counts = _entries(sizes, table), recorded.counts[table.name]
        total = max(int(counts.sum(dtype=np.int64)), 1)
        saved = places * LARGEST * entries / total
        uses[table.name] = _Use(_histogram(counts), table.file.row_bytes, saved)
        left -= places * LARGEST * entries * table.file.row_bytes
    for name, count in _hottest(uses):
        use = uses[name]
        rows = int(use.having[count])
        cost = use.row_bytes * (1 - use.saved * count)
        taken = rows if cost <= 0 else min(rows, max(int(left / cost), 0))
        use.hot += taken
        left -= taken * cost
        if taken < rows:
            break
    return {name: use.hot for name, use in uses.items()}


def _placed_sizes(recorded: Recorded, tables: Sequence[FeatureTable]) -> RecordedSizes:
    """The sizes of the largest batches, with the sections that are empty while they are recorded:
    a slot or place and, unless the table is arranged, an order."""
    sizes = recorded_sizes(recorded.schema, recorded.index)
    more = sum(2 * SLOT_BYTES * _entries(sizes, table) for table in tables)
    return replace(sizes, record_bytes=sizes.record_bytes + more)


def _entries(sizes: RecordedSizes, table: FeatureTable) -> int:
    """The most rows of a table that a batch has."""
    of_type: Any = sizes.edges if table.of_edges else sizes.nodes
    return int(of_type[table.type])


def _hottest(uses: dict[str, _Use]) -> Iterator[tuple[str, int]]:
    """Tables and numbers of uses, the ones with the most uses a byte first."""
    found = [
        (count / use.row_bytes, name, count)
        for name, use in uses.items()
        for count in range(1, len(use.having))
        if use.having[count]
    ]
    for _, name, count in sorted(found, reverse=True):
        yield name, count


def _histogram(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """How many rows have 0, 1, 2, … uses."""
    having = np.zeros(int(counts.max(initial=0)) + 1, np.int64)
    for start in range(0, len(counts), 1 << 22):
        having += np.bincount(counts[start : start + (1 << 22)], minlength=len(having))
    return having
