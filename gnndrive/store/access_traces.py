"""traces/KEY.npy in a store's folder: which rows drawn batches need, to predict what is loaded.

See `cache.py`; `plan/sampled_trace.py` knows what an array holds.
"""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

from gnndrive.common.records import Int64Array
from gnndrive.store.cache import load_array, save_array
from gnndrive.store.reader import Store

FOLDER = "traces"
NUMBERS_MAX = 1 << 22  # of an array
FILES_MAX = 256  # the oldest are removed
_NAME = re.compile(r"[0-9a-f]{32}\.npy")


def load_trace(store: Store, key: str) -> Int64Array | None:
    """The array that was kept under `key`, int64 [n]; None: there is none, or it is damaged."""
    return load_array(store, f"{FOLDER}/{key}.npy", "int64", NUMBERS_MAX, key)


def save_trace(store: Store, key: str, numbers: Int64Array) -> None:
    """Keep an array, int64 [n]; none longer than `NUMBERS_MAX`. A folder that cannot be written
    to, and a link in its place, is left as it is: the next process draws again."""
    if len(numbers) > NUMBERS_MAX:
        return
    with contextlib.suppress(OSError):
        save_array(store, f"{FOLDER}/{key}.npy", numbers, key)
        for old in _oldest_first(store.path / FOLDER)[:-FILES_MAX]:
            old.unlink()


def _oldest_first(folder: Path) -> list[Path]:
    """The traces of a folder; other files that lie there are no business of ours."""
    found = []
    for path in folder.iterdir():
        status = path.lstat()
        if _NAME.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(found)]
