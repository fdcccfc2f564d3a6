"""Read numbers in CSV without a header block by block: the files of OGB, gzipped, and of GraphBolt.

pyarrow parses blocks of 16 MiB. Only a file that it refuses is read again line by line, to find the
wrong line. When not to use it: for text with a header, comments or other separators (text.py).
"""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.importers.features import Features
from gnndrive.store.importers.text import is_whole

BLOCK_BYTES = 16 << 20
_LINE_BYTES = 1 << 24  # a line of this length or more is refused
_SMALL_LINES = 10_000  # a file of names or counts with more lines is refused
_UNREADABLE = (OSError, EOFError, zlib.error)
_MISSING = {"", "nan", "-nan", "null", "na", "n/a", "#na", "#n/a"}  # missing numbers to pyarrow


class CsvRows(Features):
    """Rows of numbers in a CSV file.

    Args:
        path: the file; gzipped if its name ends with .gz.
        count: number of rows that the file must have.
        count_source: the file that says so, for errors.
        kind: "int64", or "float64" with nan for an empty field; None: int64 if the file holds whole
            numbers only, else float64; the file is then read once more.

    Raises:
        ConfigError: pyarrow is not installed.
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path, count: int, count_source: str, kind: str | None = None) -> None:
        self._path, self._count_source = path, count_source
        self._columns = columns_of(path)
        if kind is None:
            kind = "int64" if self._all_whole() else "float64"
        self.dtype = np.dtype(kind)
        self.shape = (count, self._columns) if self._columns else (count, 1)

    def _all_whole(self) -> bool:
        try:
            for _ in batches(self._path, self._columns, "int64", explain=False):
                pass
        except _NotNumbers:
            return False
        return True

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """See `Features.chunks`; a file with more or fewer than `count` rows is a StoreError."""
        done = 0
        for batch in batches(self._path, self._columns, self.dtype.name):
            done += len(batch)
            if done > self.shape[0]:
                raise wrong_count(self._path, None, self.shape[0], self._count_source)
            for start in range(0, len(batch), rows):
                yield batch[start : start + rows]
        if done < self.shape[0]:
            raise wrong_count(self._path, done, self.shape[0], self._count_source)


def wrong_count(path: Path | str, found: int | None, wanted: int, count_source: str) -> StoreError:
    """The error for a file with another number of rows than it must have.

    Args:
        path: the file.
        found: number of rows in the file; None: more than `wanted`.
        wanted: number of rows that the file must have.
        count_source: the file that says so.
    """
    rows = f"more than {wanted}" if found is None else found
    return StoreError(
        f"{path} has {rows} rows, but {count_source} says {wanted}: one of them is damaged; "
        "correct it, or fetch the dataset again"
    )


class _NotNumbers(Exception):
    """pyarrow cannot read the file as numbers of the given kind."""


def batches(
    path: Path, columns: int, kind: str, explain: bool = True
) -> Iterator[npt.NDArray[Any]]:
    """Read the rows of a file in order.

    Args:
        path: the file.
        columns: numbers in a row; 0: the file is empty.
        kind: "int64" or "float64".
        explain: find the wrong line in a file that does not hold numbers of that kind, and raise
            StoreError; False: raise `_NotNumbers`.

    Yields:
        Rows [n, columns] of dtype `kind`.

    Raises:
        ConfigError: pyarrow is not installed.
        StoreError: a line is wrong, which the message names, or the file is damaged.
    """
    arrow, arrow_csv = _pyarrow()
    if not columns:
        return
    names = [str(number) for number in range(columns)]
    read = arrow_csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES)
    types = dict.fromkeys(names, arrow.type_for_alias(kind))
    try:
        convert = arrow_csv.ConvertOptions(column_types=types)
        for batch in arrow_csv.open_csv(
            os.fspath(path), read_options=read, convert_options=convert
        ):
            if kind == "int64" and any(column.null_count for column in batch.columns):
                raise ValueError("a field is empty")
            rows = np.empty((len(batch), columns), kind)
            for number, column in enumerate(batch.columns):
                rows[:, number] = column.to_numpy(zero_copy_only=False)
            yield rows
    except (arrow.ArrowException, OSError, ValueError) as error:
        if not explain and isinstance(error, ValueError):
            raise _NotNumbers from None
        raise _describe_error(path, columns, kind, error) from None


def columns_of(path: Path) -> int:
    """Number of fields in a file's first line; 0 if the file is empty.

    Raises:
        StoreError: the file cannot be opened.
    """
    first = next((line for _, line in _lines(path)), None)
    return 0 if first is None else len(first.split(","))


def count_rows(path: Path, columns: int) -> int:
    """Number of rows of a file of whole numbers.

    Args:
        path: the file.
        columns: numbers that each row must have.

    Raises:
        ConfigError, StoreError: as `batches`.
    """
    return sum(map(len, batches(path, columns_of(path) and columns, "int64")))


def line_of_row(path: Path, row: int) -> int:
    """The number, from 1, of the line that holds a row, which is counted from 0."""
    numbers = (number for number, _ in _lines(path))
    return next(number for at, number in enumerate(numbers) if at == row)


def read_small(path: Path) -> list[list[str]]:
    """The fields of each line of a small file.

    Raises:
        StoreError: the file cannot be read, or is not small.
    """
    lines = []
    for number, line in _lines(path):
        if number > _SMALL_LINES:
            raise StoreError(
                f"{path} has more than {_SMALL_LINES} lines and should have a few: fetch or unzip "
                "the dataset again"
            )
        lines.append(line)
    return [[field.strip() for field in fields] for fields in csv.reader(lines)]


def read_ids(path: Path, num_nodes: int) -> Int64Array:
    """Read node ids, one a line, int64 [n].

    Raises:
        StoreError: a line is wrong, or names a node that does not exist; the message names it.
    """
    parts, done = [np.empty(0, np.int64)], 0
    for batch in batches(path, min(columns_of(path), 1), "int64"):
        bad = np.flatnonzero((batch[:, 0] < 0) | (batch[:, 0] >= num_nodes))
        if len(bad):
            line, node = line_of_row(path, done + int(bad[0])), int(batch[bad[0], 0])
            raise StoreError(
                f"{path}, line {line}: node {node}, but there are {num_nodes} nodes, numbered from "
                "0; correct the line"
            )
        parts.append(batch[:, 0])
        done += len(batch)
    return np.concatenate(parts)


def _open(path: Path) -> gzip.GzipFile | BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line that is not blank."""
    try:
        with _open(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES), b""), 1):
                if len(line) == _LINE_BYTES:
                    raise StoreError(
                        f"{path}, line {number} is longer than {_LINE_BYTES - 1:,} bytes: fetch or "
                        "unzip the dataset again"
                    )
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").strip("\r\n")
                if text:
                    yield number, text
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: fetch or unzip the dataset again") from None
    except _UNREADABLE as error:
        raise StoreError(
            f"{path} cannot be read ({error}): fetch or unzip the dataset again"
        ) from None


def _describe_error(path: Path, columns: int, kind: str, error: BaseException) -> StoreError:
    """Read a file line by line to find the first wrong line, and make an error that names it."""
    whole = kind == "int64"
    try:
        for number, line in _lines(path):
            fields = [field.strip().strip('"') for field in line.split(",")]
            if len(fields) != columns or not all(
                is_whole(field) if whole else _is_number(field) for field in fields
            ):
                wanted = f"{columns} {'whole ' if whole else ''}number{'s' * (columns != 1)}"
                return StoreError(
                    f"{path}, line {number}: {line[:80]!r} is not {wanted}, separated by commas; "
                    "correct it"
                )
    except StoreError as damaged:
        return damaged
    return StoreError(f"{path} cannot be read as numbers ({error}): fetch the dataset again")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in _MISSING
    return True


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        raise ConfigError("datasets in CSV need pyarrow: pip install 'gnndrive[import]'") from None
    return pyarrow, pyarrow.csv
