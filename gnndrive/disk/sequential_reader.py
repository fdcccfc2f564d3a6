"""`SequentialReader`: reads a file of numbers in long stretches, past the page cache.

Used when a loader starts and reads all or much of a graph's indices or labels once. It blocks and
has one read in flight: for scattered rows use a layout and an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.io.direct_file import PAGE_BYTES, STRETCH_BYTES, DirectReader, page_buffer
from gnndrive.common.records import TableFile


class SequentialReader:
    """An open file of numbers: each row is one number, and the first starts on a page."""

    def __init__(self, file: TableFile) -> None:
        assert file.data_offset % PAGE_BYTES == 0
        assert PAGE_BYTES % file.row_bytes == 0
        self.file = file
        self.dtype = np.dtype(file.dtype)
        self._pages = page_buffer(STRETCH_BYTES)
        self._reader = DirectReader(file.path)

    def __enter__(self) -> SequentialReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self._reader.close()

    def stretches(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the numbers [first, last) in stretches, as `stretch` returns them; `last` None: to
        the end of the file."""
        position, last = first, self.file.row_count if last is None else last
        while position < last:
            start, numbers = self.stretch(position, last)
            numbers = numbers[position - start : last - start]
            yield position, numbers
            position += numbers.size

    def stretch(self, position: int, last: int | None = None) -> tuple[int, npt.NDArray[Any]]:
        """Read the stretch that starts at or just before `position`, on a page, and ends at `last`
        or the end of the file at the latest.

        Returns:
            The position of its first number, and its numbers, at most 4 MiB, valid until the next
            call.
        """
        width = self.file.row_bytes
        at = position * width // PAGE_BYTES * PAGE_BYTES
        end = self.file.row_count if last is None else last
        length = min(STRETCH_BYTES, end * width - at)
        found = self._reader.read(self.file.data_offset + at, length, self._pages)
        return at // width, found.view(self.dtype)
