"""Read whole numbers from text fast; errors name the line.

numpy parses blocks of lines. Only a block that numpy refuses, or that holds a number out of bounds,
is read again line by line, to find the wrong line.
"""

from __future__ import annotations

import io
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.format import Progress

_BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 1 << 20
NodeNumbers: TypeAlias = "Callable[[Sequence[str] | npt.NDArray[Any]], Int64Array]"
"""A function of mapped ids, texts or whole numbers [n], that returns the nodes' numbers, int64 [n];
-1 for an id that no edge has."""

_SEPARATOR = re.compile(r"[ ]*[,;\t][ ]*|[ ]+")
_NUMBER = re.compile(r"'?[+\-.]?[0-9]")  # or looks like one
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def read_edges(path: Path, num_nodes: int, progress: Progress | None = None) -> Int64Array:
    """Read edges from a text file.

    Args:
        path: text with two node ids a line, quoted or not, separated by a comma, semicolon, tab or
            spaces; a header line, blank lines and text after "#" are skipped.
        num_nodes: number of nodes; ids must be less.
        progress: called as progress(file name, bytes done, bytes in all).

    Returns:
        int64 [edges, 2], in the file's order.

    Raises:
        StoreError: the file cannot be read, or a line is wrong; the message names the line.
    """
    return _read_table(path, 2, num_nodes, progress)


def read_ids(path: Path, num_nodes: int) -> Int64Array:
    """Read node ids from a text file, one a line, in the same way as `read_edges`.

    Returns:
        int64 [ids], in the file's order.

    Raises:
        StoreError: as for `read_edges`.
    """
    return _read_table(path, 1, num_nodes, None).reshape(-1)


def read_mapped_ids(path: Path, numbers: NodeNumbers) -> Int64Array:
    """Read mapped node ids from a text file, one a line, quoted or not; blank lines, and lines that
    begin with "#" and are no id, are skipped.

    Returns:
        The nodes' numbers, int64 [ids], in the file's order.

    Raises:
        StoreError: the file cannot be read, or no edge has an id; the message names the line.
    """
    parts, line = [np.empty(0, np.int64)], 1
    with open_text(path) as file:
        for block in _blocks(file, path):
            texts = _decode(block, path, line).split("\n")
            ids = [_unquoted(text.strip()) for text in texts]
            nodes = numbers(ids)
            for place in np.flatnonzero(nodes < 0):
                if ids[place] and ids[place][0] != "#":
                    raise unknown_id(f"{path}, line {line + place}", ids[place])
            parts.append(nodes[nodes >= 0])
            line += len(texts) - 1
    return np.concatenate(parts)


def unknown_id(place: str, id: object) -> StoreError:
    """The error for an id that no edge has, at a place in a source of mapped ids."""
    return StoreError(
        f"{place}: no edge has the id {str(id)!r}: correct it, or leave it out, because with "
        "map_ids=True (--map-ids) the nodes are those of the edges"
    )


def open_text(path: Path) -> io.FileIO:
    """Open a file for reading bytes.

    Raises:
        StoreError: the file cannot be opened.
    """
    try:
        file = io.FileIO(path, "r")
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened ({error.strerror}): give a file that is there"
        ) from None
    try:
        refuse_device(file, path)
    except StoreError:
        file.close()
        raise
    return file


def refuse_device(file: IO[Any] | io.FileIO, path: Path) -> None:
    """Refuse /dev/zero and the like, which may never end; a pipe is taken.

    Raises:
        StoreError: the open file is a device.
    """
    if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
        raise StoreError(f"{path} is a device: give a file")


def long_line(path: Path) -> StoreError:
    """The error for a file with a line of `LINE_BYTES_MAX` bytes."""
    return StoreError(f"{path} has a line of more than {LINE_BYTES_MAX} bytes: give a text file")


def split_line(line: str) -> list[str]:
    """The fields of a line without its comment and quotes; [] for a blank line."""
    line = line.split("#", 1)[0].strip(" \r\n")
    return [_unquoted(field.strip()) for field in _SEPARATOR.split(line)] if line else []


def _unquoted(field: str) -> str:
    quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1].strip() if quoted else field


def is_whole(text: str) -> bool:
    """Whether a field is a whole number."""
    return _WHOLE.fullmatch(text) is not None


def _read_table(path: Path, columns: int, limit: int, progress: Progress | None) -> Int64Array:
    narrow = np.int32 if limit < 2**31 else np.int64  # half the memory while blocks are collected
    parts = []
    line, done, headed = 1, 0, False
    total = 0
    with open_text(path) as file:
        total = path.stat().st_size
        for block in _blocks(file, path):
            text = _decode(block, path, line)
            if not headed and (header := _header_length(text)) is not None:
                headed = True
                text = "\n" * text[:header].count("\n") + text[header:]  # keeps line numbers right
            table = _parse_fast(text, columns)
            if table is None or (len(table) and (table.min() < 0 or table.max() >= limit)):
                table = _parse_slow(text, columns, limit, path, line)
            parts.append(table.astype(narrow))
            line += text.count("\n")
            done += len(block)
            if progress is not None:
                progress(path.name, done, max(done, total))
    return np.concatenate([np.empty((0, columns), np.int64), *parts])


def _blocks(file: io.FileIO, path: Path) -> Iterator[bytes]:
    """Read the file in blocks of whole lines."""
    rest = b""
    while True:
        try:
            block = file.read(_BLOCK_BYTES)
        except OSError as error:
            raise StoreError(f"reading {path} failed ({error.strerror}): check the file") from None
        if not block:
            break
        cut = block.rfind(b"\n") + 1
        if cut == 0 and len(rest) + len(block) > LINE_BYTES_MAX + _BLOCK_BYTES:
            raise long_line(path)
        if cut:
            yield rest + block[:cut]
            rest = b""
        rest += block[cut:]
    if rest:
        yield rest


def _decode(block: bytes, path: Path, line: int) -> str:
    try:
        return block.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        bad = line + block.count(b"\n", 0, error.start)
        raise StoreError(
            f"{path}, line {bad}: not text in UTF-8; save the file as UTF-8 text"
        ) from None


def _header_length(text: str) -> int | None:
    """Length of the blank lines, comments and header at the beginning of a text; None: it holds
    blank lines and comments only.

    A header is a first line in which no field is a number.
    """
    position = 0
    for line in text.splitlines(keepends=True):
        fields = split_line(line)
        if fields:
            no_number = not any(_NUMBER.match(field) for field in fields)
            return position + len(line) if no_number and "" not in fields else position
        position += len(line)
    return None


def _parse_fast(text: str, columns: int) -> Int64Array | None:
    """Parse a block with numpy, int64 [n, columns]; None if numpy refuses it or finds another
    number of columns."""
    if not text.strip():
        return np.empty((0, columns), np.int64)
    first = next((line for line in text.splitlines() if split_line(line)), "")
    delimiter = next((sign for sign in ",;\t" if sign in first), None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = np.loadtxt(
                io.StringIO(text), np.int64, delimiter=delimiter, ndmin=2,
                quotechar='"' if '"' in first else None,
            )  # fmt: skip
    except (ValueError, OverflowError, Warning):
        return None
    return table if table.shape[1] == columns else None


def _parse_slow(text: str, columns: int, limit: int, path: Path, first_line: int) -> Int64Array:
    """Parse a block line by line, which also takes lines that numpy refuses without need.

    Raises:
        StoreError: a line is wrong; the message names it.
    """
    rows = []
    for number, line in enumerate(text.split("\n"), first_line):
        fields = split_line(line)
        if not fields:
            continue
        if len(fields) != columns or not all(is_whole(field) for field in fields):
            wanted = "one node id" if columns == 1 else f"{columns} node ids"
            raise StoreError(
                f"{path}, line {number}: {line.strip()[:80]!r} is not {wanted}; correct it"
            )
        values = [int(field) for field in fields]
        for value in values:
            if not 0 <= value < limit:
                raise StoreError(
                    f"{path}, line {number}: node {value}, but there are {limit} nodes, numbered "
                    "from 0; correct the line, or give features and labels for all nodes, or "
                    "num_nodes= of gnndrive.from_edges (--num-nodes)"
                )
        rows.append(values)
    return np.array(rows, np.int64).reshape(-1, columns)
