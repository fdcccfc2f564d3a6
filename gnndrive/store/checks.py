"""Checks of the values of a store's arrays, in one pass over chunks.

The writer checks every chunk before it writes it, and `Store.verify` checks every chunk that it
reads, by the same rules. The C samplers check each index again when they use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.distinct import distinct
from gnndrive.common.errors import StoreError
from gnndrive.store.convert import Rows, dtype_of, to_storage
from gnndrive.store.format import ArrayInfo
from gnndrive.store.types import Types


class Check:
    """Checks the values of one array of whole numbers, in order. `where` is its file, for errors,
    which are StoreError and give the position of a value that is not allowed."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.position = 0

    def feed(self, chunk: npt.NDArray[Any]) -> None:
        """Check the next rows."""
        self.position += len(chunk)

    def finish(self) -> None:
        """Check the array as a whole, after its last chunk."""


class Bounds(Check):
    """Checks that every value lies in [0, limit). For errors, `what` is what an entry is, such as
    "edge", `things` are what the values number, such as "nodes", and `mend` is the remedy."""

    def __init__(
        self, where: str, what: str, limit: int, things: str,
        mend: str = "correct the source and import it again",
    ) -> None:  # fmt: skip
        super().__init__(where)
        self.what, self.limit, self.things, self.mend = what, limit, things, mend

    def feed(self, chunk: npt.NDArray[Any]) -> None:
        """See `Check.feed`."""
        if len(chunk) and (int(chunk.min()) < 0 or int(chunk.max()) >= self.limit):
            bad = int(np.flatnonzero((chunk < 0) | (chunk >= self.limit))[0])
            raise StoreError(
                f"{self.where}: {self.what} {self.position + bad} names {int(chunk[bad])}, but "
                f"there are {self.limit} {self.things}, numbered from 0; {self.mend}"
            )
        super().feed(chunk)


class Pointers(Check):
    """Checks that index pointers start at 0, never decrease and end at the number of edges."""

    def __init__(self, where: str, num_edges: int) -> None:
        super().__init__(where)
        self.num_edges, self.last = num_edges, 0

    def feed(self, chunk: npt.NDArray[Any]) -> None:
        """See `Check.feed`."""
        if not len(chunk):
            return
        if self.position == 0 and chunk[0] != 0:
            raise self._error(f"starts with {int(chunk[0])} instead of 0")
        falls = np.flatnonzero(chunk[1:] < chunk[:-1]) + 1
        if int(chunk[0]) < self.last:
            falls = np.zeros(1, np.int64)
        if len(falls):
            raise self._error(f"decreases at node {self.position + int(falls[0])}")
        self.last = int(chunk[-1])
        super().feed(chunk)

    def finish(self) -> None:
        """See `Check.finish`."""
        if self.position and self.last != self.num_edges:
            raise self._error(f"ends with {self.last}, but there are {self.num_edges} edges")

    def _error(self, problem: str) -> StoreError:
        return StoreError(
            f"{self.where} {problem}; index pointers must run from 0 to the number of edges"
        )


_SEEN_MIN, _SEEN_MAX = 1 << 20, 1 << 28  # edge ids that are looked for at once, a byte each


def check_permutation(
    read: Callable[[], Iterator[npt.NDArray[Any]]],
    count: int,
    where: str,
    mend: str,
    memory: int = 2 * _SEEN_MAX,
) -> None:
    """Check that each of the numbers from 0 to `count` - 1 occurs among the `count` edge ids that
    `read()` yields; it is called once for as many edges as half of `memory` has bytes, but not for
    fewer than `_SEEN_MIN` or more than `_SEEN_MAX`. StoreError: one is missing. `where` is what
    holds the ids and `mend` says what to do, for the error."""
    step = max(_SEEN_MIN, min(_SEEN_MAX, memory // 2))
    for first in range(0, count, step):
        seen = np.zeros(min(step, count - first), np.bool_)
        for values in read():
            ids = values.astype(np.int64) - first
            seen[ids[(ids >= 0) & (ids < len(seen))]] = True
        if not seen.all():
            missing = first + int(np.flatnonzero(~seen)[0])
            raise StoreError(
                f"{where}: edge {missing} does not occur, so another occurs twice; {mend}"
            )


class FiniteRows:
    """Counts the rows of an array that hold nan or infinity, which are allowed."""

    def __init__(self, info: ArrayInfo) -> None:
        self._info = info
        self._position = self._count = self._first = 0
        self._last = -1

    def feed(self, values: npt.NDArray[Any]) -> None:
        """Count in the next elements, one-dimensional and as they are stored."""
        exponent = 0x7F80  # of bfloat16; not all of its bits are set
        is_short = self._info.dtype == "bfloat16"
        finite = values & exponent != exponent if is_short else np.isfinite(values)
        if not finite.all():
            width = math.prod(self._info.shape[1:])
            rows = distinct((self._position + np.flatnonzero(~finite)) // width)
            self._count += len(rows) - int(rows[0] == self._last)
            self._first = int(rows[0]) if self._last < 0 else self._first
            self._last = int(rows[-1])
        self._position += len(values)

    @property
    def remark(self) -> str | None:
        """What is odd about the array; None: no row holds nan or infinity."""
        if not self._count:
            return None
        return (
            f"{self._info.name}: {self._count:,} of its {self._info.shape[0]:,} rows hold nan or "
            f"infinity, first row {self._first}, which makes the loss nan"
        )


def finite_rows_of(info: ArrayInfo, types: Types) -> FiniteRows | None:
    """What counts the rows of an array that are not finite; None: they are no features, or whole
    numbers."""
    place = types.place(info.name)
    features = (place.group, place.leaf) in (("nodes", "x"), ("edges", "edge_attr")) or info.folder
    floating = info.dtype == "bfloat16" or np.dtype(info.storage).kind == "f"
    return FiniteRows(info) if features and floating else None


def check_for(name: str, where: str, types: Types) -> Check | None:
    """The check for an array of a store, by its full name, such as "graph/indptr"; `where` is its
    file, for errors. None: the array may hold any values."""
    place = types.place(name)
    if place.group == "splits":
        return Bounds(where, "entry", place.sources, "nodes")
    if place.group != "graph":
        return None
    if place.leaf == "indptr":
        return Pointers(where, place.edges)
    if place.leaf == "indices":
        return Bounds(where, "edge", place.sources, "nodes")
    return Bounds(where, "edge", place.edges, "edges")


_LABEL_MAX = 1 << 48  # numbers from here on are no labels
_TABLE = 1 << 24  # labels below it are counted in a table of so many bytes at most


class ClassCount:
    """Counts the classes of y, chunk by chunk.

    One column of whole numbers has as many classes as its largest value + 1; -1 means that there is
    no label. Several columns (multi-label) are one class each. A column of floats counts as whole
    numbers if every value is whole or nan (no label), because OGB stores labels so; otherwise it
    has 0 classes.

    Labels with gaps, such as 0, 1 and 4000, are as many classes as their largest says. A model has
    an output for each of them, so `gaps` says when most of them have no node.
    """

    def __init__(self) -> None:
        self._count = 0
        self._whole = True
        self._used = np.zeros(0, np.bool_)  # which labels below _TABLE occur
        self._large = np.empty(0, np.int64)  # the others that occur

    def feed(self, chunk: Rows) -> None:
        """Count in the next rows."""
        if chunk.ndim > 1 and chunk.shape[-1] != 1:
            self._count = int(chunk.shape[-1])
            return
        dtype = dtype_of(chunk)
        values = to_storage(chunk, "float32" if dtype == "bfloat16" else dtype, "y")
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
            if not (np.isfinite(values) & (values == np.floor(values)) & (values < 2**31)).all():
                self._whole = False
                return
        if not values.size:
            return
        self._count = max(self._count, int(values.max()) + 1)
        labels = values[(values >= 0) & (values < _LABEL_MAX)].astype(np.int64)
        small = labels[labels < _TABLE]
        if small.size and (missing := int(small.max()) + 1 - len(self._used)) > 0:
            self._used = np.concatenate([self._used, np.zeros(missing, np.bool_)])
        self._used[small] = True
        if small.size < labels.size and len(self._large) < _TABLE:
            self._large = distinct(np.concatenate([self._large, labels[labels >= _TABLE]]))

    def result(self) -> int:
        """The number of classes; 0 if y does not hold classes."""
        return self._count if self._whole and self._count < _LABEL_MAX else 0

    def gaps(self) -> str | None:
        """What is odd about the labels, if more than half of all classes have no node; else
        None."""
        used = int(self._used.sum()) + len(self._large)
        count = self.result()
        if not used or count <= 2 * used:
            return None
        return (
            f"its labels go up to {count - 1:,}, so there are {count:,} classes, of which only "
            f"{used:,} have a node; if y holds classes, number them from 0 without gaps "
            "(torch.unique(y, return_inverse=True)[1]; in CSV, labels may be names), else give it "
            "another name or floats that are not whole"
        )


def count_classes(y: torch.Tensor) -> int:
    """`ClassCount.result` of labels in memory, [nodes] or [nodes, columns]."""
    found = ClassCount()
    found.feed(y.detach().cpu())
    return found.result()
