"""A derived layout: the rows of a table in a file of its own, the last row first."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array, Landing
from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.disk.read_job import ReadJob
from tests.second.use import used

SECTOR_BYTES = 4096


class Reversed(Layout):
    """Row r of n lies where row n − 1 − r would.

    The file is made when the layout is, beside the store's folder or beside a file alone, and is
    removed with it.

    Attributes:
        made: the tables that layouts of this class were made for; cleared by tests.
    """

    name = "reversed"
    made: ClassVar[list[str]] = []

    def __init__(self, context: LayoutContext) -> None:
        if context.extent_bytes_max < 1 or context.gap_bytes_max < 0:
            raise ConfigError("extent_bytes_max must be at least 1 and gap_bytes_max at least 0")
        self._context, self._fd = context, -1
        file = context.file
        try:
            with open(file.path, "rb") as source:
                source.seek(file.data_offset)
                content = source.read(file.row_count * file.row_bytes)
        except OSError as error:
            raise StoreError(f"{file.path} cannot be opened: {error.strerror}") from error
        if len(content) != file.row_count * file.row_bytes:
            raise StoreError(f"{file.path} became shorter than its rows: import the store again")
        rows = np.frombuffer(content, np.uint8).reshape(file.row_count, file.row_bytes)
        folder = Path(file.path if context.store is None else context.store.path).parent
        number, self.path = tempfile.mkstemp(".reversed", dir=folder)
        with os.fdopen(number, "wb") as target:
            target.write(rows[::-1].tobytes())
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        type(self).made.append(file.path)

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        return cls(context)

    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        if self._fd < 0:
            raise ValueError(f"the layout {self.path} is closed")
        file, context = self._context.file, self._context
        wrong = rows[(rows < 0) | (rows >= file.row_count)]
        if len(wrong):
            raise ValueError(f"row {wrong[0]} of {file.path}, which has {file.row_count} rows")
        used["layouts"] += 1
        reversed_rows = np.ascontiguousarray(file.row_count - 1 - rows, np.int64)
        places = np.ascontiguousarray(places, np.int32)
        geometry = ffi.new(
            "gd_geometry *",
            {
                "data_offset": 0,
                "row_bytes": file.row_bytes,
                "row_count": file.row_count,
                "sector": SECTOR_BYTES,
                "extent_bytes_max": context.extent_bytes_max,
                "gap_bytes_max": context.gap_bytes_max,
                "slots": ffi.cast("uint8_t *", landing.address),
                "slot_stride": landing.slot_stride,
                "land_direct": int(landing.direct),
                "repeats": int(context.repeats),
            },
        )
        error = ffi.new("int *")
        handle = lib.gd_reads_plan(
            geometry, pointer(reversed_rows), pointer(places), len(rows), error
        )
        if handle == ffi.NULL:
            if error[0] == -errno.ENOMEM:
                raise MemoryError(f"no memory to plan {len(rows)} reads of {self.path}")
            raise ValueError(f"a plan of {self.path} that cannot be: a row twice, or a wrong place")
        return ReadJob(handle, self._fd, self.path, (self, landing))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            os.unlink(self.path)
            self._fd = -1
