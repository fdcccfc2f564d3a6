"""A table of rows, read once in parts that fit in memory, with long direct reads.

`TableParts` reads a part while the caller works on the one before, so it holds two. It reads with
O_DIRECT, because a table larger than memory would only push other files out of the page cache; if
the file system refuses that, it reads through the page cache and tells the kernel to drop what it
read. When not to use it: for a few rows of a table, which an engine reads on demand.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, DirectReader, page_buffer
from gnndrive.common.limits import named_limit
from gnndrive.common.records import TableFile


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
