"""Hidden states on disk: plain .npy files in the form of a store's, written once in order.

`sync` makes what was written durable, so that the record of progress (progress.py) may count it; a
computation that was killed goes on from there, and writes the same bytes again behind it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import torch

from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import TableFile
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header


class HiddenWriter:
    """Writes the rows of one array in order.

    Args:
        folder: the folder that the array's file is relative to.
        done: rows that are in the file already, from an earlier process; 0: the file is new.
        checksum: whether to compute the file's checksum.

    Attributes:
        done: rows that `sync` has made durable.

    Raises:
        StoreError: the disk has no room for the file, or fails.
    """

    def __init__(self, folder: Path, info: ArrayInfo, done: int, checksum: bool) -> None:
        self.info, self.done, self._rows = info, done, done
        path = folder / info.file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(path, error) from error
        written = DATA_OFFSET + done * info.row_bytes if done else 0
        self._file = DirectWriter(path, written, info.nbytes, checksum=checksum)
        if not done:
            self._file.append(npy_header(info))

    def write(self, rows: torch.Tensor) -> None:
        """Write the next rows, [n, *row] on the host in the array's dtype.

        Raises:
            StoreError: the disk is full, or fails.
        """
        if rows.numel():
            self._file.append(rows.contiguous().view(torch.uint8).numpy())
        self._rows += len(rows)

    def sync(self) -> None:
        """Make all rows that were written durable.

        Raises:
            StoreError: as for `write`.
        """
        self._file.sync()
        self.done = self._rows

    def finish(self) -> ArrayInfo:
        """End the file after its last row; returns the array, with its checksum if asked for.

        Raises:
            StoreError: as for `write`.
        """
        assert self._rows == self.info.shape[0]
        return replace(self.info, sha256=self._file.finish())

    def close(self) -> None:
        """Wait for a write under way and close the file. Idempotent."""
        self._file.close()


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
