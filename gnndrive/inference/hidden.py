"""Hidden states on disk: plain .npy files in the form of a store's, written once in order.

Rows are written past the page cache, in large pieces by a thread of its own, because a page cache
full of them would take the memory that rows in use need. `sync` makes what was written durable, so
that the record of progress (progress.py) may count it; a computation that was killed goes on from
there, and writes the same bytes again behind it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gnndrive.common.array_pool import private_map
from gnndrive.common.direct_file import PAGE_BYTES, whole_pages
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import format_size
from gnndrive.common.records import TableFile
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header

PIECE_BYTES = 4 << 20  # long enough for the disk's full bandwidth
WRITER_BYTES = 2 * PIECE_BYTES  # one piece is filled while another is written


class HiddenWriter:
    """Writes the rows of one array in order.

    Args:
        folder: the folder that the array's file is relative to.
        info: the array.
        done: rows that are in the file already, from an earlier process; 0: the file is new.
        checksum: whether to compute the file's checksum.

    Attributes:
        info: the array.
        done: rows that `sync` has made durable.

    Raises:
        StoreError: the disk has no room for the file, or fails.
    """

    def __init__(self, folder: Path, info: ArrayInfo, done: int, checksum: bool) -> None:
        self.info, self.done = info, done
        self._path, self._rows = folder / info.file, done
        self._digest = hashlib.sha256() if checksum else None
        self._pieces = [private_map(PIECE_BYTES, huge=True) for _ in range(2)]
        self._start = self._end = 0  # bytes of the file: pieces begin at _start, filled up to _end
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gnndrive-write")
        self._failed: OSError | None = None  # the first failure: nothing is durable after it
        self._fd, self._direct = -1, True
        try:
            self._open(new=done == 0)
            if done:
                self._recall(DATA_OFFSET + done * info.row_bytes)
            else:
                self._put(memoryview(npy_header(info)))
        except OSError as error:
            self.close()
            raise self._failure(error) from error
        except BaseException:
            self.close()
            raise

    def write(self, rows: torch.Tensor) -> None:
        """Write the next rows, [n, *row] on the host in the array's dtype.

        Raises:
            StoreError: the disk is full, or fails.
        """
        if rows.numel():
            try:
                self._put(rows.contiguous().view(torch.uint8).reshape(-1).numpy().data)
            except OSError as error:
                raise self._failure(error) from error
        self._rows += len(rows)

    def sync(self) -> None:
        """Make all rows that were written durable.

        Raises:
            StoreError: as for `write`.
        """
        try:
            self._wait()
            piece, at, fill = self._piece()
            self._write(piece, at, whole_pages(fill))
            os.fdatasync(self._fd)
            if not self._direct:
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._failure(error) from error
        self.done = self._rows

    def finish(self) -> ArrayInfo:
        """End the file after its last row; returns the array, with its checksum if asked for.

        Raises:
            StoreError: as for `write`.
        """
        assert self._rows == self.info.shape[0]
        self.sync()
        if self._digest is not None:
            piece, _, fill = self._piece()
            self._digest.update(memoryview(piece)[:fill])
        try:
            os.ftruncate(self._fd, self.info.nbytes)
            os.fsync(self._fd)
        except OSError as error:
            raise self._failure(error) from error
        self.close()
        return replace(self.info, sha256=self._digest.hexdigest() if self._digest else "")

    def close(self) -> None:
        """Wait for a write under way and close the file. Idempotent."""
        self._thread.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, new: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if new else 0)
        try:
            self._fd = os.open(self._path, flags | os.O_DIRECT, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd, self._direct = os.open(self._path, flags, 0o666), False
        os.posix_fallocate(self._fd, 0, whole_pages(self.info.nbytes))

    def _recall(self, end: int) -> None:
        """Go on behind the bytes below `end`: read back the page that is not full, and all pages
        before it for the checksum."""
        whole = end // PAGE_BYTES * PAGE_BYTES
        if self._digest is not None:
            for start in range(0, whole, PIECE_BYTES):
                length = min(PIECE_BYTES, whole - start)
                self._read(start, length)
                self._digest.update(memoryview(self._pieces[0])[:length])
        if whole < end:
            self._read(whole, PAGE_BYTES)
        self._start, self._end = whole, end

    def _read(self, start: int, length: int) -> None:
        with memoryview(self._pieces[0]) as piece:
            if os.preadv(self._fd, [piece[:length]], start) < length:
                raise OSError(errno.EIO, "the file became shorter")

    def _piece(self) -> tuple[Any, int, int]:
        """The piece that is being filled, the byte at which it begins, and how full it is."""
        number, fill = divmod(self._end - self._start, PIECE_BYTES)
        return self._pieces[number % 2], self._end - fill, fill

    def _put(self, view: memoryview) -> None:
        """Add bytes to the piece, and have the thread write it when it is full.

        What was put ends at `_end`, which one assignment moves, behind all else: so an interruption
        at any place leaves the writer as it was, or as it is afterwards.
        """
        done = 0
        while done < len(view):
            piece, at, fill = self._piece()
            step = min(len(view) - done, PIECE_BYTES - fill)
            piece[fill : fill + step] = view[done : done + step]
            if fill + step == PIECE_BYTES:
                self._wait()
                self._thread.submit(self._write_full, piece, at)
            self._end += step
            done += step

    def _wait(self) -> None:
        """Wait for the piece that is being written, if any.

        Raises:
            OSError: the first failure of this writer, every time.
        """
        self._thread.submit(int).result()  # the thread does one thing after the other
        if self._failed is not None:
            raise self._failed

    def _write_full(self, piece: Any, at: int) -> None:
        try:
            self._write(piece, at, PIECE_BYTES)
        except OSError as error:
            self._failed = self._failed or error
        if self._digest is not None:
            self._digest.update(piece)

    def _write(self, piece: Any, at: int, length: int) -> None:
        """Write the first `length` bytes of a piece, whole pages, at byte `at`."""
        done = 0
        while done < length:
            with memoryview(piece) as memory:
                try:
                    done += os.pwrite(self._fd, memory[done:length], at + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._direct:
                        raise
                    self._reopen()

    def _reopen(self) -> None:
        """Reopen without O_DIRECT: the file system accepts the flag, but refuses these writes."""
        buffered = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd, self._direct = buffered, False

    def _failure(self, error: OSError) -> StoreError:
        self._failed = self._failed or error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreError(
                f"the disk is too full for {self._path}, which needs "
                f"{format_size(self.info.nbytes)}: free some, and run the same again; it goes on "
                "where it stopped"
            )
        return StoreError(
            f"writing {self._path} failed ({error.strerror or error}): check the disk, and run the "
            "same again; it goes on where it stopped"
        )


def table_file(folder: Path, info: ArrayInfo) -> TableFile:
    """Where the rows of a hidden state lie."""
    return TableFile(
        str(folder / info.file), DATA_OFFSET, info.shape[0], info.row_bytes, info.dtype,
        info.shape[1:],
    )  # fmt: skip


def remove(folder: Path, info: ArrayInfo) -> None:
    """Remove the file of a hidden state, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / info.file)
