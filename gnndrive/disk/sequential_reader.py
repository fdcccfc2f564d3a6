"""Columns of numbers read from their files in long stretches, past the page cache.

For the start, when all or much of a graph's indices or labels is read once: with O_DIRECT, and
where the file system refuses that, through the page cache, which is told to drop each stretch.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.records import TableFile

STRETCH_BYTES = 4 << 20  # long enough for the disk's full bandwidth
PAGE_BYTES = 4096  # no device asks for more alignment


class SequentialReader:
    """An open file of numbers.

    Args:
        file: where they are; rows of one number, the first at a multiple of 4,096 bytes.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, file: TableFile) -> None:
        assert file.data_offset % PAGE_BYTES == 0
        assert PAGE_BYTES % file.row_bytes == 0
        self.file = file
        self.dtype = np.dtype(file.dtype)
        self._pages: mmap.mmap | None = None
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            try:
                self._fd, self._direct = os.open(file.path, flags | os.O_DIRECT), True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._fd, self._direct = os.open(file.path, flags), False
        except OSError as error:
            raise StoreError(f"{file.path} cannot be opened: {error.strerror}") from error

    def __enter__(self) -> SequentialReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def stretches(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Numbers [first, last) in order: the position of some, and these, valid until the next."""
        position, last = first, self.file.row_count if last is None else last
        while position < last:
            start, numbers = self.stretch(position)
            numbers = numbers[position - start : last - start]
            yield position, numbers
            position += numbers.size

    def stretch(self, position: int) -> tuple[int, npt.NDArray[Any]]:
        """Some numbers around `position`: the position of the first, and up to 4 MB of them, valid
        until the next call.

        Raises:
            ReadError: the disk failed.
            StoreError: the file is too short.
        """
        if self._pages is None:
            self._pages = private_map(STRETCH_BYTES, huge=True)
        width = self.file.row_bytes
        at = position * width // PAGE_BYTES * PAGE_BYTES
        length = min(STRETCH_BYTES, self.file.row_count * width - at)
        with memoryview(self._pages) as memory:
            self._read(self.file.data_offset + at, length, memory[: whole_pages(length)])
        return at // width, np.frombuffer(self._pages, self.dtype, length // width)

    def _read(self, offset: int, length: int, memory: memoryview) -> None:
        """`length` bytes at `offset`; `memory` is a little longer, in whole pages."""
        done = 0
        while done < length:
            try:
                got = os.preadv(self._fd, [memory[done:]], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and self._direct:
                    self._reopen()
                    continue
                raise ReadError(self.file.path, offset + done, error.errno or 0) from error
            if got == 0:
                raise StoreError(
                    f"{self.file.path} became shorter than its {self.file.row_count} numbers: "
                    "copy or import the store again"
                )
            done += got
        if not self._direct:
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def _reopen(self) -> None:
        """A file system that takes O_DIRECT, but not for reads aligned like these."""
        buffered = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd, self._direct = buffered, False


def whole_pages(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
