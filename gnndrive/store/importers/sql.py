"""Parts of SQL for DuckDB: names, types of text, and where the rows of a text file begin."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gnndrive.common.errors import StoreError
from gnndrive.store.importers.text import LINE_BYTES_MAX, long_line, refuse_device

NUMBER = re.compile(r"[+\-.]?[0-9]")
PLAIN = "TRY_CAST({0} AS BIGINT)::VARCHAR IS NOT DISTINCT FROM trim({0})"
"""SQL that says whether a text is a whole number as DuckDB writes it, so not 007, +7 or 7e0."""
TYPES = {
    # DuckDB casts 0.5 to 1, and equality is several times as fast as the pattern.
    "BIGINT": "CASE WHEN TRY_CAST({0} AS BIGINT)::VARCHAR = {0} THEN true ELSE TRY_CAST({0} AS "
    "BIGINT) IS NOT NULL AND regexp_full_match(trim({0}), '[+-]?[0-9]+') END",
    "DOUBLE": "TRY_CAST({0} AS DOUBLE) IS NOT NULL",
    "BOOLEAN": "TRY_CAST({0} AS BOOLEAN) IS NOT NULL",
}
"""SQL that says whether a text is of a type."""


_QUOTED = re.compile(r"""\s*(['"])(?:(?!\1).|\1\1)*\1\s*""")
"""A field in quotes; quotes within it are doubled."""


def first_row(file: Path) -> tuple[int, list[str], str, str, bool]:
    """Find a text file's first row.

    Returns:
        (number of lines before it, which are blank or comments; its fields, [] if the file is
        empty; its separator; the file's quotes, single ones if a field of the first two rows has
        them and none has double ones; whether it is the only row).

    Raises:
        StoreError: the file cannot be read as text.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            refuse_device(stream, file)
            lines = _lines(stream, file)
            for number, line in enumerate(lines):
                text = line.strip("\r\n")
                if text.strip() and not text.lstrip().startswith("#"):
                    delimiter = next((sign for sign in ",;\t " if sign in text), ",")
                    second = next((rest for rest in lines if rest.strip()), None)
                    fields = [*text.split(delimiter), *(second or "").split(delimiter)]
                    marks = {field.strip()[:1] for field in fields if _QUOTED.fullmatch(field)}
                    quote = "'" if marks == {"'"} else '"'
                    (fields,) = csv.reader([text], delimiter=delimiter, quotechar=quote)
                    return number, fields, delimiter, quote, second is None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file} cannot be read as edges: {error}; give a text file") from None
    return 0, [], ",", '"', True


def late_comment(file: Path) -> str:
    """What is wrong about a text file's first comment behind a row; "" if there is none.

    Raises:
        OSError: the file cannot be read any more.
    """
    begun = False
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        for number, line in enumerate(_lines(stream, file), 1):
            text = line.strip()
            if begun and text.startswith("#"):
                return (
                    f"{file}, line {number}: {text[:80]!r} is a comment behind the first edge: "
                    "remove it, or put it in quotes if it is an id"
                )
            begun = begun or (bool(text) and not text.startswith("#"))
    return ""


def _lines(stream: IO[str], file: Path) -> Iterator[str]:
    """Yield the lines of a file; StoreError for a long one, which is not of text."""
    while line := stream.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX:
            raise long_line(file)
        yield line


def column_name(name: str) -> str:
    """A column's name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def file_name(path: Path) -> str:
    """A file's name as a literal in SQL, with DuckDB's wildcards escaped."""
    return quoted(re.sub(r"[*?\[]", r"[\g<0>]", str(path)))


def quoted(text: str) -> str:
    """A text as a literal in SQL."""
    return "'" + text.replace("'", "''") + "'"
