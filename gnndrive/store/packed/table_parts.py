"""A table of rows, read once in parts that fit in memory, with long direct reads.

`TableParts` reads a part while the caller works on the one before, so it holds two. It reads with
O_DIRECT, because a table larger than memory would only push other files out of the page cache; if
the file system refuses that, it reads through the page cache and tells the kernel to drop what it
read. When not to use it: for a few rows of a table, which an engine reads on demand.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.direct_file import PAGE_BYTES, STRETCH_BYTES, DirectFile, whole_pages
from gnndrive.common.errors import StoreError
from gnndrive.common.limits import named_limit, refusal
from gnndrive.common.records import TableFile

Bytes = npt.NDArray[np.uint8]


def page_buffer(nbytes: int) -> Bytes:
    """Memory of whole pages for long reads or writes, which starts on a page."""
    return np.frombuffer(private_map(whole_pages(nbytes), huge=True), np.uint8)


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of a table in memory.

    Attributes:
        first: the number of the first row in the table.
        count: how many rows there are.
        rows: their bytes, uint8 [count * row_bytes].
    """

    first: int
    count: int
    rows: Bytes


class DirectReader:
    """A file that is read in long stretches past the page cache. A context manager.

    Args:
        path: the file.

    Raises:
        StoreError: the file cannot be opened.
        ConfigError: too many files are open.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._stopped = False
        short = "became shorter: copy or import the store again, and pack again"
        try:
            self._open = DirectFile(path, short)
        except OSError as error:
            raise refusal(error.errno or 0) or StoreError(
                f"{self.path} cannot be opened: {error.strerror}; check the store (gnndrive verify)"
            ) from error

    def __enter__(self) -> DirectReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def stop(self) -> None:
        """Have a `read` in another thread end after its current stretch."""
        self._stopped = True

    def read(self, offset: int, length: int, buffer: Bytes) -> Bytes:
        """Read `length` bytes at any byte of the file.

        Args:
            offset, length: what to read.
            buffer: of `page_buffer`, at least `length` bytes and two pages long.

        Returns:
            The bytes, a view of `buffer`.

        Raises:
            ReadError: the disk failed.
            StoreError: the file is too short.
        """
        lead = offset % PAGE_BYTES
        start, end = offset - lead, offset + length
        with buffer.data as memory:
            for at in range(start, end, STRETCH_BYTES):
                if self._stopped:
                    break
                stretch = min(STRETCH_BYTES, end - at)
                place = at - start
                self._open.read(at, stretch, memory[place : place + whole_pages(stretch)])
        return buffer[lead : lead + length]


class TableParts:
    """The parts of one table.

    Args:
        table: the table.
        part_bytes: bytes of each of the two buffers, at least one row and two pages.
    """

    def __init__(self, table: TableFile, part_bytes: int) -> None:
        self.table = table
        self.part_rows = max((part_bytes - 2 * PAGE_BYTES) // table.row_bytes, 1)
        self.buffers = [
            page_buffer(self.part_rows * table.row_bytes + 2 * PAGE_BYTES) for _ in range(2)
        ]

    def parts(self, first: int, last: int) -> Generator[Part, None, None]:
        """Yield the rows [first, last) in order; close the iterator if you leave it early.

        A part is valid until the next one is asked for.

        Raises:
            ReadError, StoreError: see `DirectReader`.
        """
        if first >= last:
            return
        with DirectReader(self.table.path) as reader:
            thread = ThreadPoolExecutor(1, thread_name_prefix="gnndrive-read")
            try:
                with named_limit():
                    ahead = thread.submit(self._read, reader, first, last, 0)
                number = 0
                while first < last:
                    part = ahead.result()
                    first += part.count
                    number += 1
                    if first < last:
                        ahead = thread.submit(self._read, reader, first, last, number % 2)
                    yield part
            finally:
                reader.stop()
                thread.shutdown()

    def _read(self, reader: DirectReader, first: int, last: int, number: int) -> Part:
        count = min(self.part_rows, last - first)
        width = self.table.row_bytes
        offset = self.table.data_offset + first * width
        rows = reader.read(offset, count * width, self.buffers[number])
        return Part(first, count, rows)
