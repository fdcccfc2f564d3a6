"""`SequentialReader`: reads a file of numbers in long stretches, past the page cache.

Used when a loader starts and reads all or much of a graph's indices or labels once. It reads with
O_DIRECT; if the file system refuses that, it reads through the page cache and tells the kernel to
drop each stretch. It blocks and has one read in flight: for scattered rows use a layout and an
engine.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.direct_file import PAGE_BYTES, STRETCH_BYTES, DirectFile, whole_pages
from gnndrive.common.errors import StoreError
from gnndrive.common.records import TableFile


class SequentialReader:
    """An open file of numbers.

    Args:
        file: the file, in which each row is one number and the first starts at a multiple of 4,096
            bytes.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, file: TableFile) -> None:
        assert file.data_offset % PAGE_BYTES == 0
        assert PAGE_BYTES % file.row_bytes == 0
        self.file = file
        self.dtype = np.dtype(file.dtype)
        self._pages: mmap.mmap | None = None
        short = f"became shorter than its {file.row_count} numbers: copy or import the store again"
        try:
            self._open = DirectFile(file.path, short)
        except OSError as error:
            raise StoreError(
                f"{file.path} cannot be opened: {error.strerror}; check the store (gnndrive "
                "verify), and the limit of open files (ulimit -n)"
            ) from error

    def __enter__(self) -> SequentialReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

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
            position: of a number.
            last: where the stretch ends at the latest; None: the end of the file.

        Returns:
            The position of its first number, and its numbers, at most 4 MiB, valid until the next
            call.

        Raises:
            ReadError: the disk failed.
            StoreError: the file is too short.
        """
        if self._pages is None:
            self._pages = private_map(STRETCH_BYTES, huge=True)
        width = self.file.row_bytes
        at = position * width // PAGE_BYTES * PAGE_BYTES
        end = self.file.row_count if last is None else last
        length = min(STRETCH_BYTES, end * width - at)
        with memoryview(self._pages) as memory:
            self._open.read(self.file.data_offset + at, length, memory[: whole_pages(length)])
        return at // width, np.frombuffer(self._pages, self.dtype, length // width)
