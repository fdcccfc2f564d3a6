"""One array of a store that is being written: checked, converted and hashed piece by piece."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.atomic_files import write_all
from gnndrive.common.errors import ConfigError
from gnndrive.store.checks import check_for
from gnndrive.store.convert import ArrayLike, Rows, as_rows, dtype_of, to_storage
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.labels import ClassCount

if TYPE_CHECKING:
    from gnndrive.store.writer import StoreWriter


class ArrayWriter:
    """One array of a store being written, in order; made by `StoreWriter.array`.

    Attributes:
        info: its name, dtype and shape.
        rows_written: rows so far.
    """

    def __init__(self, store: StoreWriter, info: ArrayInfo, file: Path) -> None:
        self.info, self.rows_written = info, 0
        self._store, self._file = store, file
        self._where = str(store.path / info.file)
        self._check = check_for(info.name, self._where, store.types)
        place = store.types.place(info.name)
        self._classes = ClassCount() if (place.group, place.leaf) == ("nodes", "y") else None
        self._hash = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(file, flags, 0o666)
        self._put(memoryview(npy_header(info)))
        if info.shape[0] == 0:
            self._finish()

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far."""
        return DATA_OFFSET + self.rows_written * self.info.row_bytes

    def write(self, rows: ArrayLike) -> None:
        """Write the next rows.

        Args:
            rows: [n, *row_shape], numpy, torch or a list, of a dtype whose values fit the array's.

        Raises:
            ConfigError: wrong shape, too many rows, or a value that does not fit.
            StoreError: an index out of range, or the disk is full.
        """
        self._store._assert_open()
        chunk = as_rows(rows, self._where)
        left = self.info.shape[0] - self.rows_written
        if tuple(chunk.shape[1:]) != self.info.shape[1:] or len(chunk) > left:
            raise ConfigError(
                f"{self._where}: rows of shape {list(chunk.shape)} do not fit: it is "
                f"{list(self.info.shape)}, of which {left} rows are not written yet"
            )
        if len(chunk) == 0:
            return
        if self._check is not None:  # before a narrower dtype could hide what is out of range
            self._check.feed(self._whole_numbers(chunk))
        values = to_storage(chunk, self.info.dtype, self._where)
        if self._classes is not None:
            self._classes.feed(chunk)
        self._put(values.reshape(-1).view(np.uint8).data)
        self.rows_written += len(chunk)
        if self.rows_written == self.info.shape[0]:
            self._finish()

    def _whole_numbers(self, chunk: Rows) -> npt.NDArray[Any]:
        dtype = dtype_of(chunk)
        if "int" not in dtype:
            raise ConfigError(f"{self._where} got {dtype}: give whole numbers")
        return to_storage(chunk, dtype, self._where)

    def _put(self, view: memoryview) -> None:
        try:
            write_all(self._fd, view)
        except OSError as error:
            raise self._store._failure(error, self._where) from error
        self._hash.update(view)

    def _finish(self) -> None:
        if self._check is not None:
            self._check.finish()
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._store._failure(error, self._where) from error
        self.close()
        done = ArrayInfo(self.info.name, self.info.dtype, self.info.shape, self._hash.hexdigest())
        self._store._arrays[done.name] = done
        if self._classes is not None:
            self._store._num_classes[done.name] = self._classes.result()

    def close(self) -> None:
        """Give the descriptor back; rows that are missing stay missing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
