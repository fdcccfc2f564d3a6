"""Columns of tables as rows of arrays: numbers, lists of numbers, bools, times, categories.

A missing number becomes nan, and a missing category -1, as pandas has them; in features and times
it is an error that names the row. Times are int64, nanoseconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.names import did_you_mean
from gnndrive.store.convert import Rows
from gnndrive.store.format import CHUNK_BYTES
from gnndrive.store.graph_values import VALUE_BYTES_MAX
from gnndrive.store.importers.database import Database, identifier
from gnndrive.store.importers.features import Features
from gnndrive.store.importers.table_files import INEXACT, NUMBERS, TYPES, WHOLE, TableFiles

_LIST = re.compile(r"(\w+(?:\(\d+,\d+\))?)(\[\d*\])")
_TYPES_OF_TIME = ("TIMESTAMP", "DATE")
FEATURES, TIMES = ("number", "list"), ("time", "number")
ANY = ("number", "list", "time", "category")
_WORDS = {
    "number": "numbers", "list": "lists of numbers", "time": "dates or timestamps",
    "category": "texts",
}  # fmt: skip
_FIRST_TIME, _LAST_TIME = "'1677-09-22'", "'2262-04-10'"
_BATCH_BYTES = 16 << 20
CLASSES_MAX = 10_000  # more different texts are no category
_USUAL_IDS = {"id", "ids", "node", "nodes", "node_id", "nodeid", "node_ids"}


def kind_of(type: str) -> str | None:
    """What a column of a type in SQL can be: "number", "list", "time" or "category"; None: no
    array."""
    if type in NUMBERS or type.startswith(INEXACT):
        return "number"
    if found := _LIST.fullmatch(type):
        return "list" if kind_of(found[1]) == "number" else None
    if type.startswith(_TYPES_OF_TIME):
        return "time"
    return "category" if type == "VARCHAR" or type.startswith("ENUM") else None


class _Wrong(Exception):
    """What is wrong with a row of a table, which is counted from 0."""

    def __init__(self, row: int, how: str) -> None:
        super().__init__(how)
        self.row, self.how = row, how


class TableRows(Features):
    """The rows of one column, or of columns of numbers and lists side by side.

    Args:
        database, table: what has the columns.
        names: the columns' names.
        count: number of rows.
        kinds: what the columns may be; of FEATURES and TIMES, no value may be missing.

    Attributes:
        order: a table (row, node) that gives each row's place; None: their order in the files.
        classes: the texts that the numbers of a category stand for, sorted; else None.
        unfit: why the column is no array, such as too many classes; "" if it can be one.

    Raises:
        ConfigError: a column is of a type that an array cannot have.
        StoreError: from `chunks` too: the message names the file and the row of a value that is
            missing, or of a list of another length.
    """

    def __init__(
        self,
        database: Database,
        table: TableFiles,
        names: Sequence[str],
        count: int,
        *,
        kinds: Sequence[str] = ANY,
    ) -> None:
        self._database, self._table, self._names = database, table, names
        self.order: str | None = None
        self._allowed, self._complete = kinds, kinds is not ANY
        self.unfit = ""
        self.classes: tuple[str, ...] | None = None
        self._kinds = [self._kind(name) for name in names]
        parts = [self._open(*each) for each in zip(names, self._kinds, strict=True)]
        self._sqls = [sql for sql, _, _ in parts]
        self._widths = [width for _, _, width in parts]
        self.dtype = np.result_type(*(dtype for _, dtype, _ in parts))
        one = len(names) == 1 and self._kinds[0] != "list"
        self.shape = (count,) if one else (count, sum(self._widths))

    def chunks(self, rows: int) -> Iterator[Rows]:
        """See `Features.chunks`."""
        done, wrong = 0, None
        with closing(self._batches(max(1, rows * _BATCH_BYTES // CHUNK_BYTES))) as batches:
            for batch, numbers in batches:
                count = batch.num_rows
                numbers = range(done, done + count) if numbers is None else numbers
                given = zip(batch.columns, self._kinds, self._widths, self._names, strict=False)
                try:
                    parts = [self._rows(*each, numbers) for each in given]
                except _Wrong as error:
                    wrong = error
                    break
                if len(self.shape) == 1:
                    yield parts[0].astype(self.dtype, copy=False)
                else:
                    wide = [part.reshape(count, -1) for part in parts]
                    yield np.concatenate(wide, axis=1, dtype=self.dtype)
                done += count
        if wrong is not None:  # behind the reader's end, because the place is another query
            raise StoreError(f"{self._table.place(wrong.row)} {wrong.how}")

    def _batches(self, rows: int) -> Generator[tuple[Any, Any]]:
        """Yield batches of the columns, and the numbers of their rows in the table; None: in its
        order."""
        batches = None
        if self.order is None and self._complete and "time" not in self._kinds:
            batches = self._table.parquet_batches(self._names, rows)
        if batches is not None:
            yield from ((batch, None) for batch in batches)
            return
        columns = ", ".join(f"{sql} AS c{place}" for place, sql in enumerate(self._sqls))
        sql = f"SELECT {columns} FROM {self._table.sql}"
        if self.order is None:
            yield from ((batch, None) for batch in self._database.batches(sql, rows=rows))
            return
        sql = (
            f"SELECT columns.* FROM (SELECT {columns}, row_number() OVER () - 1 AS row FROM "
            f"{self._table.sql}) columns JOIN {self.order} USING (row) ORDER BY node"
        )
        self._database.run("SET threads = 1")  # each holds a row group, hundreds of MB of features
        for batch in self._database.batches(sql, rows=rows):
            yield batch, batch.column("row")
        self._database.run("RESET threads")

    def _kind(self, name: str) -> str:
        type = self._table.columns[name]
        found = kind_of(type)
        if found not in self._allowed:
            shown = (
                self._table.first_without(name, TYPES["DOUBLE"]) if found == "category" else None
            )
            where = f", and {self._table.place(shown[0])} has {shown[1]!r}" if shown else ""
            raise ConfigError(
                f"column {name!r} of {self._table.name} is {type}{where}: give columns of "
                f"{' or '.join(_WORDS[kind] for kind in self._allowed)}, or correct it"
            )
        assert found is not None
        return found

    def _open(self, name: str, kind: str) -> tuple[str, np.dtype[Any], int]:
        """The column's SQL, its dtype and its width."""
        type, table = self._table.columns[name], self._table
        column = table.column(name, type)
        if kind == "time":
            self._check_times(name)
            return f"epoch_ns({column})", np.dtype(np.int64), 1
        if kind == "category":
            text = table.column(name, "VARCHAR")
            found = self._database.run(
                f"SELECT found FROM (SELECT DISTINCT {text} AS found FROM {table.sql}) WHERE found "
                f"IS NOT NULL ORDER BY found LIMIT {CLASSES_MAX + 1}"
            ).fetchall()
            self.classes = tuple(name for (name,) in found)
            size = sum(len(name.encode()) + 8 for name in self.classes)
            if len(found) > CLASSES_MAX or size > VALUE_BYTES_MAX:
                self.unfit = f"has more than {CLASSES_MAX} different texts, or long ones"
            return text, np.dtype(np.int64), 1
        if kind == "number":
            type = "DOUBLE" if type.startswith(INEXACT) else type
            dtype = np.dtype(NUMBERS[type])
            if self._allowed is TIMES and dtype.kind in "iu":
                type, dtype = "BIGINT", np.dtype(np.int64)
            if not self._complete and dtype.kind != "f" and name in table.missing():
                if dtype.kind in "iu":
                    self._check_fits_double(name)
                type, dtype = "DOUBLE", np.dtype(np.float64)
            return table.column(name, type), dtype, 1
        match = _LIST.fullmatch(type)
        assert match is not None
        base = "DOUBLE" if match[1].startswith(INEXACT) else match[1]
        first = self._database.row(f"SELECT len({identifier(name)}) FROM {table.sql} LIMIT 1")
        width = int(first[0]) if first and first[0] is not None else 0
        return f"{identifier(name)}::{base}{match[2]}", np.dtype(NUMBERS[base]), width

    def _check_times(self, name: str) -> None:
        """Check that nanoseconds since 1970 hold the times of a column in int64."""
        column = self._table.column(name, self._table.columns[name])
        found = self._table.first_row(f"NOT ({column} BETWEEN {_FIRST_TIME} AND {_LAST_TIME})")
        if found is not None and self._complete:
            raise StoreError(
                f"{self._table.place(found)} has a time in column {name!r} before 1677 or after "
                "2262, which int64 nanoseconds do not hold: correct it"
            )
        if found is not None:
            self.unfit = "has a time before 1677 or after 2262, which int64 nanoseconds do not hold"

    def _check_fits_double(self, name: str) -> None:
        if self._table.first_row(f"abs({identifier(name)}::HUGEINT) > {1 << 53}") is not None:
            self.unfit = "lacks values, and has numbers above 2**53, which float64 does not hold"

    def _rows(
        self, values: Any, kind: str, width: int, name: str, numbers: Any
    ) -> npt.NDArray[Any]:
        """A batch of a column as rows; `numbers` are those of the rows in the table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if kind == "list":
            lengths = pc.list_value_length(values)
            wrong = np.flatnonzero(lengths.fill_null(-1).to_numpy(zero_copy_only=False) != width)
            flat = values.flatten()
            if len(wrong):
                found = lengths[wrong[0]].as_py()
                row = _number(numbers, wrong[0])
                if found is None:
                    raise _Wrong(row, f"has no value in column {name!r}: fill it in")
                raise _Wrong(
                    row,
                    f"has {found} values in column {name!r}, and row 1 has {width}: give each row "
                    "as many",
                )
            self._refuse_missing(flat, name, numbers, width)
            return flat.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        if kind == "category":
            assert self.classes is not None
            codes = pc.index_in(values, pa.array(self.classes, pa.string()))
            return codes.fill_null(-1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]
        if self._complete:
            self._refuse_missing(values, name, numbers)
        elif kind == "time":
            values = values.fill_null(np.iinfo(np.int64).min)
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def _refuse_missing(self, values: Any, name: str, numbers: Any, width: int = 1) -> None:
        if values.null_count:
            first = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            row = _number(numbers, first // width)
            raise _Wrong(
                row, f"has no value in column {name!r}: fill it in, or leave the column out"
            )


def check_ids(database: Database, table: str, where: str) -> None:
    """Check the ids in a table (id, node): a store cannot hold the character NUL in one. Whole
    numbers of several types become one that numpy has, if one holds all of them."""
    (kind,) = database.row(f"SELECT any_value(typeof(id)) FROM {table}")
    if kind == "HUGEINT":
        low, high = database.row(f"SELECT min(id), max(id) FROM {table}")
        for type, least, most in (("BIGINT", -(1 << 63), 1 << 63), ("UBIGINT", 0, 1 << 64)):
            if least <= low and high < most:
                database.run(f"ALTER TABLE {table} ALTER id TYPE {type}")
                return
    if kind == "VARCHAR":
        (bad,) = database.row(f"SELECT any_value(id) FROM {table} WHERE contains(id, chr(0))")
        if bad is not None:
            raise StoreError(f"{where}: the id {bad!r} holds the character NUL: correct it")


class NodeIds(Features):
    """The ids in a table (id, node) of a database, in the order of the nodes' numbers: whole
    numbers [n], or text as UTF-8 bytes padded with zeros, uint8 [n, longest]."""

    def __init__(self, database: Database, table: str) -> None:
        self._database, self._table = database, table
        count, kind, width = database.row(
            f"SELECT count(*), any_value(typeof(id)), max(strlen(id::VARCHAR)) FROM {table}"
        )
        self._whole = kind in WHOLE or kind is None
        self.dtype = np.dtype(WHOLE.get(kind, "int64") if self._whole else np.uint8)
        self.shape = (count,) if self._whole else (count, max(width, 1))

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """See `Features.chunks`."""
        id = "id" if self._whole else "id::VARCHAR"
        sql = f"SELECT {id} FROM {self._table} ORDER BY node"
        for batch in self._database.batches(sql, rows=rows):
            values = batch.column(0).to_numpy(zero_copy_only=False)
            if self._whole:
                yield values
            else:
                text = np.array([value.encode() for value in values], f"S{self.shape[1]}")
                yield text.view(np.uint8).reshape(len(text), -1)


def _number(numbers: Any, place: int) -> int:
    found = numbers[int(place)]
    return int(found if isinstance(found, int) else found.as_py())


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern such as "f*" matches."""
    return [name for name in names if name == pattern or fnmatchcase(name, pattern)]


def feature_columns(table: TableFiles, key: str | None, x: Sequence[str]) -> list[str]:
    """The columns of a table of features: those that match `x`; if that is empty, the only column
    of lists, else all, which have to be numbers; `key` is none of them."""
    names = [name for name in table.columns if name != key]
    if x:
        found = {pattern: matching(pattern, names) for pattern in x}
        for pattern, fitting in found.items():
            if not fitting:
                there, meant = ", ".join(map(repr, names)), did_you_mean(pattern, names)
                raise ConfigError(f"{table.name} has no column {pattern!r}{meant}; it has {there}")
        return list(dict.fromkeys(name for fitting in found.values() for name in fitting))
    lists = [name for name in names if kind_of(table.columns[name]) == "list"]
    if len(lists) == 1:
        return lists
    usual = [name for name in names if name.lower() in _USUAL_IDS]
    others = [name for name in names if kind_of(table.columns[name]) not in ("number", "list")]
    if usual or others or not names:
        example = usual[0] if usual else "id"
        raise ConfigError(
            f"{table.name} has the columns {', '.join(map(repr, table.columns))}: name those of "
            'the features, x="f*", and the one of node ids, if there is one, as '
            f"{table.files[0]}:{example}"
        )
    return names
