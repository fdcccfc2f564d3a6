"""The Layout interface: where rows lie on disk, and the planned reads that bring them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.reader import Store

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


@dataclass(frozen=True, slots=True)
class LayoutContext:
    """What a layout is made from; each takes what it needs.

    Attributes:
        file: the array whose rows are to be found, as the store has it.
        extent_bytes_max: no read is longer, in bytes, unless a single row is.
        gap_bytes_max: two rows are read as one if at most this many unwanted bytes lie between
            them.
        repeats: whether one plan may ask for a row several times, for several slots.
        store: whose array; None: a file alone.
    """

    file: TableFile
    extent_bytes_max: int = BLOCK_BYTES
    gap_bytes_max: int = 0
    repeats: bool = False
    store: Store | None = None


class Layout(ABC):
    """Where the rows of one table lie on disk.

    Attributes:
        path: the file's path, for errors.
    """

    name: str
    path: str

    @classmethod
    @abstractmethod
    def make(cls, context: LayoutContext) -> Self:
        """A layout with its files open.

        Raises:
            ConfigError: a setting cannot work.
            StoreError: a file cannot be opened.
        """

    @abstractmethod
    def locate(self, rows: Int64Array, slots: Int32Array, landing: Landing) -> ReadJob:
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
