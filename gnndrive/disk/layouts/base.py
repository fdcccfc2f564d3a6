"""The Layout interface: knows where rows lie on disk, and plans the reads that bring them.

A tier asks a layout for a `ReadJob` (`locate`) after a lease has said which rows are missing, and
hands the job to an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.reader import Store
from gnndrive.store.striped.format import StripedRows

BLOCK_BYTES = 65536
"""A layout's largest read by default."""
SWEEP_BLOCK_BYTES = 262144
"""The loader's largest read and its staging block, for features and adjacency, unless a row is
larger. Larger than `BLOCK_BYTES`, because the extents of a sweep are long, and four reads of 64 KiB
cost a third more than one of 256 KiB."""
_SECTOR_BYTES_MAX = 4096


def block_bytes(row_bytes: int) -> int:
    """Return the bytes of the loader's staging blocks for rows of `row_bytes`: `SWEEP_BLOCK_BYTES`,
    or the whole sectors that a longer row takes at any offset."""
    whole = -(-row_bytes // _SECTOR_BYTES_MAX) * _SECTOR_BYTES_MAX
    return max(SWEEP_BLOCK_BYTES, whole + _SECTOR_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class LayoutContext:
    """What `Layout.make` gets; a layout uses the attributes that it needs.

    Attributes:
        file: the file of the array, as the store has it.
        extent_bytes_max: the most bytes of one read, unless a single row is longer.
        gap_bytes_max: two rows are read as one if at most this many unwanted bytes lie between
            them.
        repeats: whether one plan may contain a row several times, for several places.
        store: the store of the array; None for a file without a store.
        derived: the file of the table's rows in a derived folder, such as a pack; None: the loader
            reads the store alone.
        stripes: the copies of the table's rows on several disks; None: there are none, or they are
            not to be read.
    """

    file: TableFile
    extent_bytes_max: int = BLOCK_BYTES
    gap_bytes_max: int = 0
    repeats: bool = False
    store: Store | None = None
    derived: TableFile | None = None
    stripes: StripedRows | None = None


class Layout(ABC):
    """The place of one table's rows on disk.

    Attributes:
        path: the file's path, for errors.
        ahead_bytes: how many bytes of the rows behind a row may be read for the price of a request;
            0: they are elsewhere.
        reads_stripes: whether it reads the copies of rows on several disks, if there are any.
    """

    name: str
    path: str
    ahead_bytes = 0
    reads_stripes = False

    @classmethod
    @abstractmethod
    def make(cls, context: LayoutContext) -> Self:
        """Make a layout and open its files.

        Raises:
            ConfigError: a setting cannot work.
            StoreError: a file cannot be opened.
        """

    @abstractmethod
    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        """Plan the reads that bring `rows` to `places`.

        Args:
            rows: row numbers, int64 [n], in any order; each once, unless the context has `repeats`.
            places: the place of each row in the landing, int32 [n].
            landing: the memory in which the places are.

        Raises:
            ValueError: a row is out of range or requested twice.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files; the caller makes sure that no read is under way."""
