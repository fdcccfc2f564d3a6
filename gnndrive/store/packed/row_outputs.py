"""The outputs of a placed pack: which rows of a table its file has where (see placement.py).

Their ids are parts of mapped files, so that nothing in memory grows with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import DATA_OFFSET, index_dtype
from gnndrive.store.packed.contents import hot_name, rows_name, shared_name
from gnndrive.store.packed.mapped_samples import Entries, Ids, MappedSamples, map_array
from gnndrive.store.packed.outputs import Output, PickedIds
from gnndrive.store.packed.placement import TablePlaces, levels_by_stretch

IN_CHUNK = 0


def outputs_of(
    root: Path, samples: MappedSamples, table: FeatureTable, places: TablePlaces, segment: int
) -> Iterator[Output]:
    """The outputs of one table, in the order of its file.

    Args:
        root: the pack's folder.
        samples: the placed samples.
        table: the table.
        places: what the index says of it.
        segment: batches of a segment.
    """
    file, width = root / f"{rows_name(table.name)}.npy", table.file.row_bytes
    dtype, entries = index_dtype(table.file.row_count), Entries(samples, table, places)
    row = 0

    def output(ids: Ids | PickedIds) -> Output:
        nonlocal row
        made = Output(file, DATA_OFFSET + row * width, ids)
        row += len(ids)
        return made

    yield output(map_array(root / f"{hot_name(table.name)}.npy", dtype))
    for number, found in enumerate(samples.rows):
        start, first = places.starts(found)
        if number % segment == 0:
            assert row == start
            if first > start:
                name = shared_name(table.name, number // segment)
                yield output(map_array(root / f"{name}.npy", dtype))
        assert row == first
        counts = places.counts(found)
        if places.arranged:
            ids = entries.ids(number)
            yield from map(output, _stretches(ids, counts))
        elif counts[0, IN_CHUNK]:
            order = samples.section(number, f"order/{table.name}")[: counts[0, IN_CHUNK]]
            yield output(PickedIds(entries.ids(number), order))


def _stretches(ids: Ids, counts: Int64Array) -> Iterator[Ids]:
    """The ids of a batch's chunk, hop by hop."""
    at = 0
    for level, count in levels_by_stretch(counts):
        if level == IN_CHUNK:
            yield ids[at : at + count]
        at += count
