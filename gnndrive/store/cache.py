"""What is kept in a store's folder beside the store, because it takes long to find again.

Opening and verifying a store ignore it, and the store's identity stays. A file that is missing,
damaged or of another store is made again; it may come from a stranger, so it is read as a store's
files are: disk.json (`calibration.py`), classes/ (`row_classes.py`), and what loaders drew to plan
their memory: traces/KEY.npy, which rows drawn batches need (`plan/sampled_trace.py`), and the sizes
of batches in batches.json (`plan/drawn.py`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.io.small_files import replace_file
from gnndrive.common.records import Int64Array
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.reader import Store

TRACES = "traces"
TRACE_NUMBERS_MAX = 1 << 22  # of an array
TRACES_MAX = 256  # the oldest are removed
BATCHES_JSON = "batches.json"
BATCHES_MAX = 64  # the oldest entries are dropped
_TRACE = re.compile(r"[0-9a-f]{32}\.npy")
_BATCHES_VERSION = 1
_BATCHES_BYTES_MAX = 1 << 20
_DIGEST_BYTES = 32


def load_json(store: Store, file: str, nbytes_max: int) -> dict[str, Any] | None:
    """Read a file with a JSON object; None: it is not there.

    Raises:
        StoreError, ValueError, RecursionError: it is damaged.
    """
    if not os.path.lexists(store.path / file):
        return None
    content = read_plain(store.path, file, nbytes_max + 1)
    if len(content) > nbytes_max:
        raise ValueError("it is too large")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def save_json(store: Store, file: str, content: Any) -> None:
    """Write a file of JSON, whole or not at all; OSError: the folder cannot be written to."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    replace_file(store.path / file, lambda opened: opened.write(text.encode()), 0o644)


def load_array(
    store: Store, file: str, dtype: str, count_max: int, identity: str
) -> npt.NDArray[Any] | None:
    """Read an array of one dimension, of `count_max` elements at most, that was saved with this
    `identity`; None: there is none, or it is damaged."""
    try:
        with os.fdopen(open_plain(store.path, file), "rb") as opened:
            nbytes = os.fstat(opened.fileno()).st_size - DATA_OFFSET - _DIGEST_BYTES
            count, rest = divmod(nbytes, np.dtype(dtype).itemsize)
            if rest or not 0 <= count <= count_max:
                return None
            if opened.read(DATA_OFFSET) != _header(dtype, count):
                return None
            array = np.empty(count, dtype)
            opened.readinto(array.data.cast("B"))
            digest = opened.read(_DIGEST_BYTES)
    except (OSError, StoreError):
        return None
    return array if digest == _digest(array, identity) else None


def save_array(store: Store, file: str, array: npt.NDArray[Any], identity: str) -> None:
    """Write an array of one dimension, in a folder that is made if it is not there; `identity` is a
    text that identifies what it depends on.

    Raises:
        OSError: the folder cannot be written to, or a link is in its place.
    """

    def write(opened: BinaryIO) -> None:
        opened.write(_header(array.dtype.name, len(array)))
        opened.write(np.ascontiguousarray(array).data)
        opened.write(_digest(array, identity))

    for folder in [*reversed(Path(file).parents)][1:]:
        make_folder(store.path / folder)
    replace_file(store.path / file, write, 0o644)


def make_folder(folder: Path) -> None:
    """Make a folder if it is not there; OSError: it cannot be made, or a link or a file is in its
    place."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not stat.S_ISDIR(os.lstat(folder).st_mode):  # a stranger's store may have a link there
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(folder))


def _header(dtype: str, count: int) -> bytes:
    return npy_header(ArrayInfo("kept", dtype, (count,), ""))


def _digest(array: npt.NDArray[Any], identity: str) -> bytes:
    digest = sha256(identity.encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


# ---- of loaders


def load_trace(store: Store, key: str) -> Int64Array | None:
    """The array that was kept under `key`, int64 [n]; None: there is none, or it is damaged."""
    return load_array(store, f"{TRACES}/{key}.npy", "int64", TRACE_NUMBERS_MAX, key)


def save_trace(store: Store, key: str, numbers: Int64Array) -> None:
    """Keep an array, int64 [n], of `TRACE_NUMBERS_MAX` at most. A folder that cannot be written to,
    and a link in its place, is left as it is: the next process draws again."""
    if len(numbers) > TRACE_NUMBERS_MAX:
        return
    with contextlib.suppress(OSError):
        save_array(store, f"{TRACES}/{key}.npy", numbers, key)
        for old in _oldest_first(store.path / TRACES)[:-TRACES_MAX]:
            old.unlink()


def _oldest_first(folder: Path) -> list[Path]:
    """The traces of a folder; other files that lie there are no business of ours."""
    found = []
    for path in folder.iterdir():
        status = path.lstat()
        if _TRACE.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(found)]


_of_process: dict[str, Any] = {}  # entries by key, for stores whose folder cannot be written to


def entry_key(store: Store, settings: str) -> str:
    """The key of an entry: a checksum of the store's identity and the loader's settings."""
    return sha256(f"{store.identity}\n{settings}".encode()).hexdigest()[:32]


def load_entry(store: Store, key: str) -> Any:
    """An entry of this process or of batches.json; None: there is none, or the file is damaged."""
    return _of_process[key] if key in _of_process else _read(store).get(key)


def save_entry(store: Store, key: str, entry: Any) -> None:
    """Keep an entry, which JSON can hold, in this process and in batches.json.

    A folder that cannot be written to is left as it is. If two processes write at the same time,
    one entry may be lost and is then drawn again.
    """
    _of_process.pop(key, None)
    _of_process[key] = entry
    while len(_of_process) > BATCHES_MAX:
        del _of_process[next(iter(_of_process))]
    entries = {name: each for name, each in _read(store).items() if name != key} | {key: entry}
    kept = dict(list(entries.items())[-BATCHES_MAX:])
    with contextlib.suppress(OSError):
        save_json(store, BATCHES_JSON, {"format": _BATCHES_VERSION, "batches": kept})


def _read(store: Store) -> dict[str, Any]:
    """The entries of batches.json, by key; {} if it is missing or damaged."""
    try:
        stored = load_json(store, BATCHES_JSON, _BATCHES_BYTES_MAX) or {}
        return dict(stored["batches"]) if stored["format"] == _BATCHES_VERSION else {}
    except (StoreError, ValueError, KeyError, TypeError, RecursionError):
        return {}
