"""Record the batches of a pack: write each drawn batch, and count how many use each row.

`record` asks for batches from the first that is not written yet, in order, so that a packer that
was killed repeats one volume at most, and the folder is the same, byte for byte. Who draws them is
the caller's: `gnndrive/strategies/packs/recording.py` draws what a loader's strategy draws.

The first batches predict the bytes of the pack (`predict`). The samples' bytes are extrapolated. Of
the rows, the hottest are stored once and all others in each batch that uses them; which are the
hottest is not known yet, so each of the first batches is held against the hottest rows of the
others. Rows that none of the others uses count as cold unless scores (in-degrees, say) call them
hot, so the prediction is rather too high; a segment's shared file makes the pack smaller still. It
takes three bytes for each row of the largest table, which the slots of hot rows take later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import Progress, index_dtype
from gnndrive.store.packed.encoding import RecordedBatch, rows_of
from gnndrive.store.packed.samples import VOLUME_BYTES, SampleReader, SampleWriter
from gnndrive.store.packed.sections import RECORD_ALIGN, Schema
from gnndrive.store.types import Types

SAMPLES = 5  # batches that a prediction is made from
SLOT_BYTES = 4  # of a node or edge: its hot slot or its place in the shared file
_ID_BYTES = 8  # of a hot row
UInt32Array = npt.NDArray[np.uint32]
HotRows = Callable[[FeatureTable], tuple[int, "npt.NDArray[Any] | None"]]
"""Takes a table; returns how many of its rows memory will hold, and scores (see `TableRows`)."""


# ---- the prediction


@dataclass(frozen=True, slots=True)
class TableRows:
    """What is known of one table.

    Attributes:
        ids: the rows that each of the first batches uses, integers [n]; may repeat.
        rows: the number of rows of the table.
        row_bytes: bytes of one row.
        hot_rows: how many rows memory holds.
        scores: for each row a number that grows with its expected use, such as its degree, [rows];
            None: unknown.
    """

    ids: Sequence[npt.NDArray[Any]]
    rows: int
    row_bytes: int
    hot_rows: int = 0
    scores: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected bytes of a pack.

    Attributes:
        samples: of the recorded samples, with the places that are written later.
        hot: of the hottest rows.
        cold: of all other rows, in the batches that use them.
    """

    samples: int
    hot: int
    cold: int


def predict(records: Sequence[int], tables: Mapping[str, TableRows], batches: int) -> Prediction:
    """Predict the bytes of a pack of so many batches, of all epochs; `records` are the bytes of
    each of the first records, and `tables` have rows of as many batches."""
    drawn, hot, cold = len(records), 0, 0
    slots = sum(SLOT_BYTES * len(ids) for each in tables.values() for ids in each.ids)
    samples = -(-(sum(records) + slots + drawn * RECORD_ALIGN) * batches // drawn)
    samples += (samples // VOLUME_BYTES + 1) * 4 * RECORD_ALIGN
    for each in tables.values():
        hot += min(each.hot_rows, each.rows) * (each.row_bytes + _ID_BYTES)
        cold += -(-_cold_rows(each) * each.row_bytes * batches // drawn)
    return Prediction(samples, hot, cold)


def _cold_rows(table: TableRows) -> int:
    """How many rows the first batches read that are not among the hottest of the other batches."""
    if table.hot_rows >= table.rows:
        return 0
    distinct = [_distinct(ids, table.rows) for ids in table.ids]
    if table.hot_rows <= 0:
        return sum(map(len, distinct))
    counts = np.zeros(table.rows, np.uint8)
    for ids in distinct:
        counts[ids] += 1
    total = 0
    for ids in distinct:
        counts[ids] -= 1
        total += len(ids) - int(np.count_nonzero(_hottest(table, counts)[ids]))
        counts[ids] += 1
    return total


def _distinct(ids: npt.NDArray[Any], rows: int) -> npt.NDArray[np.int64]:
    """The distinct numbers of `ids`, ascending; some ten times as fast as numpy's `unique`."""
    used = np.zeros(rows, np.bool_)
    used[ids] = True
    return np.flatnonzero(used)


def _hottest(table: TableRows, counts: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which rows are the hottest by these counts, then by the scores, then by their number."""
    left = table.hot_rows
    found = np.zeros(table.rows, np.bool_)
    for level in range(len(table.ids), -1, -1):
        if level == 0 and table.scores is None:
            break  # nothing is known of them
        at_level = np.flatnonzero(counts == level)
        if len(at_level) > left:
            if table.scores is not None:
                order = np.argsort(-table.scores[at_level].astype(np.float64), kind="stable")
                at_level = at_level[order]
            at_level = at_level[:left]
        found[at_level] = True
        left -= len(at_level)
        if not left:
            break
    return found


# ---- recording


class BatchSource(Protocol):
    """Draws the batches of all recorded epochs, in order.

    Attributes:
        total: the number of batches of all epochs.
        hops: the number of hops.
    """

    total: int
    hops: int

    def draw(self, first: int) -> Iterator[RecordedBatch]:
        """Draw batch `first` and those after it, counted over all epochs; a generator, which is
        closed when nothing more is wanted."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded.

    Attributes:
        schema: what a record holds.
        index: int64 [batches of all epochs, columns].
        counts: table name -> how many batches use each row, uint32 [rows]; a batch that uses a row
            several times, such as in several disjoint trees, counts once.
    """

    schema: Schema
    index: Int64Array
    counts: dict[str, UInt32Array]


def record(
    root: Path,
    source: BatchSource,
    types: Types,
    tables: Sequence[FeatureTable],
    check_room: Callable[[Prediction], object] = lambda _: None,
    hot_rows: HotRows = lambda _: (0, None),
    progress: Progress = lambda *_: None,
    volume_bytes: int = VOLUME_BYTES,
) -> Recorded:
    """Record all batches of a pack, or those that an earlier packer has not written.

    Args:
        root: the unfinished pack's folder, locked by the caller.
        check_room: called once, with what the first five batches predict; raises an error if the
            disk is too small.
        progress: called after each batch, as progress("record", batches done, batches in all).
        volume_bytes: see `SampleWriter`.

    Raises:
        ConfigError: a sample cannot be recorded.
        StoreError: the disk is full, or the folder is damaged.
    """
    counts = {table.name: np.zeros(table.file.row_count, np.uint32) for table in tables}
    first: dict[str, list[npt.NDArray[Any]]] = {table.name: [] for table in tables}
    with SampleWriter(root, types, tables, source.hops, volume_bytes) as writer:
        for done, batch in enumerate(_batches(root, source, types, tables, writer), 1):
            for table in tables:
                rows = rows_of(batch.sample, table)
                # numpy adds to the values before, so a row that occurs several times counts once.
                counts[table.name][rows] += np.uint32(1)
                if done <= SAMPLES:
                    first[table.name].append(np.array(rows, index_dtype(table.file.row_count)))
            if done == min(SAMPLES, source.total):
                known = {}
                for table in tables:
                    file, ids = table.file, first.pop(table.name)
                    known[table.name] = TableRows(
                        ids, file.row_count, file.row_bytes, *hot_rows(table)
                    )
                sizes = [int(row[2]) for row in writer.rows[:done]]
                check_room(predict(sizes, known, source.total))
            progress("record", done, source.total)
        index = writer.finish()
        assert writer.schema is not None
        return Recorded(writer.schema, index, counts)


def _batches(
    root: Path, source: BatchSource, types: Types, tables: Sequence[FeatureTable],
    writer: SampleWriter,
) -> Iterator[RecordedBatch]:  # fmt: skip
    """The batches that are there, and those that are drawn and written now."""
    if writer.rows:
        assert writer.schema is not None
        reader = SampleReader(root, writer.schema, np.array(writer.rows), types, tables)
        for number in range(len(reader)):
            yield reader.read(number)
    if len(writer.rows) < source.total:
        with closing(source.draw(len(writer.rows))) as drawn:  # type: ignore[type-var]
            for batch in drawn:
                writer.append(batch)
                yield batch
    assert len(writer.rows) == source.total, "the source draws all batches"
