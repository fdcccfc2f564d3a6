"""Read text for all importers, plain or packed: lines, whole numbers, other numbers.

Blocks of whole lines are parsed at once, whole numbers by numpy and others by pyarrow. A block that
these refuse is read line by line, which takes it or names the wrong line. DuckDB reads only what it
sorts or joins (table_files.py), because to it 0.5 is the whole number 1, and it has no line for a
value that is out of bounds.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import functools
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.progress import Progress, report
from gnndrive.common.records import Int64Array
from gnndrive.common.threads import submit, thread_pool
from gnndrive.store.format import index_dtype

BLOCK_BYTES = 1 << 19
LINE_BYTES_MAX = 1 << 24
NodeNumbers: TypeAlias = "Callable[[Sequence[str] | npt.NDArray[Any]], Int64Array]"
"""A function of mapped ids, texts or whole numbers [n], that returns the nodes' numbers, int64 [n];
-1 for an id that no edge has."""
MISSING = frozenset(("", "nan", "-nan", "null", "na", "n/a", "#na", "#n/a"))
"""What stands for a missing number or label, in lower case; pyarrow has the same."""
NUMBER = re.compile(r"[+\-.]?[0-9]")  # or looks like one

PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_PYTHONS: dict[str, Any] = {"gzip": lambda file: gzip.GzipFile(fileobj=file), "bz2": bz2.BZ2File}
_BLANK = b"#", b"\n\n", b"\n\r", b"\n "  # of which a block with blank lines holds one
_SMALL_LINES = 10_000  # a file of names or counts with more lines is refused
_SEPARATOR = re.compile(r"[ ]*[,;\t][ ]*|[ ]+")
_COMMENT = re.compile(rb" *#[^\r\n]*")
_PADDING = re.compile(rb"(?m)^ +|(?<= ) +| +(?=\r?$)")  # spaces that separate nothing
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DIGITS = b"0123456789"
_BLANKED = bytes(byte if byte in _DIGITS + b"+-" else ord(" ") for byte in range(256))
_LEAST, _MOST = -(2**63), 2**63 - 1  # of int64
COUNTS = ", or give features and labels for all nodes, or num_nodes= of gnndrive.from_edges"
MAP_IDS = ", or if the ids of the edges are text give map_ids=True to gnndrive.from_edges"


# ---- ids


def read_edges(
    path: Path, num_nodes: int | None, first_id: int = 0, progress: Progress | None = None
) -> Int64Array:
    """Read edges as node numbers from 0, int64 [edges, 2]: two node ids a line, which count from
    `first_id`, quoted or not, separated by a comma, semicolon, tab or spaces; a header line, blank
    lines and text after "#" are skipped. num_nodes None: of any number of nodes."""
    return _read_nodes(path, 2, num_nodes, first_id, True, progress)


def read_ids(
    path: Path, num_nodes: int, first_id: int = 0, *, of_dataset: bool = False
) -> Int64Array:
    """Read nodes, int64 [ids], one a line, as `read_edges` does; a dataset's have no header."""
    return _read_nodes(path, 1, num_nodes, first_id, not of_dataset).reshape(-1)


def no_node(place: str, id: int, num_nodes: int | None, first_id: int, remedy: str) -> StoreError:
    """The error for a whole number that is not the id of a node, at a place in a source; `remedy`
    says what else may be wrong than the source."""
    if id < first_id:
        remedy = f", or leave out first_id={first_id}" if first_id else ""
        return StoreError(f"{place}: node {id}, but ids count from {first_id}: correct it{remedy}")
    if id == num_nodes and not first_id:
        remedy = f", or if ids count from 1 give first_id=1{remedy}"
    return StoreError(
        f"{place}: node {id}, but there are {num_nodes} nodes, numbered from {first_id}; correct "
        f"it{remedy}"
    )


def read_mapped_ids(path: Path, numbers: NodeNumbers) -> Int64Array:
    """Read mapped node ids, one a line, quoted or not, and return the nodes' numbers; blank lines,
    and lines that begin with "#" and are no id, are skipped."""
    parts = [np.empty(0, np.int64)]
    for line, block in _blocks(path):
        ids = [unquoted(text.strip()) for text in _decode(block, path, line).split("\n")]
        nodes = numbers(ids)
        for place in np.flatnonzero(nodes < 0):
            if ids[place] and ids[place][0] != "#":
                raise unknown_id(f"{path}, line {line + place}", ids[place])
        parts.append(nodes[nodes >= 0])
    return np.concatenate(parts)


def unknown_id(place: str, id: object, remedy: str = "") -> StoreError:
    """The error for an id that no edge has, at a place in a source of mapped ids."""
    return StoreError(
        f"{place}: no edge has the id {str(id)!r}: {remedy}correct it, or leave it out, because "
        "with map_ids=True the nodes are those of the edges"
    )


def _read_nodes(
    path: Path,
    columns: int,
    limit: int | None,
    first_id: int,
    header: bool,
    progress: Progress | None = None,
) -> Int64Array:
    parts, done = [np.empty((0, columns), np.int32)], 0
    remedy = MAP_IDS if header else ""
    for rows in read_numbers(path, columns, "int64", "node id", header, progress, remedy=remedy):
        most = int(rows.max(initial=first_id)) if limit is None else first_id + limit - 1
        if len(rows) and (rows.min() < first_id or rows.max() > most):
            row, column = np.argwhere((rows < first_id) | (rows > most))[0]
            place = f"{path}, {place_of_row(path, done + int(row), header)}"
            id = int(rows[row, column])
            raise no_node(place, id, limit, first_id, COUNTS if header else "")
        if first_id:
            rows -= first_id
        parts.append(rows.astype(index_dtype(most + 1 - first_id)))  # int32 is half the memory
        done += len(rows)
    return np.concatenate(parts).astype(np.int64)


# ---- numbers


def read_numbers(
    path: Path,
    columns: int,
    kind: str = "int64",
    what: str = "",
    header: bool = False,
    progress: Progress | None = None,
    skip: int = 0,
    remedy: str = "",
) -> Iterator[npt.NDArray[Any]]:
    """Yield rows [n, columns] of a file, with the separators and comments of `read_edges`.

    Args:
        path: the file.
        columns: numbers in a row; 0: the file is empty.
        kind: their dtype: "int64", or "float64" with nan for an empty field.
        what: what each number is, for errors; "": a number of that kind.
        header: skip a first line in which no field is a number.
        progress: called as progress(file name, bytes read, bytes of the file).
        skip: number of lines before the rows.
        remedy: what else may be wrong than a line that holds no numbers, for errors.
    """
    if not columns:
        return
    whole = kind == "int64"
    parse, what = _whole_numbers if whole else _real_numbers, what or "whole " * whole + "number"
    for line, block in _blocks(path, skip, progress):
        content, header = _without_header(block, path, line) if header else (block, False)
        rows = parse(content, columns)
        if rows is None:
            rows = _parse_lines(content, columns, kind, what, path, line, remedy)
        yield rows


def read_counted(
    path: Path, columns: int, kind: str, count: int, count_source: str
) -> Iterator[npt.NDArray[Any]]:
    """`read_numbers` of a file in which another file says how many rows there are; another number
    of rows is a StoreError."""
    done = 0
    for rows in read_numbers(path, columns, kind):
        done += len(rows)
        if done > count:
            raise wrong_count(path, None, count, count_source)
        yield rows
    if done < count:
        raise wrong_count(path, done, count, count_source)


def wrong_count(path: Path | str, found: int | None, wanted: int, count_source: str) -> StoreError:
    """The error for a file with another number of rows than `count_source` says; found None: more
    than `wanted`."""
    rows = f"more than {wanted}" if found is None else found
    return StoreError(
        f"{path} has {rows} rows, but {count_source} says {wanted}: one of them is damaged; "
        "correct it, or fetch the dataset again"
    )


def columns_of(path: Path) -> int:
    """Number of fields in a file's first row; 0 if the file is empty."""
    return next((len(fields) for _, fields in _rows(path)), 0)


def count_rows(path: Path) -> int:
    """Number of rows of a file, which are not checked."""
    count = 0
    for line, block in _blocks(path):
        blank = block[:1] in b"\r\n " or any(each in block for each in _BLANK)
        if blank:
            count += sum(map(bool, map(split_line, _decode(block, path, line).split("\n"))))
        else:
            count += block.count(b"\n")
    return count


def place_of_row(path: Path, row: int, header: bool = False, skip: int = 0) -> str:
    """Where a row lies, which is counted from 0 behind `skip` lines: "line 7", or "row 6" of what
    cannot be read again, such as a pipe."""
    rows = itertools.islice(_rows(path, header, skip), row, None) if path.is_file() else iter(())
    line = next(rows, None)
    return f"row {row}" if line is None else f"line {line[0]}"


def is_whole(text: str) -> bool:
    """Whether a field is a whole number that int64 holds."""
    return _WHOLE.fullmatch(text) is not None and _LEAST <= int(text) <= _MOST


def real_number(text: str) -> float | None:
    """The number that a field is; None if it is none."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _whole_numbers(block: bytes, columns: int) -> Int64Array | None:
    """Parse a block, int64 [n, columns]; None if a line needs a closer look."""
    if b"#" in block:
        block = _COMMENT.sub(b"", block)
    signs = block.translate(None, _DIGITS)
    first = signs[: signs.find(b"\n") + 1]
    rows = block.count(b"\n")
    # All lines with one sign between digits, as in most files: comparing is faster than matching.
    plain = first.rstrip(b"\r\n") in [each * (columns - 1) for each in (b",", b";", b"\t", b" ")]
    plain = plain and signs == first * rows
    if not plain and not _lines_of_whole_numbers(columns).fullmatch(block):
        return None
    if len(signs) == len(block):  # of no number numpy makes a 0
        return None
    numbers = np.fromstring(block.translate(_BLANKED), np.int64, sep=" ")
    if (plain and len(numbers) != rows * columns) or numbers.max() == _MOST:  # or larger
        return None
    return None if numbers.min() == _LEAST else numbers.reshape(-1, columns)


@functools.cache
def _lines_of_whole_numbers(columns: int) -> re.Pattern[bytes]:
    number = rb'(?:[+-]?+[0-9]++|"[+-]?+[0-9]++")'
    line = number + rb"(?:(?: *+[,;\t] *+| ++)" + number + b"){%d}" % (columns - 1)
    return re.compile(rb"(?: *+(?:" + line + rb")?+ *+\r?+\n)*+")


def _real_numbers(block: bytes, columns: int) -> npt.NDArray[np.float64] | None:
    """Parse a block, float64 [n, columns]; None if pyarrow is not there or refuses it."""
    sign = next((sign for sign in ",;\t " if columns > 1 and sign.encode() in block), ",")
    rows = _arrow_numbers(block, columns, sign)
    if sign == " " and (rows is None or np.isnan(rows).any()):  # between two spaces, perhaps
        rows = _arrow_numbers(_PADDING.sub(b"", block), columns, sign)
    return rows


def _arrow_numbers(block: bytes, columns: int, sign: str) -> npt.NDArray[np.float64] | None:
    try:
        import pyarrow as pa
        import pyarrow.csv as arrow_csv
    except ImportError:
        return None
    names = [str(number) for number in range(columns)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            read_options=arrow_csv.ReadOptions(column_names=names),
            parse_options=arrow_csv.ParseOptions(delimiter=sign),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.float64())
            ),
        )
    except pa.ArrowException:
        return None
    return np.column_stack([column.to_numpy() for column in table.columns])


def _parse_lines(
    block: bytes, columns: int, kind: str, what: str, path: Path, first: int, remedy: str
) -> npt.NDArray[Any]:
    """Parse a block line by line; the error names the first line that is wrong."""
    values: list[Any] = []
    for number, line in enumerate(_decode(block, path, first).split("\n"), first):
        fields = split_line(line)
        if not fields:
            continue
        row = list(map(_int64 if kind == "int64" else _float64, fields))
        if len(row) != columns or None in row:
            wanted = f"one {what}" if columns == 1 else f"{columns} {what}s"
            raise StoreError(
                f"{path}, line {number}: {line.strip()[:80]!r} is not {wanted}; correct it{remedy}"
            )
        values += row
    return np.array(values, kind).reshape(-1, columns)


def _int64(text: str) -> int | None:
    return int(text) if is_whole(text) else None


def _float64(text: str) -> float | None:
    return np.nan if text.lower() in MISSING else real_number(text)


# ---- lines


def read_small(path: Path) -> list[list[str]]:
    """The fields of each line of a small file, separated by commas."""
    texts = [text for _, text in itertools.islice(read_lines(path), _SMALL_LINES + 1)]
    if len(texts) > _SMALL_LINES:
        raise StoreError(
            f"{path} has more than {_SMALL_LINES} lines and should have a few: fetch or unzip "
            "the dataset again"
        )
    try:
        return [[field.strip() for field in fields] for fields in csv.reader(texts) if fields]
    except csv.Error as error:
        raise StoreError(
            f"{path} cannot be read ({error}): fetch or unzip the dataset again"
        ) from None


def read_lines(path: Path, skip: int = 0) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line, without its "\\n"; the first `skip` are blank."""
    for first, block in _blocks(path, skip):
        yield from enumerate(_decode(block, path, first).split("\n")[:-1], first)


def split_line(line: str) -> list[str]:
    """The fields of a line without its comment and quotes; [] for a blank line."""
    line = line.split("#", 1)[0].strip(" \r\n")
    return [unquoted(field.strip()) for field in _SEPARATOR.split(line)] if line else []


def unquoted(field: str) -> str:
    """A field without the quotes around it."""
    quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1].strip() if quoted else field


def _rows(path: Path, header: bool = False, skip: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, fields) of each line that holds a row."""
    for number, text in read_lines(path, skip):
        if fields := split_line(text):
            if not (header and _is_header(fields)):
                yield number, fields
            header = False


def _is_header(fields: list[str]) -> bool:
    numbers = any(NUMBER.match(field.lstrip("'")) for field in fields)
    return not numbers and "" not in fields


def _without_header(block: bytes, path: Path, first: int) -> tuple[bytes, bool]:
    """A block with a blank line in place of its header, and whether the header may follow it."""
    for place, line in enumerate(_decode(block, path, first).split("\n")):
        if fields := split_line(line):
            if _is_header(fields):
                block = b"\n" * (place + 1) + block.split(b"\n", place + 1)[-1]
            return block, False
    return block, True


def _blocks(
    path: Path, skip: int = 0, progress: Progress | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of its first line; each line has its "\\n",
    the last one too, and the first `skip` ones are blank."""
    for line, block in _whole_lines(path, progress):
        count = min(skip + 1 - line, block.count(b"\n")) if line <= skip else 0
        yield line, b"\n" * count + block.split(b"\n", count)[-1] if count else block


def _whole_lines(path: Path, progress: Progress | None) -> Iterator[tuple[int, bytes]]:
    line, rest = 1, b""
    for block in _reads(path, progress):
        if line == 1 and not rest:
            block = block.removeprefix(codecs.BOM_UTF8)
        cut = block.rfind(b"\n") + 1
        if cut:
            yield line, rest + block[:cut]
            line += block.count(b"\n")
            rest = b""
        rest += block[cut:]
        if len(rest) > LINE_BYTES_MAX:
            raise StoreError(
                f"{path}, line {line}, has a line of more than {LINE_BYTES_MAX} bytes: give a "
                "text file, or fetch or unzip the dataset again"
            )
    if rest:
        yield line, rest + b"\n"


def _reads(path: Path, progress: Progress | None) -> Iterator[bytes]:
    """Yield a file's blocks, unpacked, and tell how much of the file was read: `progress`, or if
    the file has more than a block those whom `report` tells."""
    size, at = path.stat().st_size if path.exists() else 0, 0
    if progress is None and size > BLOCK_BYTES:
        progress = report
    for block, at in _unpacked(path):
        yield block
        if progress is not None and at < size:
            progress(path.name, at, size)
    if progress is not None:
        progress(path.name, max(size, at), max(size, at))


def _unpacked(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield blocks, each with how many bytes of the file were read for it."""
    file, raw = _open(path)
    with raw, file:
        if path.suffix not in PACKED:
            done = 0
            while block := _read(file, path):
                done += len(block)
                yield block, done
            return

        def unpack() -> tuple[bytes, int]:
            block = _read(file, path)
            with contextlib.suppress(OSError):  # a pipe has no position
                return block, raw.tell()
            return block, 0

        with thread_pool(1, "gnndrive-unpack") as thread:  # unpacks the next block meanwhile
            coming = submit(thread, unpack)
            while (found := coming.result())[0]:
                coming = submit(thread, unpack)
                yield found


def _read(file: Any, path: Path) -> bytes:
    try:
        block: bytes = file.read(BLOCK_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(
            f"{path} cannot be read ({error}): fetch or unzip the dataset again, or check the file"
        ) from None
    return block


def _open(path: Path) -> tuple[Any, Any]:
    """Open a file for reading bytes; .gz, .bz2 and .zst are decompressed. Returns what gives the
    bytes, and the file itself."""
    packed = PACKED.get(path.suffix)
    try:
        if path.is_char_device():  # it may never end; a pipe is taken
            raise StoreError(f"{path} is a device: give a file")
        if packed is not None:
            return _open_packed(path, packed)
        file = io.FileIO(path)
        return file, file
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened ({error.strerror}): give a file that is there"
        ) from None


def _open_packed(path: Path, packed: str) -> tuple[Any, Any]:
    try:
        import pyarrow  # faster than Python's own
    except ImportError:
        if packed in _PYTHONS:
            file = open(path, "rb")  # noqa: SIM115
            return _PYTHONS[packed](file), file
        raise ConfigError(
            f"{path}: .zst needs pyarrow: pip install 'gnndrive[import]', or unpack the file"
        ) from None
    raw = pyarrow.OSFile(os.fspath(path))
    return pyarrow.CompressedInputStream(raw, packed), raw


def _decode(block: bytes, path: Path, line: int) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        bad = line + block.count(b"\n", 0, error.start)
        raise StoreError(
            f"{path}, line {bad}: not text in UTF-8; save the file as UTF-8 text"
        ) from None
