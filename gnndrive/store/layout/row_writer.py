"""Writes slices of rows to known places of files, past the page cache.

A slice starts and ends at any byte. Its whole pages are written with O_DIRECT, the fragments of a
page at its two ends through the page cache: buffered writes take 20 times the processor time for
each byte, and dirty pages count in a cgroup. The caller's thread gathers into one buffer while
threads of the writer write the others.

When not to use it: for a file that is written in order from its beginning (`DirectWriter`).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, DirectFile, page_buffer, whole_pages
from gnndrive.common.io.small_files import make_durable
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.threads import submit
from gnndrive.store.layout.table_parts import SUM_MODULUS, Ids, Part, gather

BUFFERS = 4
BUFFER_BYTES = 4 << 20  # long enough for the disk's full bandwidth
_THREADS = 2
_FILES_MAX = 32  # open at the same time, each with two descriptors
_SYNCED_BYTES_MIN = 1 << 20
_DIRECT_BYTES_MIN = 32 << 10  # shorter slices are cheaper through the page cache


Fill = Callable[[int, int, Bytes], None]
"""Called as fill(done, count, out) for all rows in order: put the bytes of the `count` rows behind
the first `done` into out."""


def buffer_bytes(row_bytes: int) -> int:
    """Bytes of each of a writer's `BUFFERS` buffers."""
    return max(BUFFER_BYTES, whole_pages(row_bytes) + PAGE_BYTES)


class _File:
    """An open file: one descriptor for whole pages, one for fragments."""

    def __init__(self, path: Path) -> None:
        self.path, flags = path, os.O_WRONLY | os.O_NOFOLLOW
        self.fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            self._pages = DirectFile(path, flags)
        except BaseException:
            os.close(self.fd)
            raise

    def write(self, buffer: Bytes, base: int, start: int, end: int) -> int:
        """Write buffer[start:end]; buffer[0] belongs at byte `base` of the file, on a page. Returns
        how many of the bytes went through the page cache."""
        head, tail = whole_pages(start), end // PAGE_BYTES * PAGE_BYTES
        if not self._pages.direct or tail - head < _DIRECT_BYTES_MIN:
            self._put(buffer, base, start, end)
            return end - start
        self._put(buffer, base, start, head)
        self._pages.write(buffer[head:tail].data, base + head)
        self._put(buffer, base, tail, end)
        return head - start + end - tail if self._pages.direct else end - start

    def _put(self, buffer: Bytes, base: int, start: int, end: int) -> None:
        while start < end:
            start += os.pwrite(self.fd, buffer[start:end].data, base + start)

    def close(self, drop: bool) -> None:
        """Close the file; `drop` its clean pages from the page cache if it has whole ones there."""
        if drop and not self._pages.direct:
            self._pages.drop()
        os.close(self.fd)
        self._pages.close()


class RowWriter:
    """See the module. A context manager; after an error it can only be closed.

    All files are on the file systems of `folder` and `others`; at most `dirty_bytes_max` bytes wait
    in the page cache to be written to the disk.
    """

    def __init__(
        self, folder: Path, row_bytes: int, dirty_bytes_max: int, others: Sequence[Path] = ()
    ) -> None:
        self._folders, self._row_bytes = (folder, *others), row_bytes
        self._dirty, self._dirty_max = 0, dirty_bytes_max
        self._free: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(page_buffer(buffer_bytes(row_bytes)))
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()
        self._failed: tuple[Path, BaseException] | None = None  # the first failure of a write
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gnndrive-write")

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        with deferred_interrupts():  # one may leave a lock of the pool held
            self._threads.shutdown()
        self._close_files(drop=False)

    def write(self, part: Part, path: Path, offset: int, ids: Ids, position: int) -> int:
        """Gather the rows `ids` of a part, have them written, and return their checksum.

        `path` is at its full size; the first row starts at byte `offset` of it, and at `position`
        of its array.
        """
        total, width = 0, self._row_bytes

        def fill(done: int, count: int, out: Bytes) -> None:
            nonlocal total
            total += gather(part, width, ids[done : done + count], position + done, out)

        self.fill(path, offset, len(ids), fill)
        return total % SUM_MODULUS

    def fill(self, path: Path, offset: int, rows: int, fill: Fill) -> None:
        """Have `rows` consecutive rows written that `fill` makes; arguments as for `write`.
        StoreError: this or an earlier write failed."""
        done, width = 0, self._row_bytes
        if self._dirty >= self._dirty_max:
            self.sync()
        file = self._open(path)
        start = end = offset % PAGE_BYTES  # the valid bytes of the buffer
        base = offset - start
        buffer = self._take()
        while done < rows:
            count = min((buffer.size - end) // width, rows - done)
            fill(done, count, buffer[end : end + count * width])
            done, end = done + count, end + count * width
            if done == rows:
                break
            cut = end // PAGE_BYTES * PAGE_BYTES
            following = self._take()
            following[: end - cut] = buffer[cut:end]
            submit(self._threads, self._write, file, buffer, base, start, cut)
            buffer, base, start, end = following, base + cut, 0, end - cut
        submit(self._threads, self._write, file, buffer, base, start, end)

    def sync(self) -> None:
        """Wait for all writes, and make them durable."""
        self._settle()
        for folder in self._folders:
            try:
                make_durable(folder)
            except OSError as error:
                raise write_failure(folder, error) from error
        self._dirty = 0
        self._close_files(drop=True)

    def _open(self, path: Path) -> _File:
        if path not in self._files:
            if len(self._files) >= _FILES_MAX:
                self._settle()
                self._close_files(drop=False)
            try:
                self._files[path] = _File(path)
            except OSError as error:
                raise write_failure(path, error) from error
        return self._files[path]

    def _close_files(self, drop: bool) -> None:
        while self._files:
            self._files.popitem()[1].close(drop)

    def _take(self) -> Bytes:
        """A buffer that no thread writes; waits for one."""
        buffer = self._free.get()
        self._check()
        return buffer

    def _write(self, file: _File, buffer: Bytes, base: int, start: int, end: int) -> None:
        try:
            dirty = file.write(buffer, base, start, end)
            if dirty >= _SYNCED_BYTES_MIN:  # a file system without direct writes
                os.fdatasync(file.fd)
                dirty = 0
            with self._lock:
                self._dirty += dirty
        except BaseException as error:
            if self._failed is None:
                self._failed = file.path, error
        finally:
            self._free.put(buffer)

    def _settle(self) -> None:
        """Wait for all writes, and check them."""
        buffers = [self._free.get() for _ in range(BUFFERS)]
        for buffer in buffers:
            self._free.put(buffer)
        self._check()

    def _check(self) -> None:
        if self._failed is None:
            return
        path, error = self._failed
        if isinstance(error, OSError):
            raise write_failure(path, error) from error
        raise error
