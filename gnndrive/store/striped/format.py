"""Stripes: copies of a store's feature rows on several disks, a file on each for each table.

A table is cut into stretches, each of a power of two of rows and at least 4 MiB; stretch s lies on
disk s mod K. `STORE/striped/default/striped.json` says on which paths the stripes are and has the
checksums of their files. On path k, `gnndrive-DIGEST/` has the files, with the store's .npy
headers, and stripe.json, which says whose they are: a store from a stranger must not make a process
read, or remove, other files. The paths are absolute, because disks stay when a store moves.

When not to use it: if the disks are one RAID 0, which does as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.checked_json import Record, is_plain_text
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.memory import format_size
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX, STORE_JSON, ArrayInfo
from gnndrive.store.layout.arrays import LayoutArray, parse_arrays, table_file
from gnndrive.store.layout.kind import LayoutKind, digest_of
from gnndrive.store.reader import Store

FORMAT, VERSION, STRIPE_FORMAT = "gnndrive-stripes", 1, "gnndrive-stripe"
STRIPED, STRIPED_JSON, STRIPE_JSON, NAME = "striped", "striped.json", "stripe.json", "default"
MEND = "remove the stripes (gnndrive stripe STORE --remove), and make them again"
DISKS_MAX = 64
STRETCH_BYTES_MIN = 4 << 20
_MARK_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class StripeSettings:
    """On which paths the stripes are, absolute; ConfigError: fewer than two, or one twice."""

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.paths) <= DISKS_MAX:
            raise ConfigError(
                f"there are {len(self.paths)} paths for stripes: give 2 to {DISKS_MAX}, each on a "
                "disk of its own, as /nvme0,/nvme1"
            )
        for path in self.paths:
            if not is_plain_text(path) or not os.path.isabs(path):
                raise ConfigError(f"{path!r} is no path for stripes: give the path of a folder")
            if self.paths.count(path) > 1:
                raise ConfigError(f"{path} is named twice: give each disk once")

    @property
    def digest(self) -> str:
        """See `LayoutSettings.digest`."""
        return digest_of(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """See `LayoutSettings.as_dict`."""
        return {"paths": list(self.paths)}

    def texts(self) -> list[str]:
        """See `LayoutSettings.texts`."""
        return [f"on {', '.join(self.paths)}"]

    def folders(self, store: str) -> list[Path]:
        """The folder of the stripes on each path, of a store with this identity."""
        name = f"gnndrive-{digest_of({'store': store} | self.as_dict())}"
        return [Path(path, name) for path in self.paths]


@dataclass(frozen=True, slots=True)
class StripedRows:
    """Where the rows of a table lie: `files[k]` has the stretches s with s mod K = k, in order."""

    files: tuple[TableFile, ...]
    stretch_rows: int

    def split(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The disk of each row, and its number in that disk's file; int64 [n]."""
        stretches, disks = rows // self.stretch_rows, len(self.files)
        turns = stretches // disks
        # The rows of other disks before it: those of its turn, and K - 1 stretches in each before.
        own = stretches - turns * disks
        return own, rows - (stretches - turns) * self.stretch_rows

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Consecutive rows [start, stop) of [first, last) that lie together, as (disk, start, stop,
        the number of the first one in the disk's file)."""
        disks, size = len(self.files), self.stretch_rows
        while first < last:
            stretch = first // size
            stop = min((stretch + 1) * size, last)
            yield stretch % disks, first, stop, stretch // disks * size + first % size
            first = stop


def stretch_rows(row_bytes: int) -> int:
    """How many rows a stretch has."""
    return 1 << max(-(-STRETCH_BYTES_MIN // row_bytes) - 1, 0).bit_length()


def striped_arrays(store: Store, disks: int) -> dict[str, ArrayInfo]:
    """The arrays of the stripes of a store, as "DISK/TABLE", without checksums: of all tables but
    attributes that `gnndrive infer` has added, which may be replaced."""
    found = {}
    for table in feature_tables(store):
        array = store.info.arrays[table.name]
        if array.folder:
            continue
        size = stretch_rows(table.file.row_bytes)
        turns, rest = divmod(table.file.row_count, size * disks)
        for disk in range(disks):
            rows = turns * size + min(max(rest - disk * size, 0), size)
            name = f"{disk}/{table.name}"
            found[name] = ArrayInfo(name, array.dtype, (rows, *array.shape[1:]), "")
    return found


def striped_rows(infos: Mapping[str, Any], folders: list[Path]) -> dict[str, StripedRows]:
    """Where the rows of each table lie, by the arrays' infos."""
    files: dict[str, list[TableFile]] = {}
    for disk, folder in enumerate(folders):
        for name, info in own_arrays(infos, disk).items():
            files.setdefault(name, []).append(table_file(folder, info))
    return {
        name: StripedRows(tuple(each), stretch_rows(each[0].row_bytes))
        for name, each in files.items()
    }


def own_arrays(infos: Mapping[str, Any], disk: int) -> dict[str, ArrayInfo]:
    """The arrays on one disk, by their names in its folder: those of the tables."""
    return {
        name.removeprefix(f"{disk}/"): ArrayInfo(
            name.removeprefix(f"{disk}/"), info.dtype, info.shape, ""
        )
        for name, info in infos.items()
        if name.startswith(f"{disk}/")
    }


@dataclass(frozen=True, slots=True)
class StripesInfo:
    """The content of striped.json. `store` is the identity of the store (`Store.identity`), and the
    arrays are named as by `striped_arrays`."""

    store: str
    settings: StripeSettings
    arrays: Mapping[str, LayoutArray]

    @property
    def folders(self) -> list[Path]:
        """The folder of the stripes on each path."""
        return self.settings.folders(self.store)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(array.nbytes for array in self.arrays.values())

    def as_dict(self) -> dict[str, Any]:
        """See `LayoutInfo.as_dict`."""
        return {
            "format": FORMAT, "version": VERSION, "store": self.store,
            "settings": self.settings.as_dict(),
            "arrays": {name: each.as_dict() for name, each in sorted(self.arrays.items())},
        }  # fmt: skip

    def shown(self) -> dict[str, Any]:
        """See `LayoutInfo.shown`."""
        return {
            "store": self.store, "settings": self.settings.as_dict(), "bytes": self.nbytes,
            "folders": [str(folder) for folder in self.folders],
        }  # fmt: skip

    def sizes(self) -> dict[str, int]:
        """See `LayoutInfo.sizes`; by folder."""
        return {
            str(folder): sum(each.nbytes for each in own_arrays(self.arrays, disk).values())
            for disk, folder in enumerate(self.folders)
        }

    def texts(self) -> list[str]:
        """See `LayoutInfo.texts`."""
        return [f"{len(self.settings.paths)} disks", *self.settings.texts()]

    def lines(self) -> dict[str, str]:
        """See `LayoutInfo.lines`."""
        return {"disks": str(len(self.settings.paths)), "size": format_size(self.nbytes)}


# ---- whose a folder on a disk is


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of stripe.json."""

    store: str
    path: str  # of the store when the stripes were made
    disk: int
    disks: int

    @property
    def content(self) -> bytes:
        """The bytes of the file."""
        document = {"format": STRIPE_FORMAT, "version": VERSION} | asdict(self)
        return (json.dumps(document, indent=1) + "\n").encode()

    @classmethod
    def read(cls, folder: Path, mend: str = MEND) -> Mark:
        """That of a folder; StoreError: there is none, or it is damaged."""
        content = read_plain(folder, STRIPE_JSON, _MARK_BYTES_MAX, mend)
        top = Record.parse(content, str(folder / STRIPE_JSON), mend)
        if (top.text("format"), top.whole("version")) != (STRIPE_FORMAT, VERSION):
            raise top.error("is not of stripes, or of another version")
        return cls(top.text("store"), top.text("path"), top.whole("disk"), top.whole("disks"))


class StripeKind(LayoutKind[StripesInfo]):
    """Stripes; see `LayoutKind`."""

    def info(self, top: Record, settings: Any, store: str) -> StripesInfo:
        """See `LayoutKind.info`."""
        groups = [str(disk) for disk in range(len(settings.paths))]
        return StripesInfo(store, settings, parse_arrays(top, groups))

    def settings(self, record: Record) -> StripeSettings:
        """See `LayoutKind.settings`."""
        try:
            return StripeSettings(record.texts("paths") or ())
        except ConfigError as error:
            raise record.error(f"is refused: {error}") from None

    def check_store(self, info: StripesInfo, root: Path, store: Store) -> None:
        """See `LayoutKind.check_store`."""
        super().check_store(info, root, store)
        expected = striped_arrays(store, len(info.settings.paths))
        found = {name: (each.dtype, each.shape) for name, each in info.arrays.items()}
        if found != {name: (each.dtype, each.shape) for name, each in expected.items()}:
            raise StoreError(f"{root} has other tables or rows than {store.path}: {MEND}")

    def remove_elsewhere(self, path: Path) -> None:
        """See `LayoutKind.remove_elsewhere`: the folders on the disks, unless they are those of
        another store that is there, of which this one is a copy."""
        for folder, store in self.folders(path):
            with suppress(StoreError):  # it is not there, or not ours
                mark, own = Mark.read(folder), str(path.parent.parent)
                if mark.store != store:
                    continue
                if mark.path == own or not Path(mark.path, STORE_JSON).exists():
                    try:
                        remove_stripe(folder)
                    except OSError as error:
                        raise write_failure(folder, error) from error

    def folders(self, path: Path) -> list[tuple[Path, str]]:
        """The folders on the disks of stripes, whole or not, and the identity of their store."""
        for file in (self.json, self.record):
            with suppress(StoreError):
                content = read_plain(path, file, JSON_BYTES_MAX)
                top = Record.parse(content, "", "")
                store = top.text("store")
                return [
                    (each, store) for each in self.settings(top.inner("settings")).folders(store)
                ]
        return []


def remove_stripe(folder: Path) -> None:
    """Remove the folder of one disk; what says whose it is goes last."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != STRIPE_JSON:
            os.unlink(entry.path)
    shutil.rmtree(folder)


STRIPES = StripeKind(
    STRIPED, STRIPED_JSON, FORMAT, VERSION, ".striping", (), re.compile(NAME), anywhere=False,
    called="the record of stripes", doing="striping", made_by="gnndrive stripe", mend=MEND,
    in_the_way="remove it with gnndrive stripe STORE --remove",
    elsewhere="copy the store to another one, and stripe it there",
)  # fmt: skip


def striped_path(store: Store) -> Path:
    """Where the record of a store's stripes is, if it has any."""
    return Path(store.path, STRIPED, NAME)


def numbers(first: int, last: int) -> Int64Array:
    """The numbers of rows [first, last), int64 [n]."""
    return np.arange(first, last, dtype=np.int64)
