"""`SequentialReader`: reads a file of numbers in long stretches, past the page cache.

Used when a loader starts and reads all or much of a graph's indices or labels once. It reads with
O_DIRECT; if the file system refuses that, it reads through the page cache and tells the kernel to
drop each stretch. It blocks and has one read in flight: for scattered rows use a layout and an
engine.
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
PAGE_BYTES = 4096  # no device requires a larger alignment


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
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            try:
                self._fd, self._direct = os.open(file.path, flags | os.O_DIRECT), True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._fd, self._direct = os.open(file.path, flags), False
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
        os.close(self._fd)

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
            start, numbers = self.stretch(position)
            numbers = numbers[position - start : last - start]
            yield position, numbers
            position += numbers.size

    def stretch(self, position: int) -> tuple[int, npt.NDArray[Any]]:
        """Read the stretch that starts at or just before `position`, on a page.

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
        length = min(STRETCH_BYTES, self.file.row_count * width - at)
        with memoryview(self._pages) as memory:
            self._read(self.file.data_offset + at, length, memory[: whole_pages(length)])
        return at // width, np.frombuffer(self._pages, self.dtype, length // width)

    def _read(self, offset: int, length: int, memory: memoryview) -> None:
        """Read `length` bytes at `offset` into `memory`, which is as long in whole pages."""
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
        """Reopen without O_DIRECT: the file system accepts the flag, but refuses these reads."""
        buffered = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd, self._direct = buffered, False


def whole_pages(nbytes: int) -> int:
    """Return `nbytes`, rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
