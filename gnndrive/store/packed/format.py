"""The folder of a pack: `STORE/packed/<digest of the settings>/`, or any other.

pack.json lists every array with its dtype, shape and checksum; files that it does not list are
never read. A pack may come from a stranger, so each value is checked before it is used, and each
index when a batch is read (samples.py, encoding.py). The files have the store's .npy headers:

- index.npy, int64 [batches, columns]: where each batch lies, and its counts (sections.py).
- samples/NNN.npy, int32 [n]: the recorded samples (samples.py).
- rows/TABLE.npy: the rows (sections.py).
- ids/TABLE/hot.npy, ids/TABLE/SSS.npy: the numbers of the hot rows, and of the shared rows of
  segment SSS; ids/TABLE/bands.npy, int64 [BANDS, 2]: the slot after each band's last, and the uses
  of its rows.

A loader finds the pack whose `SAMPLING` settings equal its own. The other settings decide how the
recorded batches are placed on disk; packs that differ only in these replay the same batches. As
soon as the segment size is known, so is every file with its size (`contents`): the packer adds up
the bytes before it writes a row.

When not to use it: the store's own arrays are in store.json (`gnndrive/store/format.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gnndrive.common.checked_json import COUNT_MAX, Record
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, index_dtype
from gnndrive.store.layout.arrays import LayoutArray, parse_arrays
from gnndrive.store.layout.kind import LayoutKind, digest_of
from gnndrive.store.packed.sections import (
    BANDS,
    PLACE_COLUMNS,
    RECORD_ALIGN,
    Schema,
    aligned,
    parse_schema,
    with_places,
)
from gnndrive.store.reader import Store

FORMAT, VERSION = "gnndrive-pack", 1
PACKED, PACK_JSON, INDEX, SAMPLES = "packed", "pack.json", "index", "samples"
MEND = "remove the pack, and pack the store again (gnndrive pack)"
GROUPS = (INDEX, SAMPLES, "rows", "ids")
SAMPLING = (
    "inputs", "batch_size", "drop_last", "shuffle", "num_neighbors", "replace", "sampling",
)  # fmt: skip
"""The settings that a loader and a pack must share."""

ORDERS = ("sets", "minhash", "id")
FOOTER_BYTES = 4096  # of a volume of samples
_SPOKEN = {"num_neighbors": "fanout", "inputs": "the input nodes or edges"}
_OPTIONAL = ("segment", "memory", "disk")
_RANGES = dict.fromkeys(("batch_size", "epochs", "segment"), (1, COUNT_MAX))
_RANGES |= dict.fromkeys(("memory", "disk", "device_memory"), (0, COUNT_MAX))
_RANGES["seed"] = -(1 << 63), 1 << 64
_BYTES = PLACE_COLUMNS.index("bytes")
_NO_CHECKSUMS = {"sha256": "sha256:" + 64 * "0", "sum64": "sum64:" + 16 * "0"}


@dataclass(frozen=True, slots=True)
class PackSettings:
    """What a pack depends on, beside the store.

    Attributes:
        inputs: the text that identifies the input nodes or edges.
        batch_size, drop_last, shuffle, replace: the loader's arguments.
        num_neighbors: the loader's argument in a form that JSON can hold: a list, or a dict of
            lists by the types' names.
        sampling: the text that identifies how PyG's samplers draw; "" for plain neighbour sampling.
        seed, epochs: the seed that the recorded epochs are drawn with, and their number.
        order: how rows are ordered inside a segment, one of `ORDERS`.
        segment: batches of a segment; None: the smallest that fits on the disk.
        memory: bytes of host memory that training will have; None: it was not said.
        device_memory: bytes of device memory for hot rows.
        disk: the most bytes of the pack; None: as many as it takes.
    """

    inputs: str
    batch_size: int
    drop_last: bool
    shuffle: bool
    num_neighbors: Any
    replace: bool
    sampling: str = ""
    seed: int = 0
    epochs: int = 1
    order: str = "sets"
    segment: int | None = None
    memory: int | None = None
    device_memory: int = 0
    disk: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r}: give one of {', '.join(ORDERS)}")
        for name, (least, end) in _RANGES.items():
            number = getattr(self, name)
            if number is None and name in _OPTIONAL:
                continue
            if type(number) is not int or not least <= number < end:
                raise ConfigError(
                    f"{name}={number!r}: give a whole number from {least} to {end - 1}"
                )

    @property
    def digest(self) -> str:
        """See `LayoutSettings.digest`; the name of the pack's folder."""
        return digest_of(self.as_dict())

    @property
    def batches(self) -> str:
        """A text that identifies the recorded batches; packs that place them otherwise share it."""
        return digest_of({name: getattr(self, name) for name in (*SAMPLING, "seed", "epochs")})

    def as_dict(self) -> dict[str, Any]:
        """See `LayoutSettings.as_dict`."""
        return asdict(self)

    def texts(self) -> list[str]:
        """See `LayoutSettings.texts`; the epochs first."""
        epochs = f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}"
        parts = [epochs, f"fanout {said(self.num_neighbors)}", f"batch size {self.batch_size}"]
        parts += [f"seed {self.seed}", f"order {self.order}"]
        return parts if self.shuffle else [*parts, "not shuffled"]


def said(value: Any) -> str:
    """A setting as the command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {said(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


def _fanout(record: Record) -> Any:
    fanout = record.fields.get("num_neighbors")
    lists = list(fanout.values()) if isinstance(fanout, dict) else [fanout]
    for each in lists:
        if not isinstance(each, list) or any(type(n) is not int or n < -1 for n in each):
            raise record.error("has a 'num_neighbors' that is no list of numbers for each hop")
    return fanout


def differences(
    there: PackSettings, wanted: PackSettings, names: tuple[str, ...] = SAMPLING
) -> list[str]:
    """The settings `names` in which a pack differs from what is wanted, each as a text: "fanout was
    [10] and is [5]"."""
    found = []
    for name in names:
        was, now = getattr(there, name), getattr(wanted, name)
        if was != now:
            found.append(f"{_SPOKEN.get(name, name)} was {_shown(was)} and is {_shown(now)}")
    return found


def _shown(value: Any) -> str:
    return repr(value) if value != "" else "that of plain neighbour sampling"


@dataclass(frozen=True, slots=True)
class PackInfo:
    """The content of pack.json.

    Attributes:
        store: the identity of the store (`Store.identity`).
        settings: what the pack was made with.
        batches: batches of a recorded epoch.
        segment: batches of a segment; 1: each batch has its own rows only.
        predicted_bytes, actual_bytes: of the whole folder.
        schema: the sections of a recorded sample, and the columns of the index.
        arrays: every array by name.
        tables: the SHA-256 of the file of each packed table, as the store has it. A table may have
            been added to the store, whose identity does not depend on it.
    """

    store: str
    settings: PackSettings
    batches: int
    segment: int
    predicted_bytes: int
    actual_bytes: int
    schema: Schema
    arrays: Mapping[str, LayoutArray]
    tables: Mapping[str, str]

    @property
    def epochs(self) -> int:
        """The number of recorded epochs; epoch e replays the recording e modulo it."""
        return self.settings.epochs

    def as_dict(self) -> dict[str, Any]:
        """See `LayoutInfo.as_dict`."""
        return {
            "format": FORMAT, "version": VERSION, "store": self.store,
            "settings": self.settings.as_dict(), "batches": self.batches, "segment": self.segment,
            "predicted_bytes": self.predicted_bytes, "actual_bytes": self.actual_bytes,
            "schema": self.schema.as_dict(), "tables": dict(self.tables),
            "arrays": {name: each.as_dict() for name, each in sorted(self.arrays.items())},
        }  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the whole folder."""
        return self.actual_bytes

    def shown(self) -> dict[str, Any]:
        """See `LayoutInfo.shown`."""
        return {
            "batches": self.batches, "epochs": self.epochs, "segment": self.segment,
            "predicted_bytes": self.predicted_bytes, "actual_bytes": self.actual_bytes,
            "settings": self.settings.as_dict(), "store": self.store,
        }  # fmt: skip

    def sizes(self) -> dict[str, int]:
        """Bytes of index, samples, ids, and the rows of each table."""
        found: dict[str, int] = {}
        for name, array in sorted(self.arrays.items()):
            group = name if name.startswith("rows/") else name.split("/")[0]
            found[group] = found.get(group, 0) + array.nbytes
        return found

    def texts(self) -> list[str]:
        """See `LayoutInfo.texts`."""
        epochs, *others = self.settings.texts()
        return [f"{self.batches:,} batches × {epochs}", *others, f"segments of {self.segment}"]

    def lines(self) -> dict[str, str]:
        """See `LayoutInfo.lines`."""
        settings, epochs = self.settings, self.settings.texts()[0]
        count, _, noun = epochs.partition(" ")
        found = {
            "batches": f"{self.batches:,} × {count} recorded {noun}",
            "fanout": said(settings.num_neighbors),
            **{name.replace("_", " "): said(each) for name, each in settings.as_dict().items()},
            "segment": f"{self.segment} batches",
            "size": f"{format_size(self.actual_bytes)}, predicted "
            f"{format_size(self.predicted_bytes)}",
        }
        for name in ("memory", "disk", "device memory"):
            size = getattr(settings, name.replace(" ", "_"))
            found[name] = "not said" if size is None else format_size(size)
        del found["num neighbors"], found["epochs"]
        return found


class PackKind(LayoutKind[PackInfo]):
    """Packs; see `LayoutKind`."""

    def info(self, top: Record, settings: Any, store: str) -> PackInfo:
        """See `LayoutKind.info`."""
        schema, arrays = parse_schema(top.inner("schema")), parse_arrays(top, GROUPS)
        tables = top.value("tables", dict)
        if not all(isinstance(each, str) for each in tables.values()):
            raise top.error("has a checksum of a table that is no text")
        numbers = ("batches", "segment", "predicted_bytes", "actual_bytes")
        batches, segment, predicted, actual = map(top.whole, numbers)
        info = PackInfo(
            store, settings, batches, segment, predicted, actual, schema, arrays, tables
        )
        index, shape = arrays.get(INDEX), (info.epochs * info.batches, len(schema.columns))
        if index is None or (index.dtype, index.shape) != ("int64", shape):
            raise top.error(f"has no index of int64 {list(shape)}")
        if info.segment < 1:
            raise top.error("has a 'segment' of no batches")
        for name, array in arrays.items():
            if name.startswith("samples/") and (array.dtype != "int32" or len(array.shape) != 1):
                raise top.error(f"has samples that are not int32 [n]: {name}")
        return info

    def settings(self, record: Record) -> PackSettings:
        """See `LayoutKind.settings`."""
        texts = ("inputs", "sampling", "order")
        given: dict[str, Any] = {name: record.text(name) for name in texts}
        given["seed"] = record.value("seed", int)
        for name in ("batch_size", "epochs", "device_memory", *_OPTIONAL):
            absent = name in _OPTIONAL and record.fields.get(name, 0) is None
            given[name] = None if absent else record.whole(name)
        for name in ("drop_last", "shuffle", "replace"):
            given[name] = record.value(name, bool)
        given["num_neighbors"] = _fanout(record)
        try:
            return PackSettings(**given)
        except ConfigError as error:
            raise record.error(f"is refused: {error}") from None


PACKS = PackKind(
    PACKED, PACK_JSON, FORMAT, VERSION, ".packing", GROUPS, re.compile("[0-9a-f]{12}"),
    anywhere=True, called="a pack", doing="packing", made_by="gnndrive pack", mend=MEND,
    in_the_way="replace it with overwrite=True",
    elsewhere="pack to another one with out=",
)  # fmt: skip


def damaged(root: Path, why: str) -> StoreError:
    """The error for a pack that contradicts itself."""
    return StoreError(f"{root} is damaged ({why}): {MEND}")


def table_checksums(store: Store, tables: Iterable[FeatureTable]) -> dict[str, str]:
    """The SHA-256 of each table's file, by the table's name; see `PackInfo.tables`."""
    return {table.name: store.info.arrays[table.name].sha256 for table in tables}


def packed_tables(
    root: Path, info: PackInfo, store: Store, tables: Iterable[FeatureTable]
) -> list[FeatureTable]:
    """The tables of a pack, in its order. One that was added to the store and is not among `tables`
    any more, as it was packed, has no path. StoreError: a store of these types never had one."""
    plain = replace(info.schema, more=())
    names = [each.name[4:] for each in plain.sections if each.name.startswith("hot/")]
    there = {table.name: table for table in tables}
    found = [there.get(name) or _removed(name, info, store) for name in names]
    if None in found or with_places(plain, names) != info.schema:
        raise StoreError(
            f"{root} has the rows of {', '.join(names) or 'no table'}, and the store's are "
            f"{', '.join(there) or 'none'}: {MEND}"
        )
    return [table for table in found if table is not None]


def _removed(name: str, info: PackInfo, store: Store) -> FeatureTable | None:
    """A packed table that the store does not have any more; None: a store of these types cannot
    have had it."""
    attribute, array = name.rpartition("/")[2], info.arrays.get(f"rows/{name}")
    if array is None or name in store.info.own.arrays:
        return None
    for view in store.all_nodes():
        if view.name_of(attribute) == name:
            row_bytes, shape = array.info.row_bytes, array.shape[1:]
            file = TableFile("", DATA_OFFSET, view.num_nodes, row_bytes, array.dtype, shape)
            return FeatureTable(name, attribute, view.type, of_edges=False, file=file)
    return None


def pack_path(store: Store, settings: PackSettings) -> Path:
    """The folder of a store's pack with these settings, if the user names no other."""
    return Path(store.path, PACKED, settings.digest)


# ---- files and their sizes


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """How many rows a pack has of one table: hot ones (`slots`), all of its file, and those that
    each segment shares."""

    slots: int
    rows: int
    shared_rows: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class TableUse(TableRows):
    """Also the hot, shared and all entries of each batch, int64 [batches]."""

    hot: Int64Array
    shared: Int64Array
    entries: Int64Array


def volume_name(number: int) -> str:
    """The name of a volume of samples: "samples/000"."""
    return f"{SAMPLES}/{number:03d}"


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


def volume_info(number: int, records: Sequence[int], columns: int) -> ArrayInfo:
    """A volume of records of these bytes, in an index of so many columns."""
    rows = aligned(8 * len(records) * columns, RECORD_ALIGN)
    nbytes = sum(records) + rows + FOOTER_BYTES
    return ArrayInfo(volume_name(number), "int32", (nbytes // 4,), "")


def rows_info(table: FeatureTable, rows: int) -> ArrayInfo:
    """The array of a table's rows."""
    return ArrayInfo(rows_name(table.name), table.file.dtype, (rows, *table.file.row_shape), "")


def placed_index(schema: Schema, index: Int64Array, uses: Mapping[str, TableUse]) -> Int64Array:
    """The first columns of the index of recorded samples as they are when rows are placed, but for
    the offsets. `schema` is that of recorded samples."""
    found = index.copy()
    for name, use in uses.items():
        for kind, each in (("hot", use.hot), ("shared", use.shared), ("order", use.entries)):
            if (column := schema.column.get(f"count {kind}/{name}")) is not None:
                found[:, column] = each
    for row in found:
        row[_BYTES] = schema.places(schema.counts(row).tolist())[1]
    return found


def contents(
    schema: Schema, index: Int64Array, tables: Sequence[FeatureTable],
    rows: Mapping[str, TableRows],
) -> list[ArrayInfo]:  # fmt: skip
    """All arrays of a pack, without checksums, from the schema of placed samples, and the index, of
    whose columns the first three count."""
    columns = len(schema.columns)
    volumes: dict[int, list[int]] = {}
    for row in index:
        volumes.setdefault(int(row[0]), []).append(int(row[_BYTES]))
    found = [ArrayInfo(INDEX, "int64", (len(index), columns), "")]
    found += [volume_info(number, records, columns) for number, records in volumes.items()]
    for table in tables:
        each, dtype = rows[table.name], index_dtype(table.file.row_count)
        found.append(rows_info(table, each.rows))
        found.append(ArrayInfo(hot_name(table.name), dtype, (each.slots,), ""))
        found.append(ArrayInfo(bands_name(table.name), "int64", (BANDS, 2), ""))
        for segment, count in enumerate(each.shared_rows):
            if count:
                found.append(ArrayInfo(shared_name(table.name, segment), dtype, (count,), ""))
    return found


def listed(infos: Sequence[ArrayInfo], checksums: Mapping[str, str]) -> dict[str, LayoutArray]:
    """The arrays as pack.json has them; a checksum that is missing is filled with zeros."""
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
        whole = replace(info, predicted_bytes=predicted, actual_bytes=nbytes)
        again = files + len(PACKS.dump(whole))
        if again == nbytes:
            return nbytes
        nbytes = again
