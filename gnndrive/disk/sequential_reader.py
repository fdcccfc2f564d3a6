"""`SequentialReader`: reads a file of numbers in long stretches, past the page cache.

Used when a loader starts and reads all or much of a graph's indices or labels once. It blocks and
has one read in flight: for scattered rows use a layout and an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.io.direct_file import (
    PAGE_BYTES,
    STRETCH_BYTES,
    Bytes,
    DirectReader,
    page_buffer,
)
from gnndrive.common.records import TableFile


class SequentialReader:
    """An open file of numbers.

    Args:
        file: the file, in which each row is one number and the first starts at a multiple of 4,096
            bytes.

    Raises:
        StoreError: the file cannot be opened.
        ConfigError: too many files are open.
    """

    def __init__(self, file: TableFile) -> None:
        assert file.data_offset % PAGE_BYTES == 0
        assert PAGE_BYTES % file.row_bytes == 0
        self.file = file
        self.dtype = np.dtype(file.dtype)
        self._pages: Bytes | None = None
        self._reader = DirectReader(file.path, "copy or import the store again")

    def __enter__(self) -> SequentialReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self._reader.close()

    def stretches(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the numbers [first, last) in order, in stretches.

        Args:
            first, last: positions of numbers; `last` None: the end of the file.

        Yields:
            The position of a stretch's first number, and its numbers, at most 4 MiB, valid until
            the next stretch.

        Raises:
            ReadError, StoreError: see `stretch`.
        """
        position, last = first, self.file.row_count if last is None else last
        while position < last:
            start, numbers = self.stretch(position, last)
            numbers = numbers[position - start : last - start]
            yield position, numbers
            position += numbers.size

    def stretch(self, position: int, last: int | None = None) -> tuple[int, npt.NDArray[Any]]:
        """Read the stretch that starts at or just before `position`, on a page.

        Args:
            last: where the stretch ends at the latest; None: the end of the file.

        Returns:
            The position of its first number, and its numbers, at most 4 MiB, valid until the next
            call.

        Raises:
            ReadError: the disk failed.
            StoreError: the file is too short.
        """
        if self._pages is None:
            self._pages = page_buffer(STRETCH_BYTES)
        width = self.file.row_bytes
        at = position * width // PAGE_BYTES * PAGE_BYTES
        end = self.file.row_count if last is None else last
        length = min(STRETCH_BYTES, end * width - at)
        found = self._reader.read(self.file.data_offset + at, length, self._pages)
        return at // width, found.view(self.dtype)
