"""One array of a store that is being written: checked, converted and hashed piece by piece."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.small_files import write_all
from gnndrive.store.checks import check_for, finite_rows_of
from gnndrive.store.convert import ArrayLike, Rows, as_rows, dtype_of, to_storage
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.labels import ClassCount
from gnndrive.store.types import Types


class ArrayWriter:
    """One array of a store that is being written, its rows in order; made by `StoreWriter.array`.

    Args:
        info: the array's name, dtype and shape.
        file: the file to write; it must not exist yet.
        where: the file's path in the finished store, for errors.
        types: the store's types, against which indices are checked.
        failure: makes a StoreError of the operating system's error and of `where`.

    Attributes:
        info: the array's name, dtype and shape.
        rows_written: rows written so far.
        finished: `info` with the checksum of the file; None until the last row is written.
        num_classes: classes of a `y` whose last row is written; else 0.
        gaps: what is odd about the labels of that `y`, see `ClassCount.gaps`; else None.
        finite_rows: counts the rows of features that are not finite; None: the array has none.

    Raises:
        OSError: the file cannot be made.
        StoreError: the disk is full.
    """

    def __init__(
        self,
        info: ArrayInfo,
        file: Path,
        where: str,
        types: Types,
        failure: Callable[[OSError, str], StoreError],
    ) -> None:
        self.info, self.rows_written = info, 0
        self.finished: ArrayInfo | None = None
        self.num_classes = 0
        self.gaps: str | None = None
        self._where, self._failure = where, failure
        self._check = check_for(info.name, where, types)
        place = types.place(info.name)
        self._classes = ClassCount() if (place.group, place.leaf) == ("nodes", "y") else None
        self.finite_rows = finite_rows_of(info, types)
        self._hash = hashlib.sha256()
        self._closed = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(file, flags, 0o666)
        try:
            self._put(memoryview(npy_header(info)))
            if info.shape[0] == 0:
                self._finish()
        except BaseException:
            self.close()
            raise

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far."""
        return DATA_OFFSET + self.rows_written * self.info.row_bytes

    def write(self, rows: ArrayLike) -> None:
        """Write the next rows.

        Args:
            rows: [n, *row_shape], numpy, torch or a list, of a dtype whose values fit the array's.

        Raises:
            ConfigError: the rows have the wrong shape or are too many, a value does not fit, or the
                StoreWriter's with block has ended.
            StoreError: an index is out of range, or the disk is full.
        """
        if self._closed:
            raise outside_with_block()
        chunk = as_rows(rows, self._where)
        left = self.info.shape[0] - self.rows_written
        if tuple(chunk.shape[1:]) != self.info.shape[1:] or len(chunk) > left:
            raise ConfigError(
                f"{self._where}: rows of shape {list(chunk.shape)} do not fit: it is "
                f"{list(self.info.shape)}, of which {left} rows are not written yet"
            )
        if len(chunk) == 0:
            return
        if self._check is not None:  # before a value out of range could wrap in a narrower dtype
            self._check.feed(self._whole_numbers(chunk))
        values = to_storage(chunk, self.info.dtype, self._where)
        if self._classes is not None:
            self._classes.feed(chunk)
        if self.finite_rows is not None:
            self.finite_rows.feed(values.reshape(-1))
        self._put(values.reshape(-1).view(np.uint8).data)
        self.rows_written += len(chunk)
        if self.rows_written == self.info.shape[0]:
            self._finish()

    def close(self) -> None:
        """Close the file; nothing can be written afterwards. Idempotent."""
        self._closed = True
        self._close_file()

    def _whole_numbers(self, chunk: Rows) -> npt.NDArray[Any]:
        dtype = dtype_of(chunk)
        if "int" not in dtype:
            raise ConfigError(f"{self._where} holds indices and got {dtype}: give whole numbers")
        return to_storage(chunk, dtype, self._where)

    def _put(self, view: memoryview) -> None:
        try:
            write_all(self._fd, view)
        except OSError as error:
            raise self._failure(error, self._where) from error
        self._hash.update(view)

    def _finish(self) -> None:
        if self._check is not None:
            self._check.finish()
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failure(error, self._where) from error
        self._close_file()
        self.finished = replace(self.info, sha256=self._hash.hexdigest())
        if self._classes is not None:
            self.num_classes, self.gaps = self._classes.result(), self._classes.gaps()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def outside_with_block() -> ConfigError:
    """The error for a StoreWriter that is used outside its with block."""
    return ConfigError("a StoreWriter works inside its with block: with StoreWriter(…) as writer")
