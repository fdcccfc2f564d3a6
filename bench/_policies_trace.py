"""The rows of sampled batches, for bench/policies.py, and how planned reads are counted.

A `Trace` keeps the row ids of all batches, four bytes each below 2³¹ rows, in a file that has no
name: the kernel frees it with the process, and its pages leave memory when that is short.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Int64Array, Landing
from gnndrive.disk.layouts.base import Layout
from gnndrive.plan.replay import Counts
from gnndrive.store.format import index_dtype
from gnndrive.store.reader import Store

INDICES_AT_ONCE = 1 << 24
NOWHERE = np.zeros(1, np.uint8)  # where planned reads would land

Array = npt.NDArray[Any]


class Trace:
    """The row ids of each batch, in order.

    Args:
        rows: rows of the table.
        batches: the row ids of each batch, integers [n]; all are consumed at once.
    """

    def __init__(self, rows: int, batches: Iterable[Array]) -> None:
        self.rows, dtype = rows, np.dtype(index_dtype(rows))
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # mapped as long as this lives
        lengths = [0]
        for ids in batches:
            self._file.write(np.ascontiguousarray(ids, dtype))
            lengths.append(len(ids))
        self._file.flush()
        self._ends = np.cumsum(lengths)
        self._ids: Array = np.empty(0, dtype)
        if self._ends[-1]:
            self._ids = np.memmap(self._file, dtype, "r")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Int64Array:
        """The row ids of a batch, int64 [n]."""
        return self.compact(index).astype(np.int64)

    def compact(self, index: int) -> Array:
        """The row ids of a batch as they are kept, int32 or int64 [n]."""
        return self._ids[self._ends[index] : self._ends[index + 1]]

    def size(self, first: int, last: int) -> int:
        """Row ids of the batches [first, last) together."""
        return int(self._ends[last] - self._ends[first])


def out_degrees(store: Store) -> Int64Array:
    """How often each node is an in-neighbour, int64 [nodes]."""
    degrees, indices = np.zeros(store.num_nodes, np.int64), store.indices
    for start in range(0, len(indices), INDICES_AT_ONCE):
        part = indices[start : start + INDICES_AT_ONCE]
        degrees += np.bincount(part, minlength=store.num_nodes)
    return degrees


@dataclass
class PlannedCounts(Counts):
    """Counts what reading takes, too, as a layout plans it.

    Attributes:
        requests, nbytes: of each sweep.
    """

    requests: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    layout: InitVar[Layout] = field(kw_only=True)

    def __post_init__(self, layout: Layout) -> None:
        self._layout = layout

    def read(self, rows: Int64Array) -> None:
        """See `Counts.read`."""
        if not len(rows):
            return
        super().read(rows)
        places = np.arange(len(rows), dtype=np.int32)
        landing = Landing(NOWHERE.ctypes.data, 1 << 30, direct=False, owner=NOWHERE)
        job = self._layout.locate(rows, places, landing)
        self.requests[-1] += job.requests
        self.nbytes[-1] += job.nbytes


def counts_of(trace: Trace, layout: Layout, missing: Iterable[Int64Array]) -> Counts:
    """The counts of a run that reads the rows `missing` of each batch, one batch a sweep."""
    counts = PlannedCounts(layout=layout)
    for index, rows in enumerate(missing):
        counts.begin(1, trace.size(index, index + 1))
        counts.read(rows)
    return counts
