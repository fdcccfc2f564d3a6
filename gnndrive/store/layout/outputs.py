"""Outputs of packing, divided into pieces: rows that ascend, and rows in another order.

The table is read once in the order of its rows. Ascending ids make one slice of the output for each
part of the table, a few runs of ascending ids make one slice for each run. An output of many short
runs would make very many small writes, so its rows are first spooled in the order of their ids and
then put into their own order, in stretches that fit in memory; they are written twice. Long runs of
such an output are not spooled. A few rows in an order of their own, such as the seeds of a batch,
are best an output of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.layout.arrays import StoredIds
from gnndrive.store.layout.table_parts import Ids

RUNS_MAX = 255  # with so many, "sets" order of eight batches still needs no spool
RUN_BYTES_MIN = 1 << 20  # an output of more runs has those of so many bytes written as runs
_BLOCK_IDS = 1 << 18  # ids that are looked at at a time


@dataclass(frozen=True, slots=True, eq=False)
class PickedIds:
    """Ids that are picked out of two files whenever they are needed.

    Attributes:
        ids: int32 or int64 [entries].
        order: which of them, int32 [n].
    """

    ids: StoredIds
    order: StoredIds
    ndim = 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the ids."""
        return self.ids.dtype

    @property
    def shape(self) -> tuple[int]:
        """How many there are."""
        return (len(self.order),)

    def __len__(self) -> int:
        return len(self.order)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(np.asarray(self.ids)[np.asarray(self.order)], dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Consecutive rows of one file.

    Attributes:
        file: an .npy file in the form of a store's, whose array has rows of the table's size.
        offset: the byte of the file at which the first row starts.
        ids: the number of each row in the table, in the order of the file; int32 or int64 [n]. If
            they are in a file, it is read again for each part of the table.
    """

    file: Path
    offset: int
    ids: Ids | StoredIds | PickedIds

    def position(self, row_bytes: int) -> int:
        """The position of the first row in the file's array."""
        return (self.offset - DATA_OFFSET) // row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A stretch of one output whose rows are written in one way.

    Attributes:
        output: the number of the output.
        start, stop: the stretch, in rows of the output.
        bounds: where the ascending runs in it begin, and `stop`; int64 [runs + 1]; None: the rows
            are spooled.
    """

    output: int
    start: int
    stop: int
    bounds: Int64Array | None

    def slices(self, ids: Ids, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Stretches of the output whose ids are in [first, last), all of them; not if spooled."""
        assert self.bounds is not None
        for start, stop in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            run = ids[start:stop]
            low, high = start + _place(run, first), start + _place(run, last)
            if low < high:
                yield low, high

    def within(self, ids: Ids, first: int, last: int) -> Int64Array:
        """Places in the output, ascending, whose ids are in [first, last); int64 [n]."""
        found = [
            at + np.flatnonzero((block >= first) & (block < last))
            for at, block in _blocks(ids, self.start, self.stop)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def below(self, ids: Ids, first: int) -> int:
        """How many ids of the piece are less than `first`."""
        return sum(
            int(np.count_nonzero(block < first)) for _, block in _blocks(ids, self.start, self.stop)
        )


@dataclass(frozen=True, slots=True)
class Division:
    """All outputs of one table, divided.

    Attributes:
        pieces: the pieces, in the order of the outputs.
        first, last: all ids are in [first, last).
        digest: a text that identifies the outputs and their division.
    """

    pieces: tuple[Piece, ...]
    first: int
    last: int
    digest: str


def divide(table: TableFile, outputs: Sequence[Output], slice_rows: int, folder: Path) -> Division:
    """Check the outputs of a table and divide them into pieces.

    Args:
        table: the table.
        outputs: the outputs; their files are in `folder`.
        slice_rows: how many rows at most may be put in order in memory at a time.
        folder: the packed folder.

    Raises:
        ConfigError: an id is no row of the table, or two outputs overlap.
    """
    _check_places(table, outputs)
    pieces: list[Piece] = []
    first, last, digest = table.row_count, 0, hashlib.sha256()
    for number, output in enumerate(outputs):
        ids = np.asarray(output.ids)
        low, high, breaks = _scan(ids, digest)
        if len(ids) and (low < 0 or high >= table.row_count):
            raise ConfigError(
                f"{output.file} is to hold row {low if low < 0 else high} of {table.path}, which "
                f"has {table.row_count}: record the batches again from this store"
            )
        first, last = min(first, low), max(last, high + 1)
        pieces += _pieces(number, ids, breaks, table.row_bytes, slice_rows)
        place = (output.file.relative_to(folder).as_posix(), output.offset, len(ids))
        digest.update(repr(place).encode())
    digest.update(repr([(p.output, p.start, p.stop) for p in pieces if p.bounds is None]).encode())
    return Division(tuple(pieces), min(first, last), last, digest.hexdigest())


def _check_places(table: TableFile, outputs: Sequence[Output]) -> None:
    ends: dict[Path, int] = {}
    for output in sorted(outputs, key=lambda each: (each.file, each.offset)):
        if output.ids.ndim != 1 or output.ids.dtype not in (np.int32, np.int64):
            raise ConfigError(
                f"the ids of {output.file} are {output.ids.dtype} {list(output.ids.shape)}: give "
                "int32 or int64 [n]"
            )
        row, rest = divmod(output.offset - DATA_OFFSET, table.row_bytes)
        if row < 0 or rest or output.offset < ends.get(output.file, 0):
            raise ConfigError(
                f"an output at byte {output.offset} of {output.file} overlaps another one or does "
                "not begin at a row: remove the folder, and pack again"
            )
        end = output.offset + len(output.ids) * table.row_bytes
        ends[output.file] = max(ends.get(output.file, 0), end)


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
        stop = start + len(window)
        bounds = np.concatenate([[0], 1 + np.flatnonzero(window[1:] < window[:-1]), [len(window)]])
        long = np.diff(bounds) * row_bytes >= RUN_BYTES_MIN
        turns = 1 + np.flatnonzero(long[1:] != long[:-1])
        for low, high in zip([0, *turns.tolist()], [*turns.tolist(), len(long)], strict=True):
            runs = start + bounds[low : high + 1]
            assert runs[-1] <= stop
            yield Piece(number, int(runs[0]), int(runs[-1]), runs if long[low] else None)


def _place(run: Ids, value: int) -> int:
    """Where `value` would be in ascending ids; numpy would convert the ids to int64 otherwise."""
    if value > np.iinfo(run.dtype).max:
        return len(run)
    return int(np.searchsorted(run, run.dtype.type(value)))
