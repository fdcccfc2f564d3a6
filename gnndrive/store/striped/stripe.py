"""`stripe`: copy the feature rows of a store to several disks; and remove these copies.

Each table is read once, with long reads, and its stretches are written to the files of all disks,
which have been made at their full size before. A record counts the rows that are durable on all
disks, so a call that is killed at any moment goes on there.

When not to use it: for rows that are read in another order, such as packs, which read their own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.small_files import PART, write_whole
from gnndrive.common.io.write_errors import disk_full, free_bytes, write_failure
from gnndrive.common.progress import Progress
from gnndrive.common.records import TableFile
from gnndrive.store.format import ArrayInfo
from gnndrive.store.layout.arrays import LayoutArray
from gnndrive.store.layout.folder import LayoutFolder, aside_of, put_aside, remove_layout
from gnndrive.store.layout.row_writer import RowWriter
from gnndrive.store.layout.rows import SUFFIX, SYNC_BYTES, RowRecord, reserve
from gnndrive.store.layout.table_parts import SUM_MODULUS, TableParts
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.striped.format import (
    STRIPE_JSON,
    STRIPES,
    Mark,
    StripedRows,
    StripeSettings,
    StripesInfo,
    numbers,
    own_arrays,
    striped_arrays,
    striped_path,
    striped_rows,
)

PART_BYTES, DIRTY_BYTES = 32 << 20, 32 << 20
LESS = "name a folder on a larger disk"


def stripe(
    store: Store | str | os.PathLike[str],
    paths: Sequence[str | os.PathLike[str]],
    progress: Progress | None = None,
) -> StripesInfo:
    """Copy the feature rows of a store to several disks; loaders that read rows by their numbers
    (all strategies but `diskgnn`, `hierbatching`, `marius` and `pyg+`) then read the copies, from
    all disks at once. The store keeps its own rows. Takes about 150 MB of memory.

    After an error or a kill, the same call goes on where it stopped.

    Args:
        store: a store, or its path.
        paths: a folder on each disk, which is there.
        progress: called as progress(what, done, total).

    Returns:
        The content of its striped.json.

    Raises:
        ConfigError: a path cannot be used, the store has no features, it has stripes already, or
            another process makes them.
        StoreError: a disk is too full or fails, or the store is damaged or has changed.
        ReadError: the store cannot be read.
    """
    opened = store if isinstance(store, Store) else open_store(store)
    opened.check_whole("stripes have all: stripe the whole store")
    settings = StripeSettings(tuple(os.path.abspath(path) for path in paths))
    arrays = striped_arrays(opened, len(settings.paths))
    if not arrays:
        raise ConfigError(f"{opened.path} has no features to stripe: import it with features")
    for path in settings.paths:
        if not os.path.isdir(path):
            raise ConfigError(f"{path} is no folder: make it, or mount its disk")
    target = striped_path(opened)
    with LayoutFolder(STRIPES, opened, target, settings) as folder, opened.unchanged():
        if folder.finished is not None:
            return folder.finished
        folders = settings.folders(opened.identity)
        for disk, each in enumerate(folders):
            _claim(each, Mark(opened.identity, str(opened.path), disk, len(folders)))
        _reserve(folder.path, folders, arrays)
        sums = dict[str, str]()
        for name, rows in striped_rows(arrays, folders).items():
            source, identity = opened.table(name), opened.info.arrays[name].sha256
            record = _Copying(name, source, rows, folder.path, identity).run(progress)
            sums |= {f"{disk}/{name}": f"sum64:{each:016x}" for disk, each in enumerate(record)}
        opened.check_unchanged()
        made = {
            name: LayoutArray(name, info.dtype, info.shape, sums[name])
            for name, info in arrays.items()
        }
        return folder.finish(StripesInfo(opened.identity, settings, made))


def remove_stripes(store: Store | str | os.PathLike[str]) -> list[Path]:
    """Remove the stripes of a store: loaders read its own rows again.

    Returns:
        The folders that were not removed, because their disk is not there, or they are those of
        another store, of which this one is a copy.

    Raises:
        ConfigError: it has none.
        StoreError: a file cannot be removed.
    """
    opened = store if isinstance(store, Store) else open_store(store)
    target = striped_path(opened)
    if not os.path.lexists(target):
        raise ConfigError(
            f"{opened.path} has no stripes; gnndrive clean removes those that are unfinished"
        )
    folders = STRIPES.folders(target)
    try:
        put_aside(target, STRIPES)
        remove_layout(aside_of(target, STRIPES), STRIPES)
        target.parent.rmdir()
    except OSError as error:
        if os.path.lexists(target):
            raise write_failure(target, error) from error
    return [folder for folder, _ in folders if not folder.parent.is_dir() or folder.exists()]


def _claim(folder: Path, mark: Mark) -> None:
    """Make the folder of one disk, or take over that of an earlier call."""
    try:
        folder.mkdir(exist_ok=True)
        names = os.listdir(folder)
    except OSError as error:
        raise write_failure(folder, error) from error
    if all(name.endswith(PART) for name in names):
        write_whole(folder / STRIPE_JSON, mark.content)
    mend = f"remove {folder}, or choose another path"
    found = Mark.read(folder, mend)
    if found != mark:
        raise ConfigError(f"{folder} has the rows of {found.path}, disk {found.disk}: {mend}")


def _reserve(root: Path, folders: Sequence[Path], arrays: Mapping[str, ArrayInfo]) -> None:
    """Make all files at their full size; StoreError: a disk lacks room, and no file was made."""
    own = [list(own_arrays(arrays, disk).values()) for disk in range(len(folders))]
    needed, last = Counter[int](), dict[int, Path]()
    for folder, infos in zip(folders, own, strict=True):
        device = folder.stat().st_dev  # two paths may be on one disk
        last[device] = folder
        for info in infos:
            size, taken = _size(folder / info.file)
            needed[device] += max(info.nbytes - taken, 0)
            if size < info.nbytes:  # what the record says of it is of another file
                for stale in root.glob(f"*{SUFFIX}"):
                    stale.unlink()
    for device, nbytes in needed.items():
        if nbytes > free_bytes(last[device]):
            raise disk_full(last[device], nbytes, LESS)
    for folder, infos in zip(folders, own, strict=True):
        reserve(folder, infos, less=LESS)


def _size(file: Path) -> tuple[int, int]:
    """The bytes of a file, and those that it takes on disk; zeros: it is not there."""
    try:
        status = os.lstat(file)
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_blocks * 512


class _Copying:
    """The rows of one table on their way to the files of all disks, which are at their full size.
    The record is in the folder `root`; `identity` identifies the table's content."""

    def __init__(
        self, name: str, table: TableFile, rows: StripedRows, root: Path, identity: str
    ) -> None:
        self._name, self._table, self._rows = name, table, rows
        self._path = root / f"{name.replace('/', '-')}{SUFFIX}"
        self._files = [Path(file.path) for file in rows.files]
        inodes = [str(os.stat(file).st_ino) for file in self._files]
        key = "\n".join([identity, str(rows.stretch_rows), *map(str, self._files), *inodes])
        self._record = RowRecord.load(self._path, sha256(key.encode()).hexdigest(), len(inodes))
        self._record.files = [str(file) for file in self._files]

    def run(self, progress: Progress | None) -> list[int]:
        """Write all rows that an earlier call has not written, durably; returns the checksum of
        each file's rows."""
        record, table, told = self._record, self._table, progress or (lambda *_: None)
        if record.ended:
            return record.sums
        what, total = f"writing rows of {self._name}", table.row_count * table.row_bytes
        synced, folders = record.rows, [file.parent for file in self._files]
        with (
            RowWriter(folders[0], table.row_bytes, DIRTY_BYTES, folders[1:]) as writer,
            closing(TableParts(table, PART_BYTES).parts(record.rows, table.row_count)) as parts,
        ):
            for part in parts:
                last = part.first + part.count
                for disk, start, stop, at in self._rows.runs(part.first, last):
                    file, ids = self._rows.files[disk], numbers(start, stop)
                    offset = file.data_offset + at * table.row_bytes
                    added = writer.write(part, self._files[disk], offset, ids, at)
                    record.sums[disk] = (record.sums[disk] + added) % SUM_MODULUS
                record.rows = last
                if last < table.row_count and (last - synced) * table.row_bytes < SYNC_BYTES:
                    continue
                writer.sync()
                synced = last
                record.save(self._path)
                told(what, last * table.row_bytes, total)
        record.end(self._path)
        return record.sums
