"""`DirectFile`: a file that is read in long stretches past the page cache.

It reads with O_DIRECT. If the file system refuses that, it reads through the page cache and tells
the kernel to drop what it read. One read at a time, which blocks: for scattered rows use a layout
and an engine.
"""

from __future__ import annotations

import errno
import os

from gnndrive.common.errors import ReadError, StoreError

STRETCH_BYTES = 4 << 20  # long enough for the disk's full bandwidth
PAGE_BYTES = 4096  # no device requires a larger alignment


class DirectFile:
    """An open file.

    Args:
        path: the file.
        too_short: what an error says behind the path if the file ends too early.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], too_short: str) -> None:
        self._path, self._too_short = os.fspath(path), too_short
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            self._fd, self._direct = os.open(path, flags | os.O_DIRECT), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd, self._direct = os.open(path, flags), False

    def read(self, offset: int, length: int, memory: memoryview) -> None:
        """Read `length` bytes at `offset`.

        Args:
            offset: a multiple of `PAGE_BYTES`.
            length: the bytes that must be there.
            memory: takes them; starts on a page and is `length` long in whole pages.

        Raises:
            ReadError: the disk failed.
            StoreError: the file is too short.
        """
        done = 0
        while done < length:
            try:
                got = os.preadv(self._fd, [memory[done:]], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and self._direct:
                    self._reopen()
                    continue
                raise ReadError(self._path, offset + done, error.errno or 0) from error
            if got == 0:
                raise StoreError(f"{self._path} {self._too_short}")
            done += got
        if not self._direct:
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _reopen(self) -> None:
        """Reopen without O_DIRECT: the file system accepts the flag, but refuses these reads."""
        buffered = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd, self._direct = buffered, False


def whole_pages(nbytes: int) -> int:
    """Return `nbytes`, rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
