"""The table layout: rows one behind the other in one file, read with O_DIRECT (GNNDrive §4.2).

Missing rows are sorted and become extents: one read for rows that share a sector or touch, rounded
out to the sector that the device asks for. Right for any row size and dtype. A layout that packs
what is used together reads fewer bytes; this one needs no preparation.
"""

from __future__ import annotations

import errno
import os
import warnings

import numpy as np

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.layouts.base import BLOCK_BYTES, Layout, LayoutContext
from gnndrive.disk.read_job import ReadJob

SECTOR_BYTES = 512  # where reads are buffered nothing asks for alignment: plan as for a usual disk


class TableLayout(Layout):
    """One table of rows in one file.

    Args:
        file: where the rows are.
        extent_bytes_max: no read is longer, in bytes, unless a single row is.
        gap_bytes_max: two rows are read as one if at most this many bytes would be read for
            nothing between them; 0: only rows that share a sector or whose sectors touch.
        direct: open with O_DIRECT; where the file system refuses, reads are buffered, with one
            warning.
        separate: one request a row in the order asked for, nothing sorted or merged, and a row may
            come twice; for benchmarks.
        repeats: whether a row may be asked for several times in one plan, for several slots.

    Raises:
        ConfigError: `extent_bytes_max` or `gap_bytes_max` cannot work.
        StoreError: the file cannot be opened.
    """

    name = "table"

    def __init__(
        self,
        file: TableFile,
        extent_bytes_max: int = BLOCK_BYTES,
        gap_bytes_max: int = 0,
        direct: bool = True,
        separate: bool = False,
        repeats: bool = False,
    ) -> None:
        if extent_bytes_max < 1 or gap_bytes_max < 0:
            raise ConfigError("extent_bytes_max must be at least 1 and gap_bytes_max at least 0")
        self.file = file
        self.path = file.path
        self.extent_bytes_max = extent_bytes_max
        self.gap_bytes_max = gap_bytes_max
        self.separate = separate
        self.repeats = repeats
        self.fd, self.direct = _open(file.path, direct)
        self.sector_bytes = _sector_bytes(self.fd) if self.direct else SECTOR_BYTES

    @classmethod
    def make(cls, context: LayoutContext) -> TableLayout:
        """See `Layout.make`."""
        return cls(
            context.file, context.extent_bytes_max, context.gap_bytes_max, repeats=context.repeats
        )

    def locate(self, rows: Int64Array, slots: Int32Array, landing: Landing) -> ReadJob:
        """See `Layout.locate`; raises ValueError for a row out of range or asked for twice."""
        if self.fd < 0:
            raise ValueError(f"the table {self.path} is closed")
        if rows.ndim != 1 or rows.shape != slots.shape:
            raise ValueError(f"rows {rows.shape} and slots {slots.shape} must be [n] both")
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        slots = np.ascontiguousarray(slots, dtype=np.int32)
        geometry = ffi.new(
            "gd_geometry *",
            {
                "data_offset": self.file.data_offset,
                "row_bytes": self.file.row_bytes,
                "row_count": self.file.row_count,
                "sector": self.sector_bytes,
                "extent_bytes_max": self.extent_bytes_max,
                "gap_bytes_max": self.gap_bytes_max,
                "slots": ffi.cast("uint8_t *", landing.address),
                "slot_stride": landing.slot_stride,
                "land_direct": int(landing.direct),
                "separate": int(self.separate),
                "repeats": int(self.repeats),
            },
        )
        error = ffi.new("int *")
        handle = lib.gd_reads_plan(geometry, pointer(rows), pointer(slots), rows.size, error)
        if handle == ffi.NULL:
            raise self._refusal(-error[0], rows)
        return ReadJob(handle, self.fd, self.path, (self, landing))

    def _refusal(self, code: int, rows: Int64Array) -> Exception:
        if code == errno.ENOMEM:
            return MemoryError(f"no memory to plan {rows.size:,} reads of {self.path}")
        if code == errno.ERANGE:
            bad = rows[(rows < 0) | (rows >= self.file.row_count)][0]
            return ValueError(f"row {bad} of {self.path}, which has {self.file.row_count} rows")
        return ValueError(
            f"a plan of {self.path} that cannot be: a row twice, a negative slot, or a geometry "
            f"out of bounds (rows of {self.file.row_bytes} bytes, sectors of {self.sector_bytes})"
        )

    def close(self) -> None:
        """Close the file; no reads may be under way."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()


def _open(path: str, direct: bool) -> tuple[int, bool]:
    """A descriptor, and whether it is O_DIRECT."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        if not direct:
            return os.open(path, flags), False
        try:
            fd = os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            if lib.gd_dio_alignment(fd, ffi.new("int64_t *"), ffi.new("int64_t *")) == 0:
                return fd, True
            os.close(fd)
        warnings.warn(
            f"the file system of {path} knows no direct I/O: reads go through the page cache and "
            "its memory is not counted; put the store on ext4, XFS or the like",
            RuntimeWarning,
            stacklevel=3,
        )
        return os.open(path, flags), False
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error


def _sector_bytes(fd: int) -> int:
    """What direct reads of `fd` must be aligned to, in file and memory, in bytes."""
    memory, offset = ffi.new("int64_t *"), ffi.new("int64_t *")
    lib.gd_dio_alignment(fd, memory, offset)
    return max(int(memory[0]), int(offset[0]), SECTOR_BYTES)
