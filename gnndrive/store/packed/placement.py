"""Where the rows of recorded batches lie: the sections and columns that placing adds.

A table's rows are in one file, `rows/TABLE.npy`: the hot rows first, the hottest of them first;
then for each segment its shared rows, and behind them the chunks of its batches. So a row lies at
one of three levels: `hot` (its number in the file is its slot), `shared` (used by several batches
of the segment) or `chunk` (the batch's own consecutive rows).

One table, the nodes' of a plain sample, is *arranged*: the nodes of each hop were put into the
order in which their rows lie (places.py), so counts by hop and level say where each row is. The
entries of all other tables keep their order; their section `order/TABLE` lists them as chunk |
shared | hot. In both, the chunk's rows are in the order of the entries so listed, `hot/TABLE` has
the slot of each hot entry, and `shared/TABLE` the place of each shared entry among the segment's
shared rows.

Columns of the index for each table: "segment TABLE" and "first TABLE", the rows of the file at
which the segment's shared rows and the batch's chunk begin; "chunk TABLE HOP", "shared TABLE HOP"
and "hot TABLE HOP", the counts (one "hop" unless arranged); "band TABLE K", how many of its hot
entries have a slot in band K of `ids/TABLE/bands.npy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.packed.hot import BANDS
from gnndrive.store.packed.sections import Schema, Section

LEVELS = ("chunk", "shared", "hot")
"""In the order of `places.IN_CHUNK`, `IN_SHARED`, `IN_HOT`."""
PLACING = ("hot/", "shared/", "order/")
"""What the names of the sections that hold places start with."""


def arranged_table(form: str, tables: Sequence[FeatureTable]) -> str | None:
    """The name of the table whose entries are arranged; None: there is none.

    Args:
        form: the schema's.
        tables: the packed tables.
    """
    nodes = [table.name for table in tables if not table.of_edges]
    return nodes[0] if form == "sample" and nodes else None


def placing_sections(form: str, tables: Sequence[FeatureTable]) -> Iterator[Section]:
    """The sections that hold places; they are empty while samples are recorded."""
    for kind in PLACING:
        for table in tables:
            if kind != "order/" or table.name != arranged_table(form, tables):
                yield Section(f"{kind}{table.name}", "int32", "int32")


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Reads and names what the index says of one table.

    Attributes:
        name: the table's name.
        arranged: whether the entries of a batch are in the order of their rows.
        hops: for how many hops there are counts: hops + 1 if the table is arranged, else 1.
        first: the place of its first column in the index.
    """

    name: str
    arranged: bool
    hops: int
    first: int

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        names = [f"segment {self.name}", f"first {self.name}"]
        names += [f"{level} {self.name} {hop}" for hop in range(self.hops) for level in LEVELS]
        return names + [f"band {self.name} {band}" for band in range(BANDS)]

    def row(self, segment: int, first: int, counts: Int64Array, bands: Int64Array) -> list[int]:
        """The columns of one batch.

        Args:
            segment, first: the rows of the file at which the segment's shared rows and the batch's
                chunk begin.
            counts: entries by hop and level, int64 [hops, 3].
            bands: hot entries by band, int64 [BANDS].
        """
        assert counts.shape == (self.hops, len(LEVELS))
        return [segment, first, *counts.reshape(-1).tolist(), *bands.tolist()]

    def starts(self, index: Int64Array) -> tuple[int, int]:
        """The rows of the file at which the segment's shared rows and the batch's chunk begin, from
        its row of the index."""
        return int(index[self.first]), int(index[self.first + 1])

    def counts(self, index: Int64Array) -> Int64Array:
        """Entries by hop and level: int64 [hops, 3] of one row of the index, [batches, hops, 3] of
        all."""
        part = index[..., self.first + 2 : self.first + 2 + len(LEVELS) * self.hops]
        found: Int64Array = part.reshape(*part.shape[:-1], self.hops, len(LEVELS))
        return found

    def bands(self, index: Int64Array) -> Int64Array:
        """Hot entries by band: int64 [..., BANDS]."""
        start = self.first + 2 + len(LEVELS) * self.hops
        return index[..., start : start + BANDS]


def places_of(schema: Schema, names: Sequence[str]) -> dict[str, TablePlaces]:
    """The columns of each table in the index of placed samples, whether `schema` has them yet or
    not.

    Args:
        schema: the recording's schema, with or without the columns.
        names: the names of the packed tables, in their order.
    """
    own = {section.name for section in schema.sections}
    at = len(schema.columns) - len(schema.more)
    found = {}
    for name in names:
        arranged = f"order/{name}" not in own
        found[name] = TablePlaces(name, arranged, schema.hops + 1 if arranged else 1, at)
        at += len(found[name].columns)
    return found


def with_places(schema: Schema, names: Sequence[str]) -> Schema:
    """The schema of placed samples, from that of the recorded ones."""
    assert not schema.more
    return schema.with_columns(
        [c for each in places_of(schema, names).values() for c in each.columns]
    )


def levels_by_stretch(counts: Int64Array) -> list[tuple[int, int]]:
    """The stretches of a batch's entries, in their order: (level, number of entries).

    Args:
        counts: entries by hop and level, int64 [hops, 3]. The seeds are all in the chunk; then an
            odd hop lies as chunk | shared | hot, an even one the other way round (places.py).
    """
    found = []
    for hop, counted in enumerate(counts.tolist()):
        levels = range(len(LEVELS)) if hop % 2 else reversed(range(len(LEVELS)))
        found += [(level, counted[level]) for level in levels if counted[level]]
    return found


def fill(
    places: TablePlaces,
    counts: Int64Array,
    order: Int32Array | None,
    parts: Sequence[Any],
    empty: Allocate = np.empty,
) -> Int64Array:
    """Put a number for each entry of a batch into the order of the entries.

    Args:
        places: the table's.
        counts: entries by hop and level, int64 [hops, 3].
        order: the section `order/TABLE`; None: the table is arranged.
        parts: the numbers of the entries at each level, in the order in which they are listed.
        empty: allocates what is returned.

    Returns:
        int64 [entries].

    Raises:
        ValueError: the parts do not fit the counts.
    """
    sums = counts.sum(axis=0).tolist()
    if list(map(len, parts)) != sums:
        raise ValueError(f"the entries by level are {list(map(len, parts))}, not {sums}")
    found: Int64Array = empty(sum(sums), np.int64)
    if order is not None:
        if len(order) != len(found):
            raise ValueError(f"{len(order)} entries are ordered, not {len(found)}")
        found[order] = np.concatenate(parts)
        return found
    at, taken = 0, [0, 0, 0]
    for level, count in levels_by_stretch(counts):
        found[at : at + count] = parts[level][taken[level] : taken[level] + count]
        at, taken[level] = at + count, taken[level] + count
    return found
