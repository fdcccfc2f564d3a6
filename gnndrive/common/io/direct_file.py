"""`DirectFile`: a file whose whole pages are read and written past the page cache.

`DirectReader` reads long stretches of one; `direct_writer.py` writes one in order. Each blocks and
has one request in flight: for scattered rows use a layout and an engine.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.limits import refusal

STRETCH_BYTES = 4 << 20  # long enough for the disk's full bandwidth
PAGE_BYTES = 4096  # no device requires a larger alignment

Bytes = npt.NDArray[np.uint8]


def whole_pages(nbytes: int) -> int:
    """`nbytes`, rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def page_buffer(nbytes: int) -> Bytes:
    """Memory of whole pages for long reads or writes, which starts on a page."""
    return np.frombuffer(private_map(whole_pages(nbytes), huge=True), np.uint8)


class DirectFile:
    """An open file that several threads may use at once.

    If the file system refuses O_DIRECT, when the file is opened or at a request, it goes on through
    the page cache, and tells the kernel to drop what it read. With O_TMPFILE in `flags`, `path` is
    the folder in which a file without a name is made.

    Attributes:
        fd: the descriptor, which stays the same; -1: closed.
        direct: whether it has O_DIRECT.
    """

    def __init__(
        self, path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666
    ) -> None:
        self._reopening = threading.Lock()
        self.fd = -1
        flags |= os.O_CLOEXEC
        try:
            self.fd, self.direct = os.open(path, flags | os.O_DIRECT, mode), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.fd, self.direct = os.open(path, flags, mode), False
        self._access = flags & os.O_ACCMODE

    def read(self, memory: memoryview, offset: int, length: int) -> int:
        """Read at least `length` bytes at `offset`, a multiple of `PAGE_BYTES`, or until the file
        ends, into `memory`, whole pages; return how many were read."""
        done = 0
        while done < length:
            direct = self.direct  # another thread may reopen the file meanwhile
            try:
                got = os.preadv(self.fd, [memory[done:]], offset + done)
            except OSError as error:
                self._reopen_after(error, direct)
                continue
            if not got:
                break
            done += got
        if not self.direct:
            self.drop(offset, done)
        return done

    def write(self, memory: memoryview, offset: int) -> None:
        """Write all of `memory`, whole pages, at `offset`, a multiple of `PAGE_BYTES`."""
        done = 0
        while done < len(memory):
            direct = self.direct
            try:
                done += os.pwrite(self.fd, memory[done:], offset + done)
            except OSError as error:
                self._reopen_after(error, direct)

    def drop(self, offset: int = 0, length: int = 0) -> None:
        """Tell the kernel to drop clean pages of the file; `length` 0: to its end."""
        os.posix_fadvise(self.fd, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _reopen_after(self, error: OSError, direct: bool) -> None:
        """Go on without O_DIRECT if the file system accepts the flag, but refuses the request."""
        if error.errno != errno.EINVAL or not direct:
            raise error
        with self._reopening:
            if self.direct:
                flags = self._access | os.O_CLOEXEC
                buffered = os.open(f"/proc/self/fd/{self.fd}", flags)
                os.dup2(buffered, self.fd, inheritable=False)
                os.close(buffered)
                self.direct = False


def unnamed_file(folder: str | os.PathLike[str]) -> DirectFile:
    """Make a file without a name in `folder`: the kernel frees it when the process ends, whatever
    ends it."""
    try:
        return DirectFile(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    fd, path = tempfile.mkstemp(prefix=".unnamed-", dir=folder)  # no unnamed files there
    try:
        return DirectFile(path, os.O_RDWR)
    finally:
        os.close(fd)
        os.unlink(path)


def reserve(fd: int, offset: int, length: int) -> None:
    """Have space for bytes of a file, if its file system can do that: else libc would write into
    each block instead, which O_DIRECT refuses, and a disk that is full is an error of the write."""
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise


class DirectReader:
    """A file of a store that is read in long stretches. A context manager. `mend` says what to do
    if it became shorter, for errors."""

    def __init__(
        self, path: str | os.PathLike[str], mend: str = "copy or import the store again"
    ) -> None:
        self.path, self._mend, self._stopped = os.fspath(path), mend, False
        try:
            self._file = DirectFile(path)
        except OSError as error:
            raise refusal(error.errno or 0) or StoreError(
                f"{self.path} cannot be opened: {error.strerror}; check the store (gnndrive verify)"
            ) from error

    def __enter__(self) -> DirectReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def stop(self) -> None:
        """Have a `read` in another thread end after its current stretch."""
        self._stopped = True

    def read(self, offset: int, length: int, buffer: Bytes) -> Bytes:
        """Read `length` bytes at any byte of the file; return a view of `buffer`, which is of
        `page_buffer`: at least `length` bytes, and two pages more unless `offset` is on a page."""
        lead = offset % PAGE_BYTES
        start, end = offset - lead, offset + length
        with buffer.data as memory:
            for at in range(start, end, STRETCH_BYTES):
                if self._stopped:
                    break
                stretch, place = min(STRETCH_BYTES, end - at), at - start
                try:
                    pages = memory[place : place + whole_pages(stretch)]
                    got = self._file.read(pages, at, stretch)
                except OSError as error:
                    raise ReadError(self.path, at, error.errno or 0) from error
                if got < stretch:
                    raise StoreError(f"{self.path} became shorter: {self._mend}")
        return buffer[lead : lead + length]


def hash_file(
    path: str | os.PathLike[str], nbytes: int, each: Callable[[int, Bytes], None] | None = None
) -> str:
    """Return the SHA-256 of the first `nbytes` of a file as "sha256:" and 64 hexadecimal digits.

    `each` is called as each(offset, content) with its stretches, in order; the first is one page,
    the header of an array.
    """
    digest, buffer = hashlib.sha256(), page_buffer(STRETCH_BYTES)
    with DirectReader(path) as reader:
        at, step = 0, PAGE_BYTES
        while at < nbytes:
            content = reader.read(at, min(step, nbytes - at), buffer)
            digest.update(content.data)
            if each is not None:
                each(at, content)
            at, step = at + step, STRETCH_BYTES
    return f"sha256:{digest.hexdigest()}"
