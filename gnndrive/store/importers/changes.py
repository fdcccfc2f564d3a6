"""Rows of features that are changed on their way into a store: another shape, labels made whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.store.convert import Rows
from gnndrive.store.format import dtype_name
from gnndrive.store.importers.features import Features, as_numpy, rows_per_chunk


class Changed(Features):
    """Rows that are changed on their way, chunk by chunk.

    Args:
        rows: what is read.
        change: makes other rows of a chunk's.
        shape: of all that comes out.
        dtype: of what comes out; None: as it was.
    """

    def __init__(
        self,
        rows: Features,
        change: Callable[[Any], Rows],
        shape: tuple[int, ...],
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self._rows, self._change, self.shape = rows, change, shape
        self.dtype = rows.dtype if dtype is None else np.dtype(dtype)
        self._stored = rows.stored if dtype is None else dtype_name(self.dtype)

    @property
    def stored(self) -> str:
        """See `Features.stored`."""
        return self._stored

    def chunks(self, rows: int) -> Iterator[Rows]:
        """See `Features.chunks`; of one that makes more rows there are more."""
        return map(self._change, self._rows.chunks(rows))


def flat(rows: Features) -> Features:
    """A single column as [n]; anything else as it is."""
    if len(rows.shape) == 2 and rows.shape[1] == 1:
        return Changed(rows, lambda chunk: chunk.reshape(-1), rows.shape[:1])
    return rows


def two_dimensional(rows: Features) -> Features:
    """One number a row as [n, 1]; anything else as it is."""
    if len(rows.shape) == 1:
        return Changed(rows, lambda chunk: chunk.reshape(-1, 1), (*rows.shape, 1))
    return rows


def twice(rows: Features) -> Features:
    """Each row, and the same row again: of edges that are followed by their reverse."""
    shape = (2 * rows.shape[0], *rows.shape[1:])
    return Changed(rows, lambda chunk: np.repeat(chunk, 2, axis=0), shape)


def as_labels(rows: Features) -> Features:
    """Labels as a store has them: a single column as [n]; whole numbers as int64, in which a
    missing one is −1, other numbers as float32 with nan. Numbers that are no integers are read once
    more, to see whether they are whole.

    Raises:
        StoreError: the file is damaged.
    """
    if rows.dtype.kind == "f" or rows.stored == "bfloat16":
        whole = all(map(_is_whole, rows.chunks(rows_per_chunk(rows.shape, 8))))
        dtype = "int64" if whole else "float32"
    else:
        dtype = "int64"
    change = _without_nan if dtype == "int64" else _single
    return flat(Changed(rows, change, rows.shape, dtype))


def _is_whole(chunk: Rows) -> bool:
    values = as_numpy(chunk)
    values = values[~np.isnan(values)]
    # Ids of classes; what float64 can no longer count is none.
    return bool((np.isfinite(values) & (values == np.floor(values))).all()) and bool(
        (np.abs(values) < 2**53).all()
    )


def _single(chunk: Rows) -> Rows:
    return as_numpy(chunk).astype(np.float32)


def _without_nan(chunk: Rows) -> Rows:
    values = as_numpy(chunk)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    return values.astype(np.int64)
