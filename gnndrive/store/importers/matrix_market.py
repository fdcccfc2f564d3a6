"""Read MatrixMarket files (.mtx): an entry of a matrix is an edge from its row to its column.

The file is text, plain or packed: a line that says what it holds, comments ("%"), a line with the
numbers of rows, columns and entries, and an entry a line, whose row and column count from 1. When
not to use it: for a matrix in memory, or in SciPy's .npz (`from_data`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array
from gnndrive.store.format import index_dtype
from gnndrive.store.importers.text import (
    PACKED,
    is_whole,
    place_of_row,
    read_lines,
    read_numbers,
    wrong_count,
)

_KINDS = {
    "pattern": None, "integer": "int64", "unsigned-integer": "int64", "real": "float64",
}  # fmt: skip
_LEAST = np.iinfo(np.int64).min
_SYMMETRIES = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}


@dataclass(frozen=True, slots=True)
class MatrixMarket:
    """A file whose first lines are read.

    Attributes:
        path: the file.
        num_nodes: number of rows, and of columns.
        entries: number of entries in the file.
        dtype: dtype of the values; None: entries have none.
        reverse: what the value of an entry is multiplied with for the entry across the diagonal,
            which is not in the file; 0: all entries are in it.
        line: the line of the sizes, from 1; the entries follow it.
    """

    path: Path
    num_nodes: int
    entries: int
    dtype: str | None
    reverse: int
    line: int

    @property
    def columns(self) -> dict[str, str]:
        """Names and dtypes of the columns of `edges`."""
        ends = {"source": "int64", "target": "int64"}
        return ends if self.dtype is None else {**ends, "weight": self.dtype}

    def edges(
        self, first_id: int = 0, progress: Progress | None = None
    ) -> Iterator[list[npt.NDArray[Any]]]:
        """Yield sources and targets, which count from `first_id`, and weights if there are any, [n]
        each, in the file's order. If the file has one half of the matrix, each entry that is not on
        the diagonal is followed by its reverse. StoreError: a line is wrong, or one is missing."""
        done, columns = 0, len(self.columns)
        for rows in read_numbers(
            self.path, columns, self.dtype or "int64", "", False, progress, self.line
        ):
            with np.errstate(invalid="ignore"):  # of nan
                ends = rows[:, :2].astype(np.int64)
            values, skew = rows[:, 2:], self.reverse < 0
            for shown, wrong, problem in (
                (rows, (ends < 1) | (ends > self.num_nodes) | (ends != rows[:, :2]),
                 f"is no row or column, which are 1 to {self.num_nodes} by line {self.line}"),
                (ends, skew & (ends[:, :1] == ends[:, 1:]),
                 "is row and column, and a skew-symmetric matrix has no entry on its diagonal"),
                (values, ~np.isfinite(values), "is no finite value, or none is there"),
                (values, skew & (values == _LEAST), "has no negative in 64 bits"),
            ):  # fmt: skip
                if wrong.any():
                    row, column = np.argwhere(wrong)[0]
                    place = place_of_row(self.path, done + int(row), False, self.line)
                    raise StoreError(
                        f"{self.path}, {place}: {shown[row, column]:.17g} {problem}; correct it"
                    )
            done += len(rows)
            if done <= self.entries:
                ends += first_id - 1
                yield self._both(ends, values) if self.reverse else [*ends.T, *values.T]
        if done != self.entries:
            raise wrong_count(self.path, done, self.entries, f"its line {self.line}")

    def ends(self, progress: Progress | None = None) -> Int64Array:
        """Read all sources and targets, int64 [edges, 2]; see `edges`."""
        narrow = index_dtype(self.num_nodes)  # int32 is half the memory
        parts = [np.empty((0, 2), narrow)]
        parts += [np.stack(each[:2], 1).astype(narrow) for each in self.edges(0, progress)]
        return np.concatenate(parts).astype(np.int64)

    def _both(self, ends: Int64Array, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        both = np.stack([ends, ends[:, ::-1]], 1).reshape(-1, 2)
        weights = np.stack([values, values * self.reverse], 1).reshape(len(both), values.shape[1])
        kept = np.ones(len(both), np.bool_)
        kept[1::2] = ends[:, 0] != ends[:, 1]
        return [*both[kept].T, *weights[kept].T]


def is_matrix(path: Path) -> bool:
    """Whether a file's name has the ending of a MatrixMarket file, packed or not."""
    return (path.stem if path.suffix in PACKED else path.name).lower().endswith(".mtx")


def open_matrix(path: Path) -> MatrixMarket:
    """Read the first lines of a MatrixMarket file. StoreError: they are damaged, or say that the
    matrix is dense, complex or not square; or it is a pipe, which cannot be read twice."""
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no plain file: save the matrix in a file, and give that")
    lines = read_lines(path)
    _, first = next(lines, (1, ""))
    banner = first.lower().split()
    if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5:
        raise StoreError(
            f"{path}, line 1: {first.strip()[:80]!r} is not '%%MatrixMarket matrix coordinate …', "
            "with which a MatrixMarket file begins: correct it, or give another name to a list of "
            "edges"
        )
    _, _, form, kind, symmetry = banner
    if form != "coordinate" or kind not in _KINDS or symmetry not in _SYMMETRIES:
        raise StoreError(
            f"{path}, line 1: {first.strip()[:80]!r}: give a matrix in the form coordinate, with "
            f"{', '.join(_KINDS)} values, {', '.join(_SYMMETRIES)}; of another one, write "
            "scipy.io.mmwrite(path, abs(scipy.sparse.coo_array(matrix)))"
        )
    for line, text in lines:
        if not text.strip() or text.startswith("%"):
            continue
        sizes = text.split()
        if len(sizes) != 3 or not all(is_whole(size) and int(size) >= 0 for size in sizes):
            raise StoreError(
                f"{path}, line {line}: {text.strip()[:80]!r} is not the numbers of rows, columns "
                "and entries; correct it"
            )
        rows, columns, entries = map(int, sizes)
        if rows != columns:
            raise StoreError(
                f"{path}, line {line}: the matrix has {rows} rows and {columns} columns, and a "
                "matrix of edges has one of each for every node: if rows and columns are two kinds "
                "of nodes, give both in one matrix A, scipy.sparse.bmat([[None, A], [A.T, None]]), "
                "or make a HeteroData and use gnndrive.from_data"
            )
        return MatrixMarket(path, rows, entries, _KINDS[kind], _SYMMETRIES[symmetry], line)
    raise StoreError(f"{path} ends before the numbers of rows, columns and entries: correct it")
