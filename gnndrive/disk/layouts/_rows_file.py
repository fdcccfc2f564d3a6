"""`RowsFile`: consecutive rows in one file, read or written with O_DIRECT; layouts share it.

The read planner (`native/plan.c`) sorts the missing rows and joins them into extents: one read for
rows that share a sector or touch, rounded out to the device's sectors. It works for any row size
and dtype.
"""

from __future__ import annotations

import errno
import os
import warnings
from typing import Self

import numpy as np

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.layouts.base import BLOCK_BYTES, Layout, LayoutContext
from gnndrive.disk.read_job import ReadJob

SECTOR_BYTES = 512  # the sector of most disks; assumed for buffered reads, which need none


class RowsFile(Layout):
    """Rows in one file; for arguments see `LayoutContext`.

    Args:
        gap_bytes_max: 0: only rows that share a sector, or whose sectors touch, are read as one.
        direct: open with O_DIRECT; if the file system refuses it, reads are buffered, after one
            warning.
        separate: read each row with its own request, in the given order, without sorting or
            joining; a row may occur twice. For benchmarks.
        write: `locate` plans writes: each row goes from its place to the file, with its own
            request. Rows and places have to be of whole pages.
        fd: an open descriptor of the file, which this object opens again; None: `file.path` is
            opened.
    """

    def __init__(
        self,
        file: TableFile,
        extent_bytes_max: int = BLOCK_BYTES,
        gap_bytes_max: int = 0,
        direct: bool = True,
        separate: bool = False,
        repeats: bool = False,
        write: bool = False,
        fd: int | None = None,
    ) -> None:
        if extent_bytes_max < 1 or gap_bytes_max < 0:
            raise ConfigError("extent_bytes_max must be at least 1 and gap_bytes_max at least 0")
        self.file = file
        self.path = file.path
        self.extent_bytes_max = extent_bytes_max
        self.gap_bytes_max = gap_bytes_max
        self.separate = separate
        self.repeats = repeats
        self.write = write
        self.fd, self.direct = _open(file.path, direct, os.O_RDWR if write else os.O_RDONLY, fd)
        self.sector_bytes = _sector_bytes(self.fd) if self.direct else SECTOR_BYTES

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        """See `Layout.make`."""
        return cls(
            context.file, context.extent_bytes_max, context.gap_bytes_max, repeats=context.repeats
        )

    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        """See `Layout.locate`."""
        if self.fd < 0:
            raise ValueError(f"the table {self.path} is closed")
        if rows.ndim != 1 or rows.shape != places.shape:
            raise ValueError(f"rows {rows.shape} and places {places.shape} must be [n] both")
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        places = np.ascontiguousarray(places, dtype=np.int32)
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
                "write": int(self.write),
            },
        )
        error = ffi.new("int *")
        handle = lib.gd_reads_plan(geometry, pointer(rows), pointer(places), rows.size, error)
        if handle == ffi.NULL:
            raise self._plan_error(-error[0], rows)
        return ReadJob(handle, self.fd, self.path, (self, landing))

    def _plan_error(self, code: int, rows: Int64Array) -> Exception:
        if code == errno.ENOMEM:
            return MemoryError(f"no memory to plan {rows.size:,} requests for {self.path}")
        if code == errno.ERANGE:
            bad = rows[(rows < 0) | (rows >= self.file.row_count)][0]
            return ValueError(f"row {bad} of {self.path}, which has {self.file.row_count} rows")
        return ValueError(
            f"cannot plan requests for {self.path}: a row twice, a negative place, or sizes out of "
            f"bounds (rows of {self.file.row_bytes} bytes, sectors of {self.sector_bytes} bytes)"
        )

    def close(self) -> None:
        """See `Layout.close`."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()


def _open(path: str, direct: bool, access: int, opened: int | None) -> tuple[int, bool]:
    """Open a file, or that of the descriptor `opened`; return the descriptor, and whether it has
    O_DIRECT."""
    flags, name = access | os.O_CLOEXEC, path if opened is None else f"/proc/self/fd/{opened}"
    try:
        if not direct:
            return os.open(name, flags), False
        try:
            fd = os.open(name, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            if lib.gd_dio_alignment(fd, ffi.new("int64_t *"), ffi.new("int64_t *")) == 0:
                return fd, True
            os.close(fd)
        warnings.warn(
            f"the file system of {path} has no direct I/O: reads go through the page cache, whose "
            "memory is not counted; put the store, or folder=, on ext4, XFS or the like",
            RuntimeWarning,
            stacklevel=3,
        )
        return os.open(name, flags), False
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened: {error.strerror}; check the store (gnndrive "
            "verify), and the limit of open files (ulimit -n)"
        ) from error


def _sector_bytes(fd: int) -> int:
    """Return the alignment in bytes that direct reads of `fd` need, in the file and in memory."""
    memory, offset = ffi.new("int64_t *"), ffi.new("int64_t *")
    lib.gd_dio_alignment(fd, memory, offset)
    return max(int(memory[0]), int(offset[0]), SECTOR_BYTES)
