"""Rows of a table written to the files of a layout, and compared with them (DiskGNN, SIGMOD 2025,
§4.3).

`RowPacking` reads the table once, in parts that fit in memory, and for each part writes the rows of
every output at their known places. `reserve` has made all files at their full size before, so that
a disk that is too small is an error at once. Every write may be repeated, and a record counts the
parts that are durable, so a packing that is killed at any moment repeats one part at most (parts of
less than 128 MiB count together) and ends with the same bytes.

Each run of ascending ids in an output makes one slice for each part of the table. An output of many
short runs would make very many small writes, so its rows are first spooled in the order of their
ids and then put into their own order, in stretches that fit in memory; they are written twice. A
few rows in an order of their own, such as the seeds of a batch, are best an output of their own.

When not to use it: to copy a few rows of a large table, because it reads all of the table between
the smallest and the largest id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, STRETCH_BYTES, DirectReader, page_buffer
from gnndrive.common.io.small_files import fsync_folder, make_durable, replace_file, write_all
from gnndrive.common.io.write_errors import FULL, disk_full, free_bytes, write_failure
from gnndrive.common.memory import require_memory
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.layout.arrays import StoredIds
from gnndrive.store.layout.row_writer import BUFFERS, RowWriter, buffer_bytes
from gnndrive.store.layout.table_parts import (
    SUM_MODULUS,
    Ids,
    Part,
    TableParts,
    gather,
    sum_of_rows,
)

SUFFIX = ".rows.json"
_VERSION = 1


@dataclass(slots=True)
class RowRecord:
    """What of a table's rows is durable: a small file that is replaced after each part is synced.
    A record with another `key`, which identifies table, outputs and files, is ignored."""

    key: str
    sums: list[int] = field(default_factory=list)  # the checksum of each output's rows so far
    rows: int = 0  # all ids below it are written, or spooled
    ordered: int = 0  # how many spooled pieces are in their own order
    written: int = 0  # bytes written or spooled so far
    files: list[str] = field(default_factory=list)  # of the outputs, relative to the folder
    ended: bool = False  # whether all rows are written, and the files synced

    @staticmethod
    def load(path: Path, key: str, outputs: int) -> RowRecord:
        """The record at `path`, or a new one if there is none of this key."""
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
            if document.pop("version") == _VERSION and document["key"] == key:
                record = RowRecord(**document)
                if len(record.sums) == outputs:
                    return record
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            pass
        return RowRecord(key, [0] * outputs)

    def save(self, path: Path) -> None:
        """Replace the record at `path`, durably."""
        text = json.dumps({"version": _VERSION, **asdict(self)}).encode()
        try:
            replace_file(path, lambda file: file.write(text))
        except OSError as error:
            raise write_failure(path, error) from error

    def end(self, path: Path) -> None:
        """Sync each file by itself, because kernels before 5.8 report failed writes only there, and
        save the record."""
        for file in (path.parent / name for name in sorted(self.files)):
            try:
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as error:
                raise write_failure(file, error) from error
        self.ended = True
        self.save(path)


def _forget(folder: Path, files: set[str]) -> None:
    """Remove the records of tables that have one of `files`, which are about to be made anew."""
    stale = [path for path in folder.glob(f"*{SUFFIX}") if _files_of(path) & files]
    for path in stale:
        os.unlink(path)
    if stale:
        fsync_folder(folder)


def _files_of(path: Path) -> set[str]:
    try:
        return set(json.loads(path.read_bytes())["files"])
    except (ValueError, TypeError, KeyError):
        return set()  # `load` ignores it


# ---- room for the files

_MARGIN_BYTES = 1 << 20  # for folders, records and the file system's metadata
_BLOCK_BYTES = 512  # the unit of st_blocks


def reserve(
    folder: Path, arrays: Iterable[ArrayInfo], spool_bytes: int = 0, less: str = ""
) -> None:
    """Make the files of `arrays` at their full size, with their headers, durably.

    A file that is there keeps its rows, so an interrupted packing may reserve again. The records of
    progress of tables whose files are not there are removed (`RowRecord`).

    Args:
        folder, arrays: the layout's folder, and arrays in it.
        spool_bytes: bytes that will be needed besides, see `RowPacking.spool_bytes`.
        less: what else to do than to free some space, for errors.

    Raises:
        StoreError: the disk has less room than that; files that were not there before are removed.
        ConfigError: too many files are open.
    """
    arrays, needed = list(arrays), spool_bytes
    made, short = list[Path](), set[str]()
    for info in arrays:
        size, taken = 0, 0
        try:
            status = os.lstat(folder / info.file)
            size, taken = status.st_size, status.st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            made.append(folder / info.file)
        needed += max(0, info.nbytes - taken)
        if size < info.nbytes:
            short.add(info.file)
    try:
        if needed and needed + _MARGIN_BYTES > free_bytes(folder):
            raise disk_full(folder, needed, less)
        _forget(folder, short)
        for info in arrays:
            path = folder / info.file
            path.parent.mkdir(parents=True, exist_ok=True)
            _reserve_file(path, info.nbytes, npy_header(info))
        make_durable(folder)
    except OSError as error:
        for path in made:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if error.errno in FULL:
            raise disk_full(folder, needed, less) from error
        raise write_failure(folder, error) from error


def _reserve_file(path: Path, nbytes: int, header: bytes = b"") -> None:
    """Make a file of `nbytes`; keeps what is in it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        if nbytes:
            os.posix_fallocate(fd, 0, nbytes)
        os.ftruncate(fd, nbytes)
        if header and os.pread(fd, len(header), 0) != header:
            write_all(fd, memoryview(header))
    finally:
        os.close(fd)


# ---- outputs, divided into pieces

RUNS_MAX = 255  # with so many, "sets" order of eight batches still needs no spool
RUN_BYTES_MIN = 1 << 20  # an output of more runs has those of so many bytes written as runs
_BLOCK_IDS = 1 << 18  # ids that are looked at at a time


@dataclass(frozen=True, slots=True, eq=False)
class PickedIds:
    """Some of the `ids` in a file, int32 or int64, by their places in it, `order`, int32 [n]; both
    are read whenever they are needed."""

    ids: StoredIds
    order: StoredIds

    def __len__(self) -> int:
        return len(self.order)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(np.asarray(self.ids)[np.asarray(self.order)], dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Consecutive rows of one .npy file in the form of a store's, whose array has rows of the
    table's size. `ids` are their numbers in the table, in the order of the file; int32 or int64
    [n]. If they are in a file, it is read again for each part of the table."""

    file: Path
    offset: int  # of the first row, in bytes
    ids: Ids | StoredIds | PickedIds

    def position(self, row_bytes: int) -> int:
        """The position of the first row in the file's array."""
        return (self.offset - DATA_OFFSET) // row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows `start` to `stop` - 1 of one output, written in one way. `bounds` are where the
    ascending runs in it begin, and `stop`; int64 [runs + 1]; None: the rows are spooled."""

    output: int  # its number
    start: int
    stop: int
    bounds: Int64Array | None

    def slices(self, ids: Ids, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Stretches of the output whose ids are in [first, last), all of them; not if spooled."""
        assert self.bounds is not None
        for start, stop in pairwise(self.bounds.tolist()):
            run = ids[start:stop]
            low, high = start + place_in(run, first), start + place_in(run, last)
            if low < high:
                yield low, high

    def within(self, ids: Ids, first: int, last: int) -> tuple[Int64Array, int]:
        """Places in the output, ascending, whose ids are in [first, last), int64 [n]; and how many
        ids of the piece are less than `first`."""
        found, below = [np.empty(0, np.int64)], 0
        for at, block in _blocks(ids, self.start, self.stop):
            less = block < first
            below += int(np.count_nonzero(less))
            found.append(at + np.flatnonzero(~less & (block < last)))
        return np.concatenate(found), below


@dataclass(frozen=True, slots=True)
class Division:
    """All outputs of one table, divided; all ids are in [first, last)."""

    pieces: tuple[Piece, ...]  # in the order of the outputs
    first: int
    last: int
    digest: str  # identifies the outputs and their division
    ends: dict[Path, int]  # the byte behind the last row of each file

    def by_output(self) -> Iterator[tuple[int, Iterator[Piece]]]:
        """The number of each output that has rows, and its pieces."""
        return groupby(self.pieces, attrgetter("output"))


def divide(table: TableFile, outputs: Sequence[Output], slice_rows: int, folder: Path) -> Division:
    """Check the outputs of a table, whose files are in `folder`, and divide them into pieces; at
    most `slice_rows` rows may be put in order in memory at a time. ConfigError: an id is no row of
    the table, or two outputs overlap."""
    ends = _checked_ends(table, outputs)
    pieces: list[Piece] = []
    first, last, digest = table.row_count, 0, hashlib.sha256()
    for number, output in enumerate(outputs):
        ids = np.asarray(output.ids)
        low, high, breaks = _scan(ids, digest)
        if len(ids) and (low < 0 or high >= table.row_count):
            raise ConfigError(
                f"{output.file} is to hold row {low if low < 0 else high} of {table.path}, which "
                f"has {table.row_count}: remove the folder, and make it again from this store"
            )
        first, last = min(first, low), max(last, high + 1)
        pieces += _pieces(number, ids, breaks, table.row_bytes, slice_rows)
        place = (output.file.relative_to(folder).as_posix(), output.offset, len(ids))
        digest.update(repr(place).encode())
    digest.update(repr([(p.output, p.start, p.stop) for p in pieces if p.bounds is None]).encode())
    return Division(tuple(pieces), min(first, last), last, digest.hexdigest(), ends)


def _checked_ends(table: TableFile, outputs: Sequence[Output]) -> dict[Path, int]:
    """Check the places of the outputs; returns `Division.ends`."""
    ends: dict[Path, int] = {}
    for output in sorted(outputs, key=lambda each: (each.file, each.offset)):
        ids = output.ids
        if isinstance(ids, np.ndarray) and (ids.ndim != 1 or ids.dtype not in (np.int32, np.int64)):
            raise ConfigError(
                f"the ids of {output.file} are {ids.dtype} {list(ids.shape)}: give int32 or int64 "
                "[n]"
            )
        row, rest = divmod(output.offset - DATA_OFFSET, table.row_bytes)
        if row < 0 or rest or output.offset < ends.get(output.file, 0):
            raise ConfigError(
                f"an output at byte {output.offset} of {output.file} overlaps another one or does "
                "not begin at a row: remove the folder, and make it again"
            )
        ends[output.file] = output.offset + len(ids) * table.row_bytes
    return ends


def _blocks(ids: Ids, start: int, stop: int) -> Iterator[tuple[int, Ids]]:
    for at in range(start, stop, _BLOCK_IDS):
        yield at, ids[at : min(at + _BLOCK_IDS, stop)]


def _scan(ids: Ids, digest: Any) -> tuple[int, int, list[int] | None]:
    """The smallest and largest id, and where runs begin but the first; None: too many."""
    low, high, breaks, before = 1 << 62, -1, list[int](), None
    many = False
    for at, block in _blocks(ids, 0, len(ids)):
        digest.update(np.ascontiguousarray(block).data)
        low, high = min(low, int(block.min())), max(high, int(block.max()))
        if before is not None and block[0] < before:
            breaks.append(at)
        before = block[-1]
        if not many:
            breaks += (at + 1 + np.flatnonzero(block[1:] < block[:-1])).tolist()
            many = len(breaks) >= RUNS_MAX
    return low, high, None if many else breaks


def _pieces(
    number: int, ids: Ids, breaks: list[int] | None, row_bytes: int, slice_rows: int
) -> Iterator[Piece]:
    """The pieces of one output."""
    if not len(ids):
        return
    if breaks is not None:
        yield Piece(number, 0, len(ids), np.array([0, *breaks, len(ids)], np.int64))
        return
    for start in range(0, len(ids), slice_rows):
        window = ids[start : start + slice_rows]
        bounds = np.concatenate([[0], 1 + np.flatnonzero(window[1:] < window[:-1]), [len(window)]])
        long = np.diff(bounds) * row_bytes >= RUN_BYTES_MIN
        turns = 1 + np.flatnonzero(long[1:] != long[:-1])
        for low, high in pairwise([0, *turns.tolist(), len(long)]):
            runs = start + bounds[low : high + 1]
            yield Piece(number, int(runs[0]), int(runs[-1]), runs if long[low] else None)


def place_in(ids: Ids, value: int, side: Literal["left", "right"] = "left") -> int:
    """Where `value` is in ascending ids; numpy would convert all of them to int64 otherwise."""
    if value > np.iinfo(ids.dtype).max:
        return len(ids)
    return int(np.searchsorted(ids, ids.dtype.type(value), side))


# ---- writing

MEMORY_MIN = 64 << 20
SYNC_BYTES = 128 << 20  # of the table: a sync takes 30 ms, so smaller parts share one
_SHARE = 8  # of the memory for dirty pages, and again for ids that are put in order
_BYTES_A_SORTED_ID = 32


class Budget(NamedTuple):
    """How the memory of a packing is used."""

    part_bytes: int  # for each of two parts of the table
    dirty_bytes: int  # for pages that wait to be written to the disk
    slice_rows: int  # that are put in order at a time


def budget_for(memory: int, row_bytes: int) -> Budget:
    """Divide `memory`, in bytes, for rows of `row_bytes`; ConfigError: it is too little."""
    fixed = BUFFERS * buffer_bytes(row_bytes)
    parts_least = 2 * (row_bytes + 2 * PAGE_BYTES)
    least = max(MEMORY_MIN, -(-(fixed + parts_least) * _SHARE // (_SHARE - 2)))
    require_memory(memory, least, f"to write rows of {row_bytes:,} bytes")
    share = memory // _SHARE
    part = (memory - fixed - 2 * share) // 2 // PAGE_BYTES * PAGE_BYTES
    rows = min((part - 2 * PAGE_BYTES) // row_bytes, share // _BYTES_A_SORTED_ID)
    return Budget(part, share, max(rows, 1))


class RowPacking:
    """The rows of one table on their way to the files of a layout's folder.

    Args:
        outputs: what to write; no two overlap. Their files are in `folder`, at their full size
            (`reserve`) when `run` is called.
        folder: the folder, which only one process writes.
        name: the table's name without "/"; the record is NAME.rows.json in `folder`, the spool
            NAME.spool.
        memory: bytes that this may use, at least 64 MiB; the ids are not counted.
        identity: identifies the table's content, such as its checksum.

    Attributes:
        spool_bytes: bytes on disk that `run` needs besides the files.

    Raises:
        ConfigError: `memory` is too little, an id is no row of the table, or outputs overlap.
    """

    def __init__(
        self, table: TableFile, outputs: Sequence[Output], folder: Path, name: str, memory: int,
        identity: str = "",
    ) -> None:  # fmt: skip
        self.table, self.outputs, self.folder, self.name = table, list(outputs), folder, name
        self._budget = budget_for(memory, table.row_bytes)
        self._division = divide(table, self.outputs, self._budget.slice_rows, folder)
        self._identity = identity
        self._record_path = folder / f"{name}{SUFFIX}"
        self._spool_path = folder / f"{name}.spool"
        self._spooled = [piece for piece in self._division.pieces if piece.bounds is None]
        self.spool_bytes = sum(each.stop - each.start for each in self._spooled) * table.row_bytes

    def run(self, progress: Progress | None = None) -> list[int]:
        """Write all rows that an earlier run has not written, durably. `progress` is told of "rows
        NAME", and for spooled rows afterwards of "order NAME".

        Returns:
            The checksum of each output's rows; the checksum of a file is the sum of those of its
            outputs modulo 2**64.

        Raises:
            ReadError: the table cannot be read.
            StoreError: the disk is full or failed, or a file is not at its full size; run the same
                again, and it goes on where it stopped.
        """
        record = self._begin()
        if not record.ended:
            self._run(record, progress or (lambda *_: None))
        try:
            self._spool_path.unlink(missing_ok=True)
        except OSError as error:
            raise write_failure(self._spool_path, error) from error
        return record.sums

    def _run(self, record: RowRecord, progress: Progress) -> None:
        total = sum(len(output.ids) for output in self.outputs) * self.table.row_bytes
        progress(f"writing rows of {self.name}", record.written, total)
        with RowWriter(self.folder, self.table.row_bytes, self._budget.dirty_bytes) as writer:
            table = TableParts(self.table, self._budget.part_bytes)
            first = max(record.rows, self._division.first)
            with closing(table.parts(first, self._division.last)) as parts:
                for part in parts:
                    self._write_part(writer, part, record)
                    record.rows = part.first + part.count
                    left = self._division.last - record.rows
                    if left and (record.rows - first) * self.table.row_bytes < SYNC_BYTES:
                        continue
                    writer.sync()
                    first = record.rows
                    record.save(self._record_path)
                    progress(f"writing rows of {self.name}", record.written, total)
            self._order(writer, table, record, progress)
            writer.sync()
        record.end(self._record_path)

    def _begin(self) -> RowRecord:
        """Check the files; returns the record of an earlier run, or a new one."""
        keys = [self._division.digest, self._identity, repr(self.table.row_count)]
        for path, end in self._division.ends.items():
            try:
                found = os.stat(path)
            except OSError as error:
                raise write_failure(path, error) from error
            if found.st_size < end:
                raise StoreError(
                    f"{path} has {found.st_size:,} bytes and needs {end:,}: reserve it, and run "
                    "the same again"
                )
            keys.append(f"{path.relative_to(self.folder)} {found.st_ino}")
        key = hashlib.sha256("\n".join(keys).encode()).hexdigest()
        try:
            record = RowRecord.load(self._record_path, key, len(self.outputs))
            record.files = [
                path.relative_to(self.folder).as_posix() for path in self._division.ends
            ]
            if self.spool_bytes and not record.ended:
                self._open_spool(record)
        except OSError as error:
            raise write_failure(self.folder, error) from error
        return record

    def _open_spool(self, record: RowRecord) -> None:
        """Reserve the spool; if an earlier one is gone, its rows are to be written again."""
        found = os.stat(self._spool_path).st_size if self._spool_path.exists() else 0
        if found != self.spool_bytes:
            if free_bytes(self.folder) < self.spool_bytes - found:
                raise disk_full(self.folder, self.spool_bytes - found)
            if record.rows:
                record.sums = [0] * len(record.sums)
                record.rows = record.ordered = record.written = 0
            _reserve_file(self._spool_path, self.spool_bytes)

    def _write_part(self, writer: RowWriter, part: Part, record: RowRecord) -> None:
        width, first, last = self.table.row_bytes, part.first, part.first + part.count
        spool = 0  # where the rows of the next spooled piece begin
        for number, pieces in self._division.by_output():
            output, total = self.outputs[number], record.sums[number]
            ids, position = np.asarray(output.ids), output.position(width)
            for piece in pieces:
                if piece.bounds is None:
                    places, below = piece.within(ids, first, last)
                    if len(places):
                        at, taken = spool + below * width, np.sort(ids[places])
                        writer.write(part, self._spool_path, at, taken, 0)
                        record.written += len(taken) * width
                    spool += (piece.stop - piece.start) * width
                    continue
                for low, high in piece.slices(ids, first, last):
                    at = output.offset + low * width
                    total += writer.write(part, output.file, at, ids[low:high], position + low)
                    record.written += (high - low) * width
            record.sums[number] = total % SUM_MODULUS

    def _order(
        self, writer: RowWriter, table: TableParts, record: RowRecord, progress: Progress
    ) -> None:
        """Put the spooled rows into their own order, a piece at a time."""
        if not self._spooled:
            return
        width, done, pending = self.table.row_bytes, 0, 0
        with DirectReader(self._spool_path) as spool:
            for number, piece in enumerate(self._spooled):
                rows = piece.stop - piece.start
                start, done = done, done + rows * width
                if number < record.ordered:
                    continue
                progress(f"ordering rows of {self.name}", start, self.spool_bytes)
                output = self.outputs[piece.output]
                part = Part(0, rows, spool.read(start, rows * width, table.buffers[0]))
                at = output.offset + piece.start * width
                position = output.position(width) + piece.start
                ranks = _ranks(np.asarray(output.ids)[piece.start : piece.stop])
                total = writer.write(part, output.file, at, ranks, position)
                record.sums[piece.output] = (record.sums[piece.output] + total) % SUM_MODULUS
                pending += rows * width
                if pending >= self._budget.part_bytes // 2 or number + 1 == len(self._spooled):
                    writer.sync()
                    record.ordered, pending = number + 1, 0
                    record.save(self._record_path)
        progress(f"ordering rows of {self.name}", done, self.spool_bytes)


def _ranks(ids: Ids) -> Ids:
    """The place of each id in the stable order of all; int64 [n]."""
    order = np.argsort(ids, kind="stable")
    ranks = np.empty(len(ids), np.int64)
    ranks[order] = np.arange(len(ids))
    return ranks


# ---- comparing


def verify_rows(
    table: TableFile, outputs: Sequence[Output], folder: Path, memory: int,
    progress: Callable[[int, int], object], mend: str,
) -> int:  # fmt: skip
    """Check that the rows in the outputs' files are the table's: read both once, and compare the
    checksums of the rows (native/pack.c). So an output that differs is found, but not which row.

    Args:
        table, outputs, folder, memory: as for `RowPacking`, with the same errors.
        progress: called as progress(bytes of the table done, bytes in all).
        mend: what to do if they are not, for the StoreError.

    Returns:
        The checksum of all outputs' rows.
    """
    width, budget = table.row_bytes, budget_for(memory, table.row_bytes)
    division = divide(table, outputs, budget.slice_rows, folder)
    rows, expected = division.last - division.first, [0] * len(outputs)
    parts = TableParts(table, budget.part_bytes).parts(division.first, division.last)
    with closing(parts):
        for part in parts:
            for number, pieces in division.by_output():
                ids, position = np.asarray(outputs[number].ids), outputs[number].position(width)
                for piece in pieces:
                    expected[number] += _sum_in(part, piece, ids, position, width)
            progress((part.first + part.count - division.first) * width, rows * width)
    for output, wanted in zip(outputs, expected, strict=True):
        count, position = len(output.ids), output.position(width)
        stored = stored_sum(output.file, output.offset, count, width, mend, position)
        if stored != wanted % SUM_MODULUS:
            raise StoreError(
                f"rows {position} to {position + count - 1} of {output.file} are not those of "
                f"{table.path}: {mend}"
            )
    return sum(expected) % SUM_MODULUS


def _sum_in(part: Part, piece: Piece, ids: Ids, position: int, row_bytes: int) -> int:
    """What the rows of a part add to the checksum of a piece; `ids` and `position` are those of its
    output."""
    first, last = part.first, part.first + part.count
    if piece.bounds is None:
        places, _ = piece.within(ids, first, last)
        return gather(part, row_bytes, ids[places], position + places)
    return sum(
        gather(part, row_bytes, ids[low:high], position + low)
        for low, high in piece.slices(ids, first, last)
    )


def stored_sum(
    file: str | os.PathLike[str], offset: int, rows: int, row_bytes: int, mend: str,
    position: int = 0,
) -> int:  # fmt: skip
    """The checksum of so many rows of a file, the first of which is at byte `offset` and at
    `position` of its array."""
    step = max(STRETCH_BYTES // row_bytes, 1)
    buffer, total = page_buffer(step * row_bytes + 2 * PAGE_BYTES), 0
    with DirectReader(file, mend) as reader:
        for row in range(0, rows, step):
            nbytes = min(step, rows - row) * row_bytes
            found = reader.read(offset + row * row_bytes, nbytes, buffer)
            total += sum_of_rows(found, row_bytes, position + row)
    return total % SUM_MODULUS
