"""The folder of a pack: `STORE/packed/<digest of the settings>/`, or any other.

pack.json lists every array with its dtype, shape and checksum; files that it does not list are
never read. A pack may come from a stranger, so each value is checked before it is used, and each
index when a batch is read (samples.py, encoding.py). The files have the store's .npy headers:

- index.npy, int64 [batches, columns]: where each batch lies, and its counts (sections.py).
- samples/NNN.npy, int32 [n]: the recorded samples (samples.py).
- rows/TABLE.npy: the rows (placement.py).
- ids/TABLE/hot.npy, ids/TABLE/SSS.npy: the numbers of the hot rows, and of the shared rows of
  segment SSS; ids/TABLE/bands.npy, int64 [BANDS, 2]: the slot after each band's last, and the uses
  of its rows.

When not to use it: the store's own arrays are in store.json (`gnndrive/store/format.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnndrive.common.memory import format_size
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.layout.arrays import LayoutArray, parse_array
from gnndrive.store.layout.kind import LayoutKind
from gnndrive.store.packed.sections import Schema, parse_schema
from gnndrive.store.packed.settings import PackSettings, parse_settings, said
from gnndrive.store.parsing import Record
from gnndrive.store.reader import Store

FORMAT, VERSION = "gnndrive-pack", 1
PACKED, PACK_JSON, INDEX = "packed", "pack.json", "index"
MEND = "remove the pack, and pack the store again (gnndrive pack)"
GROUPS = (INDEX, "samples", "rows", "ids")


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
        """The content of pack.json, for display and `--json`."""
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
        schema = parse_schema(top.inner("schema"))
        listed = top.value("arrays", dict)
        arrays = {
            name: parse_array(
                name, Record(listed[name], top.where, f"arrays[{name!r}]", MEND), GROUPS
            )
            for name in listed
        }
        tables = top.value("tables", dict)
        if not all(isinstance(each, str) for each in tables.values()):
            raise top.error("has a checksum of a table that is no text")
        numbers = ("batches", "segment", "predicted_bytes", "actual_bytes")
        batches, segment, predicted, actual = map(top.whole, numbers)
        info = PackInfo(
            store, settings, batches, segment, predicted, actual, schema, arrays, tables
        )
        _check(info, top)
        return info

    def settings(self, record: Record) -> PackSettings:
        """See `LayoutKind.settings`."""
        return parse_settings(record)


PACKS = PackKind(
    PACKED, PACK_JSON, FORMAT, VERSION, ".packing", GROUPS, re.compile("[0-9a-f]{12}"),
    anywhere=True, called="a pack", doing="packing", made_by="gnndrive pack", mend=MEND,
    in_the_way="remove it first (gnndrive unpack)", elsewhere="pack to another one with out=",
)  # fmt: skip


def _check(info: PackInfo, top: Record) -> None:
    """Check that pack.json does not contradict itself.

    Raises:
        StoreError: it does.
    """
    index = info.arrays.get(INDEX)
    shape = (info.epochs * info.batches, len(info.schema.columns))
    if index is None or (index.dtype, index.shape) != ("int64", shape):
        raise top.error(f"has no index of int64 {list(shape)}")
    if info.segment < 1:
        raise top.error("has a 'segment' of no batches")
    for name, array in info.arrays.items():
        if name.startswith("samples/") and (array.dtype != "int32" or len(array.shape) != 1):
            raise top.error(f"has samples that are not int32 [n]: {name}")


def table_checksums(store: Store, tables: Iterable[FeatureTable]) -> dict[str, str]:
    """The SHA-256 of each table's file, by the table's name; see `PackInfo.tables`."""
    return {table.name: store.info.arrays[table.name].sha256 for table in tables}


def pack_path(store: Store, settings: PackSettings) -> Path:
    """The folder of a store's pack with these settings, if the user names no other."""
    return Path(store.path, PACKED, settings.digest)
