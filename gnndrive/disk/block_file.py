"""`BlockFile`: a file of equal blocks of rows that are written once, read, and used again.

An engine carries out its writes as it does reads: many at once, past the page cache, each block
from its own buffer. A block is what is written and used again; rows are read one by one, in any
order. Nothing is durable: the file has no name, so the kernel frees it whatever ends the process.

The caller's part: a buffer stays as it is until its write has ended; a block is read when it has
landed, and written again when all reads of it have ended. When not to use it: for files that stay
(`common/io/direct_writer.py`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, reserve, unnamed_file
from gnndrive.common.io.write_errors import FULL, disk_full
from gnndrive.common.limits import refusal
from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.disk.read_job import ReadJob

_ANOTHER = "give another folder with folder="


class BlockFile:
    """See the module. On a file system without O_DIRECT it reads and writes through the page cache,
    after one warning, as layouts do.

    Args:
        folder: where the file is made; it gets no name there.
        row_bytes, block_rows: a block has so many rows of so many bytes, whole pages in all.
        gap_bytes_max: see `LayoutContext`.

    Attributes:
        block_bytes: bytes of a block.
        blocks: how many the file has.
    """

    def __init__(
        self, folder: Path, row_bytes: int, block_rows: int, gap_bytes_max: int = 0
    ) -> None:
        self.blocks, self.block_bytes = 0, row_bytes * block_rows
        if self.block_bytes % PAGE_BYTES:
            raise ValueError(f"a block of {self.block_bytes:,} bytes is not of whole pages")
        self._folder, self._block_rows, path = folder, block_rows, str(folder)
        rows = TableFile(path, 0, 0, row_bytes, "uint8", (row_bytes,))
        blocks = TableFile(path, 0, 0, self.block_bytes, "uint8", (self.block_bytes,))
        try:
            file = unnamed_file(folder)
        except OSError as error:
            raise refusal(error.errno or 0) or StoreError(
                f"no file for rows can be made in {path} ({error.strerror}): {_ANOTHER}"
            ) from error
        try:
            self._rows = RowsFile(rows, SWEEP_BLOCK_BYTES, gap_bytes_max, fd=file.fd)
            self._written = RowsFile(
                blocks, self.block_bytes, direct=self._rows.direct, write=True, fd=file.fd
            )
        finally:
            file.close()

    def grow(self, blocks: int) -> None:
        """Have space for so many blocks in all; fewer than there are change nothing. Blocks the
        thread. StoreError: the disk is too full for them, or fails, and there are as many as
        before."""
        if blocks <= self.blocks:
            return
        have, fd = self.blocks * self.block_bytes, self._written.fd
        needed = blocks * self.block_bytes - have
        try:
            reserve(fd, have, needed)
        except OSError as error:
            os.ftruncate(fd, have)  # give back what was found before the disk was full
            raise self.write_error(error.errno or 0, needed) from error
        self.blocks = blocks
        self._rows.file = replace(self._rows.file, row_count=blocks * self._block_rows)
        self._written.file = replace(self._written.file, row_count=blocks)

    def writes(self, blocks: Int64Array, buffers: Int32Array, memory: Bytes) -> ReadJob:
        """Plan writes for `Engine.read`; in its stretches a slot is a buffer whose write has ended.

        Args:
            blocks: block numbers, int64 [n], each once.
            buffers: the buffer that each is written from, int32 [n].
            memory: all buffers, uint8 [buffers, block_bytes], which start on a page.
        """
        if memory.shape[1:] != (self.block_bytes,) or not memory.flags.c_contiguous:
            raise ValueError(f"buffers {memory.shape} must be [n, {self.block_bytes}]")
        if buffers.max(initial=-1) >= len(memory):
            raise ValueError(f"buffer {buffers.max()} of {len(memory)}")
        landing = Landing(memory.ctypes.data, self.block_bytes, True, memory)
        return self._written.locate(blocks, buffers, landing)

    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> ReadJob:
        """Plan reads of rows, as `Layout.locate` does; row `r` of block `b` has the number
        `b * block_rows + r`. No read is longer than `SWEEP_BLOCK_BYTES`, unless a row is."""
        return self._rows.locate(rows, places, landing)

    def write_error(self, code: int, needed: int = 0) -> StoreError:
        """What the error number of a failed write tells the user; `needed` as `disk_full` has it,
        0: one block."""
        if code in FULL:
            return disk_full(self._folder, needed or self.block_bytes, _ANOTHER)
        return StoreError(
            f"writing rows in {self._folder} failed ({os.strerror(code)}): check the disk, or "
            f"{_ANOTHER}"
        )

    def close(self) -> None:
        """Free the file and everything in it, once no request is under way. Idempotent."""
        self._rows.close()
        self._written.close()
