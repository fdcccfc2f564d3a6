"""Reserve the room of files before a row is written.

`reserve` makes all files at their full size, so that a disk that is too small is an error at once;
the rows are written by `RowPacking` (rows.py). When not to use it: for a file that is written once
from its beginning, such as the samples.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from gnndrive.common.io.small_files import make_durable, write_all
from gnndrive.common.io.write_errors import FULL, disk_full, free_bytes, write_failure
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.layout.row_record import forget

_MARGIN_BYTES = 1 << 20  # for folders, records and the file system's metadata
_BLOCK_BYTES = 512  # the unit of st_blocks


LESS = (
    "pack fewer batches or epochs, allow less with --disk, or choose a folder on another disk with "
    "--out"
)


def reserve(
    folder: Path, arrays: Iterable[ArrayInfo], spool_bytes: int = 0, less: str = LESS
) -> None:
    """Make the files of `arrays` at their full size, with their headers, durably.

    A file that is there keeps its rows, so an interrupted packing may reserve again. The records of
    progress of tables whose files are not there are removed (row_record.py).

    Args:
        folder: the packed folder, which must exist.
        arrays: the arrays; their files are relative to `folder`.
        spool_bytes: bytes that will be needed besides, see `RowPacking.spool_bytes`.
        less: what else to do than to free some space, for errors.

    Raises:
        StoreError: the disk has less room than that; files that were not there before are removed.
        ConfigError: too many files are open.
    """
    arrays = list(arrays)
    missing = sum(max(0, info.nbytes - _allocated_bytes(folder / info.file)) for info in arrays)
    needed = missing + spool_bytes
    made: list[Path] = []
    try:
        if needed and needed + _MARGIN_BYTES > free_bytes(folder):
            raise disk_full(folder, needed, less)
        short = {info.file for info in arrays if _size(folder / info.file) < info.nbytes}
        forget(folder, short)
        for info in arrays:
            path = folder / info.file
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                made.append(path)
            _reserve_file(path, info.nbytes, npy_header(info))
        make_durable(folder)
    except OSError as error:
        for path in made:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if error.errno in FULL:
            raise disk_full(folder, needed, less) from error
        raise write_failure(folder, error) from error


def reserve_spool(path: Path, nbytes: int) -> None:
    """Make a file of `nbytes` without a header; keeps what is in it.

    Raises:
        OSError: the operating system's.
    """
    _reserve_file(path, nbytes, b"")


def _reserve_file(path: Path, nbytes: int, header: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        if nbytes:
            os.posix_fallocate(fd, 0, nbytes)
        os.ftruncate(fd, nbytes)
        if header and os.pread(fd, len(header), 0) != header:
            write_all(fd, memoryview(header))
    finally:
        os.close(fd)


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return -1


def _allocated_bytes(path: Path) -> int:
    try:
        return os.lstat(path).st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return 0
