"""Choose the segment size: as many batches share a file as the disk space demands (DiskGNN §4.3,
Algorithm 2).

A cold row is on disk once for each segment whose batches use it: in a batch's own chunk if it is
used once there, in the segment's shared file if more often. So the rows on disk are the distinct
cold rows of each segment, and larger segments take less space. They also scatter a batch's rows
over a larger shared file, so the smallest segment that fits is the best.

Distinct rows are counted exactly, for all candidates in one pass over the recorded batches: a use
adds a row to a segment's batches unless an earlier batch of that segment used the node, and the
node's previous use says this for every segment size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Int64Array
from gnndrive.store.packed.orders import SETS_MAX

Ids = npt.NDArray[Any]

SETS_DEFAULT = 8
"""The smallest segment to which the order "sets" is worth its sorting: a sixth less disk space, and
hardly a byte read in vain."""


@dataclass(frozen=True, slots=True)
class SegmentChoice:
    """How many batches share a file, and what other sizes would need.

    Attributes:
        segment: batches of a segment; None: no candidate fits.
        needed: bytes on disk by segment size, ascending: of every candidate, of the sizes that the
            order would not choose by itself, and of the size that was asked for.
        candidates: the sizes among which `segment` was chosen, ascending.
        disk_bytes: the limit; None: none was given.
    """

    segment: int | None
    needed: Mapping[int, int]
    candidates: Sequence[int]
    disk_bytes: int | None

    @property
    def bytes(self) -> int | None:
        """The bytes on disk with `segment`; None: no candidate fits."""
        return None if self.segment is None else self.needed[self.segment]

    @property
    def fitting(self) -> list[int]:
        """All sizes in `needed` that fit, ascending; with another order, or asked for by number,
        each of them can be had."""
        limit = self.disk_bytes
        return [size for size, need in self.needed.items() if limit is None or need <= limit]


def rows_by_segment(
    batches: Iterable[Ids], num_nodes: int, segment: int | None = None
) -> tuple[dict[int, int], int]:
    """Return how many rows the chunks and the shared rows of all batches are together, for the
    segment sizes 1, 2, 4, ... up to all batches, and for `segment`.

    One pass over the batches; takes 4 bytes a node.

    Returns:
        The rows by segment size, ascending, and the number of batches.
    """
    sizes = [1 << power for power in range(31)] + ([segment] if segment else [])
    rows, count = _count(batches, num_nodes, sizes)
    kept = [size for size in sizes if size < 2 * count or size in (1, segment)]
    return {size: rows[size] for size in sorted(set(kept))}, count


def _count(batches: Iterable[Ids], nodes: int, sizes: list[int]) -> tuple[dict[int, int], int]:
    last = np.full(nodes, -1, np.int32)
    each = np.array(sizes, np.int64)
    rows = np.zeros(len(sizes), np.int64)
    batch = -1
    for batch, ids in enumerate(batches):
        before = np.zeros(batch + 1, np.int64)  # ids last used by no batch, by batch 0, 1, ...
        _enter(last, ids, batch, before)
        first = batch - batch % each  # of the segment, for each size
        rows += before.cumsum()[first]
    return dict(zip(sizes, rows.tolist(), strict=True)), batch + 1


def _enter(last: Ids, ids: Ids, batch: int, before: Int64Array) -> None:
    ids = np.ascontiguousarray(ids, np.int64)
    code = lib.gd_uses_enter(
        pointer(last), len(last), pointer(ids), len(ids), batch, pointer(before)
    )
    if code:
        raise ValueError(f"batch {batch} has ids outside 0 to {len(last) - 1}")


def choose_segment(
    needed: Mapping[int, int], disk_bytes: int | None, order: str, segment: int | None = None
) -> SegmentChoice:
    """Return the smallest segment whose bytes fit.

    Args:
        needed: bytes on disk by segment size.
        disk_bytes: the limit; None: everything fits.
        order: the order of shared rows, see `orders.order_rows`. "sets" begins at `SETS_DEFAULT`
            and ends at `SETS_MAX`; others begin at 1, packing without shared files.
        segment: the only size to consider, which `needed` has; None: choose.
    """
    ascending = dict(sorted(needed.items()))
    if segment is not None:
        candidates = [segment]
    elif order == "sets":
        least = min(SETS_DEFAULT, max(size for size in ascending))
        candidates = [size for size in ascending if least <= size <= SETS_MAX]
    else:
        candidates = list(ascending)
    fitting = [size for size in candidates if disk_bytes is None or ascending[size] <= disk_bytes]
    return SegmentChoice(min(fitting, default=None), ascending, candidates, disk_bytes)
