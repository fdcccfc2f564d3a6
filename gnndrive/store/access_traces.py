"""traces/KEY.npy in a store's folder: which rows drawn batches need, to predict what is loaded.

Like batches.json it describes batches, not the data: opening and verifying a store ignore the
folder, and a file that is damaged is treated as missing, because its content can be drawn again.
`plan/sampled_trace.py` knows what an array holds.
"""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO

import numpy as np

from gnndrive.common.atomic_files import replace_file
from gnndrive.common.errors import StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.files import open_plain
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.reader import Store

FOLDER = "traces"
NUMBERS_MAX = 1 << 22  # of an array
FILES_MAX = 32  # the oldest are removed


def load_trace(store: Store, key: str) -> Int64Array | None:
    """The array that was kept under `key`, int64 [n]; None: there is none, or it is damaged."""
    file = f"{FOLDER}/{key}.npy"
    if not os.path.lexists(store.path / file):
        return None
    try:
        with os.fdopen(open_plain(store.path, file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            count = (size - len(_header(0))) // 8
            if not 0 < count <= NUMBERS_MAX or opened.read(len(_header(count))) != _header(count):
                return None
            numbers = np.empty(count, np.int64)
            if opened.readinto(numbers.data) != numbers.nbytes or opened.read(1):
                return None
    except (OSError, StoreError):
        return None
    return numbers


def save_trace(store: Store, key: str, numbers: Int64Array) -> None:
    """Keep an array, int64 [n] with n at most `NUMBERS_MAX`. A folder that cannot be written to is
    left as it is: the next process draws again."""
    folder = store.path / FOLDER

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o644)
        file.write(_header(len(numbers)))
        file.write(np.ascontiguousarray(numbers).data)

    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        replace_file(folder / f"{key}.npy", write)
        kept = sorted(folder.glob("*.npy"), key=lambda path: path.lstat().st_mtime_ns)
        for old in kept[:-FILES_MAX]:
            old.unlink()


def _header(count: int) -> bytes:
    return npy_header(ArrayInfo("rows", "int64", (count,), ""))
