"""`DirectWriter`: a file that is written in order, in long pieces past the page cache.

The caller fills one piece while one thread writes the other and another one hashes it. Buffered
writes take 20 times the processor time for each byte, dirty pages count in a cgroup, and a page
cache full of them would take the memory that rows in use need. When not to use it: for slices of
rows at known places (store/layout/row_writer.py), and for small files (small_files.py).
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.io.direct_file import (
    PAGE_BYTES,
    STRETCH_BYTES,
    DirectFile,
    page_buffer,
    reserve,
    whole_pages,
)
from gnndrive.common.io.small_files import PART, fsync_folder
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.threads import submit

PIECE_BYTES = STRETCH_BYTES
WRITER_BYTES = 2 * PIECE_BYTES
_SYNCED_BYTES = 64 << 20  # of a file system without direct writes


class DirectWriter:
    """See the module. A context manager, which closes it.

    Args:
        path: the file; one that is there is replaced, unless `done` is given.
        done: bytes that an earlier writer has made durable, behind which this one goes on.
        nbytes: the size of the whole file, which is reserved; 0: it is not known.
        whole: whether the file exists whole or not at all: it is written as `PART` and gets its
            name from `finish`.
        checksum: whether to compute the file's.
        failure: makes the error for a call that failed; None: it says that the same call goes on.
    """

    def __init__(
        self, path: Path, done: int = 0, nbytes: int = 0, whole: bool = False,
        checksum: bool = False, failure: Callable[[OSError], Exception] | None = None,
    ) -> None:  # fmt: skip
        self._path, self._nbytes, self._named = path, nbytes, failure
        self._written = path.with_name(path.name + PART) if whole else path
        self._digest = hashlib.sha256() if checksum else None
        self._start = self._end = 0  # bytes of the file: pieces begin at _start, filled up to _end
        self._unsynced = 0
        self._failed: OSError | None = None  # the first failure: nothing is durable after it
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (0 if done else os.O_TRUNC)
        try:
            self._file = DirectFile(self._written, flags)
        except OSError as error:
            raise self._failure(error) from error
        names = ["gnndrive-write", "gnndrive-hash"][: 1 + checksum]
        self._threads = [ThreadPoolExecutor(1, name) for name in names]
        try:
            self._pieces = [page_buffer(PIECE_BYTES) for _ in range(2)]
            if nbytes:
                reserve(self._file.fd, 0, whole_pages(nbytes))
            self._recall(done)
        except OSError as error:
            self.close()
            raise self._failure(error) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DirectWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def append(self, content: bytes | npt.NDArray[Any]) -> None:
        """Write bytes, or those of a contiguous array. StoreError if the disk is full or fails,
        also if it did so before."""
        if isinstance(content, bytes):
            array: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8)
        else:
            array = content.reshape(-1).view(np.uint8)
        # What was put ends at `_end`, which one assignment moves, behind all else: so an
        # interruption at any place leaves the writer as it was, or as it is afterwards.
        done = 0
        while done < len(array):
            piece, at, fill = self._piece()
            step = min(len(array) - done, PIECE_BYTES - fill)
            piece[fill : fill + step] = array[done : done + step]
            if fill + step == PIECE_BYTES:
                self._wait()
                submit(self._threads[0], self._write_full, piece, at)
                if self._digest is not None:
                    submit(self._threads[1], self._digest.update, piece.data)
            self._end += step
            done += step

    def sync(self) -> None:
        """Make all that was written durable; for errors see `append`."""
        try:
            self._write_rest()
            self._sync()
        except OSError as error:
            raise self._failure(error) from error

    def finish(self) -> str:
        """End the file behind what was written, durably, and close it. Return its SHA-256 in
        hexadecimal digits; "" without `checksum`."""
        try:
            rest = self._write_rest()
            if self._digest is not None:
                self._digest.update(rest.data)
            os.ftruncate(self._file.fd, self._end)
            os.fsync(self._file.fd)
            if self._written != self._path:
                os.rename(self._written, self._path)
                fsync_folder(self._path.parent)
        except OSError as error:
            raise self._failure(error) from error
        self.close()
        return self._digest.hexdigest() if self._digest else ""

    def close(self) -> None:
        """Wait for a write under way and close the file. Idempotent."""
        with deferred_interrupts():
            for thread in self._threads:
                thread.shutdown()
        self._file.close()
        self._pieces = []

    def _recall(self, end: int) -> None:
        """Go on behind the bytes below `end`: read back the page that is not full, and all pages
        before it for the checksum."""
        whole = end // PAGE_BYTES * PAGE_BYTES
        if self._digest is not None:
            for start in range(0, whole, PIECE_BYTES):
                length = min(PIECE_BYTES, whole - start)
                self._read(start, length)
                self._digest.update(self._pieces[0][:length].data)
        if whole < end:
            self._read(whole, PAGE_BYTES)
        self._start, self._end = whole, end

    def _read(self, start: int, length: int) -> None:
        if self._file.read(self._pieces[0][:length].data, start, length) < length:
            raise OSError(errno.EIO, "the file became shorter")

    def _piece(self) -> tuple[npt.NDArray[np.uint8], int, int]:
        """The piece that is being filled, the byte at which it begins, and how full it is."""
        number, fill = divmod(self._end - self._start, PIECE_BYTES)
        return self._pieces[number % 2], self._end - fill, fill

    def _wait(self) -> None:
        """Wait for the piece that is being written, if any."""
        for thread in self._threads:
            submit(thread, int).wait()  # a thread does one thing after the other
        if self._failed is not None:
            raise self._failure(self._failed) from self._failed

    def _write_rest(self) -> npt.NDArray[np.uint8]:
        """Write the piece that is not full, once the others are written; return its bytes."""
        self._wait()
        piece, at, fill = self._piece()
        self._write(piece[: whole_pages(fill)], at)
        return piece[:fill]

    def _write_full(self, piece: npt.NDArray[np.uint8], at: int) -> None:
        try:
            self._write(piece, at)
            if self._unsynced >= _SYNCED_BYTES:
                self._sync()
        except OSError as error:
            self._failed = self._failed or error

    def _write(self, pages: npt.NDArray[np.uint8], at: int) -> None:
        self._file.write(pages.data, at)
        self._unsynced += 0 if self._file.direct else pages.size

    def _sync(self) -> None:
        os.fdatasync(self._file.fd)
        if not self._file.direct:
            self._file.drop()
        self._unsynced = 0

    def _failure(self, error: OSError) -> Exception:
        self._failed = self._failed or error
        if self._named is not None:
            return self._named(error)
        return write_failure(self._path, error, self._nbytes)
