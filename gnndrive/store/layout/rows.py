"""Rows of a table written to the files of a packed layout (DiskGNN, SIGMOD 2025, §4.3).

`RowPacking` reads the table once, in parts that fit in memory, and for each part writes the rows of
every output at their known places. Rows in another order than their ids' go through a spool
(outputs.py). Every write may be repeated, and a record counts the parts that are durable, so a
packing that is killed at any moment repeats one part at most (parts of less than 128 MiB count
together) and ends with the same bytes.

When not to use it: to copy a few rows of a large table, because it reads all of the table between
the smallest and the largest id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, DirectReader
from gnndrive.common.io.write_errors import disk_full, free_bytes, write_failure
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.records import TableFile
from gnndrive.store.format import Progress
from gnndrive.store.layout.outputs import Output, Piece, divide
from gnndrive.store.layout.reserving import reserve_spool
from gnndrive.store.layout.row_record import SUFFIX, RowRecord, load
from gnndrive.store.layout.row_writer import BUFFERS, RowWriter, buffer_bytes
from gnndrive.store.layout.table_parts import SUM_MODULUS, Ids, Part, TableParts

MEMORY_MIN = 64 << 20
SYNC_BYTES = 128 << 20  # of the table: a sync takes 30 ms, so smaller parts share one
_SHARE = 8  # of the memory for dirty pages, and again for ids that are put in order
_BYTES_A_SORTED_ID = 32


@dataclass(frozen=True, slots=True)
class Budget:
    """How the memory of a packing is used.

    Attributes:
        part_bytes: for each of two parts of the table.
        dirty_bytes: for pages that wait to be written to the disk.
        slice_rows: rows that are put in order at a time.
    """

    part_bytes: int
    dirty_bytes: int
    slice_rows: int


def budget_for(memory: int, row_bytes: int) -> Budget:
    """Divide `memory`, in bytes, for rows of `row_bytes`.

    Raises:
        ConfigError: it is less than 64 MiB, or than rows so long need.
    """
    fixed = BUFFERS * buffer_bytes(row_bytes)
    parts_least = 2 * (row_bytes + 2 * PAGE_BYTES)
    least = max(MEMORY_MIN, -(-(fixed + parts_least) * _SHARE // (_SHARE - 2)))
    if memory < least:
        raise ConfigError(
            f"memory={format_size(memory)} is too little to pack rows of {row_bytes:,} bytes: give "
            f"at least {least_text(least)}"
        )
    share = memory // _SHARE
    part = (memory - fixed - 2 * share) // 2 // PAGE_BYTES * PAGE_BYTES
    rows = min((part - 2 * PAGE_BYTES) // row_bytes, share // _BYTES_A_SORTED_ID)
    return Budget(part, share, max(rows, 1))


class RowPacking:
    """The rows of one table on their way to the files of a packed folder.

    Args:
        table: the table.
        outputs: what to write; no two overlap. Their files are in `folder`, at their full size
            (`reserving.reserve`) when `run` is called.
        folder: the packed folder, which only one process writes.
        name: the table's name without "/"; the record is NAME.rows.json in `folder`, the spool
            NAME.spool.
        memory: bytes that this may use, at least 64 MiB; the ids are not counted.
        identity: a text that identifies the table's content, such as its checksum; a record of
            another one is ignored.

    Raises:
        ConfigError: `memory` is too little, an id is no row of the table, or outputs overlap.
    """

    def __init__(
        self,
        table: TableFile,
        outputs: Sequence[Output],
        folder: Path,
        name: str,
        memory: int,
        identity: str = "",
    ) -> None:
        self.table, self.outputs, self.folder, self.name = table, list(outputs), folder, name
        self._budget = budget_for(memory, table.row_bytes)
        self._division = divide(table, self.outputs, self._budget.slice_rows, folder)
        self._identity = identity
        self._record_path = folder / f"{name}{SUFFIX}"
        self._spool_path = folder / f"{name}.spool"
        self._spooled: list[tuple[Piece, int]] = []  # with the byte of the spool where they begin
        self.spool_bytes = 0
        for piece in self._division.pieces:
            if piece.bounds is None:
                self._spooled.append((piece, self.spool_bytes))
                self.spool_bytes += (piece.stop - piece.start) * table.row_bytes

    def run(self, progress: Progress | None = None) -> list[int]:
        """Write all rows that an earlier run has not written, durably.

        Args:
            progress: called as progress("rows NAME", bytes done, bytes in all), and for spooled
                rows afterwards as progress("order NAME", …).

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
            self._run(record, progress or _silent)
        try:
            self._spool_path.unlink(missing_ok=True)
        except OSError as error:
            raise write_failure(self._spool_path, error) from error
        return record.sums

    def _run(self, record: RowRecord, progress: Progress) -> None:
        total = sum(len(output.ids) for output in self.outputs) * self.table.row_bytes
        progress(f"rows {self.name}", record.written, total)
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
                    self._save(record)
                    progress(f"rows {self.name}", record.written, total)
            self._order(writer, table, record, progress)
            writer.sync()
        self._check_durable()
        record.ended = True
        self._save(record)

    def _begin(self) -> RowRecord:
        """Check the files; returns the record of an earlier run, or a new one."""
        keys = [self._division.digest, self._identity, repr(self.table.row_count)]
        for path, end in sorted(self._ends().items()):
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
            record = load(self._record_path, key, len(self.outputs))
            record.files = [path.relative_to(self.folder).as_posix() for path in self._ends()]
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
            reserve_spool(self._spool_path, self.spool_bytes)

    def _ends(self) -> dict[Path, int]:
        """How long each file has to be at least."""
        ends: dict[Path, int] = {}
        for output in self.outputs:
            end = output.offset + len(output.ids) * self.table.row_bytes
            ends[output.file] = max(ends.get(output.file, 0), end)
        return ends

    def _write_part(self, writer: RowWriter, part: Part, record: RowRecord) -> None:
        width, first, last = self.table.row_bytes, part.first, part.first + part.count
        for piece in self._division.pieces:
            if piece.bounds is None:
                continue
            output = self.outputs[piece.output]
            ids, position = np.asarray(output.ids), output.position(width)
            total = 0
            for low, high in piece.slices(ids, first, last):
                at = output.offset + low * width
                total += writer.write(part, output.file, at, ids[low:high], position + low)
                record.written += (high - low) * width
            record.sums[piece.output] = (record.sums[piece.output] + total) % SUM_MODULUS
        for piece, start in self._spooled:
            ids = np.asarray(self.outputs[piece.output].ids)
            taken = np.sort(ids[piece.within(ids, first, last)])
            at = start + piece.below(ids, first) * width
            if len(taken):
                writer.write(part, self._spool_path, at, taken, 0)
                record.written += len(taken) * width

    def _order(
        self, writer: RowWriter, table: TableParts, record: RowRecord, progress: Progress
    ) -> None:
        """Put the spooled rows into their own order, a piece at a time."""
        if not self._spooled:
            return
        width, pending = self.table.row_bytes, 0
        done = sum(_rows(piece) for piece, _ in self._spooled[: record.ordered]) * width
        with DirectReader(self._spool_path) as spool:
            for number, (piece, start) in enumerate(self._spooled):
                if number < record.ordered:
                    continue
                progress(f"order {self.name}", done, self.spool_bytes)
                output, nbytes = self.outputs[piece.output], _rows(piece) * width
                part = Part(0, _rows(piece), spool.read(start, nbytes, table.buffers[0]))
                at = output.offset + piece.start * width
                position = output.position(width) + piece.start
                ranks = _ranks(np.asarray(output.ids)[piece.start : piece.stop])
                total = writer.write(part, output.file, at, ranks, position)
                record.sums[piece.output] = (record.sums[piece.output] + total) % SUM_MODULUS
                done, pending = done + nbytes, pending + nbytes
                if pending >= self._budget.part_bytes // 2 or number + 1 == len(self._spooled):
                    writer.sync()
                    record.ordered, pending = number + 1, 0
                    self._save(record)
        progress(f"order {self.name}", done, self.spool_bytes)

    def _check_durable(self) -> None:
        """Sync each file by itself: kernels before 5.8 report failed writes only there."""
        for path in sorted(self._ends()):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as error:
                raise write_failure(path, error) from error

    def _save(self, record: RowRecord) -> None:
        try:
            record.save(self._record_path)
        except OSError as error:
            raise write_failure(self._record_path, error) from error


def _rows(piece: Piece) -> int:
    return piece.stop - piece.start


def _ranks(ids: Ids) -> Ids:
    """The place of each id in the stable order of all; int64 [n]."""
    order = np.argsort(ids, kind="stable")
    ranks = np.empty(len(ids), np.int64)
    ranks[order] = np.arange(len(ids))
    return ranks


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
