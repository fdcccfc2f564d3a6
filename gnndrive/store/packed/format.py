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

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.io.hashing import hash_file
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import COUNT_MAX, DATA_OFFSET, JSON_BYTES_MAX, ArrayInfo, storage_dtype
from gnndrive.store.packed.sections import Schema, parse_schema
from gnndrive.store.packed.settings import PackSettings, parse_settings
from gnndrive.store.parsing import Record
from gnndrive.store.reader import Store

FORMAT, VERSION = "gnndrive-pack", 1
PACKED, PACK_JSON, INDEX = "packed", "pack.json", "index"
MEND = "remove the pack, and pack the store again (gnndrive pack)"
GROUPS = (INDEX, "samples", "rows", "ids")
_CHECKSUM = re.compile("sha256:[0-9a-f]{64}|sum64:[0-9a-f]{16}")
_NAME = re.compile(r"[\w.\-]+(/[\w.\-]+)*")
_DIGEST = re.compile("[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class PackArray:
    """One array of a pack, or of a partitioned folder.

    Attributes:
        name: its file without ".npy", relative to the folder, such as "samples/000".
        dtype: element type: a numpy name or "bfloat16".
        shape: the array's shape, rows first; at least one dimension.
        checksum: "sha256:" and 64 digits, of the whole file; or "sum64:" and 16 digits, the sum of
            the rows that the packer adds up while it gathers them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str

    @property
    def file(self) -> str:
        """The file, relative to the pack's folder."""
        return f"{self.name}.npy"

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        return DATA_OFFSET + math.prod(self.shape) * storage_dtype(self.dtype).itemsize

    def as_dict(self) -> dict[str, Any]:
        """The array's record in pack.json."""
        return {"dtype": self.dtype, "shape": list(self.shape), "checksum": self.checksum}


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
    arrays: Mapping[str, PackArray]
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


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack of a store, whole or damaged.

    Attributes:
        path: its folder.
        info: the content of its pack.json; None: it is damaged.
        problem: why it is damaged, and what to do; "" if it is not.
    """

    path: Path
    info: PackInfo | None
    problem: str = ""


def dump(info: PackInfo) -> bytes:
    """The bytes of pack.json."""
    text = json.dumps(info.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def parse(content: bytes, where: str) -> PackInfo:
    """Parse pack.json.

    Args:
        content: its bytes, which may come from a stranger.
        where: its path, for errors.

    Raises:
        StoreError: it is invalid, of another version of the format, or contradicts itself.
    """
    top = Record.parse(content, where, PACK_JSON, MEND)
    if top.text("format") != FORMAT:
        raise StoreError(f"{where} does not belong to a pack: choose another folder")
    if top.whole("version") != VERSION:
        raise top.error(f"has version {top.whole('version')}, and this gnndrive reads {VERSION}")
    settings = parse_settings(_inner(top, "settings"))
    schema = parse_schema(_inner(top, "schema"))
    listed, arrays = top.value("arrays", dict), {}
    for name in listed:
        record = Record(listed[name], where, f"arrays[{name!r}]", MEND)
        arrays[name] = parse_array(name, record, GROUPS)
    store = top.text("store")
    if not re.fullmatch("[0-9a-f]{64}", store):
        raise top.error("has a 'store' that is not 64 hexadecimal digits")
    tables = top.value("tables", dict)
    if not all(isinstance(each, str) for each in tables.values()):
        raise top.error("has a checksum of a table that is no text")
    numbers = ("batches", "segment", "predicted_bytes", "actual_bytes")
    batches, segment, predicted, actual = map(top.whole, numbers)
    info = PackInfo(store, settings, batches, segment, predicted, actual, schema, arrays, tables)
    _check(info, top)
    return info


def _inner(top: Record, name: str) -> Record:
    return Record(top.value(name, dict), top.where, name, MEND)


def parse_array(name: str, record: Record, groups: Sequence[str]) -> PackArray:
    """An array of a pack, or of a partitioned folder.

    Args:
        name: its name, which may come from a stranger.
        record: what the folder's json says of it.
        groups: the first parts of the names that are allowed.

    Raises:
        StoreError: the record is damaged.
    """
    parts = name.split("/")
    if not _NAME.fullmatch(name) or {".", ".."} & set(parts) or parts[0] not in groups:
        raise record.error(f"is none of {', '.join(groups)}")
    dtype, shape, checksum = record.text("dtype"), record.value("shape", list), ""
    try:
        storage_dtype(dtype)
    except ConfigError as error:
        raise record.error(f"is refused: {error}") from None
    if not 1 <= len(shape) <= 8 or any(type(size) is not int or size < 0 for size in shape):
        raise record.error("has a 'shape' that is not a list of 1 to 8 sizes")
    if math.prod(max(size, 1) for size in shape) >= COUNT_MAX:
        raise record.error("has a 'shape' that is too large")
    checksum = record.text("checksum")
    if not _CHECKSUM.fullmatch(checksum):
        raise record.error("has a 'checksum' that is none")
    return PackArray(name, dtype, tuple(shape), checksum)


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


def open_pack(path: str | os.PathLike[str], store: Store | None = None) -> PackInfo:
    """Read pack.json; opens no array.

    Args:
        path: the pack's folder.
        store: the store that it must belong to; None: any.

    Raises:
        StoreError: there is no pack, it is damaged, or the store has changed since it was packed.
    """
    root = Path(os.path.abspath(path))
    if not os.path.lexists(root / PACK_JSON):
        raise StoreError(
            f"{root / PACK_JSON} is not there: {root} is not a pack; make one with gnndrive pack"
        )
    try:
        content = read_plain(root, PACK_JSON, JSON_BYTES_MAX + 1, MEND)
    except OSError as error:
        raise StoreError(f"{root / PACK_JSON} cannot be read ({error.strerror}): {MEND}") from None
    if len(content) > JSON_BYTES_MAX:
        raise StoreError(f"{root / PACK_JSON} is too large: {MEND}")
    info = parse(content, str(root / PACK_JSON))
    if store is not None and info.store != store.identity:
        raise StoreError(f"{store.path} has changed since {root} was packed: {MEND}")
    return info


def packs_of(store: Store) -> list[Pack]:
    """The packs in a store's folder, by name; unfinished ones are left out."""
    folder = Path(store.path, PACKED)
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
    found = []
    for name in filter(_DIGEST.fullmatch, names):
        try:
            found.append(Pack(folder / name, open_pack(folder / name, store)))
        except StoreError as error:
            found.append(Pack(folder / name, None, str(error)))
    return found


def file_checksum(root: Path, array: PackArray | ArrayInfo, mend: str = MEND) -> str:
    """The SHA-256 of an array's file, as pack.json has it.

    Args:
        root: the folder.
        array: the array.
        mend: what to do if the file is damaged, for errors.

    Raises:
        StoreError: the file is missing, of another size, or cannot be read.
    """
    path = root / array.file
    fd = open_plain(root, array.file, mend)
    try:
        if os.fstat(fd).st_size != array.nbytes:
            raise StoreError(f"{path} does not have {array.nbytes:,} bytes: {mend}")
    finally:
        os.close(fd)
    try:
        return hash_file(path, array.nbytes)
    except ReadError as error:
        raise StoreError(f"{error}: {mend}") from None
