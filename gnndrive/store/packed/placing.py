"""Place the rows of recorded batches: rewrite each volume of samples with where its rows lie.

Which rows are hot or shared was decided before (sharing.py), so a batch depends on nothing but its
own sections. A volume is replaced in one step, so a packer that was killed goes on behind the last
placed volume and repeats one at most, with the same bytes.

`outputs_of` then says which rows of a table its file has where. Their ids are parts of files that
are mapped while they are looked at, so that neither memory nor open files grow with the rows and
the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gnndrive.common.progress import Progress
from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import DATA_OFFSET, index_dtype
from gnndrive.store.layout.arrays import Ids, Maps, StoredIds, map_array, write_small
from gnndrive.store.layout.rows import Output, PickedIds
from gnndrive.store.packed.format import INDEX, bands_name, hot_name, rows_name, shared_name
from gnndrive.store.packed.places import IN_CHUNK, Arrangement, renumber
from gnndrive.store.packed.samples import (
    Entries,
    MappedSamples,
    VolumeWriter,
    read_volume,
    whole_volumes,
)
from gnndrive.store.packed.sections import (
    BANDS,
    PLACE_COLUMNS,
    Schema,
    TablePlaces,
    levels_by_stretch,
    places_of,
    with_places,
)
from gnndrive.store.packed.sharing import SharedRows, hot_places

PLACED = 1  # the generation of placed volumes


class Placing:
    """Places all batches of a pack, or those that an earlier packer has not placed.

    Attributes:
        schema: the schema of the placed samples; the argument is that of the recorded ones.
        places: what the index says of each table.
        rows: the rows of the index of all batches, recorded or placed.
    """

    def __init__(
        self, root: Path, schema: Schema, tables: Sequence[FeatureTable], shared: SharedRows
    ) -> None:
        names = [table.name for table in tables]
        self.schema, self.places = with_places(schema, names), places_of(schema, names)
        self._root, self._recorded, self._shared = root, schema, shared
        self._tables = tables
        self.rows: list[Int64Array] = []
        self._batches: list[int] = []  # of each volume
        self._done = 0  # placed volumes
        for number in range(whole_volumes(root)):
            widths = len(schema.columns), len(self.schema.columns)
            rows, generation = read_volume(root, number, *widths)
            self._done += generation == PLACED
            self._batches.append(len(rows))
            self.rows += rows

    def run(self, progress: Progress) -> Int64Array:
        """Place what is left, and write index.npy, which is returned; `progress` is called with
        batches."""
        first = sum(self._batches[: self._done])
        if first < len(self.rows):
            self._run(first, progress)
        index = np.array(self.rows, np.int64).reshape(len(self.rows), len(self.schema.columns))
        write_small(self._root, INDEX, index)
        return index

    def _run(self, first: int, progress: Progress) -> None:
        """Place the batches from `first` on, which begins a volume."""
        samples = MappedSamples(self._root, self._recorded, self.rows)
        tables = [
            _Table(self._root, Entries(samples, table, self.places[table.name]), self._shared)
            for table in self._tables
        ]
        for table in tables if first else []:
            table.go_on(first - 1, self.rows[first - 1])
        for volume in range(self._done, len(self._batches)):
            with VolumeWriter(self._root, volume, self.schema, PLACED) as writer:
                for number in range(first, first + self._batches[volume]):
                    sections, rest = self._place(samples, tables, number)
                    self.rows[number] = writer.append(list(sections.values()), rest)
                    progress("placing rows in batches", number + 1, len(self.rows))
                writer.finish()
            first += self._batches[volume]

    def _place(
        self, samples: MappedSamples, tables: Sequence[_Table], number: int
    ) -> tuple[dict[str, Ids | None], list[int]]:
        """The sections of a batch with its places; its columns of the index after the counts."""
        sections, row = samples.sections(number), samples.rows[number]
        per_hop = self.schema.hop_counts(row, "nodes", self.schema.node_types[0]) or []
        for table in sorted(tables, key=lambda each: not each.arranged):  # others follow its order
            table.place(sections, number, per_hop)
        rest: list[int] = row[len(PLACE_COLUMNS) + len(self.schema.sections) :].tolist()
        return sections, rest + [column for table in tables for column in table.columns]


class _Table:
    """Places the entries of one table, batch after batch; `columns` is what the index says of the
    last one."""

    def __init__(self, root: Path, entries: Entries, shared: SharedRows) -> None:
        name = entries.table.name
        self.arranged, self.columns = entries.arranged, list[int]()
        self._root, self._entries, self._named = root, entries, entries.places
        self._places = hot_places(root, entries.table)
        self._batches, self._shared = shared.segment, shared.shared_rows[name]
        bands = map_array(root / f"{bands_name(name)}.npy", "int64").reshape(BANDS, 2)
        self._band_ends = bands[:, 0]
        self._segment = -1
        self._start, self._end = 0, shared.slots[name]  # rows: of the segment, and placed so far

    def go_on(self, number: int, row: Int64Array) -> None:
        """Go on behind batch `number`, which was placed and has this row of the index."""
        self._start, first = self._named.starts(row)
        self._end = first + int(self._named.counts(row)[:, IN_CHUNK].sum())
        self._segment = number // self._batches
        self._enter()

    def place(self, sections: dict[str, Ids | None], number: int, per_hop: list[int]) -> None:
        """Set the sections of the next batch that hold its places; other tables' places may be set
        already. `per_hop`: how many nodes each hop has, if the table is arranged."""
        if number // self._batches != self._segment:
            self._segment += 1
            self._start = self._end
            self._end += self._shared[self._segment]
            self._enter()
        name, ids = self._named.name, sections[self._entries.section]
        if self.arranged:
            found = self._places.arrange(_needed(sections, "node"), per_hop)
            _renumber(sections, found)
            counts = found.counts
        else:
            ids = np.empty(0, np.int32) if ids is None else ids
            found = self._places.arrange(ids, [0, len(ids)])
            counts, sections[f"order/{name}"] = found.counts[1:], found.order
        sections[f"hot/{name}"], sections[f"shared/{name}"] = found.hot, found.shared
        band = np.searchsorted(self._band_ends, found.hot, side="right")
        bands = np.bincount(band, minlength=BANDS)
        self.columns = self._named.row(self._start, self._end, counts, bands)
        self._end += len(found.chunk)

    def _enter(self) -> None:
        ids: Ids = np.empty(0, np.int64)
        if self._shared[self._segment]:
            name, rows = self._named.name, self._entries.table.file.row_count
            path = self._root / f"{shared_name(name, self._segment)}.npy"
            ids = map_array(path, index_dtype(rows))
        self._places.set_shared(ids)


def _renumber(sections: dict[str, Ids | None], found: Arrangement) -> None:
    """Put a plain sample's nodes and edges into their new order."""
    row, colptr, edge = (_needed(sections, name) for name in ("row", "colptr", "edge"))
    sections["row"], sections["colptr"], sections["edge"] = renumber(
        row, colptr, edge, found, found
    )
    sections["node"] = found.node.astype(_needed(sections, "node").dtype)


def _needed(sections: Mapping[str, Ids | None], name: str) -> Ids:
    found = sections[name]
    assert found is not None, f"a plain sample has {name}"
    return found


def outputs_of(
    root: Path, samples: MappedSamples, table: FeatureTable, places: TablePlaces, segment: int
) -> Iterator[Output]:
    """The outputs of one table, in the order of its file, from the placed samples."""
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
        counts, ids, at = places.counts(found), entries.stored(number), 0
        if places.arranged:  # the chunk lies hop by hop
            for level, count in levels_by_stretch(counts):
                if level == IN_CHUNK:
                    yield output(ids.part(at, at + count))
                at += count
        elif counts[0, IN_CHUNK]:
            order = samples.stored(number, f"order/{table.name}")
            yield output(PickedIds(ids, order.part(0, int(counts[0, IN_CHUNK]))))
