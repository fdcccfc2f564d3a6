"""`Schema`: the named sections of a recorded sample, and the columns of index.npy.

A record is a batch on disk: its sections one after another, each aligned to 64 bytes, the record to
4,096 bytes. The index says where a record starts and how many entries each section has, so a
section is found without reading another: `Schema.places`. A section whose count is -1 is absent.

The sections of a plain sample: node, row, colptr, edge (original numbers), input_id. The sections
of a sample in PyG's own form have the field's name and the type's folder, such as
"row/author__writes__paper". Every sample also has `hot/TABLE` and `shared/TABLE`: the slots of hot
rows and the rows in the segment's file. They are empty while samples are recorded, and are written
when the rows are placed.

Columns of the index: volume, offset (bytes from the start of the volume's data), bytes (of the
record); "count SECTION" for each section; "nodes TYPE HOP" and "edges TYPE HOP" (without TYPE in a
homogeneous store), counts by hop, -1 if the sample has none. Placing appends columns of its own.

Where rows lie: a table's rows are in one file, `rows/TABLE.npy`: the hot rows first, the hottest of
them first; then for each segment its shared rows, and behind them the chunks of its batches. So a
row lies at one of three levels: `hot` (its number in the file is its slot), `shared` (used by
several batches of the segment) or `chunk` (the batch's own consecutive rows).

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.records import EdgeKey, Int32Array, Int64Array, NodeKey
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import storage_dtype
from gnndrive.store.types import folder

RECORD_ALIGN, SECTION_ALIGN = 4096, 64
FORMS = ("sample", "homogeneous", "heterogeneous")
PLACE_COLUMNS = ("volume", "offset", "bytes")
ABSENT = -1
BANDS = 32
"""Into how many bands the hot nodes are divided by their uses. Within a band they lie by id, so
that a part of the table holds the rows of at most as many stretches of the file."""

Type: TypeAlias = "NodeKey | EdgeKey"


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a record: its numbers are stored in `dtype`, and a reader returns them in
    `delivered` and this shape, which has -1 where the count decides."""

    name: str
    dtype: str
    delivered: str
    shape: tuple[int, ...] = (-1,)

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        return storage_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Schema:
    """What the records of a pack hold.

    Attributes:
        form: "sample" (`Sample`), or the form of a `Subgraph`'s output: "homogeneous" or
            "heterogeneous".
        of_edges, seed_type: whether seeds are edges, and their type.
        node_types, edge_types: the store's types, in its order.
        sections: in the order in which a record has them.
        more: columns of the index beyond those of recording.
    """

    form: str
    of_edges: bool
    seed_type: Type
    hops: int
    node_types: tuple[NodeKey, ...]
    edge_types: tuple[EdgeKey, ...]
    sections: tuple[Section, ...]
    more: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the index."""
        names = [*PLACE_COLUMNS, *(f"count {each.name}" for each in self.sections)]
        hops = range(self.hops)
        more = range(self.hops + 1)
        names += [_column("nodes", type, hop) for type in self.node_types for hop in more]
        names += [_column("edges", type, hop) for type in self.edge_types for hop in hops]
        return (*names, *self.more)

    @cached_property
    def column(self) -> Mapping[str, int]:
        """The place of each column."""
        return {name: place for place, name in enumerate(self.columns)}

    def counts(self, row: Int64Array) -> Int64Array:
        """The counts of the sections in a row of the index."""
        return row[len(PLACE_COLUMNS) : len(PLACE_COLUMNS) + len(self.sections)]

    def hop_counts(self, row: Int64Array, what: str, type: Type) -> list[int] | None:
        """Counts by hop of "nodes" or "edges" in a row of the index; None: the sample has none."""
        hops = self.hops + (what == "nodes")
        if not hops:
            return []
        first = self.column[_column(what, type, 0)]
        found: list[int] = row[first : first + hops].tolist()
        return None if ABSENT in found else found

    def places(self, counts: Sequence[int]) -> tuple[list[int], int]:
        """Where the sections of a record start, in bytes from its start, and the record's bytes.
        `counts` are the numbers of their entries; -1: a section is absent."""
        starts, at = [], 0
        for section, count in zip(self.sections, counts, strict=True):
            starts.append(at)
            at += aligned(section.itemsize * max(int(count), 0), SECTION_ALIGN)
        return starts, aligned(at, RECORD_ALIGN)

    def fill(self, record: Bytes, sections: Sequence[npt.NDArray[Any] | None]) -> list[int]:
        """Put sections, of one dimension, into a record in the schema's order; returns their
        counts."""
        counts = entries_of(sections)
        for section, start, each in zip(
            self.sections, self.places(counts)[0], sections, strict=True
        ):
            if each is not None:
                part = record[start : start + section.itemsize * len(each)]
                part.view(section.dtype)[:] = each
        return counts

    def split(self, record: Bytes, counts: Sequence[int]) -> dict[str, npt.NDArray[Any] | None]:
        """The sections of a record by name, in the schema's order; None: it has none."""
        found: dict[str, npt.NDArray[Any] | None] = {}
        for section, start, count in zip(
            self.sections, self.places(counts)[0], counts, strict=True
        ):
            part = record[start : start + section.itemsize * max(count, 0)]
            found[section.name] = None if count < 0 else part.view(section.dtype)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The schema in a form that JSON can hold; tuples become lists."""
        return asdict(self)


def entries_of(sections: Sequence[npt.NDArray[Any] | None]) -> list[int]:
    """The counts of sections."""
    return [ABSENT if each is None else len(each) for each in sections]


def _column(what: str, type: Type, hop: int) -> str:
    return " ".join(part for part in (what, folder(type), str(hop)) if part)


def aligned(nbytes: int, unit: int) -> int:
    """`nbytes` rounded up to a multiple of `unit`."""
    return -(-nbytes // unit) * unit


def parse_schema(record: Record) -> Schema:
    """The schema in a pack.json, which may come from a stranger."""
    form = record.text("form")
    if form not in FORMS:
        raise record.error("has a 'form' that is none")
    sections = []
    for section in record.each("sections").values():
        shape = section.value("shape", list)
        whole = all(type(size) is int and -1 <= size < 1 << 31 and size for size in shape)
        if not whole or len(shape) > 2 or shape.count(-1) != 1:
            raise section.error("has a 'shape' that is none")
        names = section.text("dtype"), section.text("delivered")
        try:
            if "bfloat16" in names or any(storage_dtype(name).kind not in "biuf" for name in names):
                raise section.error("has a 'dtype' that is not of numbers")
        except ConfigError as error:
            raise section.error(f"is refused: {error}") from None
        sections.append(Section(section.text("name"), *names, tuple(shape)))
    hops = record.whole("hops")
    if hops > 1 << 10:
        raise record.error("has too many 'hops'")
    of_edges, more = record.value("of_edges", bool), record.texts("more") or ()
    seed_type = _from_json(record, record.fields.get("seed_type"))
    node_types = [_from_json(record, each) for each in record.value("node_types", list)]
    edge_types = [_from_json(record, each) for each in record.value("edge_types", list)]
    if not all(type is None or isinstance(type, str) for type in node_types):
        raise record.error("has 'node_types' that are none")
    if not all(type is None or isinstance(type, tuple) for type in edge_types):
        raise record.error("has 'edge_types' that are none")
    node_key: Any = tuple(node_types)
    edge_key: Any = tuple(edge_types)
    schema = Schema(form, of_edges, seed_type, hops, node_key, edge_key, tuple(sections), more)
    if len(set(schema.columns)) < len(schema.columns):
        raise record.error("has two columns of one name")
    return schema


def _from_json(record: Record, given: Any) -> Type:
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, list) and len(given) == 3 and all(isinstance(x, str) for x in given):
        return given[0], given[1], given[2]
    raise record.error("names a type that is none")


LEVELS = ("chunk", "shared", "hot")
"""In the order of `places.IN_CHUNK`, `IN_SHARED`, `IN_HOT`."""
PLACING = ("hot/", "shared/", "order/")
"""What the names of the sections that hold places start with."""


def placing_sections(form: str, tables: Sequence[FeatureTable]) -> Iterator[Section]:
    """The sections that hold places; they are empty while samples are recorded."""
    nodes = [table.name for table in tables if not table.of_edges and form == "sample"]
    for kind in PLACING:
        for table in tables:
            if kind != "order/" or table.name not in nodes[:1]:  # that table is arranged
                yield Section(f"{kind}{table.name}", "int32", "int32")


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Reads and names what the index says of one table.

    Attributes:
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
        """The columns of one batch; arguments as `starts`, `counts` and `bands` return them."""
        assert counts.shape == (self.hops, len(LEVELS))
        return [segment, first, *counts.reshape(-1).tolist(), *bands.tolist()]

    def starts(self, index: Int64Array) -> tuple[int, int]:
        """The rows of the file at which the segment's shared rows and the batch's chunk begin."""
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

    def fill(
        self, counts: Int64Array, order: Int32Array | None, parts: Sequence[Any],
        empty: Allocate = np.empty,
    ) -> Int64Array:  # fmt: skip
        """Put a number for each entry of a batch into the order of the entries, int64 [entries].

        Args:
            counts: as `counts` returns them for the batch.
            order: the section `order/TABLE`; of no use if the table is arranged.
            parts: the numbers of the entries at each level, in the order in which they are listed.
            empty: allocates what is returned.

        Raises:
            ValueError: the parts do not fit the counts, or the order is none.
        """
        sums = counts.sum(axis=0).tolist()
        if list(map(len, parts)) != sums:
            raise ValueError(f"the entries by level are {list(map(len, parts))}, not {sums}")
        found: Int64Array = empty(sum(sums), np.int64)
        if not self.arranged:
            if order is None or not _is_order(order, len(found)):
                raise ValueError(f"order/{self.name} is no order of {len(found)} entries")
            found[order] = np.concatenate(parts)
            return found
        at, taken = 0, [0, 0, 0]
        for level, count in levels_by_stretch(counts):
            found[at : at + count] = parts[level][taken[level] : taken[level] + count]
            at, taken[level] = at + count, taken[level] + count
        return found


def places_of(schema: Schema, names: Sequence[str]) -> dict[str, TablePlaces]:
    """The columns of each packed table, in the tables' order, in the index of placed samples,
    whether `schema` has them yet or not."""
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
    places = places_of(schema, names).values()
    return replace(schema, more=tuple(column for each in places for column in each.columns))


def levels_by_stretch(counts: Int64Array) -> list[tuple[int, int]]:
    """The stretches of a batch's entries, in their order: (level, number of entries), from the
    entries by hop and level, int64 [hops, 3]. The seeds are all in the chunk; then an odd hop lies
    as chunk | shared | hot, an even one the other way round (places.py)."""
    found = []
    for hop, counted in enumerate(counts.tolist()):
        levels = range(len(LEVELS)) if hop % 2 else reversed(range(len(LEVELS)))
        found += [(level, counted[level]) for level in levels if counted[level]]
    return found


def _is_order(order: Int32Array, entries: int) -> bool:
    """Whether these are the numbers 0 … entries − 1 in some order."""
    if len(order) != entries or (entries and (order.min() < 0 or order.max() >= entries)):
        return False
    seen = np.zeros(entries, np.bool_)
    seen[order] = True
    return bool(seen.all())
