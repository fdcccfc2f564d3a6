"""Read a whole pack and check it: every checksum, every index, and every row against its table.

The packed tables are read once, and so are the pack's files, but for the samples, which are read
three times.
"""

from __future__ import annotations

import os
import shlex
import warnings
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeGuard

import numpy as np

from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array, Sample, Subgraph
from gnndrive.store.feature_tables import FeatureTable, feature_tables
from gnndrive.store.layout.arrays import Ids, checksums, map_array
from gnndrive.store.layout.rows import verify_rows
from gnndrive.store.packed.encoding import Sections, rows_of
from gnndrive.store.packed.format import (
    INDEX,
    MEND,
    PACKS,
    PackInfo,
    TableRows,
    bands_name,
    contents,
    damaged,
    hot_name,
    listed,
    packed_tables,
    rows_name,
    shared_name,
)
from gnndrive.store.packed.places import IN_CHUNK
from gnndrive.store.packed.placing import outputs_of
from gnndrive.store.packed.samples import MappedSamples, SampleReader, read_index
from gnndrive.store.packed.sections import BANDS, TablePlaces, places_of
from gnndrive.store.reader import Store

MEMORY = 256 << 20


def verify_pack(
    path: str | os.PathLike[str], store: Store, progress: Progress | None = None
) -> PackInfo:
    """Check a whole pack, which may come from a stranger; StoreError: it is damaged, or belongs to
    another store. `progress` is called with bytes, or with batches of "samples"."""
    root, told = Path(os.path.abspath(path)), progress or (lambda *_: None)
    info = PACKS.read(root, store)
    arrays = [each for name, each in info.arrays.items() if not name.startswith("rows/")]
    try:
        for name, found in checksums(root, arrays, MEND, partial(told, "checksums")):
            if found != info.arrays[name].checksum:
                raise StoreError(
                    f"{root / name}.npy has another checksum than pack.json says: {MEND}"
                )
    except ReadError as error:
        raise StoreError(f"{error}: {MEND}") from None
    with store.unchanged():
        _Check(root, info, store).run(told)
    return info


class _Check:
    """Checks what a pack whose files are whole says."""

    def __init__(self, root: Path, info: PackInfo, store: Store) -> None:
        self._root, self._info, self._store = root, info, store
        schema = info.schema
        own, sums = store.info.own.arrays, {n: a.sha256 for n, a in store.info.arrays.items()}
        there = [
            table
            for table in feature_tables(store)
            if table.name in own or info.tables.get(table.name) == sums[table.name]
        ]
        self._tables = packed_tables(root, info, store, there)
        self._places = places_of(schema, [table.name for table in self._tables])
        self._index = read_index(root, *info.arrays[INDEX].shape)
        types = store.info.types
        self._reader = SampleReader(root, schema, self._index, types, self._tables, info.batches)

    def run(self, progress: Progress) -> None:
        """Check everything but the files' checksums."""
        tables = [_Table(self._root, self._info, t, self._places[t.name]) for t in self._tables]
        for number, row in enumerate(self._index):
            sections = self._reader.sections(number)
            sample = self._reader.decode(number, sections).sample
            for table in tables:
                table.check(number, row, sections, sample)
            progress("samples", number + 1, len(self._index))
        rows = {table.name: table.rows for table in tables}
        infos = contents(self._info.schema, self._index, self._tables, rows)
        sums = {name: array.checksum for name, array in self._info.arrays.items()}
        if listed(infos, sums) != self._info.arrays:
            raise damaged(self._root, "its arrays have other shapes than the index says")
        samples = MappedSamples(self._root, self._info.schema, self._index)
        removed = [table.name for table in self._tables if not table.file.path]
        if removed:
            warnings.warn(
                f"{self._root} was packed with {', '.join(removed)}, removed from the store or "
                "replaced since then, so these rows were not compared; loaders replay the others. "
                f"gnndrive pack {shlex.quote(str(self._store.path))} --overwrite, with the options "
                "of this pack, makes it again",
                RuntimeWarning,
                stacklevel=3,
            )
        for packed in self._tables:
            if packed.name not in removed:
                self._check_rows(packed, samples, progress)

    def _check_rows(self, table: FeatureTable, samples: MappedSamples, progress: Progress) -> None:
        places, name = self._places[table.name], rows_name(table.name)
        outputs = list(outputs_of(self._root, samples, table, places, self._info.segment))
        found = verify_rows(
            table.file, outputs, self._root, MEMORY, partial(progress, f"rows {table.name}"), MEND
        )
        if f"sum64:{found:016x}" != self._info.arrays[name].checksum:
            raise damaged(self._root, f"{name}.npy has another checksum than pack.json says")


class _Table:
    """Checks what the samples say of one table, batch after batch; `rows`: how many rows the
    batches so far need."""

    def __init__(
        self, root: Path, info: PackInfo, table: FeatureTable, places: TablePlaces
    ) -> None:
        self.name, self._root, self._table, self._places = table.name, root, table, places
        self._segment = info.segment
        self._arrays, self._shared = info.arrays, np.empty(0, np.int64)
        self._hot = self._ids(hot_name(table.name))
        bands = self._numbers(bands_name(table.name)).reshape(-1, 2)
        self._band_ends = ends = bands[:, 0]
        ascending = len(ends) == BANDS and ends[0] >= 0 and not (np.diff(ends) < 0).any()
        if not ascending or ends[-1] != len(self._hot):
            self._fail("its bands are not those of the hot rows")
        self._start, self.rows = 0, TableRows(len(self._hot), len(self._hot), [])

    def _ids(self, name: str) -> Ids:
        """The numbers of rows in an array; none if there is no such array."""
        found = self._numbers(name)
        if len(found) and not 0 <= found.min() <= found.max() < self._table.file.row_count:
            self._fail(f"{name}.npy has numbers of no rows")
        return found

    def _numbers(self, name: str) -> Ids:
        array = self._arrays.get(name)
        if array is None:
            return np.empty(0, np.int64)
        if array.dtype not in ("int32", "int64"):
            self._fail(f"{name}.npy has no whole numbers")
        return map_array(self._root / array.file, array.dtype)

    def check(
        self, number: int, row: Int64Array, sections: Sections, sample: Sample | Subgraph
    ) -> None:
        """Check one batch, the next one."""
        start, first = self._places.starts(row)
        counts, shared, end = self._places.counts(row), self.rows.shared_rows, self.rows.rows
        if number % self._segment == 0:
            name = shared_name(self.name, number // self._segment)
            self._shared = self._ids(name)
            self._start, end = end, end + len(self._shared)
            shared = [*shared, len(self._shared)]
        if (start, first) != (self._start, end):
            self._fail(f"batch {number} lies elsewhere")
        hot, mine = sections.get(f"hot/{self.name}"), sections.get(f"shared/{self.name}")
        order = sections.get(f"order/{self.name}")
        ids = np.asarray(rows_of(sample, self._table), np.int64)
        each = counts.reshape(-1).tolist()
        if min(each) < 0 or sum(each) != len(ids):
            self._fail(f"batch {number} counts other rows than it has")
        if not _within(hot, self._hot) or not _within(mine, self._shared):
            self._fail(f"batch {number} has a place out of range")
        chunk = int(counts[:, IN_CHUNK].sum())
        parts = [np.full(chunk, -1), self._shared[mine], self._hot[hot]]
        try:
            found = self._places.fill(counts, order, parts)
        except ValueError as error:
            self._fail(f"batch {number}: {error}")
        if len(found) != len(ids) or (found[found >= 0] != ids[found >= 0]).any():
            self._fail(f"batch {number} has the places of other rows")
        band = np.searchsorted(self._band_ends, hot, side="right")
        if (np.bincount(band, minlength=BANDS) != self._places.bands(row)).any():
            self._fail(f"batch {number} counts other bands")
        self.rows = TableRows(self.rows.slots, end + chunk, shared)

    def _fail(self, why: str) -> NoReturn:
        raise damaged(self._root, f"{self.name}: {why}")


def _within(places: Ids | None, rows: Ids) -> TypeGuard[Ids]:
    """Whether these are places in an array of rows."""
    if places is None:
        return False
    return not len(places) or (int(places.min()) >= 0 and int(places.max()) < len(rows))
