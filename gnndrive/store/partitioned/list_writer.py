"""Writes `indices` and `static_indices` of a partitioned folder: the phases "lists" and "static
lists", each of which goes on, or begins again, after a kill."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, Progress
from gnndrive.store.layout.row_record import SUFFIX, RowRecord, load
from gnndrive.store.layout.row_writer import BUFFERS, RowWriter, buffer_bytes
from gnndrive.store.layout.rows import SYNC_BYTES, budget_for
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.partitioned.arrays import Ids, map_numbers, table
from gnndrive.store.partitioned.new_lists import NewLists
from gnndrive.store.partitioned.renumbering import PART_BYTES
from gnndrive.store.partitioned.static_lists import list_starts, static_windows
from gnndrive.store.reader import Store

LISTS, STATIC_LISTS = "lists", "static lists"
_DIRTY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A partitioned folder while it is written.

    Attributes:
        root: the hidden folder.
        store: the store.
        infos: its arrays by name.
        memory: bytes that may be used besides the store's index pointers.
        report: called as report(phase, done, total).
    """

    root: Path
    store: Store
    infos: dict[str, ArrayInfo]
    memory: int
    report: Progress

    def numbers(self, name: str) -> Ids:
        """Map an array that is written."""
        return map_numbers(self.root, self.infos[name])

    def small(self, name: str) -> Int64Array:
        """Read an array of int64."""
        return np.array(self.numbers(name), np.int64)

    def file(self, name: str) -> TableFile:
        """Where the rows of an array lie."""
        info = self.infos[name]
        path = str(self.root / info.file)
        return TableFile(
            path, DATA_OFFSET, info.shape[0], info.row_bytes, info.dtype, info.shape[1:]
        )

    def in_memory(self, name: str) -> Ids:
        """Read an array that is looked up at random."""
        info = self.infos[name]
        found = table(info.shape[0], info.storage)
        found[:] = self.numbers(name)
        return found


def write_lists(folder: Unfinished) -> None:
    """Write `indices`, which is reserved, from one pass over the store's lists.

    Raises:
        StoreError: the disk is full or failed, or the store is damaged.
        ReadError: the store cannot be read.
    """
    name, record = "indices", _record(folder, "indices")
    if record.ended:
        return
    store, info = folder.store, folder.infos[name]
    file, path = store.edges().indices_file, folder.root / info.file
    place, order = folder.in_memory("place"), folder.numbers("order")
    lists = NewLists(
        store, order, place, folder.small("bounds"), folder.small("edge_bounds"),
        store.num_nodes + folder.infos["home"].shape[0], record.rows,
    )  # fmt: skip
    budget = budget_for(folder.memory - place.nbytes, max(info.row_bytes, file.row_bytes))
    saved = record.rows
    with RowWriter(folder.root, info.row_bytes, budget.dirty_bytes) as writer:
        parts = TableParts(file, budget.part_bytes).parts(record.rows, file.row_count)
        with closing(parts):
            for part in parts:
                for each in lists.slices(part):
                    at = DATA_OFFSET + each.first * info.row_bytes
                    writer.fill(path, at, each.count, lists.fill)
                record.rows = part.first + part.count
                folder.report(LISTS, record.rows, file.row_count)
                if (record.rows - saved) * file.row_bytes >= SYNC_BYTES:
                    writer.sync()
                    saved = record.rows
                    _save(folder, name, record)
        writer.sync()
    _end(folder, name, record)


def write_static_lists(folder: Unfinished) -> None:
    """Write `static_indices`, which is reserved, from `indices`.

    Raises:
        StoreError: the disk is full or failed.
        ReadError: `indices` cannot be read.
    """
    name, record = "static_indices", _record(folder, "static_indices")
    if record.ended:
        return
    info, bounds = folder.infos[name], folder.small("static_bounds")
    place, statics = folder.numbers("place"), len(bounds) - 1
    starts = list_starts(folder.store, folder.numbers("order"), place, statics)
    done, total = 0, int(folder.infos["indices"].shape[0])
    window = window_bytes(folder.memory, statics)
    passes = -(-info.shape[0] * info.row_bytes // window)
    with RowWriter(folder.root, info.row_bytes, _DIRTY_BYTES) as writer:

        def told(count: int) -> None:
            nonlocal done
            done += count
            folder.report(STATIC_LISTS, min(done, passes * total), passes * total)

        windows = static_windows(folder.file("indices"), starts, bounds, window, told)
        for first, codes in windows:
            at = DATA_OFFSET + first * info.row_bytes
            writer.fill(folder.root / info.file, at, len(codes), partial(_copy, codes))
        writer.sync()
    folder.report(STATIC_LISTS, passes * total, passes * total)
    _end(folder, name, record)


def window_bytes(memory: int, statics: int) -> int:
    """Bytes of the static nodes' lists that are made at a time."""
    used = 72 * statics + 2 * PART_BYTES + BUFFERS * buffer_bytes(8)
    return max(memory - used, 1 << 20)


def _copy(codes: Ids, done: int, count: int, out: Bytes) -> None:
    out[:] = codes[done : done + count].view(np.uint8)


def _record(folder: Unfinished, name: str) -> RowRecord:
    """What of an array is durable."""
    info = folder.infos[name]
    try:
        key = f"{info.file} {os.stat(folder.root / info.file).st_ino}"
        record = load(folder.root / f"{name}{SUFFIX}", key, 0)
    except OSError as error:
        raise write_failure(folder.root / info.file, error) from error
    record.files = [info.file]
    return record


def _end(folder: Unfinished, name: str, record: RowRecord) -> None:
    """Sync the file by itself, because kernels before 5.8 report failed writes only there."""
    path = folder.root / folder.infos[name].file
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise write_failure(path, error) from error
    record.ended = True
    _save(folder, name, record)


def _save(folder: Unfinished, name: str, record: RowRecord) -> None:
    path = folder.root / f"{name}{SUFFIX}"
    try:
        record.save(path)
    except OSError as error:
        raise write_failure(path, error) from error
