"""`Recording`: the batches of a pack, read again with the places of their rows.

A loader that replays opens one (`strategies/diskgnn.py`); its schedule asks it for the number of
batches, its sampler for the batches (`read`), its layout for the files of packed rows (`files`),
and its plan for what batches need. Everything in a pack may come from a stranger, so each number is
checked before it is used. Files are opened when they are needed; `unchanged` makes sure that they
all belong to one pack.

When not to use it: while the pack is being made; then its samples have no places.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import StoreError
from gnndrive.common.records import (
    EdgeKey,
    Int64Array,
    NodeKey,
    Replayed,
    Sample,
    Subgraph,
    TableFile,
)
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.layout.arrays import table_file
from gnndrive.store.packed.encoding import Sections, rows_of, section_name
from gnndrive.store.packed.format import (
    MEND,
    PACKS,
    PackInfo,
    damaged,
    packed_tables,
    table_checksums,
)
from gnndrive.store.packed.samples import SampleReader, read_index
from gnndrive.store.packed.sections import (
    BANDS,
    LEVELS,
    PLACE_COLUMNS,
    Schema,
    Type,
    places_of,
)
from gnndrive.store.reader import Store

COUNT_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class RecordedSizes:
    """The sizes of the largest recorded batches, and of the index; a node in several disjoint trees
    counts once for each."""

    nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, int]
    record_bytes: int
    index_bytes: int


def recorded_sizes(schema: Schema, index: Int64Array) -> RecordedSizes:
    """The sizes of the largest batches, from an index with or without the places of rows."""

    def most(field: str, type: Type) -> int:
        column = schema.column[f"count {section_name(field, type)}"]
        return int(index[:, column].max(initial=0))

    nodes = {type: most("node", type) for type in schema.node_types}
    edges = {type: most("row", type) for type in schema.edge_types}
    record = int(index[:, schema.column["bytes"]].max(initial=0))
    return RecordedSizes(nodes, edges, record, index.nbytes)


class Recording:
    """An opened pack; several threads may read at once.

    Args:
        path: the pack's folder.
        info: the content of its pack.json, checked against the store (`LayoutKind.read`).
        store: the store.
        tables: the store's tables of the feature buffer.
        wanted: the names of those whose rows are delivered, if the pack has them.

    Attributes:
        index: the index, int64 [batches of all epochs, columns].
        places: table name → what the index says of it.
        files: table name → the file of its packed rows, of the wanted tables.
        hot_rows: table name → how many rows of the file are hot; the first ones.
        band_ends: table name → the slot after the last one of each band of hot rows, int64 [BANDS].
        band_uses: table name → the uses of each band's rows in all batches, int64 [BANDS].
        sizes: the sizes of the largest batches.
    """

    def __init__(
        self, path: Path, info: PackInfo, store: Store, tables: Sequence[FeatureTable],
        wanted: Container[str],
    ) -> None:  # fmt: skip
        self.path, self.info = path, info
        packed = packed_tables(path, info, store, tables)
        self._tables = [table for table in packed if table.name in wanted]
        for name, checksum in table_checksums(store, self._tables).items():
            if info.tables.get(name) != checksum:
                raise StoreError(
                    f"{name} of {store.path} has changed since {path} was packed: {MEND}"
                )
        self.places = places_of(replace(info.schema, more=()), [table.name for table in packed])
        self.hot_rows: dict[str, int] = {}
        self.band_ends: dict[str, Int64Array] = {}
        self.band_uses: dict[str, Int64Array] = {}
        changed = f"the pack {path} was removed or replaced since it was opened: make a new loader"
        self._folder = PACKS.opened(path, info, changed)
        with self.unchanged():
            self.index = read_index(path, info.epochs * info.batches, len(info.schema.columns))
            self.files = {table.name: self._file(table) for table in self._tables}
            for name in self.files:
                self._open_bands(name)
        self._reader = SampleReader(
            path, info.schema, self.index, store.info.types, packed, info.batches
        )
        self._check_index()
        self.sizes = recorded_sizes(info.schema, self.index)

    def __len__(self) -> int:
        """The number of batches of all recorded epochs."""
        return len(self.index)

    def file(self, table: str) -> TableFile:
        """The file of a table's packed rows."""
        return self.files[table]

    def unchanged(self) -> AbstractContextManager[None]:
        """See `Source.unchanged`."""
        return self._folder.unchanged()

    def _file(self, table: FeatureTable) -> TableFile:
        array, file = self.info.arrays.get(f"rows/{table.name}"), table.file
        if array is None or (array.dtype, array.shape[1:]) != (file.dtype, file.row_shape):
            raise damaged(self.path, f"it has no rows of {table.name}, or others")
        fd = open_plain(self.path, array.file, MEND)
        try:
            if os.fstat(fd).st_size < array.nbytes:
                raise damaged(self.path, f"{array.file} is too short")
        finally:
            os.close(fd)
        return table_file(self.path, array.info)

    def _open_bands(self, name: str) -> None:
        hot = self.info.arrays.get(f"ids/{name}/hot")
        bands = self.info.arrays.get(f"ids/{name}/bands")
        if hot is None or bands is None or (bands.dtype, bands.shape) != ("int64", (BANDS, 2)):
            raise damaged(self.path, f"it does not say which rows of {name} are hot")
        content = read_plain(self.path, bands.file, bands.nbytes, MEND)
        if len(content) != bands.nbytes:
            raise StoreError(f"{self.path / bands.file} is too short: {MEND}")
        found = np.frombuffer(content, np.int64, offset=DATA_OFFSET)
        ends, uses = found.reshape(BANDS, 2).T
        rows = self.files[name].row_count
        rising = bool((np.diff(ends, prepend=0) >= 0).all()) and ends[-1] == hot.shape[0] <= rows
        if not rising or bool((uses < 0).any()):
            raise damaged(self.path, f"the bands of {name} are wrong")
        self.hot_rows[name], self.band_ends[name] = hot.shape[0], ends
        self.band_uses[name] = uses

    def _check_index(self) -> None:
        """Check what plans are made from; batches are checked when they are read."""
        for each in self.places.values():
            counts, bands = each.counts(self.index), each.bands(self.index)
            sizes = self.index[:, len(PLACE_COLUMNS) : each.first]
            if len(sizes) and sizes.max() >= COUNT_MAX:
                raise damaged(self.path, "the index has a count out of range")
            part = np.concatenate([counts.reshape(len(self), -1), bands], axis=1)
            if len(part) and not (part.min() >= 0 and part.max() < COUNT_MAX):
                raise damaged(self.path, "the index has a count out of range")
            hot = counts[:, :, LEVELS.index("hot")].sum(axis=1)
            if bool((bands.sum(axis=1) != hot).any()):
                raise damaged(self.path, "the bands of hot rows do not sum up")

    def cold_entries(self, name: str, hot_rows: int) -> Int64Array:
        """How many entries of each batch are not among the first `hot_rows` rows of the file, at
        most: those of a band that is not wholly among them all count; int64 [batches]."""
        places = self.places[name]
        entries = places.counts(self.index).sum(axis=(1, 2))
        held = self.band_ends[name] <= hot_rows
        found: Int64Array = entries - places.bands(self.index)[:, held].sum(axis=1)
        return found

    def read(
        self, number: int, index: int | None = None, empty: Allocate = np.empty
    ) -> Sample | Subgraph:
        """Read a batch's sample, with `numbered` edges and `replayed`; blocks.

        Args:
            number: recording × batches of an epoch + the batch's number in it.
            index: the batch's index in the epoch that replays it; None: the number in its epoch.
            empty: allocates the large arrays.
        """
        with self.unchanged():
            sections = self._reader.sections(number, empty)
        batch = self._reader.decode(number, sections, empty)
        rows = {table.name: self._rows(number, table, batch.sample, sections, empty)
                for table in self._tables}  # fmt: skip
        seeds = batch.seeds if index is None else replace(batch.seeds, index=index)
        return replace(batch.sample, replayed=Replayed(seeds, rows))

    def _rows(
        self, number: int, table: FeatureTable, sample: Sample | Subgraph, sections: Sections,
        empty: Allocate,
    ) -> Int64Array:  # fmt: skip
        """Where the rows of a batch's entries lie in the packed file."""
        name, row = table.name, self.index[number]
        places = self.places[name]
        segment, first = places.starts(row)
        counts, entries = places.counts(row), len(rows_of(sample, table))
        found = [sections.get(f"{kind}/{name}") for kind in ("shared", "hot")]
        shared, hot = (np.empty(0, np.int32) if each is None else each for each in found)
        try:
            if counts.sum() != entries:
                raise ValueError(f"{entries} entries of {name} have {counts.sum()} rows")
            own = np.arange(first, first + int(counts[:, 0].sum()))
            parts = own, shared + np.int64(segment), hot
            rows = places.fill(counts, sections.get(f"order/{name}"), parts, empty)
        except ValueError as error:
            raise damaged(self.path, f"batch {number}: {error}") from None
        limit = self.files[name].row_count
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < limit:
            raise damaged(self.path, f"batch {number} has rows of {name} outside of its file")
        return rows
