"""`LongWriter`: a file written once from its beginning, in long writes past the page cache.

The caller fills one buffer while a thread writes the other, because buffered writes take 20 times
the processor time for each byte, and dirty pages count in a cgroup. The file exists whole or not at
all: it is written under another name, fsynced and renamed. When not to use it: for slices of rows
at known places (packed/row_writer.py), and for small files (packed/volumes.py, `write_whole`).
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.atomic_files import fsync_folder
from gnndrive.common.direct_file import PAGE_BYTES, whole_pages
from gnndrive.common.limits import named_limit
from gnndrive.store.packed.reserving import write_failure
from gnndrive.store.packed.table_parts import Bytes, page_buffer
from gnndrive.store.packed.volumes import PART

BUFFER_BYTES = 4 << 20
BUFFERS = 2
_SYNCED_BYTES = 64 << 20  # of a file system without direct writes


class LongWriter:
    """See the module. A context manager; without `finish` the file does not come into being.

    Args:
        path: the file; one that is there is replaced.

    Raises:
        StoreError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(path.name + PART)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self._part, flags, 0o666)
        except OSError as error:
            raise write_failure(path, error) from error
        self._direct = True
        try:
            direct = os.open(self._part, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECT)
        except OSError:
            self._direct = False
        else:
            os.close(self._fd)
            self._fd = direct
        self._buffers = [page_buffer(BUFFER_BYTES) for _ in range(BUFFERS)]
        self._written = self._dirty = 0  # bytes, those in the full buffers included
        self._filled = 0  # bytes of the first buffer
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gnndrive-write")

    def __enter__(self) -> LongWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self._thread.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def append(self, content: bytes | npt.NDArray[Any]) -> None:
        """Write the bytes of an array, or bytes.

        Raises:
            StoreError: this or an earlier write failed.
            ConfigError: the system refuses another thread.
        """
        if isinstance(content, bytes):
            left: Bytes = np.frombuffer(content, np.uint8)
        else:
            left = content.reshape(-1).view(np.uint8)
        while left.size:
            count = min(BUFFER_BYTES - self._filled, left.size)
            self._buffers[0][self._filled : self._filled + count] = left[:count]
            self._filled, left = self._filled + count, left[count:]
            if self._filled == BUFFER_BYTES:
                self._submit()

    def finish(self) -> None:
        """Make the file durable and give it its name.

        Raises:
            StoreError: a write failed.
        """
        nbytes = self._written + self._filled
        if self._filled:
            self._buffers[0][self._filled :] = 0
            self._filled = whole_pages(self._filled)
            self._submit()
        self._settle()
        try:
            os.ftruncate(self._fd, nbytes)
            os.fsync(self._fd)
            os.rename(self._part, self._path)
            fsync_folder(self._path.parent)
        except OSError as error:
            raise write_failure(self._path, error) from error

    def _submit(self) -> None:
        """Have the first buffer written, and put the other in its place."""
        self._settle()
        buffer, at = self._buffers[0][: self._filled], self._written
        with named_limit():
            self._pending = self._thread.submit(self._write, buffer, at)
        self._written, self._filled = at + self._filled, 0
        self._buffers.reverse()

    def _settle(self) -> None:
        """Wait until the buffer that was submitted is written."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except OSError as error:
            raise write_failure(self._path, error) from error

    def _write(self, buffer: Bytes, at: int) -> None:
        assert at % PAGE_BYTES == buffer.size % PAGE_BYTES == 0
        done = 0
        while done < buffer.size:
            try:
                done += os.pwrite(self._fd, buffer[done:].data, at + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._reopen()
        self._dirty += 0 if self._direct else buffer.size
        if self._dirty >= _SYNCED_BYTES:
            os.fdatasync(self._fd)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._dirty = 0

    def _reopen(self) -> None:
        """Reopen without O_DIRECT: the file system accepts the flag, but refuses such writes."""
        buffered = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd, self._direct = buffered, False
