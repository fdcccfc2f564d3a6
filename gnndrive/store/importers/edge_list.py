"""Edge lists larger than memory, in Parquet or CSV, sorted by DuckDB within a budget.

DuckDB reads the files, sorts edges by target and spills to disk beside the store; what comes out is
streamed into the CSC arrays, so that memory holds DuckDB's budget, the index pointers and a batch
of edges. When not to use it: for a list that fits, `from_csv` needs no DuckDB.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.importers.sql import NUMBER, file_name, first_row, quoted

BATCH = 1 << 20  # edges at once
POLL_S = 0.25  # between two looks at how far a sort is
DUCKDB_SHARE = 0.6  # of the budget; the rest is Python's, numpy's, and a batch on its way
PARQUET = (".parquet", ".pq")
_WHOLE = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG")}
_WHOLE |= {"INTEGER", "UINTEGER"}
_NUMBERS = {
    **{f"{sign}{size}": f"{sign.lower()}int{bits}" for sign in ("", "U") for size, bits in (
        ("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64)
    )},
    "FLOAT": "float32", "DOUBLE": "float64", "BOOLEAN": "bool",
}  # fmt: skip


class EdgeList:
    """A list of edges in files, within a memory budget; to be closed.

    Args:
        files: .parquet; or text with a comma, semicolon, tab or space between columns, comments
            ("#") before the first row only; several are read one after the other.
        memory: bytes for everything.
        folder: where to spill; removed at the end.
        source, target: the columns' names; None: the first two.
        map_ids: take ids of any kind, text or sparse numbers, and number nodes in their order.
        columns: names of the columns to keep.
        header: whether each text file begins with the columns' names; None: if nothing in its first
            row is a number.
        called: what errors call the files; None: by their names.

    Attributes:
        count: edges.
        last: the largest node's number, −1 if there are no edges.

    Raises:
        ConfigError: DuckDB is not installed, there is no such column, or it cannot be told whether
            there is a header.
        StoreError: a file cannot be read, or an id is no whole number of at least 0; the message
            names the file and the row.
    """

    def __init__(
        self,
        files: Sequence[Path],
        memory: int,
        folder: Path,
        source: str | None = None,
        target: str | None = None,
        map_ids: bool = False,
        columns: Sequence[str] = (),
        header: bool | None = None,
        called: str | None = None,
    ) -> None:
        duckdb = _duckdb()
        self._called = called or ", ".join(map(str, files))
        self._files, self._mapped, self._errors = files, map_ids, duckdb.Error
        self._table = self._tables(header)
        self._db, self._spill = duckdb.connect(":memory:"), ""
        try:
            self._spill = _temporary(folder)
            self._run(f"SET memory_limit = '{max(int(DUCKDB_SHARE * memory) >> 20, 1)}MiB'")
            self._run(f"SET temp_directory = {quoted(self._spill)}")
            self._run("SET enable_progress_bar = true")  # or it would not count
            self._run("SET enable_progress_bar_print = false")
            self._columns = self._describe()
            self._source, self._target = self._ends(source, target)
            self._check_columns(columns)
            if map_ids:
                self._map()
            self.count, self.last = self._check()
        except BaseException:
            self.close()
            raise

    def by_target(
        self, undirected: bool, tell: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Any, Any, Any]]:
        """The edges sorted by target, those of one target in the list's order: batches of target,
        source and number in the list, int64 [n].

        Args:
            undirected: also the other direction of each, each pair once, sorted by target and
                source; without numbers (None).
            tell: called before the first batch with the share that is sorted, in percent.
        """
        if undirected:
            sql = f"SELECT t, s, NULL::BIGINT AS e FROM {self._both} ORDER BY t, s"
        else:
            sql = f"SELECT t, s, e FROM ({self._numbered}) ORDER BY t, e"
        for target, source, number in self._batches(sql, tell):
            yield target, source, None if undirected else number

    def count_undirected(self) -> int:
        """How many edges there are in both directions, each pair once."""
        (count,) = self._one(f"SELECT count(*) FROM {self._both}")
        return int(count)

    def column(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """A column that is kept, in the list's order, in batches."""
        sql = f"SELECT {self._column(name)} FROM {self._table}"
        for (values,) in self._batches(sql):
            yield values

    def dtype(self, name: str) -> str:
        """The element type of a column that is kept."""
        return _NUMBERS[self._columns[name]]

    def ids(self) -> Iterator[npt.NDArray[Any]]:
        """The ids of mapped nodes by the nodes' numbers, in batches: whole numbers, or text as
        UTF-8 bytes padded with zeros, uint8 [n, longest]."""
        (kind,) = self._one("SELECT any_value(typeof(id)) FROM ids")
        if kind in _WHOLE:
            yield from (values for (values,) in self._batches("SELECT id FROM ids ORDER BY node"))
            return
        (width,) = self._one("SELECT max(strlen(id::VARCHAR)) FROM ids")
        for (values,) in self._batches("SELECT id::VARCHAR FROM ids ORDER BY node"):
            text = np.array([value.encode() for value in values], f"S{max(width, 1)}")
            yield text.view(np.uint8).reshape(len(text), -1)

    def refuse_above(self, num_nodes: int) -> None:
        """Refuse an id that is none of so many nodes.

        Raises:
            StoreError: names the row.
        """
        if self.last >= num_nodes:
            wrong = f"s >= {num_nodes} OR t >= {num_nodes}"
            self._refuse(wrong, f"names a node, but there are {num_nodes}, numbered from 0")

    def close(self) -> None:
        """Remove what was spilled; idempotent."""
        self._db.close()
        if self._spill:
            shutil.rmtree(self._spill, ignore_errors=True)

    # ---- tables

    def _tables(self, header: bool | None) -> str:
        """The files, as one table in SQL."""
        if all(is_parquet(file) for file in self._files):
            return f"read_parquet([{', '.join(map(file_name, self._files))}])"
        tables, names = [], None
        for file in self._files:
            skip, first, delimiter, alone = first_row(file)
            named = header
            if named is None and first:
                named = not any(NUMBER.match(field) for field in first)
                if named and self._mapped:
                    raise ConfigError(
                        f"{file}: is {first} the first edge, or the columns' names? Say "
                        "header=True or False (--header, --no-header)"
                    )
            if names is None and first:
                names = first if named else [f"column{n}" for n in range(len(first))]
            if not first or (named and alone):
                continue
            said = ", ".join(map(quoted, names or first))
            tables.append(
                f"SELECT * FROM read_csv({file_name(file)}, delim = {quoted(delimiter)}, "
                f"header = false, skip = {skip + bool(named)}, names = [{said}])"
            )
        none = ", ".join(f'NULL::BIGINT AS "{name}"' for name in names or ("source", "target"))
        return f"({' UNION ALL '.join(tables) or f'SELECT {none} WHERE false'})"

    @property
    def _raw(self) -> str:
        """Ends and numbers of edges as the files have them."""
        ends = f"{self._source}{self._as} AS s, {self._target}{self._as} AS t"
        return f"SELECT {ends}, row_number() OVER () - 1 AS e FROM {self._table}"

    @property
    def _numbered(self) -> str:
        """Ends as numbers of nodes, and the edges' own numbers."""
        if not self._mapped:
            return f"SELECT s::BIGINT AS s, t::BIGINT AS t, e FROM ({self._raw})"
        return (
            f"SELECT a.node AS s, b.node AS t, n.e FROM ({self._raw}) n "
            "JOIN ids a ON n.s = a.id JOIN ids b ON n.t = b.id"
        )

    @property
    def _both(self) -> str:
        """A table of all edges in both directions, each pair once."""
        self._run(
            "CREATE TABLE IF NOT EXISTS both_ways AS SELECT DISTINCT s, t FROM (SELECT s, t FROM "
            f"({self._numbered}) UNION ALL SELECT t, s FROM ({self._numbered}))"
        )
        return "both_ways"

    def _map(self) -> None:
        ends = f"SELECT s AS id FROM ({self._raw}) UNION ALL SELECT t FROM ({self._raw})"
        self._run(
            "CREATE TABLE ids AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
            f"FROM (SELECT DISTINCT id FROM ({ends}) WHERE id IS NOT NULL)"
        )

    # ---- checks

    def _describe(self) -> dict[str, str]:
        rows = self._run(f"DESCRIBE SELECT * FROM {self._table}").fetchall()
        return {str(row[0]): str(row[1]) for row in rows}

    def _column(self, name: str) -> str:
        if name not in self._columns:
            names = ", ".join(map(repr, self._columns))
            raise ConfigError(f"there is no column {name!r}; there are {names}")
        return '"' + name.replace('"', '""') + '"'

    def _ends(self, source: str | None, target: str | None) -> tuple[str, str]:
        names = list(self._columns)
        if len(names) < 2:
            raise StoreError(f"{self._files[0]} has {len(names)} column: edges need two")
        ends = source or names[0], target or names[1]
        kinds = {self._columns[name] for name in ends if self._column(name)}
        self._as = "::VARCHAR" if len(kinds) > 1 and not kinds <= _WHOLE else ""
        for name in ends:
            column, kind = self._column(name), self._columns[name]
            if kind in _WHOLE or self._mapped:
                continue
            (found,) = self._one(f"SELECT min({column}) FROM {self._table}")
            if found is not None:
                raise StoreError(
                    f"column {name!r} of {self._files[0]} is {kind}: node ids are whole numbers "
                    f"from 0, and here is {found!r}; give map_ids=True (--map-ids) to have them "
                    "numbered"
                )
        return self._column(ends[0]), self._column(ends[1])

    def _check_columns(self, names: Sequence[str]) -> None:
        for name in names:
            column, kind = self._column(name), self._columns[name]
            if kind not in _NUMBERS:
                raise ConfigError(f"column {name!r} is {kind}: only columns of numbers are kept")
            sql = f"SELECT count(*) FROM {self._table} WHERE {column} IS NULL"
            (missing,) = self._one(sql)
            if missing:
                raise StoreError(f"column {name!r} lacks {missing} values: fill them in")

    def _check(self) -> tuple[int, int]:
        wrong = "s IS NULL OR t IS NULL" + ("" if self._mapped else " OR s < 0 OR t < 0")
        largest = "NULL" if self._mapped else "max(greatest(s, t))"
        sql = f"SELECT count(*), {largest}, count(*) FILTER ({wrong}) FROM ({self._raw})"
        count, last, bad = self._one(sql)
        if bad:
            self._refuse(wrong, "has an end that is missing or negative")
        if self._mapped:
            (nodes,) = self._one("SELECT count(*) FROM ids")
            last = nodes - 1
        return int(count), -1 if last is None else int(last)

    def _refuse(self, wrong: str, how: str) -> None:
        sql = f"SELECT e, s, t FROM ({self._raw}) WHERE {wrong} LIMIT 1"
        number, source, target = self._one(sql)
        raise StoreError(
            f"{self._called}: edge {number + 1}, {source} to {target}, {how}; correct it"
        )

    # ---- DuckDB

    def _run(self, sql: str) -> Any:
        try:
            return self._in_thread(lambda: self._db.execute(sql))
        except self._errors as error:
            raise self._failure(error) from None

    def _one(self, sql: str) -> Any:
        """The first row."""
        return self._run(sql).fetchall()[0]

    def _in_thread(
        self, work: Callable[[], Any], tell: Callable[[int], None] = lambda percent: None
    ) -> Any:
        """What DuckDB does, in a thread, so that meanwhile somebody can be told, or interrupt it:
        in the main thread it would make an error of its own of Ctrl-C."""
        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(work)
            try:
                while wait([doing], POLL_S).not_done:
                    # Half of the query; the other half is reading its rows. -1: not known yet.
                    tell(min(max(int(2 * self._db.query_progress()), 0), 99))
            except BaseException:
                self._db.interrupt()
                raise
        return doing.result()

    def _batches(
        self, sql: str, tell: Callable[[int], None] | None = None
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        try:
            reader = self._begun(sql, tell or (lambda percent: None))
        except self._errors as error:
            raise self._failure(error) from None
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (OSError, ValueError, self._errors) as error:  # Arrow's, of DuckDB's
                raise self._failure(error) from None
            yield tuple(column.to_numpy(zero_copy_only=False) for column in batch.columns)

    def _begun(self, sql: str, tell: Callable[[int], None]) -> Any:
        """What reads the rows of a query, all of which is sorted before there is a first one."""

        def begin() -> Any:
            rows = self._db.sql(sql)  # not `execute`, which makes all of them before the first
            read = getattr(rows, "to_arrow_reader", None) or rows.fetch_arrow_reader  # before 1.5
            return read(BATCH)

        reader = self._in_thread(begin, tell)
        tell(100)
        return reader

    def _failure(self, error: BaseException) -> StoreError:
        text = " ".join(line.strip() for line in str(error).strip().splitlines()[:4])
        files = self._called
        if "No space left" in text or "max_temp_directory_size" in text:
            return StoreError(
                f"the disk is too full to sort {files}: some 30 bytes an edge are needed beside "
                "the store; free some, or choose a path on another disk"
            )
        if "Out of Memory" in text:
            return StoreError(f"{files}: sorting needs more memory; give memory= (--memory) more")
        where = _bad_row_group(self._files)
        return StoreError(f"{where}{files} cannot be read as edges: {text}; correct the file")


def _temporary(folder: Path) -> str:
    try:
        return tempfile.mkdtemp(prefix=".gnndrive-sort-", dir=folder)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written to ({error.strerror}): choose another place for the store"
        ) from None


def _bad_row_group(files: Sequence[Path]) -> str:
    """The first row group of Parquet files that cannot be read, in words; "": there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in filter(is_parquet, files):
        try:
            groups = pq.ParquetFile(file)
        except (OSError, pa.ArrowException):
            return f"{file}: "
        for group in range(groups.num_row_groups):
            try:
                groups.read_row_group(group)
            except (OSError, pa.ArrowException):
                return f"{file}, row group {group} of {groups.num_row_groups}: "
    return ""


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file is named as Parquet files are."""
    return Path(path).suffix.lower() in PARQUET


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401 - DuckDB hands batches over through it
    except ImportError as error:
        raise ConfigError(
            f"edge lists in Parquet, or larger than memory, need {error.name}: "
            "pip install 'gnndrive[import]'"
        ) from None
    return duckdb
