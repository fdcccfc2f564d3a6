"""Copies of the static nodes' lists, by rank, from `indices` of the same folder.

The lists are made window by window; a window is as many entries as memory holds. For each, one pass
over `indices` in file order copies the stretches that belong to it, so that nothing is read at
random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.partitioned.arrays import Ids, numbers, table
from gnndrive.store.partitioned.renumbering import PART_BYTES, checked
from gnndrive.store.reader import Store

_STEP = 1 << 20


def list_starts(store: Store, order: Ids, place: Ids, statics: int) -> Int64Array:
    """Where the list of each static node begins in `indices`, int64 [K].

    Raises:
        StoreError: a number in `order` or `place` is out of range.
    """
    starts, pointers = np.zeros(statics, np.int64), store.index_pointers
    at, nodes = 0, store.num_nodes
    for start in range(0, nodes, _STEP):
        block = np.ascontiguousarray(order[start : min(start + _STEP, nodes)])
        given = numbers(block), len(block), numbers(pointers), numbers(place)
        at = checked(
            lib.gd_static_starts(*given, nodes, statics, at, pointer(starts)),
            lambda: "order.npy or place.npy has a number out of range: partition the store again",
        )
    return starts


def static_windows(
    indices: TableFile,
    starts: Int64Array,
    bounds: Int64Array,
    window_bytes: int,
    told: Callable[[int], None],
) -> Iterator[tuple[int, Ids]]:
    """Yield `static_indices` in stretches: the position of the first entry, and the codes.

    Args:
        indices: the file of lists in the new order.
        starts: where the list of each rank begins in it, int64 [K].
        bounds: where the copy of each list begins, int64 [K + 1].
        window_bytes: bytes of a stretch, at most.
        told: called with the entries of `indices` that were read in each part.

    Raises:
        ReadError, StoreError: `indices` cannot be read.
    """
    width = indices.row_bytes
    step = max(window_bytes // width, 1)
    window = table(min(step, int(bounds[-1])), indices.dtype)
    for first in range(0, int(bounds[-1]), step):
        last = min(first + step, int(bounds[-1]))
        low = np.maximum(bounds[:-1], first)
        length = np.minimum(bounds[1:], last) - low
        ranks = np.flatnonzero(length > 0)
        source = (starts + low - bounds[:-1])[ranks]
        by_place = np.argsort(source)
        source, length = source[by_place], length[ranks][by_place]
        to = (low[ranks] - first)[by_place]
        del low, ranks, by_place
        _copy(indices, source, length, to, window, told)
        yield first, window[: last - first]


def _copy(
    indices: TableFile, source: Int64Array, length: Int64Array, to: Int64Array, window: Ids,
    told: Callable[[int], None],
) -> None:  # fmt: skip
    """Copy the stretches of `indices` at `source`, which ascends, to their places in a window."""
    ends = source + length
    into: Any = ffi.cast("uint8_t *", window.ctypes.data)
    parts = TableParts(indices, PART_BYTES).parts(int(source[0]), int(ends[-1]))
    with closing(parts):
        for part in parts:
            low = int(np.searchsorted(ends, part.first, "right"))
            high = int(np.searchsorted(source, part.first + part.count))
            lib.gd_copy_stretches(
                ffi.cast("uint8_t *", part.rows.ctypes.data), part.first, part.count,
                indices.row_bytes, pointer(source[low:high]), pointer(length[low:high]),
                pointer(to[low:high]), high - low, into,
            )  # fmt: skip
            told(part.count)
