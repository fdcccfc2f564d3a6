"""Parts of SQL for DuckDB: names of files, patterns, and where the rows of a text file begin."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gnndrive.common.errors import StoreError
from gnndrive.store.importers.text import LINE_BYTES_MAX, long_line, refuse_device

NUMBER = re.compile(r"[+\-.]?[0-9]")
WHOLE = "[+-]?[0-9]{1,18}"


def first_row(file: Path) -> tuple[int, list[str], str, bool]:
    """Find a text file's first row.

    Returns:
        (number of lines before it, which are blank or comments; its fields, [] if the file is
        empty; its separator; whether it is the only row).

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
                    (fields,) = csv.reader([text], delimiter=delimiter)
                    return number, fields, delimiter, not any(rest.strip() for rest in lines)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file} cannot be read as edges: {error}; give a text file") from None
    return 0, [], ",", True


def _lines(stream: IO[str], file: Path) -> Iterator[str]:
    """Yield the lines of a file; StoreError for a long one, which is not of text."""
    while line := stream.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX:
            raise long_line(file)
        yield line


def file_name(path: Path) -> str:
    """A file's name as a literal in SQL, with DuckDB's wildcards escaped."""
    return quoted(re.sub(r"[*?\[]", r"[\g<0>]", str(path)))


def quoted(text: str) -> str:
    """A text as a literal in SQL."""
    return "'" + text.replace("'", "''") + "'"
