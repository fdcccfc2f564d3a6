"""`Contents`: every file of a pack with its size, known as soon as the segment size is.

The packer adds up the bytes before it writes a row, and lists the same arrays in pack.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gnndrive.common.records import Int64Array
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import ArrayInfo, index_dtype
from gnndrive.store.layout.arrays import LayoutArray
from gnndrive.store.packed.format import INDEX, PACKS, PackInfo
from gnndrive.store.packed.hot import BANDS
from gnndrive.store.packed.sections import PLACE_COLUMNS, Schema
from gnndrive.store.packed.volumes import volume_info

_BYTES = PLACE_COLUMNS.index("bytes")
_NO_CHECKSUMS = {"sha256": "sha256:" + 64 * "0", "sum64": "sum64:" + 16 * "0"}


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """How many rows a pack has of one table.

    Attributes:
        slots: hot rows.
        rows: rows of the file: hot ones, shared ones, and chunks.
        shared_rows: shared rows of each segment.
    """

    slots: int
    rows: int
    shared_rows: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class TableUse(TableRows):
    """How the batches use them.

    Attributes:
        hot, shared, entries: hot, shared and all entries of each batch, int64 [batches].
    """

    hot: Int64Array
    shared: Int64Array
    entries: Int64Array


def rows_name(table: str) -> str:
    """The name of the array of a table's rows."""
    return f"rows/{table}"


def hot_name(table: str) -> str:
    """The name of the array of the numbers of a table's hot rows."""
    return f"ids/{table}/hot"


def bands_name(table: str) -> str:
    """The name of the array that says where the bands of a table's hot rows end."""
    return f"ids/{table}/bands"


def shared_name(table: str, segment: int) -> str:
    """The name of the array of the numbers of a segment's shared rows."""
    return f"ids/{table}/{segment:03d}"


def id_infos(table: FeatureTable, slots: int, shared_rows: Sequence[int]) -> Iterator[ArrayInfo]:
    """The arrays of numbers of a table's rows; a segment without shared rows has none."""
    dtype = index_dtype(table.file.row_count)
    yield ArrayInfo(hot_name(table.name), dtype, (slots,), "")
    yield ArrayInfo(bands_name(table.name), "int64", (BANDS, 2), "")
    for segment, rows in enumerate(shared_rows):
        if rows:
            yield ArrayInfo(shared_name(table.name, segment), dtype, (rows,), "")


def rows_info(table: FeatureTable, rows: int) -> ArrayInfo:
    """The array of a table's rows."""
    return ArrayInfo(rows_name(table.name), table.file.dtype, (rows, *table.file.row_shape), "")


def placed_index(schema: Schema, index: Int64Array, uses: Mapping[str, TableUse]) -> Int64Array:
    """The first columns of the index as they are when rows are placed, but for the offsets.

    Args:
        schema: the schema of the recorded samples.
        index: their index, int64 [batches, columns].
        uses: how each table is used.
    """
    found = index.copy()
    for name, use in uses.items():
        for kind, each in (("hot", use.hot), ("shared", use.shared), ("order", use.entries)):
            if (column := schema.column.get(f"count {kind}/{name}")) is not None:
                found[:, column] = each
    for row in found:
        row[_BYTES] = schema.places(schema.counts(row).tolist())[1]
    return found


def contents(
    schema: Schema,
    index: Int64Array,
    tables: Sequence[FeatureTable],
    rows: Mapping[str, TableRows],
) -> list[ArrayInfo]:
    """All arrays of a pack, without checksums.

    Args:
        schema: the schema of placed samples.
        index: the index, int64 [batches, columns]; of its columns the first three count.
        tables: the packed tables.
        rows: how many rows it has of each of them.
    """
    columns = len(schema.columns)
    volumes: dict[int, list[int]] = {}
    for row in index:
        volumes.setdefault(int(row[0]), []).append(int(row[_BYTES]))
    found = [ArrayInfo(INDEX, "int64", (len(index), columns), "")]
    found += [volume_info(number, records, columns) for number, records in volumes.items()]
    for table in tables:
        each = rows[table.name]
        found.append(rows_info(table, each.rows))
        found += id_infos(table, each.slots, each.shared_rows)
    return found


def listed(infos: Sequence[ArrayInfo], checksums: Mapping[str, str]) -> dict[str, LayoutArray]:
    """The arrays as pack.json has them.

    Args:
        infos: the arrays.
        checksums: their checksums by name; one that is missing is filled with zeros.
    """
    found = {}
    for info in infos:
        kind = "sum64" if info.name.startswith("rows/") else "sha256"
        checksum = checksums.get(info.name, _NO_CHECKSUMS[kind])
        found[info.name] = LayoutArray(info.name, info.dtype, info.shape, checksum)
    return found


def pack_bytes(info: PackInfo) -> int:
    """Bytes of a whole pack, with pack.json, once it says so itself in `actual_bytes`; also in
    `predicted_bytes` if these are 0."""
    files = sum(array.nbytes for array in info.arrays.values())
    nbytes = files
    while True:
        predicted = info.predicted_bytes or nbytes
        again = files + len(
            PACKS.dump(replace(info, predicted_bytes=predicted, actual_bytes=nbytes))
        )
        if again == nbytes:
            return nbytes
        nbytes = again
