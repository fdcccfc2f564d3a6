"""What is kept in a store's folder beside the store, because it takes long to find again.

Opening and verifying a store ignore it, and the store's identity stays. A file that is missing,
damaged or of another store is made again; it may come from a stranger, so it is read as a store's
files are. Used by `row_classes.py`, `access_traces.py`, `batch_sizes.py` and `calibration.py`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.io.small_files import replace_file
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header

if TYPE_CHECKING:
    from gnndrive.store.reader import Store

_DIGEST_BYTES = 32


def load_json(store: Store, file: str, nbytes_max: int) -> dict[str, Any] | None:
    """Read a file with a JSON object; None: it is not there.

    Raises:
        OSError, StoreError, ValueError, RecursionError: it is damaged.
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
    """Write a file of JSON, whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    _write(store.path / file, lambda opened: opened.write(text.encode()))


def load_array(
    store: Store, file: str, dtype: str, count_max: int, identity: str
) -> npt.NDArray[Any] | None:
    """Read an array of one dimension; None: there is none of this identity, or it is damaged.

    Args:
        store, file: where it lies.
        dtype: that of its elements.
        count_max: how many elements it may have.
        identity: what `save_array` got.
    """
    if not os.path.lexists(store.path / file):
        return None
    try:
        with os.fdopen(open_plain(store.path, file), "rb") as opened:
            nbytes = os.fstat(opened.fileno()).st_size - DATA_OFFSET - _DIGEST_BYTES
            count, rest = divmod(nbytes, np.dtype(dtype).itemsize)
            if rest or not 0 <= count <= count_max:
                return None
            if opened.read(DATA_OFFSET) != _header(dtype, count):
                return None
            array = np.empty(count, dtype)
            if opened.readinto(array.data.cast("B")) != array.nbytes:
                return None
            digest = opened.read(_DIGEST_BYTES)
    except (OSError, StoreError):
        return None
    return array if digest == _digest(array, identity) else None


def save_array(store: Store, file: str, array: npt.NDArray[Any], identity: str) -> None:
    """Write an array of one dimension, in a folder that is made if it is not there.

    Args:
        store: the store.
        file: the file, relative to the store's folder.
        array: the array.
        identity: a text that identifies what it depends on.

    Raises:
        OSError: the folder cannot be written to, or a link is in its place.
    """

    def write(opened: BinaryIO) -> None:
        opened.write(_header(array.dtype.name, len(array)))
        opened.write(np.ascontiguousarray(array).data)
        opened.write(_digest(array, identity))

    path = store.path / file
    for folder in [*reversed(Path(file).parents)][1:]:
        make_folder(store.path / folder)
    _write(path, write)


def make_folder(folder: Path) -> None:
    """Make a folder if it is not there.

    Raises:
        OSError: it cannot be made, or a link or a file is in its place.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not stat.S_ISDIR(os.lstat(folder).st_mode):  # a stranger's store may have a link there
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(folder))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    def write_for_all(opened: BinaryIO) -> None:
        os.fchmod(opened.fileno(), 0o644)
        write(opened)

    replace_file(path, write_for_all)


def _header(dtype: str, count: int) -> bytes:
    return npy_header(ArrayInfo("kept", dtype, (count,), ""))


def _digest(array: npt.NDArray[Any], identity: str) -> bytes:
    digest = sha256(identity.encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
