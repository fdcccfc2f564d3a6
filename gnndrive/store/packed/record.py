"""Record the batches of a pack: write each drawn batch, and count how many use each row.

`record` asks for batches from the first that is not written yet, in order, so that a packer that
was killed repeats one volume at most, and the folder is the same, byte for byte. Who draws them is
the caller's: `gnndrive/strategies/packs/recording.py` draws what a loader's strategy draws.

The first batches predict the bytes of all samples. Nothing is known of the rows yet, because rows
may be hot that the first batches do not show to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.packed.encoding import RecordedBatch, rows_of
from gnndrive.store.packed.samples import VOLUME_BYTES, SampleReader, SampleWriter
from gnndrive.store.packed.sections import RECORD_ALIGN, Schema
from gnndrive.store.types import Types

SAMPLES = 5  # batches that a prediction is made from
SLOT_BYTES = 4  # of a node or edge: its hot slot or its place in the shared file


def predict(records: Sequence[int], entries: int, batches: int) -> int:
    """Predict the bytes of the samples of so many batches, with the places that are written later,
    from the bytes of the first records and the number of their entries in all tables."""
    drawn = len(records)
    nbytes = -(-(sum(records) + SLOT_BYTES * entries + drawn * RECORD_ALIGN) * batches // drawn)
    return nbytes + (nbytes // VOLUME_BYTES + 1) * 4 * RECORD_ALIGN


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
        index: int64 [batches of all epochs, columns].
        counts: table name -> how many batches use each row, uint32 [rows]; a batch that uses a row
            several times, such as in several disjoint trees, counts once.
    """

    schema: Schema
    index: Int64Array
    counts: dict[str, npt.NDArray[np.uint32]]


def record(
    root: Path,
    source: BatchSource,
    types: Types,
    tables: Sequence[FeatureTable],
    check_room: Callable[[int], object] = lambda _: None,
    progress: Progress = lambda *_: None,
    volume_bytes: int = VOLUME_BYTES,
) -> Recorded:
    """Record all batches of a pack, or those that an earlier packer has not written.

    Args:
        root: the unfinished pack's folder, locked by the caller.
        check_room: called once, with the bytes that the first five batches predict; raises an error
            if the disk is too small.
        progress: called after each batch, as progress("recording batches", done, in all).
        volume_bytes: see `SampleWriter`.
    """
    counts = {table.name: np.zeros(table.file.row_count, np.uint32) for table in tables}
    entries = 0
    with SampleWriter(root, types, tables, source.hops, volume_bytes) as writer:
        for done, batch in enumerate(_batches(root, source, types, tables, writer), 1):
            for table in tables:
                rows = rows_of(batch.sample, table)
                # numpy adds to the values before, so a row that occurs several times counts once.
                counts[table.name][rows] += np.uint32(1)
                entries += len(rows)
            if done == min(SAMPLES, source.total):
                sizes = [int(row[2]) for row in writer.rows[:done]]
                check_room(predict(sizes, entries, source.total))
            progress("recording batches", done, source.total)
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
