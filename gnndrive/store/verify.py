"""Read a whole store and check it against store.json: every checksum, every index, every edge id.

The store is read once, and edge ids once more for every 256 Mi edges; memory stays under 300 MB.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.store.checks import check_for, finite_rows_of
from gnndrive.store.files import open_plain, read_at_most
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, Progress, StoreInfo

_BLOCK_BYTES = 8 << 20
_SEEN_MAX = 1 << 28


def verify(folder: Path, info: StoreInfo, progress: Progress | None = None) -> None:
    """Check a whole store.

    Args:
        folder: the store's folder.
        info: the content of its store.json.
        progress: called as progress("verify", bytes done, bytes in all).

    Warns:
        UserWarning: rows of features hold nan or infinity, which a store may have.

    Raises:
        StoreError: the store is damaged; the message names the first file that is.
    """
    done = 0
    for array in info.arrays.values():
        path = str(folder / array.file)
        check = check_for(array.name, path, info.types)
        finite_rows = finite_rows_of(array, info.types)
        digest = hashlib.sha256()
        size = 0
        for block in _blocks(folder, array):
            digest.update(block)
            if size:  # the first block is the header
                for each in (check, finite_rows):
                    if each is not None:
                        each.feed(np.frombuffer(block, array.storage))
            size += len(block)
            done += len(block)
            if progress is not None:
                progress("verify", done, info.nbytes)
        if check is not None:
            check.finish()
        if digest.hexdigest() != array.sha256:
            raise StoreError(
                f"{path} has another checksum than store.json says: its content has changed; "
                "copy the store again from where it came, or import it again"
            )
        if finite_rows is not None and finite_rows.remark is not None:
            warnings.warn(f"{finite_rows.remark}; the store is sound", stacklevel=3)
    for array in info.arrays.values():
        place = info.types.place(array.name)
        if (place.group, place.leaf) == ("graph", "edge_id"):
            _check_permutation(folder, array)


def _blocks(folder: Path, array: ArrayInfo) -> Iterator[bytes]:
    """Read the header, then the data in blocks of whole elements."""
    path = folder / array.file
    fd = open_plain(folder, array.file)
    try:
        left = array.nbytes
        size = os.fstat(fd).st_size
        for length in (DATA_OFFSET, *([_BLOCK_BYTES] * (left // _BLOCK_BYTES + 1))):
            if left <= 0:
                break
            block = read_at_most(fd, min(length, left))
            if len(block) < min(length, left):
                size = left = -1
                break
            left -= len(block)
            yield block
    except OSError as error:
        raise StoreError(f"reading {path} failed ({error.strerror}): check the disk") from error
    finally:
        os.close(fd)
    if size != array.nbytes:
        raise StoreError(
            f"{path} does not have {array.nbytes} bytes: copy or import the store again"
        )


def _check_permutation(folder: Path, array: ArrayInfo) -> None:
    """Check that each edge id occurs once; all are known to be in range."""
    edges = array.shape[0]
    for first in range(0, edges, _SEEN_MAX):
        seen = np.zeros(min(_SEEN_MAX, edges - first), np.bool_)
        for number, block in enumerate(_blocks(folder, array)):
            if number:
                ids: npt.NDArray[Any] = np.frombuffer(block, array.storage).astype(np.int64) - first
                seen[ids[(ids >= 0) & (ids < len(seen))]] = True
        if not seen.all():
            missing = first + int(np.flatnonzero(~seen)[0])
            raise StoreError(
                f"{folder / array.file}: edge {missing} does not occur, so another occurs twice; "
                "import the store again"
            )
