"""Volumes of records: `samples/NNN.npy`, int32 [n], and how one is written so that it is whole.

A volume is a .npy file of one dimension: records (sections.py), the rows of the index that belong
to them, and a footer of 4,096 bytes that says where these rows are. It is written under another
name, fsynced and renamed: a volume exists whole or not at all, and says itself what it holds. So a
packer that was killed goes on after the last whole volume, and a volume can be replaced by one with
other sections (`generation`) in one step.

When not to use it: for rows of tables, whose sizes are known before they are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.io.small_files import PART, fsync_folder, write_all
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import Int64Array
from gnndrive.store.files import open_plain, read_at_most
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.packed.sections import (
    ABSENT,
    PLACE_COLUMNS,
    RECORD_ALIGN,
    Schema,
    aligned,
)

VOLUME_BYTES = 64 << 20
SAMPLES = "samples"
_MAGIC = 0x6B6361706E6E67  # "gnnpack"
_FOOTER = ("magic", "rows", "columns", "offset", "generation")
_FOOTER_BYTES = 4096
_ZEROS = bytes(RECORD_ALIGN)
_BYTES = PLACE_COLUMNS.index("bytes")


def volume_name(number: int) -> str:
    """The name of a volume: "samples/000"."""
    return f"{SAMPLES}/{number:03d}"


class VolumeWriter:
    """Writes one volume, its records in order; use it as a context manager.

    Args:
        root: the pack's folder.
        number: the volume's number.
        schema: what its records hold.
        generation: 0 for recorded samples; a number of the caller's for those that replace them.

    Attributes:
        count: records written so far.
        nbytes: bytes of them.
    """

    def __init__(self, root: Path, number: int, schema: Schema, generation: int = 0) -> None:
        self.number, self.count, self.nbytes = number, 0, 0
        self._path = root / f"{volume_name(number)}.npy"
        self._schema, self._generation = schema, generation
        self._rows: list[list[int]] = []
        self._fd = -1

    def __enter__(self) -> VolumeWriter:
        try:
            self._path.parent.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._part, flags, 0o666)
            write_all(self._fd, memoryview(_ZEROS))  # in the place of the header
        except OSError as error:
            raise write_failure(self._path, error) from error
        return self

    def __exit__(self, *raised: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _part(self) -> Path:
        return self._path.with_name(self._path.name + PART)

    def append(
        self, sections: Sequence[npt.NDArray[Any] | None], rest: Sequence[int]
    ) -> Int64Array:
        """Write a record.

        Args:
            sections: its sections, in the schema's order and dtypes; None: it has none.
            rest: the columns of its row of the index after the counts.

        Returns:
            Its row of the index, int64 [columns].

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        counts = [ABSENT if each is None else len(each) for each in sections]
        starts, nbytes = self._schema.places(counts)
        record = np.zeros(nbytes, np.uint8)
        for start, each in zip(starts, sections, strict=True):
            if each is not None:
                record[start : start + each.nbytes] = each.view(np.uint8)
        row = [self.number, self.nbytes, nbytes, *counts, *rest]
        assert len(row) == len(self._schema.columns)
        self._put(record)
        self._rows.append(row)
        self.count, self.nbytes = self.count + 1, self.nbytes + nbytes
        return np.array(row, np.int64)

    def finish(self) -> None:
        """Write the rows of the index and the footer, fsync the file and give it its name.

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        rows = np.array(self._rows, np.int64).reshape(-1, len(self._schema.columns))
        footer = np.zeros(_FOOTER_BYTES // 8, np.int64)
        footer[: len(_FOOTER)] = (_MAGIC, *rows.shape, self.nbytes, self._generation)
        table = np.zeros(aligned(rows.nbytes, RECORD_ALIGN), np.uint8)
        table[: rows.nbytes] = rows.reshape(-1).view(np.uint8)
        self._put(table)
        self._put(footer.view(np.uint8))
        columns = len(self._schema.columns)
        info = volume_info(self.number, (row[_BYTES] for row in self._rows), columns)
        try:
            os.pwrite(self._fd, npy_header(info), 0)
            os.fsync(self._fd)
            os.rename(self._part, self._path)
            fsync_folder(self._path.parent)
        except OSError as error:
            raise write_failure(self._path, error) from error

    def _put(self, array: npt.NDArray[np.uint8]) -> None:
        try:
            write_all(self._fd, array.data)
        except OSError as error:
            raise write_failure(self._path, error) from error


@dataclass(frozen=True, slots=True)
class Volume:
    """A whole volume.

    Attributes:
        rows: its rows of the index, int64 [records, columns].
        generation: see `VolumeWriter`.
    """

    rows: Int64Array
    generation: int


def read_volume(root: Path, number: int, *widths: int) -> Volume:
    """Read the footer of a volume that this machine has written, and its rows of the index.

    Args:
        root: the pack's folder.
        number: the volume's number.
        widths: how many columns it may have.

    Raises:
        StoreError: it is missing, or no volume of so many columns.
    """
    name = f"{volume_name(number)}.npy"
    fd = open_plain(root, name)
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, max(size - _FOOTER_BYTES, 0), os.SEEK_SET)
        content = read_at_most(fd, _FOOTER_BYTES)
        footer = dict(zip(_FOOTER, np.frombuffer(content, np.int64).tolist(), strict=False))
        count, offset = footer.get("rows", 0), footer.get("offset", 0)
        columns = footer.get("columns", 0)
        end = size - _FOOTER_BYTES - DATA_OFFSET
        fits = len(content) == _FOOTER_BYTES and 0 <= offset <= end
        if not fits or footer["magic"] != _MAGIC or columns not in widths:
            raise _no_volume(root / name)
        if not 0 <= 8 * count * columns <= end - offset:
            raise _no_volume(root / name)
        os.lseek(fd, DATA_OFFSET + offset, os.SEEK_SET)
        rows = np.frombuffer(read_at_most(fd, 8 * count * columns), np.int64)
        return Volume(rows.reshape(count, columns), footer["generation"])
    finally:
        os.close(fd)


def volume_info(number: int, records: Iterable[int], columns: int) -> ArrayInfo:
    """A volume as an array, without checksum.

    Args:
        number: the volume's number.
        records: bytes of each of its records.
        columns: columns of the index.
    """
    sizes = list(records)
    nbytes = sum(sizes) + aligned(8 * len(sizes) * columns, RECORD_ALIGN) + _FOOTER_BYTES
    return ArrayInfo(volume_name(number), "int32", (nbytes // 4,), "")


def whole_volumes(root: Path) -> int:
    """How many volumes are there, from the first on; removes all other files of samples/.

    Raises:
        StoreError: a file cannot be removed.
    """
    folder = root / SAMPLES
    names = set(os.listdir(folder)) if folder.is_dir() else set()
    count = 0
    while Path(f"{volume_name(count)}.npy").name in names:
        names.remove(Path(f"{volume_name(count)}.npy").name)
        count += 1
    for name in names:
        try:
            os.unlink(folder / name)
        except OSError as error:
            raise write_failure(folder / name, error) from error
    return count


def _no_volume(path: Path) -> StoreError:
    return StoreError(f"{path} is no volume of this recording: remove the folder and pack again")
