"""traces/KEY.npy in a store's folder: which rows drawn batches need, to predict what is loaded.

Like batches.json it describes batches, not the data: opening and verifying a store ignore the
folder, and a file that is damaged is treated as missing, because its content can be drawn again.
`plan/sampled_trace.py` knows what an array holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gnndrive.common.errors import StoreError
from gnndrive.common.io.small_files import replace_file
from gnndrive.common.records import Int64Array
from gnndrive.store.files import open_plain
from gnndrive.store.format import ArrayInfo, npy_header
from gnndrive.store.reader import Store

FOLDER = "traces"
NUMBERS_MAX = 1 << 22  # of an array
FILES_MAX = 256  # the oldest are removed
_NAME = re.compile(r"[0-9a-f]{32}\.npy")


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
    """Keep an array, int64 [n]; none longer than `NUMBERS_MAX`. A folder that cannot be written
    to, and a link in its place, is left as it is: the next process draws again."""
    folder = store.path / FOLDER
    if len(numbers) > NUMBERS_MAX:
        return

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o644)
        file.write(_header(len(numbers)))
        file.write(np.ascontiguousarray(numbers).data)

    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        if not stat.S_ISDIR(folder.lstat().st_mode):  # a stranger's store may have a link there
            return
        replace_file(folder / f"{key}.npy", write)
        for old in _oldest_first(folder)[:-FILES_MAX]:
            old.unlink()


def _oldest_first(folder: Path) -> list[Path]:
    """The traces of a folder; other files that lie there are no business of ours."""
    found = []
    for path in folder.iterdir():
        status = path.lstat()
        if _NAME.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _header(count: int) -> bytes:
    return npy_header(ArrayInfo("rows", "int64", (count,), ""))
