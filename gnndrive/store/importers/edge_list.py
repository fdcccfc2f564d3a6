"""Edge lists larger than memory, in Parquet or CSV, sorted by DuckDB within a budget.

DuckDB reads the files, sorts the edges by target and spills to disk beside the store. The sorted
edges are written to the CSC arrays batch by batch, so that memory holds DuckDB's share of the
budget, the index pointers and one batch. When not to use it: for a list that fits in memory;
`from_csv` needs no DuckDB.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeKey, Int64Array, ends_of
from gnndrive.common.threads import submit, thread_pool
from gnndrive.store.format import Progress, index_dtype
from gnndrive.store.importers.text import NUMBER, read_lines
from gnndrive.store.temporary_folders import TemporaryFolder
from gnndrive.store.types import GRAPH, array_name
from gnndrive.store.writer import StoreWriter

BATCH = 1 << 20  # edges in a batch
POLL_S = 0.25  # time between two reports of a sort's progress
DUCKDB_SHARE = 0.6  # share of the budget; the rest is for Python, numpy and a batch
_WHOLE = {
    "TINYINT": "int8", "SMALLINT": "int16", "INTEGER": "int32", "BIGINT": "int64",
    "UTINYINT": "uint8", "USMALLINT": "uint16", "UINTEGER": "uint32", "UBIGINT": "uint64",
}  # fmt: skip
_NUMBERS = {**_WHOLE, "FLOAT": "float32", "DOUBLE": "float64", "BOOLEAN": "bool"}
_PLAIN = "TRY_CAST({0} AS BIGINT)::VARCHAR IS NOT DISTINCT FROM trim({0})"
"""SQL that says whether a text is a whole number as DuckDB writes it, so not 007, +7 or 7e0."""
_TYPES = {
    # DuckDB casts 0.5 to 1, and equality is several times as fast as the pattern.
    "BIGINT": "CASE WHEN TRY_CAST({0} AS BIGINT)::VARCHAR = {0} THEN true ELSE TRY_CAST({0} AS "
    "BIGINT) IS NOT NULL AND regexp_full_match(trim({0}), '[+-]?[0-9]+') END",
    "DOUBLE": "TRY_CAST({0} AS DOUBLE) IS NOT NULL",
    "BOOLEAN": "TRY_CAST({0} AS BOOLEAN) IS NOT NULL",
}
"""SQL that says whether a text is of a type."""
_QUOTED = re.compile(r"""\s*(['"])(?:(?!\1).|\1\1)*\1\s*""")
"""A field in quotes; quotes within it are doubled."""


class EdgeList:
    """A list of edges in files, sorted within a memory budget; close it after use.

    Args:
        files: .parquet; or text with a comma, semicolon, tab or space between columns, comments
            ("#") before the first row only.
        memory: memory budget in bytes.
        beside: path beside which to make a temporary folder for the spilled edges.
        source, target, map_ids, columns, header: as for `from_edges`.
        name: the files' name in errors; None: their paths.

    Attributes:
        count: number of edges.
        last: the largest node number; -1 if there are no edges.
    """

    def __init__(
        self,
        files: Sequence[Path],
        memory: int,
        beside: Path,
        source: str | None = None,
        target: str | None = None,
        map_ids: bool = False,
        columns: Sequence[str] = (),
        header: bool | None = None,
        name: str | None = None,
    ) -> None:
        duckdb = _duckdb()
        self._name = name or ", ".join(map(str, files))
        self._files, self._mapped, self._errors = files, map_ids, duckdb.Error
        self._text = not all(map(is_parquet, files))
        self._table = self._tables(header)
        self._spill: TemporaryFolder | None = None
        self._db = duckdb.connect(":memory:")
        try:
            self._spill = _temporary(beside)
            self._run(f"SET memory_limit = '{max(int(DUCKDB_SHARE * memory) >> 20, 1)}MiB'")
            self._run(f"SET temp_directory = {_quoted(str(self._spill.path))}")
            self._run("SET enable_progress_bar = true")  # DuckDB measures no progress without it
            self._run("SET enable_progress_bar_print = false")
            described = self._run(f"DESCRIBE SELECT * FROM {self._table}").fetchall()
            self._columns = {str(row[0]): str(row[1]) for row in described}
            self._source, self._target = self._ends(source, target, columns)
            self._check_columns(columns)
            if map_ids:
                self._refuse_comments()
                self._number_ids()
            self.count, self.last = self._count_and_check()
        except BaseException:
            self.close()
            raise

    def by_target(
        self, undirected: bool, tell: Callable[[int], None]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Yield targets, sources and numbers in the list, int64 [n] each, in batches, sorted by
        target; edges of one target keep the list's order.

        Args:
            undirected: add the other direction of every edge, drop repetitions, and sort by target
                and source; the numbers are None.
            tell: called before the first batch with the share that is sorted, in percent.
        """
        if undirected:
            sql = f"SELECT t, s, NULL::BIGINT AS e FROM {self._both_directions} ORDER BY t, s"
        else:
            sql = f"SELECT t, s, e FROM ({self._numbered_edges}) ORDER BY t, e"
        for target, source, number in self._batches(sql, tell):
            yield target, source, None if undirected else number

    def count_undirected(self) -> int:
        """Number of edges in both directions, without repetitions."""
        (count,) = self._fetch_row(f"SELECT count(*) FROM {self._both_directions}")
        return int(count)

    def column(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Read a kept column in batches, in the list's order."""
        sql = f"SELECT {self._column(name, self._columns[name])} FROM {self._table}"
        for (values,) in self._batches(sql):
            yield values

    def dtype(self, name: str) -> str:
        """The dtype of a kept column."""
        return _NUMBERS[self._columns[name]]

    def ids(self) -> Iterator[npt.NDArray[Any]]:
        """Read the mapped nodes' ids in batches, in the order of the nodes' numbers: whole numbers
        [n], or text as UTF-8 bytes padded with zeros, uint8 [n, longest]."""
        (kind,) = self._fetch_row("SELECT any_value(typeof(id)) FROM ids")
        if kind in _WHOLE:
            yield from (values for (values,) in self._batches("SELECT id FROM ids ORDER BY node"))
            return
        (width,) = self._fetch_row("SELECT max(strlen(id::VARCHAR)) FROM ids")
        for (values,) in self._batches("SELECT id::VARCHAR FROM ids ORDER BY node"):
            text = np.array([value.encode() for value in values], f"S{max(width, 1)}")
            yield text.view(np.uint8).reshape(len(text), -1)

    def numbers(self, ids: Sequence[str] | npt.NDArray[Any]) -> Int64Array:
        """The numbers of mapped nodes, int64 [n]; -1 for an id that no edge has."""
        import pyarrow

        whole = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"
        asked = pyarrow.array(ids if whole else list(map(str, ids)))
        self._db.register("asked", pyarrow.table({"id": asked.cast(pyarrow.string())}))
        sql = (
            "SELECT coalesce(ids.node, -1) FROM (SELECT id, row_number() OVER () AS place FROM "
            "asked) a LEFT JOIN ids ON ids.id::VARCHAR = a.id ORDER BY a.place"
        )
        parts = [values for (values,) in self._batches(sql)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def refuse_above(self, num_nodes: int) -> None:
        """Check that all node numbers are below `num_nodes`."""
        if self.last >= num_nodes:
            self._refuse_edge(
                f"s >= {num_nodes} OR t >= {num_nodes}",
                f"names a node, but there are {num_nodes}, numbered from 0: give num_nodes="
                f"{self.last + 1} (--num-nodes), and features for all of them if you give any, or",
            )

    def close(self) -> None:
        """Close DuckDB and remove the spilled edges. Idempotent."""
        self._db.close()
        if self._spill is not None:
            self._spill.remove()

    # ---- tables

    def _tables(self, header: bool | None) -> str:
        """SQL for the files as one table, in which columns of text files are text."""
        if not self._text:
            files = ", ".join(map(_file_name, self._files))
            # By name, because else DuckDB casts later files' columns to the first one's types.
            return f"read_parquet([{files}], union_by_name = true)"
        tables, names = [], None
        for file in self._files:
            skip, first, delimiter, quote, alone = _first_row(file)
            named = header
            if named is None and first:
                named = not any(NUMBER.match(field.strip(" '")) for field in first)
                if named and self._mapped:
                    raise ConfigError(
                        f"{file}: is {first} the first edge, or the columns' names? Say "
                        "header=True or False (--header, --no-header)"
                    )
            if names is None and first:
                names = first if named else [f"column{n}" for n in range(len(first))]
            if not first or (named and alone):
                continue
            columns = ", ".join(map(_quoted, names or first))
            tables.append(
                f"SELECT * FROM read_csv({_file_name(file)}, delim = {_quoted(delimiter)}, "
                f"header = false, skip = {skip + bool(named)}, names = [{columns}], comment = '', "
                f"quote = {_quoted(quote)}, escape = {_quoted(quote)}, all_varchar = true)"
            )
        empty = map(_column_name, names or ("source", "target"))
        none = ", ".join(f"NULL::VARCHAR AS {name}" for name in empty)
        return f"({' UNION ALL '.join(tables) or f'SELECT {none} WHERE false'})"

    @property
    def _edges(self) -> str:
        """SQL for the edges: their ends (s, t) as in the files, and their numbers (e)."""
        ends = f"{self._source} AS s, {self._target} AS t"
        return f"SELECT {ends}, row_number() OVER () - 1 AS e FROM {self._table}"

    @property
    def _numbered_edges(self) -> str:
        """SQL for the edges: their ends (s, t) as node numbers, and their numbers (e)."""
        if not self._mapped:
            return f"SELECT s::BIGINT AS s, t::BIGINT AS t, e FROM ({self._edges})"
        return (
            f"SELECT a.node AS s, b.node AS t, n.e FROM ({self._edges}) n "
            "JOIN ids a ON n.s = a.id JOIN ids b ON n.t = b.id"
        )

    @property
    def _both_directions(self) -> str:
        """Make a table of all edges in both directions without repetitions; return its name."""
        self._run(
            "CREATE TABLE IF NOT EXISTS both_ways AS SELECT DISTINCT s, t FROM (SELECT s, t FROM "
            f"({self._numbered_edges}) UNION ALL SELECT t, s FROM ({self._numbered_edges}))"
        )
        return "both_ways"

    def _number_ids(self) -> None:
        ends = f"SELECT s AS id FROM ({self._edges}) UNION ALL SELECT t FROM ({self._edges})"
        self._run(
            "CREATE TABLE ids AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
            f"FROM (SELECT DISTINCT id FROM ({ends}) WHERE id IS NOT NULL)"
        )

    # ---- checks

    def _refuse_comments(self) -> None:
        """Check that no line that is a comment is taken for an edge."""
        first = _column_name(next(iter(self._columns)))
        test = f"SELECT bool_or(starts_with(trim({first}), '#')) FROM {self._table}"
        if self._text and self._fetch_row(test)[0] and (comment := _late_comment(self._files)):
            raise StoreError(comment)

    def _column(self, name: str, kind: str) -> str:
        """SQL for a column with values of the type `kind`; a blank field of text is NULL."""
        column = _column_name(name)
        if self._text and kind == "VARCHAR":
            return f"nullif(trim({column}), '')"
        return f"TRY_CAST({column} AS {kind})" if self._text else f"{column}::{kind}"

    def _ends(self, source: str | None, target: str | None, kept: Sequence[str]) -> tuple[str, ...]:
        """SQL for the two ends of the edges."""
        names = list(self._columns)
        if len(names) < 2:
            raise StoreError(
                f"{self._files[0]} has {len(names)} column: edges need two; check "
                "its separator, a comma, semicolon, tab or space"
            )
        ends = source or names[0], target or names[1]
        for name in (*ends, *kept):
            if name not in self._columns:
                there = ", ".join(map(repr, names))
                raise ConfigError(f"there is no column {name!r}; there are {there}")
        if self._text:
            kinds = self._kinds_of_text(ends, kept)
        else:
            kinds = [self._kind_of_ids(name) for name in ends]
        for name, kind in zip(ends, kinds, strict=True):
            if kind in _WHOLE or self._mapped:
                continue
            if (found := self._first_without(name, _TYPES["BIGINT"])) is not None:
                edge, text = found
                raise StoreError(
                    f"column {name!r} of {self._name} is {kind}: node ids are whole numbers from "
                    f"0, and edge {edge} has {text!r}; correct it, or give map_ids=True "
                    "(--map-ids) to have ids of any kind numbered"
                )
        if len(set(kinds)) > 1 and not set(kinds) <= _WHOLE.keys():
            return tuple(f"{sql}::VARCHAR" for sql in map(self._column, ends, kinds))
        return tuple(map(self._column, ends, kinds))

    def _kind_of_ids(self, name: str) -> str:
        """The type of a Parquet file's column of ids: BIGINT if its numbers may have fractions, or
        be too large, and have none and are not."""
        kind, column = self._columns[name], _column_name(name)
        if not kind.startswith(("DECIMAL", "HUGEINT", "UHUGEINT", "FLOAT", "DOUBLE")):
            return kind
        most = (1 << {"FLOAT": 24, "DOUBLE": 53}.get(kind, 63)) - 1  # neighbours are told apart
        rows = self._run(
            f"SELECT edge, value::VARCHAR FROM (SELECT row_number() OVER () AS edge, {column} AS "
            f"value FROM {self._table}) WHERE value IS NOT NULL AND (TRY_CAST(value AS BIGINT) IS "
            f"NULL OR value <> trunc(value) OR abs(value) > {most}) ORDER BY edge LIMIT 1"
        ).fetchall()
        if rows:
            raise StoreError(
                f"column {name!r} of {self._name} is {kind}, in which ids are whole numbers up to "
                f"{most}, and edge {rows[0][0]} has {rows[0][1]}: correct it, or make the column "
                "text and give map_ids=True (--map-ids)"
            )
        return "BIGINT"

    def _kinds_of_text(self, ends: Sequence[str], kept: Sequence[str]) -> list[str]:
        """Find the types of columns of text from all their values, because the value that is not a
        number may come after any sample; set those of the kept columns, return those of `ends`."""
        whole = _PLAIN if self._mapped else _TYPES["BIGINT"]
        asked = [(name, whole) for name in ends]
        asked += [(name, test) for name in kept for test in _TYPES.values()]
        tests = ", ".join(
            f"bool_and({test.format(_column_name(name))}) FILTER (trim({_column_name(name)}) <> '')"
            for name, test in asked
        )
        row = self._fetch_row(f"SELECT {tests} FROM {self._table}")
        holds = [found is not False for found in row]  # None: the column is empty
        for place, name in enumerate(kept):
            of_name = zip(_TYPES, holds[2 + place * len(_TYPES) :], strict=False)
            self._columns[name] = next((kind for kind, all_are in of_name if all_are), "VARCHAR")
        return ["BIGINT" if all_are else "VARCHAR" for all_are in holds[:2]]

    def _first_without(self, name: str, test: str) -> tuple[int, str] | None:
        """The first value in a column that does not pass a test of texts, else the first one, with
        the number of its edge, from 1; None if the column is empty."""
        sql = (
            f"SELECT edge, text FROM (SELECT row_number() OVER () AS edge, "
            f"{self._column(name, 'VARCHAR')} AS text FROM {self._table}) WHERE text IS NOT NULL "
            f"ORDER BY {test.format('text')}, edge LIMIT 1"
        )
        rows = self._run(sql).fetchall()
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def _check_columns(self, names: Sequence[str]) -> None:
        for name in names:
            kind = self._columns[name]
            if kind not in _NUMBERS:
                found = self._first_without(name, _TYPES["DOUBLE"])
                where = "" if found is None else f", and edge {found[0]} has {found[1]!r}"
                raise ConfigError(
                    f"column {name!r} is {kind}{where}: only columns of numbers are kept; leave it "
                    "out of columns= (--edge-column), or correct it"
                )
            sql = f"SELECT count(*) FROM {self._table} WHERE {self._column(name, kind)} IS NULL"
            (missing,) = self._fetch_row(sql)
            if missing:
                raise StoreError(f"column {name!r} lacks {missing} values: fill them in")

    def _count_and_check(self) -> tuple[int, int]:
        wrong = "s IS NULL OR t IS NULL" + ("" if self._mapped else " OR s < 0 OR t < 0")
        largest = "NULL" if self._mapped else "max(greatest(s, t))"
        sql = f"SELECT count(*), {largest}, count(*) FILTER ({wrong}) FROM ({self._edges})"
        count, last, bad = self._fetch_row(sql)
        if bad:
            self._refuse_edge(wrong, "has an end that is missing or negative;")
        if self._mapped:
            (nodes,) = self._fetch_row("SELECT count(*) FROM ids")
            last = nodes - 1
        return int(count), -1 if last is None else int(last)

    def _refuse_edge(self, wrong: str, how: str) -> None:
        sql = f"SELECT e, s, t FROM ({self._edges}) WHERE {wrong} LIMIT 1"
        number, source, target = self._fetch_row(sql)
        raise StoreError(f"{self._name}: edge {number + 1}, {source} to {target}, {how} correct it")

    # ---- DuckDB

    def _run(self, sql: str) -> Any:
        try:
            return self._in_thread(lambda: self._db.execute(sql))
        except self._errors as error:
            raise self._failure(error) from None

    def _fetch_row(self, sql: str) -> Any:
        """The first row of a query's result."""
        return self._run(sql).fetchall()[0]

    def _in_thread(
        self, work: Callable[[], Any], tell: Callable[[int], None] = lambda percent: None
    ) -> Any:
        """Run DuckDB's `work` in another thread; report its progress to `tell` in this one.

        An exception here, such as KeyboardInterrupt, interrupts DuckDB, which in the main thread
        would turn Ctrl-C into an error of its own.
        """
        with thread_pool(1, "gnndrive-duckdb") as thread:
            try:
                doing = submit(thread, work)
                while not doing.wait(POLL_S):
                    # Sorting is the first half of the query, reading the second; -1: not known yet.
                    tell(min(max(int(2 * self._db.query_progress()), 0), 99))
            except BaseException:
                self._db.interrupt()
                raise
        return doing.result()

    def _batches(
        self, sql: str, tell: Callable[[int], None] = lambda percent: None
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        try:
            reader = self._open_reader(sql, tell)
        except self._errors as error:
            raise self._failure(error) from None
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (OSError, ValueError, self._errors) as error:  # Arrow's, for DuckDB's errors
                raise self._failure(error) from None
            yield tuple(column.to_numpy(zero_copy_only=False) for column in batch.columns)

    def _open_reader(self, sql: str, tell: Callable[[int], None]) -> Any:
        """Start a query and return a reader of its rows, once DuckDB has sorted them."""

        def begin() -> Any:
            rows = self._db.sql(sql)  # not `execute`, which makes all rows before the first batch
            # DuckDB before 1.5 has no to_arrow_reader.
            read = getattr(rows, "to_arrow_reader", None) or rows.fetch_arrow_reader
            return read(BATCH)

        reader = self._in_thread(begin, tell)
        tell(100)
        return reader

    def _failure(self, error: BaseException) -> StoreError:
        text = " ".join(line.strip() for line in str(error).strip().splitlines()[:4])
        text = text.partition(" Possible fixes")[0]  # with options of DuckDB's
        files = self._name
        if "No space left" in text or "max_temp_directory_size" in text:
            return StoreError(
                f"the disk is too full to sort {files}: some 30 bytes an edge are needed beside "
                "the store; free some, or choose a path on another disk"
            )
        if "Out of Memory" in text:
            return StoreError(f"{files}: sorting needs more memory: raise memory= (--memory)")
        if self._text and (comment := _late_comment(self._files)):
            return StoreError(comment)
        where = _bad_row_group(self._files)
        return StoreError(f"{where}{files} cannot be read as edges: {text}; correct the file")


def _temporary(beside: Path) -> TemporaryFolder:
    try:
        return TemporaryFolder(beside, "sort")
    except OSError as error:
        raise StoreError(
            f"{beside.parent} cannot be written to ({error.strerror}): choose another path"
        ) from None


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


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name has the ending of a Parquet file."""
    return Path(path).suffix.lower() in (".parquet", ".pq")


def _bad_row_group(files: Sequence[Path]) -> str:
    """A text that names the first row group that cannot be read in Parquet files; "" if all can."""
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


def _first_row(file: Path) -> tuple[int, list[str], str, str, bool]:
    """Find a text file's first row.

    Returns:
        (number of lines before it, which are blank or comments; its fields, [] if the file is
        empty; its separator; the file's quotes, single ones if a field of the first two rows has
        them and none has double ones; whether it is the only row).
    """
    lines = ((number, line) for number, line in _lines(file) if line.strip())
    for number, text in lines:
        if not text.lstrip().startswith("#"):
            delimiter = next((sign for sign in ",;\t " if sign in text), ",")
            _, second = next(lines, (0, ""))
            fields = [*text.split(delimiter), *second.split(delimiter)]
            marks = {field.strip()[:1] for field in fields if _QUOTED.fullmatch(field)}
            quote = "'" if marks == {"'"} else '"'
            try:
                (fields,) = csv.reader([text], delimiter=delimiter, quotechar=quote)
            except csv.Error as error:
                raise StoreError(f"{file}, line {number}: {error}; correct it") from None
            return number - 1, fields, delimiter, quote, not second
    return 0, [], ",", '"', True


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line; "\\r" alone ends one, too, as DuckDB takes it."""
    number = 0
    for _, text in read_lines(file):
        for line in text.removesuffix("\r").split("\r"):
            number += 1
            yield number, line


def _late_comment(files: Sequence[Path]) -> str:
    """What is wrong about the first comment behind a row in text files; "" if there is none."""
    for file in files:
        begun = False
        for number, line in _lines(file):
            text = line.strip()
            if begun and text.startswith("#"):
                return (
                    f"{file}, line {number}: {text[:80]!r} is a comment behind the first edge: "
                    "remove it, or put it in quotes if it is an id"
                )
            begun = begun or (bool(text) and not text.startswith("#"))
    return ""


def _column_name(name: str) -> str:
    """A column's name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _file_name(path: Path) -> str:
    """A file's name as a literal in SQL, with DuckDB's wildcards escaped."""
    return _quoted(re.sub(r"[*?\[]", r"[\g<0>]", str(path)))


def _quoted(text: str) -> str:
    """A text as a literal in SQL."""
    return "'" + text.replace("'", "''") + "'"


# ---- writing


def write_graph(
    edges: EdgeList,
    writer: StoreWriter,
    undirected: bool,
    progress: Progress | None = None,
    type: EdgeKey = None,
) -> None:
    """Sort the edges of a type and write indptr, indices and, unless `undirected`, edge_id.
    `progress` is called with percent while edges are sorted, with edges while they are written."""
    count = writer.types.edges[type]
    sources, targets = (writer.types.nodes[end].num_nodes for end in ends_of(type))
    names = [array_name("graph", type, leaf) for leaf in GRAPH]
    indices = writer.array(names[1], index_dtype(sources), (count,))
    numbers = None
    if not undirected:
        numbers = writer.array(names[2], index_dtype(count), (count,))
    indptr, done = np.zeros(targets + 1, np.int64), 0
    kind = "edges" if type is None else " ".join(type)

    def tell(percent: int) -> None:
        if progress is not None:
            progress(f"sorting {kind}", percent, 100)

    for target, source, number in edges.by_target(undirected, tell):
        first, last = int(target[0]), int(target[-1])
        indptr[first + 1 : last + 2] += np.bincount(target - first, minlength=last - first + 1)
        indices.write(source)
        if numbers is not None:
            numbers.write(number)
        done += len(source)
        if progress is not None:
            progress(f"writing {kind}", done, count)
    np.cumsum(indptr, out=indptr)
    writer.write(names[0], indptr)


def write_columns(
    edges: EdgeList, writer: StoreWriter, names: Sequence[str], progress: Progress | None = None
) -> None:
    """Write kept columns of an edge list as attributes of edges, in the list's order."""
    for name in names:
        array = writer.array(f"edges/{name}", edges.dtype(name), (writer.num_edges,))
        for values in edges.column(name):
            array.write(values)
            if progress is not None:
                progress(f"edges/{name}", array.rows_written, writer.num_edges)
