"""Tables in files, for DuckDB: Parquet, Arrow, or text in columns, one file or several.

Columns of text files are text until something asks for their type, which then follows from all of
their values, because the one that is not a number may come after any sample.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.names import did_you_mean
from gnndrive.store.importers.database import Database, identifier, quoted
from gnndrive.store.importers.text import MISSING, NUMBER, PACKED, read_lines, real_number

WHOLE = {
    "TINYINT": "int8", "SMALLINT": "int16", "INTEGER": "int32", "BIGINT": "int64",
    "UTINYINT": "uint8", "USMALLINT": "uint16", "UINTEGER": "uint32", "UBIGINT": "uint64",
}  # fmt: skip
NUMBERS = {**WHOLE, "FLOAT": "float32", "DOUBLE": "float64", "BOOLEAN": "bool"}
INEXACT = "DECIMAL", "HUGEINT", "UHUGEINT"  # what numpy has no type for
TYPES = {
    # A whole number as DuckDB writes it, so not 007, +7 or 7e0.
    "PLAIN": "TRY_CAST({0} AS BIGINT)::VARCHAR IS NOT DISTINCT FROM trim({0})",
    # DuckDB casts 0.5 to 1, and equality is several times as fast as the pattern.
    "BIGINT": "CASE WHEN TRY_CAST({0} AS BIGINT)::VARCHAR = {0} THEN true ELSE TRY_CAST({0} AS "
    "BIGINT) IS NOT NULL AND regexp_full_match(trim({0}), '[+-]?[0-9]+') END",
    # DuckDB casts 1_000 to 1000, and yes to true.
    "DOUBLE": "TRY_CAST({0} AS DOUBLE) IS NOT NULL AND NOT contains({0}, '_')",
    "UBIGINT": "TRY_CAST({0} AS UBIGINT) IS NOT NULL AND regexp_full_match(trim({0}), '[0-9]+')",
    "BOOLEAN": "lower(trim({0})) IN ('true', 'false')",
    "TIMESTAMP": "TRY_CAST({0} AS TIMESTAMPTZ) IS NOT NULL",
}
"""SQL that says whether a text is of a type."""
_MISSING = ", ".join(map(quoted, sorted(MISSING)))
_QUOTED = re.compile(r"""\s*(['"])(?:(?!\1).|\1\1)*\1\s*""")
"""A field in quotes; quotes within it are doubled."""
_KINDS = {
    **dict.fromkeys((".parquet", ".pq"), "Parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "Arrow"),
}
_BUFFER_BYTES = 64 << 10  # of a column of Parquet
_BLOCK_BYTES = 4 << 20  # of text, which holds at least a whole row
_TEXT = {".csv", ".tsv", ".txt"}
_PLAIN = "hive_partitioning = false"  # else a folder "age=5" gives each row the age 5
_SAMPLE = 100  # rows that show whether the first one is a header
_NO_NAMES = "source", "target"  # of a table of edges without files that have any


class TableFiles:
    """A table in files of one kind.

    Args:
        database: what reads them.
        files: Parquet; Arrow's file format; or text with a comma, semicolon, tab or space between
            columns, comments ("#") before the first row only.
        header: whether each text file begins with the columns' names; None: it does if its first
            row has the name of one of `named`, or if no field of it is a number.
        named: names of columns that the table must have.
        free: the columns may all be text, which makes a first row without numbers a ConfigError if
            no column of numbers shows whether it is a header.
        row: what a row is, for errors.
        name: the files' name in errors; None: their paths.

    Attributes:
        name: the files' name in errors.
        text: whether they are text.
        sql: the table in SQL.
        columns: the columns' types in SQL, by name.
    """

    def __init__(
        self,
        database: Database,
        files: Sequence[Path],
        header: bool | None = None,
        named: Sequence[str] = (),
        free: bool = False,
        row: str = "row",
        name: str | None = None,
    ) -> None:
        self.files, self.name = files, name or ", ".join(map(str, files))
        self._named = name
        self._database, self._row = database, row
        self._table = f"files_{id(self)}"
        self._missing: set[str] | None = None
        kinds = {_kind(file) for file in files}
        if len(kinds) > 1:
            raise ConfigError(
                f"{self.name} are files of several kinds, {' and '.join(sorted(kinds))}: give one "
                "kind for each table"
            )
        self.text = kinds == {"text"}
        database.tables.append(self)
        if self.text:
            self.sql = self._of_text(header, named, free)
        else:
            self.sql = self._of_arrow() if kinds == {"Arrow"} else self._of_parquet()
        described = database.run(f"DESCRIBE SELECT * FROM {self.sql}").fetchall()
        self.columns = {str(row[0]): str(row[1]) for row in described}
        for column in named:
            if column not in self.columns:
                raise ConfigError(
                    f"{self.name}: there is no column {column!r}"
                    f"{did_you_mean(column, self.columns)}; there are "
                    f"{', '.join(map(repr, self.columns))}"
                )

    def column(self, name: str, kind: str) -> str:
        """SQL for a column with values of the type `kind`; a blank field of text is NULL."""
        column = identifier(name)
        if self.text and kind == "VARCHAR":
            return f"nullif(trim({column}), '')"
        if self.text and kind == "TIMESTAMP":  # with or without a time zone
            return f"TRY_CAST({column} AS TIMESTAMPTZ)::TIMESTAMP"
        return f"TRY_CAST({column} AS {kind})" if self.text else f"{column}::{kind}"

    def _all_are(self, tests: Iterable[tuple[str, str]]) -> list[bool]:
        """Whether all values of a column of text pass a test, for pairs of a column and SQL."""
        asked = ", ".join(
            f"bool_and({test.format(identifier(name))}) FILTER (trim({identifier(name)}) <> '' AND "
            f"({test == TYPES['PLAIN']} OR lower(trim({identifier(name)})) NOT IN ({_MISSING})))"
            for name, test in tests
        )
        if not asked:
            return []
        row = self._database.row(f"SELECT {asked} FROM {self.sql}")
        return [found is not False for found in row]  # None: the column is empty

    def find_types(self, types: Mapping[str, Sequence[str]]) -> None:
        """Find the types of columns of a text file, each the first of those given for it that all
        values have; VARCHAR if there is none. PLAIN is BIGINT if DuckDB would write it so."""
        if not self.text:
            return
        asked = [(name, type) for name, each in types.items() for type in each]
        holds = self._all_are((name, TYPES[type]) for name, type in asked)
        for name in types:
            self.columns[name] = "VARCHAR"
        for (name, type), all_are in reversed(list(zip(asked, holds, strict=True))):
            if all_are:
                self.columns[name] = "BIGINT" if type == "PLAIN" else type

    def load(self, ids: Sequence[str]) -> None:
        """Read a text file's columns into the database, each with the type that its values have;
        those of `ids` are numbers only if all of them are written plainly."""
        if not self.text:
            return
        types = ("BIGINT", "UBIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP")
        self.find_types({name: ("PLAIN",) if name in ids else types for name in self.columns})
        columns = (
            f"{self.column(name, type)} AS {identifier(name)}"
            for name, type in self.columns.items()
        )
        self._database.run(
            f"CREATE TABLE {self._table} AS SELECT {', '.join(columns)} FROM {self.sql}"
        )
        self.sql, self.text = self._table, False

    def missing(self) -> set[str]:
        """The columns in which a value is missing."""
        if self._missing is None:
            names = list(self.columns)
            counts = ", ".join(f"count({identifier(name)})" for name in names)
            total, *found = self._database.row(f"SELECT count(*), {counts} FROM {self.sql}")
            self._missing = {
                name for name, count in zip(names, found, strict=True) if count < total
            }
        return self._missing

    def id_type(self, name: str) -> str:
        """The type of a column of ids: BIGINT if its numbers could have fractions, or be too large,
        and have none and are not; StoreError: they have or are."""
        kind, column = self.columns[name], identifier(name)
        if not kind.startswith((*INEXACT, "FLOAT", "DOUBLE")) or kind.endswith("]"):
            return kind
        most = (1 << {"FLOAT": 24, "DOUBLE": 53}.get(kind, 63)) - 1  # neighbours are told apart
        row = self.first_row(
            f"{column} IS NOT NULL AND (TRY_CAST({column} AS BIGINT) IS NULL OR {column} <> "
            f"trunc({column}) OR abs({column}) > {most})"
        )
        if row is not None:
            raise StoreError(
                f"{self.place(row)} has {self.value(name, row)} in column {name!r}, which is "
                f"{kind}, in which ids are whole numbers up to {most}: correct it, or make the "
                "column text, for an edge list with map_ids=True"
            )
        return "BIGINT"

    def first_row(self, condition: str) -> int | None:
        """The first row, from 0, of which a condition in SQL holds; None: of none."""
        (row,) = self._database.row(
            f"SELECT min(place) FROM (SELECT row_number() OVER () - 1 AS place, ({condition}) AS "
            f"holds FROM {self.sql}) WHERE holds"
        )
        return None if row is None else int(row)

    def value(self, name: str, row: int) -> str | None:
        """A value of a column as text; None if it is missing."""
        (found,) = self._database.row(
            f"SELECT found FROM (SELECT row_number() OVER () - 1 AS place, "
            f"{self.column(name, 'VARCHAR')} AS found FROM {self.sql}) WHERE place = {row}"
        )
        return None if found is None else str(found)

    def first_without(self, name: str, test: str) -> tuple[int, str] | None:
        """The first value in a column that does not pass a test of texts, else the first one, with
        the number of its row, from 0; None if the column is empty."""
        found = self._database.row(
            f"SELECT row, text FROM (SELECT row_number() OVER () - 1 AS row, "
            f"{self.column(name, 'VARCHAR')} AS text FROM {self.sql}) WHERE text IS NOT NULL "
            f"ORDER BY {test.format('text')}, row LIMIT 1"
        )
        return (int(found[0]), str(found[1])) if found else None

    def refuse_comments(self) -> None:
        """Check that no line that is a comment is taken for a row."""
        first = identifier(next(iter(self.columns)))
        test = f"SELECT bool_or(starts_with(trim({first}), '#')) FROM {self.sql}"
        if self.text and self._database.row(test)[0] and (comment := self._late_comment()):
            raise StoreError(comment)

    def blame(self, text: str) -> StoreError:
        """The error for files that cannot be read, given what DuckDB or pyarrow says."""
        if self.text and (found := self._late_comment() or self._bad_line()):
            return StoreError(found)
        where = _bad_row_group(self.files)
        return StoreError(f"{where}{self.name} cannot be read: {text}; correct the file")

    def parquet_batches(self, names: Sequence[str], rows: int) -> Iterator[Any] | None:
        """Batches of columns of plain numbers, or of lists of them, read by pyarrow in half the
        time and the memory that DuckDB takes; None: the files are not Parquet, or not all columns
        are of one such type in all of them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if any(_kind(file) != "Parquet" for file in self.files):
            return None
        try:
            schemas = [pq.read_schema(file) for file in self.files]
            types = [{schema.field(name).type for schema in schemas} for name in names]
        except (OSError, KeyError, pa.ArrowException):
            return None
        if any(len(each) > 1 or not all(map(_is_plain, each)) for each in types):
            return None

        def read() -> Iterator[Any]:
            for file in self.files:
                try:
                    opened = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
                    for batch in opened.iter_batches(rows, columns=names, use_threads=False):
                        yield batch.select(names)
                except (OSError, pa.ArrowException) as error:
                    raise self.blame(str(error)) from None

        return read()

    def place(self, row: int) -> str:
        """Where a row lies, which is counted from 0 over all files: "orders.csv, row 7"; rows of a
        file are counted from 1."""
        if self._named is not None:
            return f"{self._named}, {self._row} {row + 1}"
        for file, sql in self._parts[:-1]:
            (count,) = self._database.row(f"SELECT count(*) FROM {sql}")
            if row < count:
                return f"{file}, {self._row} {row + 1}"
            row -= count
        last = self._parts[-1][0] if self._parts else self.name
        return f"{last}, {self._row} {row + 1}"

    # ---- as SQL

    def _of_parquet(self) -> str:
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = [_file_name(file) for file in self.files]
        with contextlib.suppress(OSError, pa.ArrowException):  # DuckDB will say so
            for file in self.files:
                self._refuse_like_names(pq.read_schema(file).names)
        self._parts = [
            (file, f"read_parquet({name}, {_PLAIN})")
            for file, name in zip(self.files, files, strict=True)
        ]
        # By name, because else DuckDB casts later files' columns to the first one's types.
        return f"read_parquet([{', '.join(files)}], union_by_name = true, {_PLAIN})"

    def _of_arrow(self) -> str:
        import pyarrow as pa
        from pyarrow import dataset

        try:
            schemas = [dataset.dataset(file, format="ipc").schema for file in self.files]
            both = pa.unify_schemas(schemas, promote_options="permissive")
            fields = [field.with_type(_without_half(field.type)) for field in both]
            for number, files in enumerate([self.files, *([file] for file in self.files)]):
                of_files = dataset.dataset(
                    [str(file) for file in files], format="ipc", schema=pa.schema(fields)
                )
                self._database.register(f"{self._table}_{number}", of_files)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(
                f"{self.name} cannot be read as Arrow files ({error}): write them with "
                "pyarrow.feather.write_feather, or as Parquet"
            ) from None
        names = [f"{self._table}_{number}" for number in range(1 + len(self.files))]
        self._parts = list(zip(self.files, names[1:], strict=True))
        self._refuse_like_names(both.names)
        # Joins of what DuckDB does not hold itself need more memory than it is given.
        self._database.run(f"CREATE TABLE {self._table} AS SELECT * FROM {names[0]}")
        return self._table

    def _of_text(self, header: bool | None, named: Sequence[str], free: bool) -> str:
        """Text is read by pyarrow, because DuckDB refuses files with both kinds of line ends, or
        reads no row of them, and does not know .bz2."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
        from pyarrow import dataset

        self._parts = []
        names: list[str] | None = None
        first_has_names = False
        for file in self.files:
            skip, rows, delimiter, quote, alone = _first_rows(file)
            if not rows:
                continue
            if names is None or header is not None:
                has_names = _has_names(file, rows, header, named, free)
            else:  # as in the first file, whose header later ones may lack
                has_names = first_has_names and (
                    set(rows[0]) == set(names) or bool(set(named) & set(rows[0]))
                )
            if names is None:
                first_has_names = has_names
                names = _names(file, rows[0], has_names)
            own = _names(file, rows[0], True) if has_names else names
            if len(own) != len(rows[0]):
                raise StoreError(
                    f"{file}: its first row has {len(rows[0])} fields, and {self.files[0]} has "
                    f"{len(own)} columns: give files of one table"
                )
            self._refuse_like_names(own)
            if has_names and alone:
                continue
            text = pa.schema([(name, pa.string()) for name in own])
            form = dataset.CsvFileFormat(
                parse_options=arrow_csv.ParseOptions(
                    delimiter=delimiter, quote_char=quote, newlines_in_values=True
                ),
                convert_options=arrow_csv.ConvertOptions(column_types=text),
                read_options=arrow_csv.ReadOptions(
                    skip_rows=skip + has_names, column_names=own, block_size=_BLOCK_BYTES
                ),
            )
            table = f"{self._table}_{len(self._parts)}"
            self._parts.append((file, table))
            self._database.register(table, dataset.dataset(str(file), schema=text, format=form))
        if not self._parts:
            none = ", ".join(f"NULL::VARCHAR AS {identifier(name)}" for name in names or _NO_NAMES)
            return f"(SELECT {none} WHERE false)"
        return (
            f"({' UNION ALL BY NAME '.join(f'SELECT * FROM {table}' for _, table in self._parts)})"
        )

    def _bad_line(self) -> str:
        """What is wrong about the first row with another number of fields than the first one in
        text files; "" if there is none."""
        for file in self.files:
            skip, rows, delimiter, quote, _ = _first_rows(file)
            lines = [] if not rows else (line for at, line in _lines(file) if at > skip)
            reader = csv.reader(lines, delimiter=delimiter, quotechar=quote)
            try:
                for fields in reader:
                    if fields and len(fields) != len(rows[0]):
                        return (
                            f"{file}, line {skip + reader.line_num}: number of fields "
                            f"{len(fields)}, but the first row has {len(rows[0])}; correct it"
                        )
            except csv.Error as error:
                return f"{file}, line {skip + reader.line_num}: {error}; correct it"
        return ""

    def _refuse_like_names(self, names: Sequence[str]) -> None:
        """Refuse columns whose names differ only in case, one of which DuckDB would rename."""
        seen: dict[str, str] = {}
        for name in names:
            if (other := seen.setdefault(name.lower(), name)) is not name:
                raise StoreError(
                    f"{self.name}: the columns {other!r} and {name!r} have names that are equal "
                    "but for case: rename one"
                )

    def _late_comment(self) -> str:
        """What is wrong about the first comment behind a row in text files; "" if there is none."""
        for file in self.files:
            begun = False
            for number, line in _lines(file):
                text = line.strip()
                if begun and text.startswith("#"):
                    return (
                        f"{file}, line {number}: {text[:80]!r} is a comment behind the first "
                        f"{self._row}: remove it, or put it in quotes if it is an id"
                    )
                begun = begun or (bool(text) and not text.startswith("#"))
        return ""


def table_of(given: str | os.PathLike[str]) -> tuple[Path, tuple[str, ...]]:
    """Parse FILE, FILE:COLUMN or FILE:COLUMN,COLUMN: the file, which is there, and the columns."""
    whole = os.fspath(given)
    name, sign, columns = whole.rpartition(":")
    path = Path(whole)
    if sign and not path.exists():
        path = Path(name)
    if not name + columns or not path.exists():
        raise StoreError(f"{path} is missing: give a file that is there")
    return path, tuple(columns.split(",")) if path != Path(whole) else ()


def files_in(path: Path) -> list[Path]:
    """The file itself, or the files of a table in a folder, by name."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.name[0] not in "._")
    if inner := next((each for each in found if each.is_dir()), None):
        raise StoreError(f"{inner} is a folder in that of a table: give the files, or one folder")
    if not found:
        raise StoreError(f"the folder {path} holds no file: give one that does")
    return found


def is_table(given: str | os.PathLike[str]) -> bool:
    """Whether FILE or FILE:COLUMN is a table, by its name, and no array."""
    name = os.fspath(given)
    whole = Path(name) if Path(name).exists() else Path(name.rpartition(":")[0] or name)
    packed = whole.suffix.lower() in PACKED
    end = Path(whole.stem if packed else whole.name).suffix.lower()
    return (end in _KINDS and not packed) or end in _TEXT or whole.is_dir()


def _without_half(type: Any) -> Any:
    """The type, float16 replaced by float32, because DuckDB does not have it."""
    import pyarrow as pa

    if type == pa.float16():
        return pa.float32()
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_without_half(type.value_type), type.list_size)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(_without_half(type.value_type))
    return type


def _is_plain(type: Any) -> bool:
    """Whether numpy has the type of pyarrow, or that of its lists."""
    from pyarrow import types

    if types.is_list(type) or types.is_fixed_size_list(type) or types.is_large_list(type):
        type = type.value_type
    return bool(types.is_integer(type) or types.is_floating(type) or types.is_boolean(type))


def is_text(file: Path) -> bool:
    """Whether a file's name is none of a Parquet or Arrow file."""
    return _kind(file) == "text"


def _kind(file: Path) -> str:
    return _KINDS.get(file.suffix.lower(), "text")


def _bad_row_group(files: Sequence[Path]) -> str:
    """A text that names the first row group that cannot be read in Parquet files; "" if all can."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in (each for each in files if _kind(each) == "Parquet"):
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


def _first_rows(file: Path) -> tuple[int, list[list[str]], str, str, bool]:
    """Find a text file's first rows.

    Returns:
        (number of lines before them, which are blank or comments; the fields of each, [] if the
        file is empty; its separator; the file's quotes, single ones if a field of the first two
        rows has them and none has double ones; whether there is one row only).
    """
    lines = ((number, line) for number, line in _lines(file) if line.strip())
    for number, text in lines:
        if not text.lstrip().startswith("#"):
            delimiter = next((sign for sign in ",;\t " if sign in text), ",")
            below = [line for _, line in islice(lines, _SAMPLE)]
            fields = [*text.split(delimiter), *"".join(below[:1]).split(delimiter)]
            marks = {field.strip()[:1] for field in fields if _QUOTED.fullmatch(field)}
            quote = "'" if marks == {"'"} else '"'
            try:
                (first,) = csv.reader([text], delimiter=delimiter, quotechar=quote)
            except csv.Error as error:
                raise StoreError(f"{file}, line {number}: {error}; correct it") from None
            rows = [first]
            with contextlib.suppress(csv.Error):  # pyarrow will say so
                rows += csv.reader(below, delimiter=delimiter, quotechar=quote)
            return number - 1, rows, delimiter, quote, not below
    return 0, [], ",", '"', True


def _names(file: Path, first: Sequence[str], has_names: bool) -> list[str]:
    """The columns' names of a text file, given its first row."""
    plain = [f"column{place}" for place in range(len(first))]
    if not has_names:
        return plain
    names = [name.strip() or other for name, other in zip(first, plain, strict=True)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise StoreError(f"{file}: several columns are called {twice!r}: rename them")
    return names


def _has_names(
    file: Path, rows: list[list[str]], header: bool | None, named: Sequence[str], free: bool
) -> bool:
    """Whether the first of a text file's rows has the columns' names; see `TableFiles`."""
    first, *others = rows
    if header is not None or set(named) & set(first):
        return header is not False
    if any(NUMBER.match(field.strip(" '")) for field in first):
        return False
    for place in range(len(first)):
        below = [row[place].strip(" '") for row in others if len(row) > place]
        if below and all(real_number(value) is not None for value in below):
            return True
    if free:
        raise ConfigError(
            f"{file}: is {first} the first edge, or the columns' names? Give header=True or "
            "header=False"
        )
    return True


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line; "\\r" alone ends one, too, as pyarrow takes it."""
    number = 0
    for _, text in read_lines(file):
        for line in text.removesuffix("\r").split("\r"):
            number += 1
            yield number, line


def _file_name(path: Path) -> str:
    """A file's name as a literal in SQL, with DuckDB's wildcards escaped."""
    return quoted(re.sub(r"[*?\[]", r"[\g<0>]", str(path)))
