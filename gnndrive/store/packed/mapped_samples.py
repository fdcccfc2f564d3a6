"""Recorded samples of an unfinished pack, memory-mapped: the packer reads some sections many times.

A volume that was placed (placing.py) has more columns in its rows of the index than a recorded one,
but the same sections, so both are read in the same way.

When not to use it: for a pack that may come from a stranger, whose sections `SampleReader` checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.layout.arrays import Ids, Maps, StoredIds
from gnndrive.store.packed.encoding import section_name
from gnndrive.store.packed.placement import TablePlaces
from gnndrive.store.packed.sections import Schema
from gnndrive.store.packed.volumes import volume_name


class MappedSamples:
    """The sections of all batches.

    Args:
        root: the folder.
        schema: what a record holds.
        rows: the rows of the index, int64 [columns] each, of the volumes as they are now.
    """

    def __init__(self, root: Path, schema: Schema, rows: Iterable[Int64Array]) -> None:
        self.schema, self.rows = schema, list(rows)
        self._root = root
        self._maps = Maps()
        self._place = {section.name: at for at, section in enumerate(schema.sections)}

    def __len__(self) -> int:
        """The number of batches of all recorded epochs."""
        return len(self.rows)

    def sections(self, number: int) -> Mapping[str, Ids | None]:
        """The sections of a batch by name, in the schema's order; None: it has none."""
        row = self.rows[number]
        counts = self.schema.counts(row).tolist()
        starts, _ = self.schema.places(counts)
        volume, first = self._maps.data(self._volume(row)), int(row[1])
        found: dict[str, Ids | None] = {}
        for section, start, count in zip(self.schema.sections, starts, counts, strict=True):
            part = volume[first + start : first + start + section.itemsize * max(count, 0)]
            found[section.name] = None if count < 0 else part.view(section.dtype)
        return found

    def section(self, number: int, name: str) -> Ids:
        """One section of a batch; empty if it has none."""
        found = self.sections(number)[name]
        return np.empty(0, np.int32) if found is None else found

    def count(self, number: int, name: str) -> int:
        """The number of entries of a section."""
        return max(int(self.schema.counts(self.rows[number])[self._place[name]]), 0)

    def stored(self, number: int, name: str) -> StoredIds:
        """One section of a batch, whose file is mapped only while it is looked at."""
        row, at = self.rows[number], self._place[name]
        counts = self.schema.counts(row).tolist()
        start = int(row[1]) + self.schema.places(counts)[0][at]
        dtype = np.dtype(self.schema.sections[at].dtype)
        return StoredIds(self._maps, self._volume(row), start, max(counts[at], 0), dtype)

    def _volume(self, row: Int64Array) -> Path:
        return self._root / f"{volume_name(int(row[0]))}.npy"


class Entries:
    """The entries of one table in each batch: the rows that the batch needs.

    Args:
        samples: the samples.
        table: the table.
        places: what the index says of it.

    Attributes:
        table, places: the table, and what the index says of it.
        arranged: see `TablePlaces`.
        section: the section that holds them.
    """

    def __init__(self, samples: MappedSamples, table: FeatureTable, places: TablePlaces) -> None:
        self.table, self.places, self.arranged = table, places, places.arranged
        self._samples = samples
        self.section = section_name("edge" if table.of_edges else "node", table.type)

    def ids(self, number: int) -> Ids:
        """The rows, int32 or int64 [entries]; the seeds' first if the table is arranged."""
        return self._samples.section(number, self.section)

    def stored(self, number: int) -> StoredIds:
        """The same, whose file is mapped only while they are looked at."""
        return self._samples.stored(number, self.section)

    def count(self, number: int) -> int:
        """The number of entries of a batch."""
        return self._samples.count(number, self.section)

    def seeds(self, number: int) -> int:
        """How many of the first entries are seeds, which are all in the chunk."""
        if not self.arranged:
            return 0
        samples = self._samples
        found = samples.schema.hop_counts(samples.rows[number], "nodes", None)
        assert found is not None, "plain samples have counts by hop"
        return found[0]
