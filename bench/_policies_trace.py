"""The rows of sampled batches, for bench/policies.py, and what a superbatch of them says.

A `Trace` keeps the row ids of all batches, four bytes each below 2³¹ rows, in a file that has no
name: the kernel frees it with the process, and its pages leave memory when that is short.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.buffer.ranking import Codes
from gnndrive.common.ffi import lib
from gnndrive.common.records import Int64Array
from gnndrive.store.format import index_dtype
from gnndrive.store.reader import Store

INDICES_AT_ONCE = 1 << 24

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


def next_uses(trace: Trace, first: int, last: int) -> tuple[list[Codes], Codes]:
    """What the superbatch of the batches [first, last) says, by one pass from its end.

    Returns:
        Of each batch the codes of its rows, uint16 [n]; and for each row of the table the code of
        the first of these batches that needs it, uint16 [rows].
    """
    later = np.full(trace.rows, lib.GD_NO_CODE, np.uint16)
    codes: list[Codes] = []
    for index in range(last - 1, first - 1, -1):
        ids = trace.compact(index)
        codes.append(later[ids])
        later[ids] = index % lib.GD_NO_CODE
    return codes[::-1], later


def out_degrees(store: Store) -> Int64Array:
    """How often each node is an in-neighbour, int64 [nodes]."""
    degrees, indices = np.zeros(store.num_nodes, np.int64), store.indices
    for start in range(0, len(indices), INDICES_AT_ONCE):
        part = indices[start : start + INDICES_AT_ONCE]
        degrees += np.bincount(part, minlength=store.num_nodes)
    return degrees
