"""The Layout interface, where rows lie on disk, and `Reads`, the planned reads that engines carry
out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import Int32Array, Int64Array, Landing

BLOCK_BYTES = 65536
"""A layout's largest read if nothing else is said."""
SWEEP_BLOCK_BYTES = 262144
"""The loader's largest read, of features or of the adjacency, and its staging blocks, unless a row
is larger: a sweep's extents are long, and four reads of 64 KiB cost a third more than one of 256
KiB."""
_SECTOR_BYTES_MAX = 4096


def block_bytes(row_bytes: int) -> int:
    """`SWEEP_BLOCK_BYTES`, or what a longer row takes in whole sectors wherever it lies."""
    whole = -(-row_bytes // _SECTOR_BYTES_MAX) * _SECTOR_BYTES_MAX
    return max(SWEEP_BLOCK_BYTES, whole + _SECTOR_BYTES_MAX)


class Reads:
    """Planned reads of one file: the C state machine (`native/reads.c`) and what Python needs
    beside it.

    Attributes:
        handle: the C `gd_reads *`; freed with this object, which engines therefore hold until it is
            finished.
        fd: an open descriptor; with O_DIRECT but for the simulated engine.
        path: the file's path, for errors.
    """

    def __init__(self, handle: Any, fd: int, path: str) -> None:
        self.handle = ffi.gc(handle, lib.gd_reads_free)
        self.fd = fd
        self.path = path

    @property
    def rows(self) -> int:
        """Rows to read."""
        return int(lib.gd_reads_rows(self.handle))

    @property
    def requests(self) -> int:
        """Extents, each one request when nothing is retried."""
        return int(lib.gd_reads_extents(self.handle))

    @property
    def nbytes(self) -> int:
        """Bytes that the extents ask of the device, rounded out to sectors."""
        return int(lib.gd_reads_bytes(self.handle))

    def cancel(self) -> None:
        """Let extents that were not started fail with ECANCELED; those in flight still end."""
        lib.gd_reads_cancel(self.handle)


class Layout(ABC):
    """Where the rows of one table lie on disk.

    Attributes:
        path: the file's path, for errors.
    """

    name: str
    path: str

    @abstractmethod
    def locate(self, rows: Int64Array, slots: Int32Array, landing: Landing) -> Reads:
        """Plan the reads that bring `rows` into `slots`.

        Args:
            rows: row numbers, each once, int64 [n], any order.
            slots: the slot of each, int32 [n].
            landing: where slots are.

        Raises:
            ValueError: a row is out of range.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files; no reads may be under way."""
