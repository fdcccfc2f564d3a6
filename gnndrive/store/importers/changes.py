"""Changes to rows of features before they are written: other shapes, labels as a store has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.store.convert import Rows
from gnndrive.store.format import dtype_name
from gnndrive.store.importers.features import Features, as_numpy, rows_per_chunk


class ChangedRows(Features):
    """Rows that a function changes, chunk by chunk.

    Args:
        rows: the rows to change.
        change: called with each chunk; returns the changed rows.
        shape: shape of all changed rows.
        dtype: dtype of the changed rows; None: the dtype of `rows`.
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
        """See `Features.chunks`; a chunk is longer than `rows` if `change` returns more rows."""
        return map(self._change, self._rows.chunks(rows))


def flat(rows: Features) -> Features:
    """Make one column [n, 1] an array [n]; leave other shapes as they are."""
    if len(rows.shape) == 2 and rows.shape[1] == 1:
        return ChangedRows(rows, lambda chunk: chunk.reshape(-1), rows.shape[:1])
    return rows


def two_dimensional(rows: Features) -> Features:
    """Make an array [n] one column [n, 1]; leave other shapes as they are."""
    if len(rows.shape) == 1:
        return ChangedRows(rows, lambda chunk: chunk.reshape(-1, 1), (*rows.shape, 1))
    return rows


def twice(rows: Features) -> Features:
    """Repeat each row once, for edges that are each followed by their reverse."""
    shape = (2 * rows.shape[0], *rows.shape[1:])
    return ChangedRows(rows, lambda chunk: np.repeat(chunk, 2, axis=0), shape)


def as_labels(rows: Features) -> Features:
    """Labels as a store has them.

    Whole numbers become int64, with -1 for a missing label, other numbers float32, with nan for a
    missing label; one column [n, 1] becomes [n]. Floats are read twice, to find out whether all of
    them are whole.

    Raises:
        StoreError: the file is damaged.
    """
    if rows.dtype.kind == "f" or rows.stored == "bfloat16":
        whole = all(map(_is_whole, rows.chunks(rows_per_chunk(rows.shape, 8))))
        dtype = "int64" if whole else "float32"
    else:
        dtype = "int64"
    change = _without_nan if dtype == "int64" else _single
    return flat(ChangedRows(rows, change, rows.shape, dtype))


def _is_whole(chunk: Rows) -> bool:
    values = as_numpy(chunk)
    values = values[~np.isnan(values)]
    # From 2**53 on, float64 does not hold every whole number, so these are not ids of classes.
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
