"""The outputs of a placed pack: which rows of a table its file has where (see placement.py).

Their ids are parts of files that are mapped while they are looked at, so that neither memory nor
open files grow with the rows and the batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import DATA_OFFSET, index_dtype
from gnndrive.store.layout.arrays import Maps, StoredIds, map_array
from gnndrive.store.layout.outputs import Output, PickedIds
from gnndrive.store.packed.contents import hot_name, rows_name, shared_name
from gnndrive.store.packed.mapped_samples import Entries, MappedSamples
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
    row, maps = 0, Maps()

    def stored(name: str, count: int) -> StoredIds:
        return StoredIds(maps, root / f"{name}.npy", 0, count, np.dtype(dtype))

    def output(ids: StoredIds | PickedIds) -> Output:
        nonlocal row
        made = Output(file, DATA_OFFSET + row * width, ids)
        row += len(ids)
        return made

    hot = len(map_array(root / f"{hot_name(table.name)}.npy", dtype))
    yield output(stored(hot_name(table.name), hot))
    for number, found in enumerate(samples.rows):
        start, first = places.starts(found)
        if number % segment == 0:
            assert row == start
            if first > start:
                yield output(stored(shared_name(table.name, number // segment), first - start))
        assert row == first
        counts = places.counts(found)
        if places.arranged:
            yield from map(output, _stretches(entries.stored(number), counts))
        elif counts[0, IN_CHUNK]:
            order = samples.stored(number, f"order/{table.name}")
            chunk = order.part(0, int(counts[0, IN_CHUNK]))
            yield output(PickedIds(entries.stored(number), chunk))


def _stretches(ids: StoredIds, counts: Int64Array) -> Iterator[StoredIds]:
    """The ids of a batch's chunk, hop by hop."""
    at = 0
    for level, count in levels_by_stretch(counts):
        if level == IN_CHUNK:
            yield ids.part(at, at + count)
        at += count
